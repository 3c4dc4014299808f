"""The stage that lays pretraining runs side by side: settings, curves, bits, and paired differences."""

import csv
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce, read_json_lines, read_keys, read_manifest
from pipeline.config import CompareConfig
from pipeline.errors import UserError
from pipeline.log import say

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 4000
BITS = "bits_per_hidden_"
COUNTING = "its count model"
UNTOLD = ("output", "name", "trackers", "dry_run", "launch", "resume")  # no matter of the result
PRINTED = 30  # settings
SCORED = ("hidden_letters", "value", "standard_error", "baseline", "random", "untrained")


@dataclass(frozen=True)
class Finished:
    """A finished run.

    ``settings`` are those that matter, by dotted key; ``scores`` what metrics.json has for each test text,
    ``curves`` the points (letters seen, value) of the loss and of each validation, ``windows`` the bits of
    the windows of each data set, in order.
    """

    name: str
    settings: dict[str, str]
    inputs: dict[str, str]
    counts: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    curves: dict[str, list[tuple[int, float]]]
    windows: dict[str, "pd.DataFrame"]

    @property
    def comparable(self) -> bool:
        """Whether other tokenizers answer the same questions from the same visible letters."""
        return all(score.get("comparable", True) for score in self.scores.values())


def _names(folders: list[Path]) -> list[str]:
    """Return what runs are called: by their folder, or its path where folders are called alike."""
    names = [folder.name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    if len(names) < 2:
        raise UserError(f"runs: {len(names)} given; name two or more folders written by pretrain")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"runs: {twice[0]} is given twice; name each run once")
    return names


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        nested = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if nested else {prefix + key: json.dumps(value)}
    return flat


def _curves(path: Path, letters_per_step: int) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in read_json_lines(path) if path.is_file() else ():
        for name, value in line.items():
            if name == "loss" or name.startswith("validation_"):
                curves.setdefault(name, []).append((line["step"] * letters_per_step, value))
    return curves


def _windows(path: Path) -> dict[str, "pd.DataFrame"]:
    import pandas as pd

    if not path.is_file():
        return {}
    text = {"dtype": {"data_set": str, "hidden": str}, "keep_default_na": False}  # a folder may be called NA
    table = pd.read_csv(path, sep="\t", na_values={"baseline": [""]}, **text)
    return {str(name): rows.reset_index(drop=True) for name, rows in table.groupby("data_set", sort=False)}


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a finished run.

    Raises:
        UserError: the folder is none.
    """
    manifest = read_manifest(folder)
    if manifest["stage"] != "pretrain":
        raise UserError(f"runs: {folder} was written by {manifest['stage']}; pass folders of pretrain")
    return manifest


def _read(folder: Path, name: str) -> Finished:
    from pipeline.training.scores import WINDOWS

    manifest = _manifest(folder)
    config = {key: value for key, value in manifest["config"].items() if key not in UNTOLD}
    if config["start_from"]:  # the shape is that checkpoint's
        network = read_keys(folder / "config.json")
        config["model"] = {key: network.get(key, value) for key, value in config["model"].items()}
    metrics = read_keys(folder / "metrics.json")
    return Finished(
        name=name,
        settings=_flat(config) | _flat(manifest["versions"], "versions."),
        inputs=manifest["inputs"],
        counts=manifest["counts"],
        scores={key: score for key, score in metrics.items() if key.startswith(BITS)},
        curves=_curves(folder / "metrics.jsonl", manifest["config"]["tokens_per_step"]),
        windows=_windows(folder / WINDOWS),
    )


def _differing(runs: list[Finished]) -> dict[str, list[str]]:
    """Return the settings that differ; a path is as good as another with the same content."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    table = {key: [run.settings.get(key, "") for run in runs] for key in keys}
    same_input = all(run.inputs == runs[0].inputs for run in runs)
    of_inputs = ("data", "start_from") if same_input else ()
    return {key: row for key, row in table.items() if len(set(row)) > 1 and key not in of_inputs}


# -- paired differences


def difference(excess_W: np.ndarray, letters_W: np.ndarray, seed: int) -> dict[str, float]:
    """Return how many bits per letter a model needs more than another, and how sure that is.

    Args:
        excess_W: (W,) bits that it needs more, summed over the hidden letters of each window.
        letters_W: (W,) hidden letters of each window.
        seed: of the resampling.

    The interval holds 95 % of the differences in resamples of the windows: letters of a window are alike, so
    they are drawn together.
    """
    from pipeline.training.resampling import interval

    def of_rows(rows_RW: np.ndarray) -> np.ndarray:
        return excess_W[rows_RW].sum(1) / letters_W[rows_RW].sum(1)

    low, high = interval(of_rows, len(letters_W), RESAMPLES, seed)
    return {
        "difference": float(excess_W.sum() / letters_W.sum()),
        "low": low,
        "high": high,
        "letters": int(letters_W.sum()),
        "windows": len(letters_W),
    }


def _pair(first: Finished, second: Finished, seed: int) -> list[dict[str, Any]]:
    """Return the differences on all test texts of one run that are also the other's, letter for letter."""
    if _why_unpaired(first, second):
        return []
    others = {_text(table): table["value"].to_numpy() for table in second.windows.values()}
    pairs = []
    for name, table in first.windows.items():
        if _text(table) in others:
            excess_W = table["value"].to_numpy() - others[_text(table)]
            numbers = difference(excess_W, table["letters"].to_numpy(), seed)
            pairs.append({"run": first.name, "minus": second.name, "data_set": name, **numbers})
    return pairs


def _against_counting(run: Finished, seed: int) -> list[dict[str, Any]]:
    """Return how a run compares with the count model of its own training text."""
    pairs = []
    for name, table in run.windows.items():
        if run.comparable and not np.isnan(table["baseline"]).any():
            excess_W = (table["value"] - table["baseline"]).to_numpy()
            numbers = difference(excess_W, table["letters"].to_numpy(), seed)
            pairs.append({"run": run.name, "minus": COUNTING, "data_set": name, **numbers})
    return pairs


def _text(table: "pd.DataFrame") -> tuple:
    """Return what is the same where the same letters were hidden at the same places of the same windows."""
    return (*table["hidden"], *table["letters"])


def _why_unpaired(first: Finished, second: Finished) -> str | None:
    """Return why two runs cannot be paired, or None: they can."""
    for run in (first, second):
        if not run.windows:
            return f"{run.name} has no scores of single windows"
        if not run.comparable and first.inputs != second.inputs:
            return f"the tokenizer of {run.name} cannot hide runs of 6 bases alone"
    texts = [{_text(table) for table in run.windows.values()} for run in (first, second)]
    return None if texts[0] & texts[1] else "their test texts differ, or the windows that they are cut into"


def _pairs(runs: list[Finished], seed: int) -> list[dict[str, Any]]:
    """Return all differences; say which runs cannot be paired."""
    pairs = [pair for run in runs for pair in _against_counting(run, seed)]
    for first, second in itertools.combinations(runs, 2):
        pairs += _pair(first, second, seed)
        if why := _why_unpaired(first, second):
            say(f"{first.name} and {second.name} are not paired: {why}")
    return pairs


# -- what is written and printed


def _summary(run: Finished) -> list[dict[str, Any]]:
    """Return a row for each test text of a run, or one without scores."""
    common = {"run": run.name, "parameters": run.counts.get("parameters")}
    common |= {"step": run.counts.get("weights_of_step")}
    rows = [
        {**common, "metric": metric, **{key: score.get(key) for key in SCORED}}
        for metric, score in run.scores.items()
    ]
    return rows or [{**common, "metric": None, **dict.fromkeys(SCORED)}]


def _write_rows(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows([header, *rows])


def _draw(runs: list[Finished], folder: Path) -> None:
    """Draw the training loss and the validations of all runs over the letters seen, as SVG and PNG."""
    import matplotlib
    from matplotlib.figure import Figure

    from pipeline.report.figures import STYLE

    names = list(dict.fromkeys(name for run in runs for name in run.curves))
    if not names:
        return
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]  its keys are names of settings
        figure = Figure(figsize=(4.8 * len(names), 3.5), layout="constrained", dpi=150)
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            for run in runs:
                points = run.curves.get(name, [])
                axes.plot([x for x, _ in points], [y for _, y in points], label=run.name, linewidth=1.4)
            label = "training loss (nats per target)" if name == "loss" else name.replace("_", " ")
            axes.set(xlabel="letters seen", ylabel=label)
            axes.legend()
        figure.savefig(folder / "curves.svg", metadata={"Date": None, "Creator": None})
        figure.savefig(folder / "curves.png", metadata={"Software": None})


def _say_table(header: list[str], rows: list[list[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table, highlight=False, markup=False)
    for line in capture.get().splitlines():
        say(line.rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _say(rows: list[dict[str, Any]], pairs: list[dict[str, Any]], settings: dict[str, list[str]]) -> None:
    """Print the tables: bits of the runs, paired differences, settings."""
    names = {"value": "bits", "baseline": "count model", "random": "composition"}
    _say_table([names.get(key, key.replace("_", " ")) for key in rows[0]], [list(r.values()) for r in rows])
    if pairs:
        say("")
        say("bits per hidden letter, paired differences with 95 % intervals (below 0: the first is better):")
        header = ["runs", "data set", "difference", "interval", "letters"]
        _say_table(header, [_in_words(pair) for pair in pairs])
    say("")
    names_of_runs = list(dict.fromkeys(row["run"] for row in rows))
    shown = [[key, *values] for key, values in itertools.islice(settings.items(), PRINTED)]
    _say_table(["settings that differ", *names_of_runs], shown) if shown else say("no settings differ")
    if len(settings) > PRINTED:
        say(f"{len(settings) - PRINTED} further settings that differ are in settings.tsv")


def _in_words(pair: dict[str, Any]) -> list[Any]:
    interval = f"{pair['low']:+.4f} to {pair['high']:+.4f}"
    runs = f"{pair['run']} - {pair['minus']}"
    return [runs, pair["data_set"], f"{pair['difference']:+.4f}", interval, pair["letters"]]


def run(config: CompareConfig) -> Result:
    """Write compare.json, settings.tsv, differences.tsv and the curves; print the tables."""
    names = _names(config.runs)
    for folder in config.runs:
        _manifest(folder)

    def build(workspace: Workspace) -> None:
        runs = [_read(folder, name) for folder, name in zip(config.runs, names, strict=True)]
        settings, pairs = _differing(runs), _pairs(runs, config.seed)
        rows = [row for each in runs for row in _summary(each)]
        _say(rows, pairs, settings)
        content = {"runs": rows, "settings": settings, "differences": pairs}
        workspace.write_json("compare.json", content)
        lines = [[key, *values] for key, values in settings.items()]
        _write_rows(workspace.path / "settings.tsv", ["setting", *names], lines)
        header = ["run", "minus", "data_set", "difference", "low", "high", "letters", "windows"]
        _write_rows(workspace.path / "differences.tsv", header, [[p[key] for key in header] for p in pairs])
        _draw(runs, workspace.path)
        workspace.counts |= {"runs": len(runs), "paired": len(pairs)}

    inputs = {f"run {i}": folder for i, folder in enumerate(config.runs, 1)}
    return produce("compare", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="compare")
