"""A classifier beside its controls: the same rows, the same resamples, each with thresholds of its own.

Shapes: N scored rows, V validation rows, M other negatives, S seeds, C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.training.metrics import (
    EVEN,
    Judged,
    Resampled,
    against_rest,
    among_all,
    best_threshold,
    bootstrap,
    calibration_error,
    measure,
    reliability,
)

SAID = {"mcc": "MCC", "auroc": "AUROC"}


@dataclass(frozen=True)
class Predicted:
    """What a classifier says of rows, trained with one seed or with S, each time on whatever holds them out.

    ``scores`` are S arrays of probabilities (N, C), ``thresholds`` and ``temperatures`` S arrays (N,): those
    of the network that scored the row.
    """

    scores: Sequence[np.ndarray]
    thresholds: Sequence[np.ndarray]
    temperatures: Sequence[np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """What classifiers are judged by: the classes (N,) of scored rows.

    Of two classes, ``positive`` is called by a threshold that is chosen on validation; of more, the likeliest
    is called. Rows of one of the ``clusters`` (N,) are resampled together. ``parts`` (N,) are folds: areas
    are means over them, as networks of different folds need not have one scale.
    """

    labels: np.ndarray
    names: list[str]
    positive: int
    clusters: np.ndarray | None
    seed: int
    parts: np.ndarray | None = None

    @property
    def is_positive(self) -> np.ndarray:
        """Return which scored rows (N,) are of the positive class."""
        return self.labels == self.positive

    def threshold(self, label_V: np.ndarray | None, scores_VC: np.ndarray | None) -> float:
        """Return the threshold of the highest MCC on validation; 0.5 without, or with more classes than 2."""
        if len(self.names) > 2 or label_V is None or scores_VC is None:
            return EVEN
        return best_threshold(label_V == self.positive, scores_VC[:, self.positive])

    def judged(self, label_N: np.ndarray, scores_NC: np.ndarray, threshold: float | np.ndarray) -> Judged:
        """Return rows and what is called for them: at a threshold (of all, or of each), or the likeliest."""
        if len(self.names) > 2:
            return among_all(label_N, scores_NC)
        return against_rest(label_N, scores_NC, self.positive, threshold)

    def judge(self, predicted: Predicted) -> tuple[dict[str, Any], Resampled]:
        """Return the threshold, if one is used, or the lowest and the highest; and the measures.

        All classifiers are seen in the same resamples. With several seeds a measure is taken of each and
        averaged.
        """
        pairs = zip(predicted.scores, predicted.thresholds, strict=True)
        found = self._resampled([self.judged(self.labels, *pair) for pair in pairs])
        return ({} if len(self.names) > 2 else _of_runs("threshold", predicted.thresholds)), found

    def _resampled(self, judged: list[Judged]) -> Resampled:
        return bootstrap([replace(each, parts=self.parts) for each in judged], self.clusters, self.seed)

    def figures(self, ours: Predicted, controls: Mapping[str, Predicted]) -> dict[str, Any]:
        """Return the object for metrics.json.

        Its measures are those of the positive class against the rest at a threshold of 0.5. ``at_threshold``
        has them at the one chosen on validation; with more than two classes ``macro`` has instead those of
        all classes (accuracy and MCC over all, means over the classes of what is of one class). Controls and
        their differences are measured like that.
        """
        even = [against_rest(self.labels, scores_NC, self.positive) for scores_NC in ours.scores]
        at_even = self._resampled(even).summary()
        fact, judged = self.judge(ours)
        return {
            **{name: value for name, value in at_even.items() if name != "auroc"},
            "at_threshold" if fact else "macro": {**fact, **judged.summary()},
            "calibration": _calibration(self.labels, ours),
            "controls": {name: self._compare(each, judged) for name, each in controls.items()},
            "n_positive": int(self.is_positive.sum()),
            "n_negative": int((~self.is_positive).sum()),
            "positive": self.names[self.positive],
        }

    def _compare(self, control: Predicted, ours: Resampled) -> dict[str, Any]:
        fact, theirs = self.judge(control)
        return {**fact, **theirs.summary(), "ours_minus_it": ours.minus(theirs)}

    def against(
        self, predicted: Predicted, others: Predicted, cluster_M: np.ndarray, part_M: np.ndarray | None
    ) -> dict[str, Any]:
        """Return measures of the scored positives against other negatives, each at its network's threshold.

        Args:
            predicted: what a classifier says of the scored rows.
            others: what it says of the negatives.
            cluster_M: numbers of what is resampled together, as in ``cluster_numbers``.
            part_M: the folds that the negatives were scored in, if there are folds.
        """
        chosen_N, judged = self.is_positive, []
        label = np.repeat([self.positive, 1 - self.positive], [chosen_N.sum(), len(cluster_M)])
        parts = None
        if self.parts is not None and part_M is not None:
            parts = np.concatenate([self.parts[chosen_N], part_M])
        for seed, scores_NC in enumerate(predicted.scores):
            scores = np.concatenate([scores_NC[chosen_N], others.scores[seed]])
            threshold = np.concatenate([predicted.thresholds[seed][chosen_N], others.thresholds[seed]])
            judged.append(replace(against_rest(label, scores, self.positive, threshold), parts=parts))
        clusters = np.concatenate([self.cluster_numbers()[chosen_N], cluster_M])
        found = bootstrap(judged, clusters, self.seed).summary()
        low, high = found["intervals"]["specificity"]
        kept = {name: found[name] for name in ("auroc", "mcc")}
        intervals = {name: found["intervals"][name] for name in kept}
        return {
            **kept,
            "false_positive_rate": 1 - found["specificity"],
            "intervals": intervals | {"false_positive_rate": [1 - high, 1 - low]},
        }

    def cluster_numbers(self) -> np.ndarray:
        """Return the number (N,) of each scored row's cluster; of each row, where there are none."""
        if self.clusters is None:
            return np.arange(len(self.labels))
        return np.unique(self.clusters, return_inverse=True)[1]

    def majority(self, train_N: np.ndarray) -> dict[str, Any]:
        """Return the commonest of the training rows' classes, and the accuracy of calling it always."""
        commonest = int(np.bincount(train_N).argmax())
        accuracy = float((self.labels == commonest).mean())
        return {"class": self.names[commonest], "accuracy": accuracy}


def validated(label_V: np.ndarray, scores_VC: np.ndarray) -> dict[str, float]:
    """Return what runs are compared by: cross-entropy, and MCC and AUROC over all classes."""
    found = measure(among_all(label_V, scores_VC), np.ones((1, len(label_V))))
    loss = -np.log(np.maximum(scores_VC[np.arange(len(label_V)), label_V], 1e-300)).mean()
    return {"loss": float(loss)} | {name: float(found[name][0]) for name in ("mcc", "auroc")}


def _of_runs(name: str, values_SN: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the number that all rows share under its name; else the lowest and the highest."""
    low, high = float(np.min(values_SN)), float(np.max(values_SN))
    return {name: low} if low == high else {f"{name}s": [low, high]}


def _calibration(labels_N: np.ndarray, predicted: Predicted) -> dict[str, Any]:
    """Return the temperature, and calibration errors and reliability with and without it."""
    before = []
    for scores_NC, temperature_N in zip(predicted.scores, predicted.temperatures, strict=True):
        raised_NC = scores_NC ** temperature_N[:, None]
        before.append(raised_NC / raised_NC.sum(1, keepdims=True))
    found: dict[str, Any] = _of_runs("temperature", predicted.temperatures)
    for name, scores in (("", predicted.scores), ("_before", before)):
        errors = [calibration_error(labels_N, scores_NC) for scores_NC in scores]
        found[f"expected_error{name}"] = float(np.mean(errors))
        bins = reliability(np.tile(labels_N, len(scores)), np.concatenate(scores))
        keys = "n", "confidence", "right"
        found[f"reliability{name}"] = {k: v.tolist() for k, v in zip(keys, bins, strict=True)}
    return found


# -- areas of single columns of scores, by group


def areas(
    positive_N: np.ndarray,
    scores: Mapping[str, Sequence[np.ndarray]],
    group_N: np.ndarray | None,
    part_N: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the AUROC of each kind of scores, S arrays (N,): the mean over the seeds (and over the parts).

    It is None where one class is absent. With groups, ``by_group`` has those of all positives against each
    group of the others.
    """
    found: dict[str, Any] = {name: _auroc(positive_N, score_SN, part_N) for name, score_SN in scores.items()}
    if group_N is None:
        return found
    found["by_group"] = {}
    for group in sorted(set(group_N[~positive_N])):
        chosen_N = positive_N | (group_N == group)
        part = {name: [score_N[chosen_N] for score_N in score_SN] for name, score_SN in scores.items()}
        count = int((group_N[~positive_N] == group).sum())
        of_part = None if part_N is None else part_N[chosen_N]
        found["by_group"][str(group)] = {**areas(positive_N[chosen_N], part, None, of_part), "n": count}
    return found


def _auroc(positive_N: np.ndarray, score_SN: Sequence[np.ndarray], part_N: np.ndarray | None) -> float | None:
    from sklearn.metrics import roc_auc_score

    part_N = np.zeros(len(positive_N)) if part_N is None else part_N
    inside = [part_N == part for part in np.unique(part_N)]
    inside = [i for i in inside if 0 < positive_N[i].sum() < i.sum()]
    if not inside:
        return None
    return float(np.mean([roc_auc_score(positive_N[i], score_N[i]) for score_N in score_SN for i in inside]))


# -- in words


def in_lines(metrics: Mapping[str, Any], what: str) -> Iterator[str]:
    """Yield what is printed: the figures on ``what`` beside the majority class, then every control."""
    chosen, majority = metrics.get("at_threshold") or metrics["macro"], metrics["majority"]
    always = f"accuracy {chosen['accuracy']:.3f} (always {majority['class']}: {majority['accuracy']:.3f})"
    how, even = "over all classes", ""
    if limits := chosen.get("thresholds") or [chosen[key] for key in ("threshold",) if key in chosen]:
        plural = "s" if len(limits) > 1 else ""
        how = f"at threshold{plural} {' to '.join(f'{limit:.3f}' for limit in limits)}"
        even = f"; at 0.5 {_measured(metrics, ['mcc'])}"
    yield f"{metrics['positive']} on {what}: {how} {_measured(chosen)}, {always}{even}"
    if chosen["auroc"] is not None and chosen["intervals"]["auroc"][0] <= EVEN:
        yield "warning: the interval of the AUROC holds 0.5: nothing that generalises may have been learnt"
    for name, control in metrics["controls"].items():
        ahead = control["ours_minus_it"]
        differences = (
            f"{label} {_number(ahead[key]['difference'], ahead[key]['interval'], '+.3f')}"
            for key, label in SAID.items()
        )
        yield f"control {name}: {_measured(control)}; the classifier is ahead by {', '.join(differences)}"
    for name, other in metrics.get("other_negatives", {}).items():
        rate = _number(other["false_positive_rate"], other["intervals"]["false_positive_rate"])
        yield f"against {other['n']} {name}: {_measured(other)}, false positive rate {rate}"


def _measured(figures: Mapping[str, Any], keys: Sequence[str] = tuple(SAID)) -> str:
    """Return measures in words, with how they vary with the seed, if they do, and their intervals."""
    spread = figures.get("sd", {})
    return ", ".join(
        f"{SAID[key]} {_number(figures[key], figures['intervals'][key], sd=spread.get(key))}" for key in keys
    )


def _number(
    value: float | None, interval: list[float] | None, form: str = ".3f", sd: float | None = None
) -> str:
    if value is None or interval is None:
        return "n/a"
    varies = "" if sd is None else f" +- {sd:.3f} over seeds"
    return f"{value:{form}}{varies} ({interval[0]:{form}} to {interval[1]:{form}})"
