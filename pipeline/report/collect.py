"""Reading finished stages into the dictionary that becomes report.json, and that the page is drawn from."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts import read_json, read_json_lines, read_manifest
from pipeline.errors import UserError
from pipeline.report.texts import kind_of, rule_out

RESERVED = {"title", "simulated", "stages"}
SCORE, OF_SEED = "score", "_seed_"
MOTIF_TABLES = ("heads", "agreement", "pairs")
NAMED = {"head", "motif", "first", "second", "orientation"}  # columns that hold names, also if they look else
COUNTED = {"sites", "sequences", "spacing", "at_spacing"}


@dataclass(frozen=True)
class FinishedStage:
    """A finished stage folder: its manifest and its metrics."""

    name: str
    folder: Path
    manifest: dict[str, Any]
    metrics: dict[str, dict[str, Any]]

    @property
    def kind(self) -> str:
        """Return the command that wrote it."""
        return self.manifest["stage"]

    def read(self, file: str) -> Any:
        """Return a JSON file of the folder, or None if there is none; NaN and infinities become None."""
        path = self.folder / file
        return finite(read_json(path)) if path.is_file() else None


def finite(value: Any) -> Any:
    """Return a JSON value with None for NaN and infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_stages(run: Path, names: list[str]) -> list[FinishedStage]:
    """Return the stages in the order given; a metric that an earlier stage has too is named key:stage."""
    stages, taken = [], set(RESERVED)
    for name in names:
        stage = FinishedStage(name, run / name, finite(read_manifest(run / name)), {})
        for key, metric in (stage.read("metrics.json") or {}).items():
            unique = f"{key}:{name}" if key in taken else key
            stage.metrics[unique] = metric if isinstance(metric, dict) else {"value": metric}
            taken.add(unique)
        stages.append(stage)
    return stages


def collect(stages: list[FinishedStage], title: str, simulated: bool) -> dict[str, Any]:
    """Return the content of report.json.

    A run with a simulate stage is labelled as simulated even if it was not said to be.
    """
    metrics = {key: metric for stage in stages for key, metric in stage.metrics.items()}
    return metrics | {
        "title": title,
        "simulated": simulated or any(stage.kind == "simulate" for stage in stages),
        "stages": [_entry(stage) for stage in stages],
    }


def _entry(stage: FinishedStage) -> dict[str, Any]:
    manifest = stage.manifest
    entry = {
        "name": stage.name,
        "stage": stage.kind,
        "content": manifest["content"],
        "seed": manifest.get("config", {}).get("seed"),
        "versions": manifest.get("versions", {}),
        "counts": manifest.get("counts", {}),
        "metrics": list(stage.metrics),
        "controls": {key: rule_out(key, metric) for key, metric in stage.metrics.items()},
        "truth": stage.read("truth.json"),
        "history": read_history(stage.folder / "metrics.jsonl"),
        "average_precision": _average_precision(stage),
        "motifs": stage.read("motifs.json"),
        "motif_controls": stage.read("controls.json"),
        "positions": stage.read("positions.json"),
        **{name: read_rows(stage.folder / f"{name}.tsv") for name in MOTIF_TABLES if stage.kind == "motifs"},
    }
    return {key: value for key, value in entry.items() if value is not None}


def read_rows(path: Path) -> list[dict[str, Any]] | None:
    """Return the rows of a table of the motifs stage, numbers as floats; None for what is empty."""
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [
        {key: _cell(path, line, key, text) for key, text in row.items()} for line, row in enumerate(rows, 2)
    ]


def _cell(path: Path, line: int, column: str, text: str | None) -> Any:
    if not text or column in NAMED:
        return text or None
    if column in COUNTED and text.isdecimal():
        return int(text)
    return finite(_number(path, line, column, text))


def read_history(path: Path) -> list[dict[str, float]] | None:
    """Return the loss and the validations of a run by step, without what depends on the machine's speed."""
    if not path.is_file():
        return None
    steps: dict[int, dict[str, float]] = {}
    for numbers in map(finite, read_json_lines(path)):
        kept = {k: v for k, v in numbers.items() if k == "loss" or k.startswith("validation_")}
        steps.setdefault(numbers["step"], {"step": numbers["step"]}).update(kept)
    return [steps[step] for step in sorted(steps)]


def read_scores(stage: FinishedStage) -> tuple[np.ndarray, dict[str, list[np.ndarray]]] | None:
    """Return which test sequences are of the positive class, (N,), and their scores by classifier.

    They are one array (N,) for each seed. The classifier's are under "ours", those of controls under their
    names, and the best possible ones under "optimum".

    Raises:
        UserError: the file has no scores, or not both classes.
    """
    path = stage.folder / "scores.tsv"
    if stage.kind != "finetune" or stage.manifest["config"].get("task", "classes") != "classes":
        return None
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    class_name = positive_class(stage)
    positive_N = np.array([row.get("label") == class_name for row in rows])
    if not 0 < positive_N.sum() < len(rows):
        raise UserError(
            f"{path}: {positive_N.sum()} of {len(rows)} rows have the label {class_name!r}; "
            "run finetune again with both classes in the test split"
        )
    scores: dict[str, list[np.ndarray]] = {}
    for column in _of_scores(list(rows[0])):
        if all(row.get(column) for row in rows):
            values = [_number(path, n, column, row[column]) for n, row in enumerate(rows, 2)]
            scores.setdefault(_classifier_of(column), []).append(np.array(values))
    if "ours" not in scores:
        raise UserError(f"{path}: not every row has a {SCORE}; run finetune again")
    return positive_N, scores


def _of_scores(columns: list[str]) -> list[str]:
    """Return the columns with scores; where those of every seed are there, not their mean."""
    scores = [name for name in columns if name == SCORE or name.startswith(f"{SCORE}_")]
    means = {name.split(OF_SEED)[0] for name in scores if OF_SEED in name}
    return [name for name in scores if name not in means] + [name for name in columns if name == "reference"]


def _classifier_of(column: str) -> str:
    name = column.split(OF_SEED)[0]
    return {SCORE: "ours", "reference": "optimum"}.get(name, name.removeprefix(f"{SCORE}_"))


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{path}: line {line}: {column} {text!r} is not a number; run the stage that wrote it again"
        ) from None


def positive_class(stage: FinishedStage) -> str | None:
    """Return the class that a classifier's scores are for."""
    for key, metric in stage.metrics.items():
        if kind_of(key) == "auroc":
            named = metric.get("positive")
            return named if isinstance(named, str) else key.split(":")[0].removesuffix("_auroc")
    return None


def _average_precision(stage: FinishedStage) -> dict[str, float] | None:
    from sklearn.metrics import average_precision_score

    found = read_scores(stage)
    if found is None:
        return None
    positive_N, scores = found
    return {
        "value" if kind == "ours" else kind: float(
            np.mean([average_precision_score(positive_N, score_N) for score_N in score_SN])
        )
        for kind, score_SN in scores.items()
    }
