import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.training.plan import longest_window, micro_batches, shares_of, steps

LENGTHS = np.array([5, 1300, 0, 64, 63, 200, 1])


def take(number, lengths=LENGTHS, window=64, letters=300, strands=True, seed=0):
    return list(itertools.islice(steps([lengths], window, letters, strands, seed), number))


def test_the_plan_is_a_function_of_its_arguments():
    assert take(30) == take(30)
    assert take(30)[7:] == list(itertools.islice(steps([LENGTHS], 64, 300, True, 0), 7, 30))
    assert take(30) != take(30, seed=1)


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=8).filter(any),
    window=st.integers(1, 90),
    letters=st.integers(1, 500),
    seed=st.integers(0, 9),
)
def test_every_step_reaches_its_letters_with_its_last_window(lengths, window, letters, seed):
    for step in take(6, np.array(lengths), window, letters, True, seed):
        sizes = [w.length for w in step]
        assert sum(sizes) >= letters > sum(sizes[:-1])
        for w in step:
            assert 0 < w.length <= window
            assert w.start >= 0
            assert w.start + w.length <= lengths[w.record]


def test_an_epoch_shows_every_record_without_overlap_from_a_new_place():
    pieces = list(itertools.chain.from_iterable(take(60)))
    epochs = [[w for w in pieces if w.epoch == epoch] for epoch in range(3)]
    for windows in epochs:
        count = Counter(w.record for w in windows)
        assert count == {0: 1, 1: 1300 // 64, 3: 1, 4: 1, 5: 3, 6: 1}
        letters = Counter((w.record, i) for w in windows for i in range(w.start, w.start + w.length))
        assert set(letters.values()) == {1}
    order = [[(w.record, w.start) for w in windows] for windows in epochs]
    assert order[0] != order[1]
    assert set(order[0]) != set(order[1]), "long records are cut from the same place in every epoch"
    assert [w.epoch for w in pieces] == sorted(w.epoch for w in pieces)


def test_strands_are_drawn_for_dna_alone():
    windows = list(itertools.chain.from_iterable(take(400)))
    reverse = np.mean([w.reverse for w in windows])
    assert abs(reverse - 0.5) < 4 * (0.25 / len(windows)) ** 0.5
    assert not any(w.reverse for step in take(50, strands=False) for w in step)


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=40), budget=st.integers(1, 400))
def test_micro_batches_keep_to_the_budget_and_lose_nothing(lengths, budget):
    groups = micro_batches(lengths, budget)
    assert sorted(itertools.chain.from_iterable(groups)) == list(range(len(lengths)))
    for group in groups:
        assert len(group) * max(lengths[i] for i in group) <= budget or len(group) == 1
    flat = [lengths[i] for group in groups for i in group]
    assert flat == sorted(lengths, reverse=True)


@pytest.mark.parametrize(("budget", "expected"), [(1, 4), (20, 3), (40, 2), (100, 1)])
def test_a_larger_budget_makes_fewer_groups(budget, expected):
    assert len(micro_batches([10, 20, 10, 10], budget)) == expected


def all_windows(number, *args, **options):
    return list(itertools.chain.from_iterable(itertools.islice(steps(*args, **options), number)))


def test_data_sets_are_read_in_their_shares_each_in_epochs_of_its_own():
    large, small = np.full(50, 64), np.full(4, 32)
    windows = all_windows(200, [large, small], 64, 300, False, 3, shares=(0.75, 0.25))
    letters = [sum(w.length for w in windows if (w.record >= 50) == late) for late in (False, True)]
    assert letters[1] / sum(letters) == pytest.approx(0.25, abs=64 / sum(letters))
    alone = all_windows(150, [large], 64, 300, False, 3)
    assert [w for w in windows if w.record < 50][: len(alone)] == alone
    ours = [w for w in windows if w.record >= 50]
    for epoch in range(10):
        assert sorted(w.record for w in ours if w.epoch == epoch) == [50, 51, 52, 53]


@pytest.mark.parametrize(("temperature", "ratio"), [(1, 10_000), (2, 100), (4, 10)])
def test_temperature_flattens_shares(temperature, ratio):
    shares = shares_of([1, 10_000], temperature)
    assert sum(shares) == pytest.approx(1, abs=1e-12)
    assert shares[1] / shares[0] == pytest.approx(ratio)


def test_windows_grow_to_their_length_and_show_the_same_letters():
    whole = all_windows(60, [LENGTHS], 64, 300, True, 0)
    grown = list(itertools.islice(steps([LENGTHS], 64, 300, True, 0, warmup=40), 60))
    assert [longest_window(step, 64, 40) for step in (0, 20, 39, 40, 60)] == [8, 36, 62, 64, 64]
    for number, step in enumerate(grown):
        assert max(w.length for w in step) <= longest_window(number, 64, 40)
    assert max(w.length for w in grown[0]) == 8
    assert min(w.length for w in grown[5] if w.length > 5) > 5

    def letters(windows):
        places = [(w, w.start + i) for w in windows for i in range(w.length)]
        return [(w.epoch, w.record, w.reverse, place) for w, place in places]

    shown = letters(itertools.chain.from_iterable(grown))
    assert shown == letters(whole)[: len(shown)]
