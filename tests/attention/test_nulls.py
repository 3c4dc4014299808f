from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from pipeline.attention.nulls import matched_regions, permuted, shuffled, whole
from pipeline.keyed import generator
from pipeline.sequences.negatives import Positive, dinucleotide_shuffle, seeds

RNG = np.random.default_rng(0)
TEXTS = ["".join(RNG.choice(list("ACGT"), 81)) for _ in range(20)]


def test_shuffles_keep_pairs_and_do_not_depend_on_the_order():
    found = shuffled(TEXTS, 3)
    for old, new in zip(TEXTS, found, strict=True):
        assert new != old
        assert Counter(pairwise(new)) == Counter(pairwise(old))
    assert shuffled(TEXTS[::-1], 3) == found[::-1]
    assert shuffled(TEXTS, 3, 1)[0] != found[0] != shuffled(TEXTS, 4)[0]
    first, second = shuffled([TEXTS[0]] * 2, 3)
    assert first != second


def test_shuffles_are_not_the_negatives_of_the_same_seed():
    key = seeds([Positive(str(i), text) for i, text in enumerate(TEXTS)])
    negatives = [dinucleotide_shuffle(t, generator(3, *k, 0)) for t, k in zip(TEXTS, key, strict=True)]
    assert not set(negatives) & set(shuffled(TEXTS, 3))


def test_labels_are_in_any_order_equally_often():
    labels = np.array([True, True, False, False])
    orders = dict.fromkeys(combinations(range(4), 2), 0)
    for number in range(900):
        orders[tuple(np.flatnonzero(permuted(labels, 5, number)).tolist())] += 1
    assert chisquare(list(orders.values())).pvalue > 1e-3
    assert permuted(labels, 5, 7).tolist() == permuted(labels, 5, 7).tolist()
    assert labels.tolist() == [True, True, False, False]


REGIONS = st.lists(
    st.lists(st.integers(1, 9), max_size=8).map(
        lambda edges: [
            tuple(pair) for pair in np.cumsum(edges)[: len(edges) // 2 * 2].reshape(-1, 2).tolist()
        ]
    ),
    min_size=1,
    max_size=6,
)


@given(REGIONS, st.integers(0, 5))
@settings(max_examples=40)
def test_regions_are_as_many_and_as_long_and_inside(regions, seed):
    lengths = [max([5, *(stop for _, stop in each)]) for each in regions]
    drawn, overlapping = matched_regions(regions, lengths, seed)
    for old, new, length in zip(regions, drawn, lengths, strict=True):
        assert sorted(b - a for a, b in new) == sorted(b - a for a, b in old)
        assert all(0 <= a < b <= length for a, b in new)
        assert new == sorted(new)
    touching = sum(b > c for each in drawn for (_, b), (c, _) in pairwise(each))
    assert (overlapping > 0) == (touching > 0)
    assert (drawn, overlapping) == matched_regions(regions, lengths, seed)


def test_regions_lie_where_those_of_other_sequences_do():
    assert matched_regions([[(3, 9)], [(20, 26)]], [40, 40], 0)[0] == [[(20, 26)], [(3, 9)]]
    assert matched_regions([[(3, 9)], [(20, 23)]], [40, 24], 0)[0] == [[(18, 24)], [(4, 7)]]
    starts = RNG.choice([2, 11, 30, 31], 3000, p=[0.1, 0.4, 0.3, 0.2])
    regions = [[(int(s), int(s) + 8)] for s in starts]
    drawn, overlapping = matched_regions(regions, [40] * 3000, 1)
    found, expected = (Counter(each[0][0] for each in some) for some in (drawn, regions))
    assert overlapping == 0
    assert found.keys() == expected.keys()
    assert chisquare([found[s] for s in expected], list(expected.values())).pvalue > 1e-3
    own = sum(new == old for new, old in zip(drawn, regions, strict=True)) / 3000
    assert own == pytest.approx(0.1**2 + 0.4**2 + 0.3**2 + 0.2**2, abs=0.04)


def test_all_others_are_drawn_from_with_several_regions_a_sequence():
    """The own regions, in the middle of the list, are never drawn, all others equally often."""
    others = [[(0, 4), (10, 14)], [(20, 24)], [], [(30, 34)], [(40, 44)]]
    regions = [*others[:3], [(50, 54)], *others[3:]]
    starts = Counter(matched_regions(regions, [60] * 6, seed)[0][3][0][0] for seed in range(500))
    assert sorted(starts) == [0, 10, 20, 30, 40]
    assert chisquare(list(starts.values())).pvalue > 1e-3


def test_regions_that_cannot_but_overlap_are_counted():
    drawn, overlapping = matched_regions([[(0, 5), (5, 10)], [(0, 5)], []], [10, 10, 10], 0)
    assert drawn[0] == [(0, 5), (0, 5)]
    assert overlapping == 1


def test_regions_without_others_lie_anywhere():
    starts = [matched_regions([[(0, 3)], []], [8, 8], seed)[0][0][0][0] for seed in range(600)]
    counts = np.bincount(starts, minlength=6)
    assert len(counts) == 6
    assert chisquare(counts).pvalue > 1e-3


def test_whole_sequences():
    assert whole([5, 81]) == [[(0, 5)], [(0, 81)]]
