"""A classifier beside its controls: the same rows, the same resamples, each with a threshold of its own.

Shapes: N sequences, C classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
)

SAID = {"mcc": "MCC", "auroc": "AUROC"}
Scores = Mapping[str, np.ndarray]  # probabilities (N, C) by split


@dataclass(frozen=True)
class Evaluation:
    """What classifiers are judged by: the classes (N,) of validation rows, if any, and of scored rows.

    ``scored`` is the split that figures are of. Of two classes, ``positive`` is called by a threshold that is
    chosen on validation; of more, the likeliest is called.
    """

    labels: Mapping[str, np.ndarray]
    scored: str
    names: list[str]
    positive: int
    clusters: np.ndarray | None
    seed: int

    @property
    def is_positive(self) -> np.ndarray:
        """Return which scored rows (N,) are of the positive class."""
        return self.labels[self.scored] == self.positive

    def threshold(self, scores: Scores) -> float:
        """Return the threshold of the highest MCC on validation; 0.5 without, or with more classes than 2."""
        if len(self.names) > 2 or "validation" not in self.labels:
            return EVEN
        positive_N = self.labels["validation"] == self.positive
        return best_threshold(positive_N, scores["validation"][:, self.positive])

    def judge(self, scores: Scores) -> tuple[dict[str, float], Resampled]:
        """Return the threshold, if one is used, and the measures of scored rows.

        All classifiers are seen in the same resamples.
        """
        labels_N, scores_NC = self.labels[self.scored], scores[self.scored]
        if len(self.names) > 2:
            return {}, self._resampled(among_all(labels_N, scores_NC))
        threshold = self.threshold(scores)
        judged = against_rest(labels_N, scores_NC, self.positive, threshold)
        return {"threshold": threshold}, self._resampled(judged)

    def _resampled(self, judged: Judged) -> Resampled:
        return bootstrap(judged, self.clusters, self.seed)

    def figures(self, ours: Scores, temperature: float, controls: Mapping[str, Scores]) -> dict[str, Any]:
        """Return the object for metrics.json.

        Its measures are those of the positive class against the rest at a threshold of 0.5. ``at_threshold``
        has them at the one chosen on validation; with more than two classes ``macro`` has instead those of
        all classes (accuracy and MCC over all, means over the classes of what is of one class). Controls and
        their differences are measured like that.
        """
        labels_N, scores_NC = self.labels[self.scored], ours[self.scored]
        even = self._resampled(against_rest(labels_N, scores_NC, self.positive)).summary()
        fact, judged = self.judge(ours)
        return {
            **{name: value for name, value in even.items() if name != "auroc"},
            "at_threshold" if fact else "macro": {**fact, **judged.summary()},
            "calibration": _calibration(labels_N, scores_NC, temperature),
            "controls": {name: self._compare(scores, judged) for name, scores in controls.items()},
            "n_positive": int(self.is_positive.sum()),
            "n_negative": int((~self.is_positive).sum()),
            "positive": self.names[self.positive],
        }

    def _compare(self, scores: Scores, ours: Resampled) -> dict[str, Any]:
        fact, theirs = self.judge(scores)
        return {**fact, **theirs.summary(), "ours_minus_it": ours.minus(theirs)}

    def majority(self, train_N: np.ndarray) -> dict[str, Any]:
        """Return the commonest of the training rows' classes, and the accuracy of calling it always."""
        commonest = int(np.bincount(train_N).argmax())
        accuracy = float((self.labels[self.scored] == commonest).mean())
        return {"class": self.names[commonest], "accuracy": accuracy}


def _calibration(labels_N: np.ndarray, scores_NC: np.ndarray, temperature: float) -> dict[str, float]:
    """Return the temperature, and the expected calibration error with and without it."""
    before_NC = scores_NC**temperature
    before_NC /= before_NC.sum(1, keepdims=True)
    return {
        "temperature": temperature,
        "expected_error": calibration_error(labels_N, scores_NC),
        "expected_error_before": calibration_error(labels_N, before_NC),
    }


# -- areas of single columns of scores, by group


def areas(positive_N: np.ndarray, scores: Scores, group_N: np.ndarray | None) -> dict[str, Any]:
    """Return the AUROC of each column of scores (N,), None where one class is absent.

    With groups, ``by_group`` has those of all positives against each group of the others.
    """
    found: dict[str, Any] = {name: _auroc(positive_N, score_N) for name, score_N in scores.items()}
    if group_N is None:
        return found
    found["by_group"] = {}
    for group in sorted(set(group_N[~positive_N])):
        chosen_N = positive_N | (group_N == group)
        part = areas(
            positive_N[chosen_N], {name: score_N[chosen_N] for name, score_N in scores.items()}, None
        )
        found["by_group"][str(group)] = {**part, "n": int((~positive_N[chosen_N]).sum())}
    return found


def _auroc(positive_N: np.ndarray, score_N: np.ndarray) -> float | None:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive_N, score_N)) if 0 < positive_N.sum() < len(positive_N) else None


# -- in words


def in_lines(metrics: Mapping[str, Any], split: str) -> Iterator[str]:
    """Yield what is printed: the figures beside the majority class, then every control."""
    chosen, majority = metrics.get("at_threshold") or metrics["macro"], metrics["majority"]
    always = f"accuracy {chosen['accuracy']:.3f} (always {majority['class']}: {majority['accuracy']:.3f})"
    how, even = "over all classes", ""
    if "threshold" in chosen:
        how = f"at threshold {chosen['threshold']:.3f}"
        even = f"; at 0.5 MCC {_number(metrics['mcc'], metrics['intervals']['mcc'])}"
    yield f"{metrics['positive']} on the {split} split: {how} {_measured(chosen)}, {always}{even}"
    if chosen["auroc"] is not None and chosen["intervals"]["auroc"][0] <= EVEN:
        yield "warning: the interval of the AUROC holds 0.5: nothing that generalises may have been learnt"
    for name, control in metrics["controls"].items():
        ahead = control["ours_minus_it"]
        differences = (
            f"{label} {_number(ahead[key]['difference'], ahead[key]['interval'], '+.3f')}"
            for key, label in SAID.items()
        )
        yield f"control {name}: {_measured(control)}; the classifier is ahead by {', '.join(differences)}"


def _measured(figures: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{label} {_number(figures[key], figures['intervals'][key])}" for key, label in SAID.items()
    )


def _number(value: float | None, interval: list[float] | None, form: str = ".3f") -> str:
    if value is None or interval is None:
        return "n/a"
    return f"{value:{form}} ({interval[0]:{form}} to {interval[1]:{form}})"
