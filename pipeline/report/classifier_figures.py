"""The figures of a classifier beside its controls, for finetune's folder and for the report.

Shapes: N rows, S seeds, T points of a curve.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.report.figures import COLOURS, SIZE, Picture, as_svg
from pipeline.report.texts import is_number

OURS, OPTIMUM = "ours", "optimum"
KINDS = {
    OURS: ("this classifier", COLOURS["value"]),
    "untrained": ("from random weights", COLOURS["untrained"]),
    "gc": ("GC content", "#6b7280"),
    "kmers": ("k-mers", "#a0438f"),
    "positions": ("letters by position", "#7c5cbf"),
    "pwm": ("weight matrices", "#a16207"),
    "cnn": ("convolutions", "#be123c"),
    OPTIMUM: ("best possible", COLOURS["optimum"]),
}
SHOWN = {"mcc": "MCC", "auroc": "AUROC"}
FADED = 0.35

Scores = Mapping[str, Sequence[np.ndarray]]  # of each classifier, S arrays (N,)


def draw_classifier(
    positive_N: np.ndarray, scores: Scores, metric: Mapping[str, Any], prefix: str = ""
) -> dict[str, Picture]:
    """Return the pictures of a classifier by name: roc, precision_recall, reliability and measures.

    Curves are left out where the rows are of one class, the others where the metric lacks their numbers. With
    several seeds each has a curve; the areas are means over them.

    Args:
        positive_N: which rows are of the positive class.
        scores: of each classifier, this one's under "ours", with one seed or several.
        metric: the object of metrics.json.
        prefix: begins every title.
    """
    name = metric.get("positive", "positive class")
    pictures = {}
    if 0 < positive_N.sum() < len(positive_N):
        pictures["roc"] = _roc(positive_N, scores, f"{prefix}ROC curve, {name}")
        pictures["precision_recall"] = _precision_recall(
            positive_N, scores, f"{prefix}precision and recall, {name}"
        )
    if "reliability" in metric.get("calibration", {}):
        pictures["reliability"] = _reliability(metric["calibration"], f"{prefix}reliability")
    if metric.get("controls"):
        pictures["measures"] = _measures(metric, f"{prefix}{name} beside the controls")
    return pictures


def _look(kind: str) -> tuple[str, dict[str, Any]]:
    """Return what a classifier is called, and how its line looks."""
    label, colour = KINDS.get(kind, (kind, "#111827"))
    line = {"color": colour, "linestyle": "-" if kind == OURS else "--", "linewidth": 1.6, "alpha": 1.0}
    return label, line | ({"zorder": 3} if kind == OURS else {})


def _curves(axes, scores: Scores, areas: Mapping[str, float], what: str, curve, **style: Any) -> None:
    """Draw the curve of every seed of every classifier; one of them is in the legend, with the mean area."""
    for kind, score_SN in scores.items():
        label, line = _look(kind)
        line |= {"alpha": FADED, "linewidth": 1.0} if len(score_SN) > 1 else {}
        for seed, score_N in enumerate(score_SN):
            axes.plot(
                *curve(score_N), **line, **style, label="" if seed else f"{label}: {what} {areas[kind]:.3f}"
            )


def _text(scores: Scores, areas: Mapping[str, float], what: str) -> str:
    seeds = max(len(score_SN) for score_SN in scores.values())
    several = f" A curve for each of {seeds} seeds; numbers are means over them." if seeds > 1 else ""
    listed = "; ".join(f"{_look(kind)[0]}: {what} {area:.3f}" for kind, area in areas.items())
    return f"{listed}.{several}"


def _means(scores: Scores, area) -> dict[str, float]:
    return {
        kind: float(np.mean([area(score_N) for score_N in score_SN])) for kind, score_SN in scores.items()
    }


def _roc(positive_N: np.ndarray, scores: Scores, title: str) -> Picture:
    from sklearn.metrics import roc_auc_score, roc_curve

    areas = _means(scores, lambda score_N: roc_auc_score(positive_N, score_N))

    def draw(axes) -> None:
        _curves(axes, scores, areas, "AUROC", lambda score_N: roc_curve(positive_N, score_N)[:2])
        axes.plot([0, 1], [0, 1], color=COLOURS["random"], linestyle=":", label="coin: AUROC 0.500")
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))
        axes.legend(loc="lower right")

    return as_svg(draw, title, _text(scores, areas, "AUROC"))


def _precision_recall(positive_N: np.ndarray, scores: Scores, title: str) -> Picture:
    from sklearn.metrics import average_precision_score, precision_recall_curve

    share, what = float(positive_N.mean()), "average precision"
    areas = _means(scores, lambda score_N: average_precision_score(positive_N, score_N))

    def curve(score_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        precision_T, recall_T, _ = precision_recall_curve(positive_N, score_N, drop_intermediate=True)
        return recall_T, precision_T

    def draw(axes) -> None:
        _curves(axes, scores, areas, what, curve, drawstyle="steps-pre")
        axes.axhline(share, color=COLOURS["random"], linestyle=":", label=f"share of positives: {share:.3f}")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.01))
        axes.legend(loc="lower left")

    return as_svg(draw, title, _text(scores, areas, what))


def _reliability(calibration: Mapping[str, Any], title: str) -> Picture:
    """Draw how often the likeliest class is right over its probability, before and after the temperature."""
    looks = {
        "_before": ("as trained", COLOURS["untrained"], "^--"),
        "": ("calibrated", COLOURS["value"], "o-"),
    }
    words = {
        end: f"{look[0]}: error {calibration[f'expected_error{end}']:.3f}" for end, look in looks.items()
    }

    def draw(axes) -> None:
        axes.plot([0, 1], [0, 1], color=COLOURS["random"], linestyle=":", label="calibrated without error")
        for end, (_, colour, form) in looks.items():
            bins = calibration[f"reliability{end}"]
            most = max(bins["n"])
            axes.plot(bins["confidence"], bins["right"], form, color=colour, markersize=0, linewidth=1.0)
            sizes = [12 + 60 * count / most for count in bins["n"]]
            axes.scatter(
                bins["confidence"], bins["right"], sizes, colour, form[0], label=words[end], zorder=3
            )
        low = min(min(calibration[f"reliability{end}"]["confidence"]) for end in looks)
        axes.set(xlabel="probability of the likeliest class", ylabel="share that is right")
        axes.set(xlim=(min(0.5, low) - 0.02, 1.02), ylim=(-0.02, 1.04))
        axes.legend(loc="lower right")

    text = f"{'; '.join(words.values())} (expected calibration error). Larger points are of more sequences."
    return as_svg(draw, title, text)


def _measures(metric: Mapping[str, Any], title: str) -> Picture:
    """Draw MCC and AUROC of every classifier, with their intervals."""
    rows = {OURS: metric.get("at_threshold") or metric["macro"], **metric["controls"]}

    def draw(axes) -> None:
        for place, (kind, figures) in enumerate(rows.items()):
            for up, (name, marker) in zip((-0.14, 0.14), (("mcc", "s"), ("auroc", "o")), strict=True):
                if is_number(figures.get(name)):
                    low, high = figures["intervals"][name]
                    colour = _look(kind)[1]["color"]
                    label = SHOWN[name] if kind == OURS else ""
                    axes.plot([low, high], [place + up] * 2, color=colour, linewidth=1.4)
                    axes.plot(figures[name], place + up, marker, color=colour, markersize=6, label=label)
        axes.axvline(0, color=COLOURS["random"], linestyle=":", linewidth=1.0)
        axes.axvline(0.5, color=COLOURS["random"], linestyle=":", linewidth=1.0)
        axes.set_yticks(range(len(rows)), [_look(kind)[0] for kind in rows], parse_math=False)
        axes.set(xlabel="MCC, AUROC (95 % interval)", ylim=(len(rows) - 0.5, -0.5))
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=2)

    listed = "; ".join(
        f"{_look(kind)[0]}: "
        + ", ".join(f"{SHOWN[n]} {figures[n]:.3f}" for n in SHOWN if is_number(figures.get(n)))
        for kind, figures in rows.items()
    )
    return as_svg(draw, title, f"{listed}.", (SIZE[0] + 0.6, 1.6 + 0.42 * len(rows)))
