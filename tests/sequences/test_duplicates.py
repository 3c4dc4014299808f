"""Which rows say the same, against slow definitions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sequences.duplicates import conflicting, joined, numbered, repeated

NUMBERS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 3)
)


def test_equal_digests_get_equal_numbers():
    digests_N = np.array([b"b" * 16, b"a" * 16, b"b" * 16, b"c" * 16], "V16")
    assert numbered(digests_N).tolist() == [0, 1, 0, 2]
    assert numbered(digests_N[:0]).tolist() == []


@settings(deadline=None, max_examples=50)
@given(NUMBERS)
def test_conflicts_and_repeats(lists):
    sequence_N, label_N, split_N = map(np.array, lists)
    rows = list(zip(*lists, strict=True))
    conflict_N = [any(s == s2 and label != label2 for s2, label2, _ in rows) for s, label, _ in rows]
    assert conflicting(sequence_N, label_N).tolist() == conflict_N
    best = {}
    for i, (sequence, _, split) in enumerate(rows):
        if sequence not in best or split > rows[best[sequence]][2]:
            best[sequence] = i
    assert repeated(sequence_N, split_N).tolist() == [i not in best.values() for i in range(len(rows))]


@settings(deadline=None, max_examples=50)
@given(NUMBERS)
def test_groups_are_joined_until_nothing_is_shared(lists):
    group_N = joined([np.array(numbers) for numbers in lists])
    slow = list(range(len(group_N)))
    for _ in slow:
        for numbers in lists:
            slow = [
                min(slow[j] for j in range(len(slow)) if numbers[j] == numbers[i]) for i in range(len(slow))
            ]
    assert [[a == b for b in group_N] for a in group_N] == [[a == b for b in slow] for a in slow]
