"""What the numbers mean, and what each control rules out."""

import math
import re
from typing import Any, TypeGuard

OPTIMUM = "The score of one who knows how the data were made. Nothing beats it but by chance."
GROUPS_NOTE = (
    "Each group of negatives shares something with the class; a classifier that reads only that scores 0.5 "
    "against the group."
)
CONTROLS = ("untrained", "baseline", "random")
SIGNIFICANT = 3.0
FEW_RUNS = 0.1  # share of a control's runs that may give a motif
CRITERION = (
    "A claim is ruled out if the run is better than the control by more than three standard errors of the "
    "difference, the two taken as independent; where no error is known, if it is better at all."
)
INTERVAL_CRITERION = (
    "A claim is ruled out if 95 % of the means of resampled proteins are better than the control on the same "
    "proteins."
)
MOTIF_CRITERION = (
    "The same search was run on each control. A claim is ruled out if the control gives fewer motifs, and, "
    "where there is nothing to find, one at most in every ten runs."
)
MEANINGS = {
    "bits": "Mean surprise at a hidden letter of the test text, in bits. Lower is better.",
    "auroc": "Chance that a test sequence of the class scores above one of the rest. Higher is better.",
    "motifs": "Expected motifs among those read from the attention of the classifier. Higher is better.",
    "found": "Motifs read from the attention of the classifier, tested on sequences they were not found in.",
    "contacts": "Share of true contacts among the L best pairs; L is the protein's length. Higher is better.",
    "other": "",
}
NAMES = {
    "bits": {
        "untrained": "untrained network",
        "baseline": "two-sided count model",
        "random": "base composition",
    },
    "auroc": {
        "untrained": "from random weights",
        "baseline": "baseline",
        "random": "coin",
        "optimum": "best possible",
    },
    "motifs": {"untrained": "untrained control", "no_attention": "no attention"},
    "found": {"untrained": "untrained control", "no_attention": "no attention"},
    "contacts": {
        "untrained": "untrained network",
        "baseline": "mutual information",
        "random": "random pairs",
        "label_free": "mean of heads, no regression",
        "separation": "separation alone",
    },
    "other": {},
}
# What the control is, and the simpler explanation that it stands for.
RIVALS = {
    "bits": {
        "untrained": (
            "The same network with random weights.",
            "the architecture alone predicts hidden letters",
        ),
        "baseline": (
            "A model that only counts which letters stand between the same neighbours on both sides.",
            "counting local context is enough",
        ),
        "random": (
            "How common each letter is in the training text.",
            "knowing the composition is enough",
        ),
    },
    "auroc": {
        "untrained": (
            "The same network trained on the same labels from random weights.",
            "the architecture and the labels alone do it, without pretraining",
        ),
        "baseline": ("A simpler classifier on the same sequences.", "the simpler classifier is enough"),
        "random": ("A guess.", "the result is luck"),
    },
    "motifs": {
        "untrained": (
            "The same search in the attention of a network that has not been trained.",
            "the search finds these motifs whatever the network has learnt",
        ),
    },
    "contacts": {
        "untrained": (
            "The same network with random weights.",
            "the architecture alone puts contacts first",
        ),
        "baseline": (
            "Mutual information between columns of the same alignment, corrected in the same way.",
            "counting pairs of letters is enough",
        ),
        "random": ("The share of contacts among all pairs scored.", "the result is luck"),
        "label_free": (
            "The mean of all heads' corrected attention, without a regression.",
            "attention shows contacts as well without being fitted to structures",
        ),
        "separation": (
            "A regression on |i - j| alone, fitted to the same structures.",
            "knowing that residues near in sequence touch more often is enough",
        ),
    },
}
MOTIF_CLAIMS = {
    "untrained": "the search finds motifs whatever the network has learnt",
    "shuffled_positives": "the composition of bases and of neighbouring bases is enough",
    "permuted_labels": "the search finds motifs where the labels say nothing",
    "random_regions": "any regions at these places give motifs, wherever attention lies",
    "no_attention": "plain enrichment in whole sequences gives as many without attention",
}
GROUPS = {
    "minus10_only": "a -10 box alone is enough",
    "minus35_only": "a -35 box alone is enough",
    "wrong_spacing": "both boxes at any distance are enough",
    "wrong_order": "both boxes in any order are enough",
    "plain": "the class cannot be told from plain background",
}


def kind_of(key: str) -> str:
    """Return what a metric measures: bits, auroc, motifs (expected), found (motifs), contacts or other."""
    patterns = {
        "bits": r"^bits_per_",
        "auroc": r"_auroc(:|$)",
        "motifs": r"^motifs_recovered(:|$)",
        "found": r"^motifs_found(:|$)",
        "contacts": r"^contact_precision",
    }
    return next((kind for kind, pattern in patterns.items() if re.search(pattern, key)), "other")


def label_of(key: str) -> str:
    """Return a metric's key in words."""
    name, _, stage = key.partition(":")
    words = name.replace("_", " ").replace("auroc", "AUROC")
    words = re.sub(r" at l\b", " at L", words)
    words = words[:1].upper() + words[1:]
    return f"{words} ({stage})" if stage else words


def control_name(key: str, control: str) -> str:
    """Return what a control of a metric is called on the page."""
    residues = "residue" in key and control == "random"
    return "residue composition" if residues else NAMES[kind_of(key)].get(control, control.replace("_", " "))


def standard_error(kind: str, metric: dict[str, Any], value: float) -> float | None:
    """Return the standard error of a metric, or None where none is known.

    Of bits the one measured; of an AUROC that of Hanley and McNeil 1982, doi:10.1148/radiology.143.1.7063747;
    of a precision at L the binomial one, as if the L pairs were independent.
    """
    if kind == "auroc" and metric.get("n_positive") and metric.get("n_negative"):
        return auroc_error(value, metric["n_positive"], metric["n_negative"])
    if kind == "contacts" and metric.get("length"):
        return math.sqrt(value * (1 - value) / metric["length"])
    return metric.get("standard_error")


def auroc_error(area: float, positives: int, negatives: int) -> float:
    """Return the standard error of an AUROC (Hanley and McNeil 1982, doi:10.1148/radiology.143.1.7063747)."""
    two_positives = area / (2 - area)
    two_negatives = 2 * area**2 / (1 + area)
    variance = area * (1 - area)
    variance += (positives - 1) * (two_positives - area**2) + (negatives - 1) * (two_negatives - area**2)
    return math.sqrt(max(variance, 0.0) / (positives * negatives))


def rule_out(key: str, metric: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each control of a metric rules out.

    A simpler explanation is ruled out if the result is better than its control by more than three standard
    errors of the difference, the two taken as independent (where no error is known: if it is better). Where
    proteins were resampled, it is ruled out if the interval of the difference is above 0; of motifs, as
    `MOTIF_CRITERION` says.

    Returns:
        for each control and each group of negatives: ``control``, ``difference`` (positive: the result is
        better), its ``standard_error`` and ``interval`` or None, ``ruled_out``, and in words ``about`` and
        ``claim``.
    """
    kind, value = kind_of(key), metric.get("value")
    if not is_number(value):
        return []
    if kind in ("motifs", "found") and isinstance(runs := metric.get("controls"), dict):
        return [_searched(kind, value, name, run) for name, run in runs.items() if name in MOTIF_CLAIMS]
    found = [_paired(name, above) for name, above in (metric.get("above") or {}).items()]
    compared = [each["control"] for each in found]
    for control in CONTROLS:
        other = metric.get(control)
        if control not in compared and control in RIVALS.get(kind, {}) and is_number(other):
            errors = [standard_error(kind, metric, value), standard_error(kind, metric, other)]
            if kind == "contacts" and control == "random":
                errors[1] = 0.0  # counted over all pairs
            sign = -1 if kind == "bits" else 1
            about, claim = RIVALS[kind][control]
            found.append(_verdict(control, sign * (value - other), errors, about, claim))
    return found + [_group(name, group, metric) for name, group in _groups(metric)]


def _searched(kind: str, value: float, name: str, run: dict[str, Any]) -> dict[str, Any]:
    """Compare motifs with those of the same search on a control; of several runs with the mean of found ones,
    or with the most expected ones that a run recovered.
    """
    from pipeline.attention.controls import ABOUT

    gave = run["recovered"] if kind == "motifs" else run["motifs"] / run["runs"]
    about = f"{ABOUT[name][0].upper()}{ABOUT[name][1:]}."
    if run["runs"] > 1:
        about += f" Motifs in {run['runs_with_motifs']} of {run['runs']} runs."
    verdict = _verdict(name, value - gave, [None], about, MOTIF_CLAIMS[name])
    seldom = name == "no_attention" or run["runs_with_motifs"] <= FEW_RUNS * run["runs"]
    return verdict | {"ruled_out": value > gave and seldom}


def _paired(name: str, above: dict[str, Any]) -> dict[str, Any]:
    """Say of a difference over the same proteins whether its interval is above 0."""
    about, claim = RIVALS["contacts"][name]
    verdict = _verdict(name, above["difference"], [None], about, claim)
    interval = above["interval"]
    return verdict | {"interval": interval, "ruled_out": bool(interval) and interval[0] > 0}


def _groups(metric: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    groups = metric.get("by_group")
    groups = groups.items() if isinstance(groups, dict) else ()
    return [(n, g) for n, g in groups if isinstance(g, dict) and is_number(g.get("value"))]


def _group(name: str, group: dict[str, Any], metric: dict[str, Any]) -> dict[str, Any]:
    """Compare a group's AUROC with 0.5, which is what one scores who reads only what both sides share."""
    sizes = metric.get("n_positive"), group.get("n")
    error = auroc_error(0.5, *sizes) if all(sizes) else None  # type: ignore[arg-type]  both are numbers
    claim = GROUPS.get(name, f"what the class shares with {name} is enough")
    return _verdict(f"group {name}", group["value"] - 0.5, [error, 0.0], "", claim)


def _verdict(
    control: str, difference: float, errors: list[float | None], about: str, claim: str
) -> dict[str, Any]:
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) if len(known) == len(errors) else None
    return {
        "control": control,
        "difference": difference,
        "standard_error": error,
        "interval": None,
        "ruled_out": difference > SIGNIFICANT * (error or 0.0),
        "about": about,
        "claim": claim,
    }


def is_number(value: Any) -> TypeGuard[float]:
    """Tell numbers from None, words and yes or no."""
    return isinstance(value, int | float) and not isinstance(value, bool)
