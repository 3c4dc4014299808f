"""Linear probes: how well a label can be read off vectors by a linear map, by cross-validation.

Shapes: N records, F features, C classes, S strengths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.training.correlation import spearman
from pipeline.training.folds import assign_folds
from pipeline.training.metrics import Resampled, among_all, bootstrap
from pipeline.training.resampling import interval

STRENGTHS = (1e-3, 1e-2, 0.1, 1.0, 10.0)  # C of logistic regression; a ridge has N / C
RESAMPLES = 2000
MEASURES = {"mcc": "MCC", "auroc": "AUROC", "spearman": "Spearman's correlation", "r2": "R2"}


@dataclass(frozen=True)
class Probing:
    """What probes are trained on, and how.

    Attributes:
        target: class numbers or measured numbers (N,).
        classes: names of the classes; none for a regression.
        group: (N,) number of what each record stays together with.
        digest: (N,) uint64, stands for the content of each record.
        folds: how many; as many within the training part choose the penalty.
        seed: of the folds and intervals.
    """

    target: np.ndarray
    classes: list[str]
    group: np.ndarray
    digest: np.ndarray
    folds: int
    seed: int

    def fold_of(self, chosen: np.ndarray) -> np.ndarray:
        """Return the fold of each of these records (indices), from 1; groups are whole.

        Raises:
            UserError: there are fewer groups than folds.
        """
        if (found := len(np.unique(self.group[chosen]))) < self.folds:
            raise UserError(
                f"folds: {found} groups of records that stay together are fewer than {self.folds}; pass "
                "fewer --folds"
            )
        label_N = self.target[chosen] if self.classes else np.zeros(len(chosen), np.int64)
        return assign_folds(self.group[chosen], self.digest[chosen], label_N, self.folds, self.seed)

    def answers(self, features_NF: np.ndarray) -> tuple[np.ndarray, list[float]]:
        """Return what probes say of the records that they were not trained on, and their strengths.

        Args:
            features_NF: brought to mean 0 and variance 1 by those of the training records.

        Returns:
            Probabilities (N, C), or numbers (N,); and the strength chosen for each fold.

        Raises:
            UserError: a class is not in every fold.
        """
        fold_N = self.fold_of(np.arange(len(self.target)))
        shape = (len(fold_N), len(self.classes)) if self.classes else (len(fold_N),)
        found, strengths = np.full(shape, np.nan), []
        for fold in range(1, self.folds + 1):
            train_N, test_N = (np.flatnonzero(chosen) for chosen in (fold_N != fold, fold_N == fold))
            probe = self._fit(features_NF, train_N)
            strengths.append(float(STRENGTHS[probe.best_index_]))
            said = probe.predict_proba if self.classes else probe.predict
            found[test_N] = said(features_NF[test_N])
        return found, strengths

    def _fit(self, features_NF: np.ndarray, train_N: np.ndarray):
        """Return a probe with the strength that does best in folds within the training records."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.model_selection import GridSearchCV, PredefinedSplit
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import StandardScaler

        inner_N = self.fold_of(train_N)
        self._check_classes(train_N, inner_N)
        if self.classes:
            model, grid = LogisticRegression(max_iter=1000), {"probe__C": list(STRENGTHS)}
            scoring = "neg_log_loss"
        else:
            model, grid = Ridge(), {"probe__alpha": [len(train_N) / c for c in STRENGTHS]}
            scoring = "neg_mean_squared_error"
        steps = Pipeline([("scale", StandardScaler()), ("probe", model)])
        search = GridSearchCV(steps, grid, scoring=scoring, cv=PredefinedSplit(inner_N))
        return search.fit(features_NF[train_N], self.target[train_N])

    def _check_classes(self, train_N: np.ndarray, inner_N: np.ndarray) -> None:
        for number, name in enumerate(self.classes):
            folds = np.unique(inner_N[self.target[train_N] == number])
            if len(folds) < self.folds:
                raise UserError(
                    f"target: class {name!r} has too few records, or groups of them, for {self.folds} folds "
                    f"in {self.folds} folds; leave it out, or pass fewer --folds (or, if the targets "
                    "are measurements, --task regression)"
                )

    def judge(self, answers: np.ndarray) -> tuple[dict[str, Any], Resampled | None]:
        """Return measures with intervals, as ``value``, ``low``, ``high``; and of classes the resamples."""
        if not self.classes:
            rank = spearman(answers, self.target, self.seed)
            return {"spearman": rank, "r2": r_squared(answers, self.target, self.seed)}, None
        resampled = bootstrap(among_all(self.target, answers), self.group, self.seed)
        summary = resampled.summary()
        found = {}
        for name in ("mcc", "auroc"):
            low, high = summary["intervals"][name] or (None, None)
            found[name] = {"value": summary[name], "low": low, "high": high}
        return found, resampled

    def figures(self, features: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """Return the object for metrics.json, and the strengths that were chosen in each fold.

        It has the measures of the first features beside those of the others. Of classes it also says how far
        the first are ahead, in the same resamples.
        """
        judged, strengths = {}, {}
        for name, features_NF in features.items():
            answers, strengths[name] = self.answers(features_NF)
            judged[name] = self.judge(answers)
        ours, *others = features
        metrics: dict[str, Any] = {}
        for measure, value in judged[ours][0].items():
            controls = {name: judged[name][0][measure] for name in others}
            metrics[measure] = {**value, "n": len(self.target), "controls": controls}
        for name in others:
            mine, theirs = judged[ours][1], judged[name][1]
            if mine is not None and theirs is not None:
                for measure, ahead in mine.minus(theirs).items():
                    metrics[measure]["controls"][name] |= {"ours_minus_it": ahead}
        return metrics, strengths


def r_squared(answers_N: np.ndarray, target_N: np.ndarray, seed: int) -> dict[str, float]:
    """Return the share of the variance that is explained, 1 - residuals / total, and its 95 % interval."""

    def of_rows(rows_RN: np.ndarray) -> np.ndarray:
        found_RN, true_RN = answers_N[rows_RN], target_N[rows_RN]
        total_R = ((true_RN - true_RN.mean(1, keepdims=True)) ** 2).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            value_R = 1 - ((true_RN - found_RN) ** 2).sum(1) / total_R
        return np.where(total_R > 0, value_R, np.nan)

    low, high = interval(of_rows, len(target_N), RESAMPLES, seed)
    return {"value": float(of_rows(np.arange(len(target_N))[None])[0]), "low": low, "high": high}


def in_lines(metrics: Mapping[str, Any], what: str):
    """Yield what is printed: each measure, and its controls."""
    for name, metric in metrics.items():
        controls = "; ".join(f"{key} {_number(each)}" for key, each in metric["controls"].items())
        yield f"{what}: {MEASURES[name]} {_number(metric)}; controls: {controls}"


def _number(metric: Mapping[str, Any]) -> str:
    if metric["value"] is None or metric["low"] is None:
        return "n/a"
    return f"{metric['value']:.3f} ({metric['low']:.3f} to {metric['high']:.3f})"
