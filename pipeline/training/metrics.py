"""Measures of a classifier with bootstrap intervals, paired differences, calibration, threshold, collapse.

Shapes: N sequences, C classes, R resamples, U different scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.keyed import generator

MEASURES = ("mcc", "f1", "accuracy", "sensitivity", "specificity", "auroc", "auprc", "brier")
RESAMPLES = 2000
AT_ONCE = 1 << 20  # weights of sequences at once
BINS = 15
TEMPERATURES = (0.05, 20.0)
EVEN = 0.5
FEW = 5  # sequences of a class


@dataclass(frozen=True)
class Judged:
    """Labelled sequences, and what a classifier makes of them.

    ``labels`` and ``called`` (N,) are numbers of classes, ``scores`` (N, C) probabilities. Of two classes,
    F1, sensitivity, specificity and areas are those of class 1; of more, they are means over the classes,
    each against all others (macro averages). MCC of more than two classes is that of Gorodkin 2004
    (doi:10.1016/j.compbiolchem.2004.09.006), the Brier score the sum over the classes (of two: of class 1).
    ``parts`` (N,) are numbers of rows that were scored by one network, if there are several: scores of two
    networks are not ranked against each other, so areas are means over the parts.
    """

    labels: np.ndarray
    scores: np.ndarray
    called: np.ndarray
    parts: np.ndarray | None = None

    @property
    def averaged(self) -> list[int]:
        """Return the classes whose figures are averaged."""
        count = self.scores.shape[1]
        return [1] if count == 2 else list(range(count))


def against_rest(labels_N, scores_NC, positive: int, threshold: float | np.ndarray = EVEN) -> Judged:
    """Return one class against the rest, called where its probability is above the threshold (or its own)."""
    score_N = scores_NC[:, positive]
    called_N = (score_N > threshold).astype(int)
    return Judged((labels_N == positive).astype(int), np.stack([1 - score_N, score_N], 1), called_N)


def among_all(labels_N, scores_NC) -> Judged:
    """Return all classes, of which the likeliest is called."""
    return Judged(labels_N, scores_NC, scores_NC.argmax(1))


# -- measures of weighted sequences


def measure(judged: Judged, weights_RN: np.ndarray) -> dict[str, np.ndarray]:
    """Return every measure (R,) with sequences counted as often as their weights say.

    NaN where a measure is undefined: sensitivity, F1 and AUPRC without sequences of a class, specificity
    without others, AUROC and MCC with one class alone. The MCC of one class called for all is 0, its limit.
    """
    count = judged.scores.shape[1]
    cell_N = judged.labels * count + judged.called
    confusion_RCC = (weights_RN @ np.eye(count * count)[cell_N]).reshape(-1, count, count)
    auroc_R, auprc_R = _mean_areas(judged, weights_RN)
    error_N = ((judged.scores - np.eye(count)[judged.labels]) ** 2).sum(1) / (2 if count == 2 else 1)
    return {
        **of_confusion(confusion_RCC, judged.averaged),
        "auroc": auroc_R,
        "auprc": auprc_R,
        "brier": weights_RN @ error_N / weights_RN.sum(1),
    }


def of_confusion(confusion_RCC: np.ndarray, averaged: list[int]) -> dict[str, np.ndarray]:
    """Return MCC, accuracy, F1, sensitivity and specificity (R,), the last three as means over some classes.

    Args:
        confusion_RCC: how often a true class (rows) was called a class (columns).
        averaged: those classes.
    """
    total_R = confusion_RCC.sum((1, 2))
    return {
        "mcc": _mcc(confusion_RCC),
        "accuracy": np.trace(confusion_RCC, axis1=1, axis2=2) / total_R,
        **_rates(confusion_RCC, averaged),
    }


def _divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return the quotient, NaN where the divisor is 0."""
    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0)


def _mcc(confusion_RCC: np.ndarray) -> np.ndarray:
    true_RC, called_RC = confusion_RCC.sum(2), confusion_RCC.sum(1)
    total_R, right_R = true_RC.sum(1), np.trace(confusion_RCC, axis1=1, axis2=2)
    covariance_R = right_R * total_R - (true_RC * called_RC).sum(1)
    true_R, called_R = (total_R**2 - (each_RC**2).sum(1) for each_RC in (true_RC, called_RC))
    mcc_R = _divide(covariance_R, np.sqrt(true_R * called_R))
    return np.where((called_R == 0) & (true_R > 0), 0.0, mcc_R)


def _rates(confusion_RCC: np.ndarray, averaged: list[int]) -> dict[str, np.ndarray]:
    true_RC, called_RC = (confusion_RCC.sum(axis)[:, averaged] for axis in (2, 1))
    right_RC = np.diagonal(confusion_RCC, axis1=1, axis2=2)[:, averaged]
    total_R1 = confusion_RCC.sum((1, 2))[:, None]
    others_RC = total_R1 - true_RC
    f1_RC = _divide(2 * right_RC, np.where(true_RC > 0, true_RC + called_RC, 0))
    return {
        "f1": f1_RC.mean(1),
        "sensitivity": _divide(right_RC, true_RC).mean(1),
        "specificity": _divide(others_RC - called_RC + right_RC, others_RC).mean(1),
    }


def _mean_areas(judged: Judged, weights_RN: np.ndarray) -> np.ndarray:
    """Return both areas (2, R): means over the averaged classes, of each over the parts that have it."""
    part_N = np.zeros(len(judged.labels)) if judged.parts is None else judged.parts
    inside = [part_N == part for part in np.unique(part_N)]
    found = []
    for c in judged.averaged:
        areas_P2R = [_areas(judged.labels[i] == c, judged.scores[i, c], weights_RN[:, i]) for i in inside]
        defined_P2R = ~np.isnan(areas_P2R)
        found.append(_divide(np.where(defined_P2R, areas_P2R, 0).sum(0), defined_P2R.sum(0)))
    return np.mean(found, 0)


def _areas(positive_N: np.ndarray, score_N: np.ndarray, weights_RN: np.ndarray):
    """Return the areas (R,) under the ROC curve and under that of precision over recall (average precision).

    Sequences of one score are one step of the curves.
    """
    order_N = np.argsort(score_N, kind="stable")
    first_U = np.flatnonzero(np.diff(score_N[order_N], prepend=-np.inf))
    sorted_RN = weights_RN[:, order_N]
    positive_RU = np.add.reduceat(sorted_RN * positive_N[order_N], first_U, axis=1)
    negative_RU = np.add.reduceat(sorted_RN, first_U, axis=1) - positive_RU
    below_RU = np.cumsum(negative_RU, 1) - negative_RU / 2
    positive_R, negative_R = positive_RU.sum(1), negative_RU.sum(1)
    above_RU = [each[:, ::-1].cumsum(1)[:, ::-1] for each in (positive_RU, negative_RU)]
    precision_RU = above_RU[0] / np.maximum(above_RU[0] + above_RU[1], 1e-300)
    auroc_R = _divide((positive_RU * below_RU).sum(1), positive_R * negative_R)
    return auroc_R, _divide((positive_RU * precision_RU).sum(1), positive_R)


# -- intervals


@dataclass(frozen=True)
class Resampled:
    """Measures of a classifier: ``point``, and ``draws`` (R,) in resamples of the sequences.

    Where it was trained with several seeds, these are means over them, and ``spread`` are the standard
    deviations.
    """

    point: dict[str, float]
    draws: dict[str, np.ndarray]
    spread: dict[str, float] | None = None

    def summary(self) -> dict[str, Any]:
        """Return the measures, their 95 % intervals and what they vary with the seed (``sd``) as JSON.

        None stands for what is undefined; with one seed there is no ``sd``.
        """
        intervals = {name: _interval(self.point[name], self.draws[name]) for name in MEASURES}
        found: dict[str, Any] = {name: _number(self.point[name]) for name in MEASURES}
        if self.spread is not None:
            found["sd"] = {name: _number(self.spread[name]) for name in MEASURES}
        return found | {"intervals": intervals}

    def minus(self, other: "Resampled", names: tuple[str, ...] = ("mcc", "auroc")) -> dict[str, Any]:
        """Return how much larger measures are than another classifier's, in the same resamples."""
        differences = {}
        for name in names:
            point, draw_R = self.point[name] - other.point[name], self.draws[name] - other.draws[name]
            differences[name] = {"difference": _number(point), "interval": _interval(point, draw_R)}
        return differences


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _interval(point: float, draw_R: np.ndarray) -> list[float] | None:
    """Return the 2.5th and the 97.5th percentile; resamples in which it is undefined are left out."""
    if np.isnan(point) or np.isnan(draw_R).all():
        return None
    return [float(value) for value in np.nanquantile(draw_R, (0.025, 0.975))]


def bootstrap(judged: Judged | Sequence[Judged], cluster_N: np.ndarray | None, seed: int) -> Resampled:
    """Return the measures and how they vary (percentile bootstrap, Efron 1979, doi:10.1214/aos/1176344552).

    Of a classifier trained with several seeds each measure is taken for each seed, in the same resamples, and
    then averaged.

    Args:
        judged: N sequences and what a classifier makes of them, or what those of several seeds do.
        cluster_N: sequences of one value are alike and drawn together; None: each is drawn by itself.
        seed: of the resampling; classifiers judged on the same sequences with one seed see the same
            resamples, so that their draws are paired.
    """
    several = [judged] if isinstance(judged, Judged) else judged
    size = len(several[0].labels)
    of_all = [measure(each, np.ones((1, size))) for each in several]
    points = {name: np.array([found[name][0] for found in of_all]) for name in MEASURES}
    chunks = []
    for weights_RN in _resamples(size, cluster_N, seed):
        found = [measure(each, weights_RN) for each in several]
        chunks.append({name: np.mean([one[name] for one in found], 0) for name in MEASURES})
    return Resampled(
        {name: float(point_S.mean()) for name, point_S in points.items()},
        {name: np.concatenate([chunk[name] for chunk in chunks]) for name in MEASURES},
        None if len(several) == 1 else {n: float(point_S.std(ddof=1)) for n, point_S in points.items()},
    )


def _resamples(size: int, cluster_N: np.ndarray | None, seed: int) -> Iterator[np.ndarray]:
    """Yield (R, N): how often each sequence is in each resample, as often as its cluster was drawn."""
    rng = generator(seed)
    if cluster_N is not None:
        _, cluster_N = np.unique(cluster_N, return_inverse=True)
    drawn = size if cluster_N is None else int(cluster_N.max()) + 1
    for begin in range(0, RESAMPLES, step := max(1, AT_ONCE // size)):
        rows = min(step, RESAMPLES - begin)
        picked_RG = rng.integers(0, drawn, (rows, drawn)) + np.arange(rows)[:, None] * drawn
        counts_RG = np.bincount(picked_RG.ravel(), minlength=rows * drawn).reshape(rows, drawn)
        yield (counts_RG if cluster_N is None else counts_RG[:, cluster_N]).astype(float)


# -- what is chosen on validation sequences


def best_threshold(positive_N: np.ndarray, score_N: np.ndarray) -> float:
    """Return the threshold of the highest MCC; of several the one nearest to 0.5, which it is with one class.

    Candidates are 0.5 and the means of neighbouring scores; above the threshold is positive.
    """
    if positive_N.all() or not positive_N.any():
        return EVEN
    score_U = np.unique(score_N)
    middle_U = (score_U[1:] + score_U[:-1]) / 2
    cuts = np.append(np.where(middle_U < score_U[1:], middle_U, score_U[:-1]), EVEN)
    true, false = (
        each.size - np.searchsorted(np.sort(each), cuts, side="right")
        for each in (score_N[positive_N], score_N[~positive_N])
    )
    positives, negatives = positive_N.sum(), (~positive_N).sum()
    confusion = np.stack([negatives - false, false, positives - true, true], 1).reshape(-1, 2, 2)
    mcc = _mcc(confusion.astype(float))
    best = cuts[mcc >= mcc.max() - 1e-12]
    return float(best[np.abs(best - EVEN).argmin()])


def temperature(logits_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """Return what logits are to be divided by to be calibrated (Guo et al. 2017, arXiv 1706.04599).

    It is the one with the smallest cross-entropy. Targets are not quite 1 and 0, but (n + 1) / (n + 2) for a
    class of n sequences, and the rest for the others (Platt 1999): without that, classes that are told apart
    without error would ask for probabilities of 1. It is 1 where one class is there alone.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    count, size_C = logits_NC.shape[1], np.bincount(labels_N, minlength=logits_NC.shape[1])
    if (size_C > 0).sum() < 2:
        return 1.0
    target_N = (size_C[labels_N] + 1) / (size_C[labels_N] + 2)
    targets_NC = np.repeat(((1 - target_N) / (count - 1))[:, None], count, 1)
    targets_NC[np.arange(len(labels_N)), labels_N] = target_N

    def loss(log_temperature: float) -> float:
        scaled_NC = logits_NC.astype(float) / np.exp(log_temperature)
        return -float((targets_NC * log_softmax(scaled_NC, 1)).sum(1).mean())

    bounds = tuple(np.log(TEMPERATURES))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))  # type: ignore[attr-defined]  it is there


def calibration_error(labels_N: np.ndarray, scores_NC: np.ndarray) -> float:
    """Return the expected calibration error (Guo et al. 2017, arXiv 1706.04599).

    It is the mean distance of the likeliest class's probability from how often that class is right, over
    15 bins of equal width, each weighing as much as it has sequences.
    """
    count_B, confidence_B, right_B = reliability(labels_N, scores_NC)
    return float((count_B * np.abs(confidence_B - right_B)).sum() / count_B.sum())


def reliability(labels_N: np.ndarray, scores_NC: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of each bin (B,) that is not empty how many sequences it has, and two means of theirs.

    Bins are 15 of equal width of the likeliest class's probability. The means are of that probability, and of
    how often that class is right.
    """
    confidence_N, right_N = scores_NC.max(1), scores_NC.argmax(1) == labels_N
    _, bin_N, count_B = np.unique(np.ceil(confidence_N * BINS), return_inverse=True, return_counts=True)
    return count_B, np.bincount(bin_N, confidence_N) / count_B, np.bincount(bin_N, right_N) / count_B


def one_class(labels_N: np.ndarray, scores_NC: np.ndarray, called_N: np.ndarray, seed: int) -> int | None:
    """Return the class that is called for all sequences though there are others, or None.

    A threshold made for scores that hardly differ calls several classes by chance. So it is one class, too,
    if that is the likeliest for all, and the MCC of what is called has an interval that does not lie above 0.
    A class is there if it has at least 5 sequences.
    """
    if (np.bincount(labels_N) >= FEW).sum() < 2:
        return None
    if len(np.unique(called_N)) == 1:
        return int(called_N[0])
    likeliest_N = scores_NC.argmax(1)
    if len(np.unique(likeliest_N)) > 1:
        return None
    judged = bootstrap(Judged(labels_N, scores_NC, called_N), None, seed)
    return int(likeliest_N[0]) if judged.summary()["intervals"]["mcc"][0] <= 0 else None
