"""The promoter model against tables typed in again and sums written out slowly."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from pipeline.worlds import promoters

Q = {"A": 0.29, "C": 0.21, "G": 0.21, "T": 0.29}
MINUS35 = [("T", 82), ("T", 84), ("G", 78), ("A", 65), ("C", 54), ("A", 45)]
MINUS10 = [("T", 80), ("A", 95), ("T", 45), ("A", 60), ("A", 50), ("T", 96)]
SPACER = {15: 0.04, 16: 0.22, 17: 0.48, 18: 0.22, 19: 0.04}
WRONG = {8: 0.1, 9: 0.1, 10: 0.1, 11: 0.1, 12: 0.1, 22: 0.1, 23: 0.1, 24: 0.1, 25: 0.1, 26: 0.1}
SHARES = {
    "plain": 0.4,
    "minus35_only": 0.15,
    "minus10_only": 0.15,
    "wrong_spacing": 0.15,
    "wrong_order": 0.15,
}


def box_probability(table, base, k):
    consensus, percent = table[k]
    if base == consensus:
        return percent / 100
    return (1 - percent / 100) * Q[base] / (1 - Q[consensus])


def expected_total(tables, flank, window):
    """Expected number of each base in a window with these boxes."""
    total = {base: flank[base] * (window - 6 * len(tables)) for base in "ACGT"}
    for table in tables:
        for k in range(6):
            for base in "ACGT":
                total[base] += box_probability(table, base, k)
    return total


def slow_log_likelihood(sequence, kind):
    target = expected_total([MINUS35, MINUS10], Q, len(sequence))
    spacers = WRONG if kind == "wrong_spacing" else SPACER
    order = {
        "plain": [None, None],
        "minus35_only": [MINUS35, None],
        "minus10_only": [None, MINUS10],
        "wrong_order": [MINUS10, MINUS35],
    }.get(kind, [MINUS35, MINUS10])
    tables = [table for table in order if table]
    zero = dict.fromkeys("ACGT", 0.0)
    boxed = expected_total(tables, zero, len(sequence))
    flank = {b: (target[b] - boxed[b]) / (len(sequence) - 6 * len(tables)) for b in "ACGT"}
    total = 0.0
    for tss in range(57, 64):
        for distance, share in ((6, 0.25), (7, 0.5), (8, 0.25)):
            for spacer, weight in spacers.items():
                last_of_minus10 = tss - distance
                downstream = last_of_minus10 - 5
                upstream = downstream - spacer - 6
                probability = share * weight / 7
                for column, base in enumerate(sequence):
                    factor = flank[base]
                    for start, table in zip((upstream, downstream), order, strict=True):
                        if table and 0 <= column - start < 6:
                            factor = box_probability(table, base, column - start)
                    probability *= factor
                total += probability
    return log(total)


@pytest.fixture(scope="module")
def kinds():
    return promoters.layouts(81)


@pytest.mark.parametrize("kind", ["promoter", *SHARES])
def test_log_likelihood_equals_the_sum_written_out(kinds, kind):
    rng = np.random.default_rng(1)
    for source in kinds.values():
        codes, _ = promoters.sample_windows(source, 1, 81, rng)
        expected = slow_log_likelihood("".join("ACGT"[c] for c in codes[0]), kind)
        assert promoters.log_likelihood(codes, kinds[kind])[0] == pytest.approx(expected, abs=1e-9)


def test_log_odds_are_the_ratio_of_promoter_and_mixture(kinds):
    codes = np.concatenate(
        [promoters.sample_windows(k, 1, 81, np.random.default_rng(2))[0] for k in kinds.values()]
    )
    for row, odds in zip(codes, promoters.log_odds(codes, kinds), strict=True):
        sequence = "".join("ACGT"[c] for c in row)
        mixture = sum(share * exp(slow_log_likelihood(sequence, kind)) for kind, share in SHARES.items())
        assert odds == pytest.approx(slow_log_likelihood(sequence, "promoter") - log(mixture), abs=1e-9)


def test_log_odds_are_calibrated(kinds):
    """Among windows with log odds near x, promoters are as frequent as exp(x) / (1 + exp(x)) says."""
    rng = np.random.default_rng(3)
    shares = {"promoter": 0.5} | {kind: share / 2 for kind, share in SHARES.items()}
    codes = [promoters.sample_windows(kinds[k], round(20_000 * s), 81, rng)[0] for k, s in shares.items()]
    is_promoter = np.arange(20_000) < len(codes[0])
    odds = promoters.log_odds(np.concatenate(codes), kinds)
    for low in np.arange(-3.0, 3.0, 0.5):
        near = (odds >= low) & (odds < low + 0.5)
        expected = (1 / (1 + np.exp(-odds[near]))).mean()
        assert is_promoter[near].mean() == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(near.sum()))


@pytest.mark.parametrize(("name", "table"), [("minus35", MINUS35), ("minus10", MINUS10)])
def test_sampled_boxes_have_the_published_frequencies(kinds, name, table):
    kind = kinds[f"{name}_only"]
    fixed = replace(kind, starts=kind.starts[:1], tss=kind.tss[:1], weights=np.ones(1))
    codes, tss = promoters.sample_windows(fixed, 40_000, 81, np.random.default_rng(4))
    assert set(tss) == {kind.tss[0]}
    box = codes[:, kind.starts[0, 0] : kind.starts[0, 0] + 6]
    for k in range(6):
        for number, base in enumerate("ACGT"):
            expected = box_probability(table, base, k)
            assert (box[:, k] == number).mean() == pytest.approx(expected, abs=0.011)


def spacer_shares(layout):
    shares = {}
    for (first, second), weight in zip(layout.starts, layout.weights, strict=True):
        shares[int(second - first - 6)] = shares.get(int(second - first - 6), 0) + weight
    return shares


@pytest.mark.parametrize(
    ("kind", "shares"), [("promoter", SPACER), ("wrong_order", SPACER), ("wrong_spacing", WRONG)]
)
def test_spacers(kinds, kind, shares):
    assert spacer_shares(kinds[kind]) == pytest.approx(shares)


def test_start_site_lies_six_to_eight_bases_after_the_minus10_box(kinds):
    layout = kinds["promoter"]
    assert set(layout.tss) == set(range(57, 64))
    assert set(layout.tss - (layout.starts[:, 1] + 5)) == {6, 7, 8}
    _, tss = promoters.sample_windows(layout, 7000, 81, np.random.default_rng(5))
    assert np.bincount(tss, minlength=64)[57:] == pytest.approx(np.full(7, 1000), abs=130)


def test_harley_and_reynolds_share_of_spacers(kinds):
    shares = spacer_shares(kinds["promoter"])
    assert shares[16] + shares[17] + shares[18] == pytest.approx(0.92)


def test_kinds_hold_the_boxes_they_are_named_for(kinds):
    minus35, minus10 = promoters.box_matrix("minus35"), promoters.box_matrix("minus10")
    boxes = {
        "promoter": [minus35, minus10],
        "plain": [],
        "minus35_only": [minus35],
        "minus10_only": [minus10],
        "wrong_spacing": [minus35, minus10],
        "wrong_order": [minus10, minus35],
    }
    assert kinds.keys() == boxes.keys()
    for kind, expected in boxes.items():
        assert len(kinds[kind].boxes) == len(expected) == kinds[kind].starts.shape[1]
        for box, matrix in zip(kinds[kind].boxes, expected, strict=True):
            np.testing.assert_array_equal(box, matrix)
        assert kinds[kind].weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("window", [64, 81, 200])
def test_every_kind_has_the_same_base_composition(window):
    rng = np.random.default_rng(6)
    target = expected_total([MINUS35, MINUS10], Q, window)
    for layout in promoters.layouts(window).values():
        assert layout.flank.sum() == pytest.approx(1)
        codes, _ = promoters.sample_windows(layout, 4000, window, rng)
        found = np.bincount(codes.ravel(), minlength=4) / codes.size
        four_errors = 4 * 0.5 / np.sqrt(codes.size)
        assert found == pytest.approx(np.array([target[b] for b in "ACGT"]) / window, abs=four_errors)


def test_auroc_counts_ties_half():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(7)
    positive, negative = rng.integers(2, 9, 200), rng.integers(0, 7, 300)
    labels = np.repeat([1, 0], [200, 300])
    expected = roc_auc_score(labels, np.concatenate([positive, negative]))
    assert promoters.auroc(positive, negative) == pytest.approx(expected, abs=1e-12)
