"""Spacings against brute force and Monte Carlo; planted pairs come out, independent ones do not."""

import numpy as np
import pytest

from pipeline.attention.instances import Sites
from pipeline.attention.pairs import find_pairs


def sites(start, width: int = 6, strand=None) -> Sites:
    start_N = np.array(start)
    return Sites(start_N, np.where(start_N < 0, 0, 1) if strand is None else np.array(strand), width)


def planted(rng: np.random.Generator, number: int, spaced: float) -> dict[str, Sites]:
    """b lies 17 bases behind a in a share of the sequences, elsewhere in the others; both may be missing."""
    a = rng.integers(0, 30, number)
    b = np.where(rng.random(number) < spaced, a + 6 + 17, rng.integers(0, 70, number))
    a[rng.random(number) < 0.2], b[rng.random(number) < 0.2] = -1, -1
    return {"a": sites(a), "b": sites(b)}


def test_a_planted_spacing_is_found():
    pairs, spacings = find_pairs(planted(np.random.default_rng(0), 300, 0.3), 50)
    best = pairs[0]
    assert (best.first, best.second, best.orientation, best.spacing) == ("a", "b", "++", 17)
    assert best.q_value < 1e-6
    assert best.at_spacing > 5 * best.expected
    assert [(s.first, s.spacing) for s in spacings if s.q_value < 0.01] == [("a", 17)]
    assert len(pairs) == 2
    assert pairs[1].q_value > 0.05


def test_counts_are_those_of_a_loop():
    both = planted(np.random.default_rng(1), 200, 0.3)
    _, spacings = find_pairs(both, 40)
    counts: dict[tuple[str, int], int] = {}
    for x, y in zip(both["a"].start.tolist(), both["b"].start.tolist(), strict=True):
        if min(x, y) >= 0:
            for first, gap in (("a", y - x - 6), ("b", x - y - 6)):
                if 0 <= gap <= 40:
                    counts[first, gap] = counts.get((first, gap), 0) + 1
    assert {(s.first, s.spacing): s.sequences for s in spacings} == counts


def test_expected_numbers_are_means_over_permutations():
    """Of partners dealt out at random, per sequence that does not have them overlap."""
    rng = np.random.default_rng(2)
    x, y = rng.integers(0, 30, 200), rng.integers(0, 30, 200)
    x, y = x[abs(x - y) >= 6], y[abs(x - y) >= 6]
    both = {"a": sites(x), "b": sites(y)}
    _, spacings = find_pairs(both, 50)
    counts, apart, rounds = np.zeros((2, 100)), 0, 4000
    for _ in range(rounds):
        z = rng.permutation(y)
        for turn, gap in enumerate((z - x - 6, x - z - 6)):
            np.add.at(counts[turn], gap[gap >= 0], 1)
            apart += int((gap >= 0).sum())
    real = int(((y - x >= 6) | (x - y >= 6)).sum())
    scale = real / (apart / rounds)
    assert scale > 1.2
    for s in spacings:
        mean = scale * counts["ab".index(s.first), s.spacing] / rounds
        assert s.expected == pytest.approx(mean, abs=4 * (mean / rounds) ** 0.5 + 1e-3)


@pytest.mark.parametrize("spread", [70, 6])
def test_independent_places_give_no_preferred_spacing(spread):
    """Also where both motifs keep to a few places: p-values are not anti-conservative (3 standard errors)."""
    rng = np.random.default_rng(3)
    p, found = [], 0
    for _ in range(150):
        both = {"a": sites(rng.integers(0, spread, 200)), "b": sites(rng.integers(20, 20 + spread, 200))}
        pairs, spacings = find_pairs(both, 50)
        p += [s.p_value for s in spacings]
        found += pairs[0].q_value <= 0.05
    assert found <= 0.05 * 150 + 3 * (0.05 * 0.95 * 150) ** 0.5
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(p) <= level) <= level * 1.15


def test_orientations_are_told_apart():
    a, b = np.full(60, 5), np.full(60, 20)
    a[30:], b[30:] = -1, -1
    both = {"a": sites(a, strand=[1] * 30 + [0] * 30), "b": sites(b, strand=[-1] * 30 + [0] * 30)}
    pairs, _ = find_pairs(both, 50, both=True)
    assert len(pairs) == 8
    held = [(p.first, p.second, p.orientation, p.sequences, p.spacing) for p in pairs if p.sequences]
    assert held == [("a", "b", "+-", 30, 9)]
    # all sequences have the same places, so that no spacing is preferred; but the two occur together
    assert pairs[0].p_value > 0.1
    best = next(p for p in pairs if p.sequences)
    assert best.odds_ratio == pytest.approx((30.5 * 30.5) / (0.5 * 0.5))
    assert best.together_p < 1e-10


def test_one_motif_has_no_partner():
    assert find_pairs({"a": sites([1, 2])}, 50) == ([], [])
    pairs, spacings = find_pairs({"a": sites([-1, 2]), "b": sites([3, -1])}, 50)
    assert [(p.spacing, p.p_value, p.q_value) for p in pairs] == [(None, 1.0, 1.0)] * 2
    assert spacings == []
