import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sequences.calls import (
    REACH,
    Axis,
    Calls,
    Comparison,
    Genes,
    Scored,
    against_starts,
    averaged,
    distances,
    downstream_agreement,
    false_calls,
    local_maxima,
    outside,
    shuffled,
    swapped,
    threshold_at,
    wilson,
)


def calls(*rows):
    position, strand, score = zip(*rows, strict=True) if rows else ((), (), ())
    return Calls(np.array(position, int), np.array(strand, int), np.array(score, float))


def slow_maxima(positions, scores, apart, length=None):
    """By the definition, place by place."""
    found = []
    for i, (at, score) in enumerate(zip(positions, scores, strict=True)):
        beaten = math.isnan(score)
        for j, (other, theirs) in enumerate(zip(positions, scores, strict=True)):
            for shift in (0,) if length is None else (-length, 0, length):
                far = other + shift - at
                near = (i != j or shift) and abs(far) <= apart
                beaten |= near and (theirs > score or (theirs == score and far < 0))
        if not beaten:
            found.append(i)
    return found


places = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0, math.nan])), max_size=25)


@given(places, st.integers(1, 12), st.booleans())
def test_local_maxima_are_those_of_the_definition(steps, apart, joined):
    positions = np.cumsum([step for step, _ in steps]).astype(int)
    scores = np.array([score for _, score in steps], float)
    length = int(positions[-1]) + 30 if joined and len(steps) else None
    found = local_maxima(positions, scores, apart, length)
    assert found.tolist() == slow_maxima(positions.tolist(), scores.tolist(), apart, length)


def test_a_plateau_is_one_call_and_two_calls_are_apart():
    every = np.arange(0, 200, 5)
    assert local_maxima(every, np.ones(40), 50).tolist() == [0]
    assert local_maxima(np.array([0, 50, 101]), np.array([1.0, 1.0, 1.0]), 50).tolist() == [0, 2]
    assert local_maxima(np.array([10, 95]), np.array([1.0, 2.0]), 20, length=100).tolist() == [1]


@given(st.lists(st.integers(0, 9), max_size=40), st.floats(0.01, 3), st.floats(0.5, 20))
def test_the_threshold_is_the_lowest_that_leaves_few_enough(scores, rate, kilobases):
    scores = np.array(scores, float)
    threshold = threshold_at(scores, kilobases, rate)
    assert (scores > threshold).sum() <= rate * kilobases + 1e-6
    lower = [s for s in scores if s < threshold]
    if threshold > -math.inf:
        assert (scores > max(lower, default=-1.0)).sum() > math.floor(rate * kilobases + 1e-9)


def test_false_calls_are_those_that_score_as_much():
    null = np.array([0.1, 0.5, 0.5, 0.9])
    assert false_calls(np.array([0.95, 0.9, 0.5, 0.2, 0.0]), null, 2.0).tolist() == [0, 0.5, 1.5, 1.5, 2]


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([1, -1])), max_size=15), st.integers(0, 9))
def test_distances_are_to_the_nearest_on_the_strand(sites, seed):
    rng = np.random.default_rng(seed)
    others, strands = rng.integers(0, 99, 6), rng.choice([1, -1], 6)
    at, strand = np.array([a for a, _ in sites], int), np.array([s for _, s in sites], int)
    expected = [
        min((abs(o - a) for o, t in zip(others, strands, strict=True) if t == s), default=math.inf)
        for a, s in sites
    ]
    assert distances(at, strand, others, strands).tolist() == expected


def test_wilson_is_the_formula():
    for n, total in ((0, 10), (7, 10), (300, 500)):
        z, p = 1.959963984540054, n / total
        middle = (p + z * z / (2 * total)) / (1 + z * z / total)
        half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total**2)) / (1 + z * z / total)
        assert wilson(n, total) == pytest.approx((middle - half, middle + half), abs=1e-12)
    assert wilson(0, 0) == (None, None)


def test_recall_counts_calls_on_the_strand_of_the_start():
    starts = calls((100, 1, 0), (500, 1, 0), (1000, -1, 0), (2000, -1, 0))
    ours = calls((110, 1, 3), (511, 1, 3), (1000, 1, 3), (1040, -1, 3), (2100, -1, 3), (3000, 1, 3))
    assert outside(ours, starts).tolist() == [False, False, True, False, False, True]
    figures = against_starts(ours, starts, 4.0)
    assert figures["found"] == 1
    assert figures["value"] == 0.25
    assert (figures["low"], figures["high"]) == wilson(1, 4)
    assert (figures["calls"], figures["starts"], figures["calls_per_kb"]) == (6, 4, 1.5)
    assert figures["outside_per_kb"] == 0.5
    assert figures["median_distance"] == np.median([10, 11, 40, 100])
    none = against_starts(calls(), starts, 4.0)
    assert (none["value"], none["median_distance"]) == (0, None)


def test_the_gene_downstream_begins_there_or_later():
    genes = Genes(np.array([100, 400, 900]), np.array([300, 600, 1000]), np.array([1, -1, 1]))
    table = [
        ((100, 1, 0), True),  # the gene that begins at the call
        ((101, 1, 0), False),  # the next one, on the other strand
        ((650, 1, 0), True),
        ((901, 1, 0), None),  # none
        ((599, -1, 0), True),  # the last base of the gene is the call
        ((598, -1, 0), False),  # the one to its left
        ((299, -1, 0), False),
        ((298, -1, 0), None),
        ((999 + REACH, -1, 0), False),
        ((1000 + REACH, -1, 0), None),
    ]
    for row, expected in table:
        figures = downstream_agreement(calls(row), genes)
        assert figures["without_gene"] == (expected is None)
        assert figures["value"] == (None if expected is None else float(expected)), row
    together = downstream_agreement(calls(*(row for row, _ in table)), genes)
    assert (together["agree"], together["calls"], together["without_gene"]) == (3, 7, 3)
    assert (together["low"], together["high"]) == wilson(3, 7)


def test_shuffled_calls_are_anywhere_between_genes():
    space = np.array([[10, 12], [50, 56]])
    many = calls(*((5, 1 if i % 2 else -1, i) for i in range(8000)))
    moved = shuffled(many, space, np.random.default_rng(0))
    counts = np.bincount(moved.position, minlength=60)
    assert set(np.flatnonzero(counts)) == {10, 11, *range(50, 56)}
    assert counts[counts > 0] == pytest.approx(1000, abs=120)
    assert (moved.strand == many.strand).all()
    assert (swapped(many).strand == -many.strand).all()


def test_records_share_an_axis_without_being_near_each_other():
    axis = Axis({"a": 10, "b": 5, "c": 7})
    assert axis.begin("a") == 0
    ends = np.array([axis.begin(n) + at for n in "abc" for at in (0, axis.lengths[n] - 1)])
    assert axis.places(ends) == [("a", 0), ("a", 9), ("b", 0), ("b", 4), ("c", 0), ("c", 6)]
    assert np.diff(ends)[1::2].min() > 2 * REACH - 1


def test_means_leave_out_what_is_not_known():
    assert averaged([{"a": 1, "b": None}, {"a": 2, "b": 4.0}, {"a": 3, "b": None}]) == {"a": 2.0, "b": 4.0}
    assert averaged([{"b": None}]) == {"b": None}


def test_a_comparison_has_the_same_figures_for_each_control():
    """A score that knows the starts against one that is the same everywhere."""
    starts = calls(*((1000 * i + 500, 1 if i % 2 else -1, 0) for i in range(20)))
    noise = calls(*((1000 * i + 100, 1, i / 100) for i in range(20)))
    good = Calls.join([Calls(starts.position + 3, starts.strand, np.full(20, 1.0)), noise])
    null = np.linspace(0, 0.5, 40)
    ours, flat = Scored(good, 20.0, null, 20.0), Scored(noise, 20.0, null, 20.0)
    comparison = Comparison(ours, {"flat": flat}, np.array([[0, 20_000]]), np.random.default_rng(0))
    found = comparison.recall(starts)
    assert set(found) == {
        f"recall_at_{rate}_{what}_per_kb"
        for rate in ("0.1", "1")
        for what in ("false_calls", "calls_outside")
    }
    strict = found["recall_at_0.1_false_calls_per_kb"]
    assert (strict["value"], strict["calls"], strict["outside_per_kb"]) == (1.0, 20, 0)
    assert strict["controls"]["flat"]["calls"] == 0
    assert strict["controls"]["strands_swapped"]["value"] == 0
    assert 0 < strict["controls"]["shuffled"]["value"] < 0.1
    # Two calls outside are allowed in 20 kb: the two best of the noise, and the right ones with them.
    loose = found["recall_at_0.1_calls_outside_per_kb"]
    assert (loose["calls"], loose["outside_per_kb"]) == (22, 0.1)
