"""Promoter and background windows of a simulated world, with exact likelihoods.

A window of W bases holds up to two boxes of six bases at random columns; every other base (the flank) is
independent. A layout lists all placements of its boxes with their probabilities, so that the likelihood of a
window is a sum over placements that can be written out in full.

Shapes: N windows, W columns, P placements, B boxes, K = 6 bases of a box.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.worlds import BASES, draw

START_COLUMN = 60
JITTER = range(-3, 4)
BOX = 6
# Intergenic bases; the same on both strands.
BACKGROUND = np.array([0.29, 0.21, 0.21, 0.29])
CONSENSUS = {"minus35": "TTGACA", "minus10": "TATAAT"}
# Share of promoters with the consensus base, for each position of the box.
CONSERVATION = {
    "minus35": (0.82, 0.84, 0.78, 0.65, 0.54, 0.45),
    "minus10": (0.80, 0.95, 0.45, 0.60, 0.50, 0.96),
}
SPACERS = {15: 0.04, 16: 0.22, 17: 0.48, 18: 0.22, 19: 0.04}
WRONG_SPACERS = dict.fromkeys((*range(8, 13), *range(22, 27)), 0.1)
# The start site lies this many bases downstream of the last base of the -10 box.
START_DISTANCES = {6: 0.25, 7: 0.5, 8: 0.25}
# Shares of the background windows.
BACKGROUND_KINDS = {
    "plain": 0.40,
    "minus35_only": 0.15,
    "minus10_only": 0.15,
    "wrong_spacing": 0.15,
    "wrong_order": 0.15,
}
SOURCES = {
    "boxes": (
        "percentages of the consensus bases: Hawley & McClure 1983, Nucleic Acids Res. 11:2237; "
        "chosen: the other three bases in proportion to the background"
    ),
    "spacers": (
        "92 % of promoters at 17 +- 1: Harley & Reynolds 1987, doi 10.1093/nar/15.5.2343; "
        "chosen: the share of each length"
    ),
    "start_distances": (
        "7 +- 1 bases downstream of the -10 box: Harley & Reynolds 1987, doi 10.1093/nar/15.5.2343; "
        "chosen: all promoters within that range, and the share of each distance"
    ),
}


@dataclass(frozen=True)
class Layout:
    """One kind of window.

    Attributes:
        boxes: base probabilities of each box, [K, 4].
        starts: column of the first base of each box, [P, B].
        tss: column of the start site that a placement stands for, [P].
        weights: probabilities of the placements, [P].
        flank: probabilities of the bases outside the boxes, [4].
    """

    boxes: tuple[np.ndarray, ...]
    starts: np.ndarray
    tss: np.ndarray
    weights: np.ndarray
    flank: np.ndarray


def box_matrix(name: str) -> np.ndarray:
    """Return the base probabilities [6, 4] of the box ``minus35`` or ``minus10``.

    Conservation of the consensus bases after Hawley & McClure 1983 (Nucleic Acids Res. 11:2237); what remains
    is shared by the other bases in proportion to the background.
    """
    rows = []
    for base, share in zip(CONSENSUS[name], CONSERVATION[name], strict=True):
        row = np.where(np.array(list(BASES)) == base, 0.0, BACKGROUND)
        row *= (1 - share) / row.sum()
        row[BASES.index(base)] = share
        rows.append(row)
    return np.array(rows)


def _placements(spacers: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return starts [P, 2] of the upstream and downstream box, start sites [P] and probabilities [P]."""
    rows = []
    for jitter in JITTER:
        for distance, share in START_DISTANCES.items():
            for spacer, weight in spacers.items():
                tss = START_COLUMN + jitter
                downstream = tss - distance - (BOX - 1)
                rows.append((downstream - spacer - BOX, downstream, tss, share * weight / len(JITTER)))
    table = np.array(rows)
    return table[:, :2].astype(int), table[:, 2].astype(int), table[:, 3]


def layouts(window: int) -> dict[str, Layout]:
    """Return the layout of each kind of window, ``promoter`` first.

    The flanks are such that the expected base composition of a window is the same for every kind.
    """
    minus35, minus10 = box_matrix("minus35"), box_matrix("minus10")
    promoter_total = (window - 2 * BOX) * BACKGROUND + minus35.sum(0) + minus10.sum(0)
    proper, wrong = _placements(SPACERS), _placements(WRONG_SPACERS)

    def layout(boxes: tuple[np.ndarray, ...], columns: list[int], placements=proper) -> Layout:
        starts_P2, tss_P, weights_P = placements
        boxed = sum((box.sum(0) for box in boxes), np.zeros(4))
        flank = (promoter_total - boxed) / (window - BOX * len(boxes))
        return Layout(boxes, starts_P2[:, columns], tss_P, weights_P, flank)

    return {
        "promoter": layout((minus35, minus10), [0, 1]),
        "plain": layout((), []),
        "minus35_only": layout((minus35,), [0]),
        "minus10_only": layout((minus10,), [1]),
        "wrong_spacing": layout((minus35, minus10), [0, 1], wrong),
        "wrong_order": layout((minus10, minus35), [0, 1]),
    }


def sample_windows(
    layout: Layout, count: int, window: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw windows: base codes [N, W] and the column of each start site [N]."""
    codes_NW = draw(rng, layout.flank, count * window).reshape(count, window).astype(np.uint8)
    placement_N = draw(rng, layout.weights, count)
    rows = np.arange(count)
    for box, starts_N in zip(layout.boxes, layout.starts[placement_N].T, strict=True):
        for k, probabilities in enumerate(box):
            codes_NW[rows, starts_N + k] = draw(rng, probabilities, count)
    return codes_NW, layout.tss[placement_N]


def log_likelihood(codes_NW: np.ndarray, layout: Layout) -> np.ndarray:
    """Return ln P(window | layout) for each window [N], summed exactly over all placements."""
    total_N = np.log(layout.flank)[codes_NW].sum(1)
    scores_NP = np.broadcast_to(np.log(layout.weights), (len(codes_NW), len(layout.weights))).copy()
    columns = codes_NW.shape[1] - BOX + 1
    for box, starts_P in zip(layout.boxes, layout.starts.T, strict=True):
        ratio_K4 = np.log(box / layout.flank)
        at_each_column = sum(ratio_K4[k][codes_NW[:, k : k + columns]] for k in range(BOX))
        scores_NP += np.asarray(at_each_column)[:, starts_P]
    return total_N + np.logaddexp.reduce(scores_NP, axis=1)


def log_odds(codes_NW: np.ndarray, kinds: Mapping[str, Layout]) -> np.ndarray:
    """Return ln P(window | promoter) - ln P(window | background mixture) for each window [N].

    With equal priors this is the log posterior odds, so that no score ranks promoters above background
    better on average (Neyman & Pearson 1933, doi 10.1098/rsta.1933.0009).
    """
    mixture = [np.log(share) + log_likelihood(codes_NW, kinds[k]) for k, share in BACKGROUND_KINDS.items()]
    return log_likelihood(codes_NW, kinds["promoter"]) - np.logaddexp.reduce(mixture, axis=0)


def auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the area under the ROC curve: P(positive > negative), ties counted half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left") + np.searchsorted(ordered, positive, side="right")
    return float(below.mean() / (2 * len(negative)))
