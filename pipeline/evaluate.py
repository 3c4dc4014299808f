"""The stage that gives bits per hidden base (or residue) of a checkpoint, by data set and group."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import EvaluateConfig
from pipeline.errors import UserError
from pipeline.log import say

if TYPE_CHECKING:
    from pipeline.tokens.bits import Bits, HiddenText
    from pipeline.tokens.kmers import Codec
    from pipeline.tokens.store import TokenSplit

# Column of scores.tsv: what the summary calls it.
COLUMNS = {
    "hidden_letters": "hidden_letters",
    "bits": "value",
    "standard_error": "standard_error",
    "count_model": "baseline",
    "composition": "random",
    "single": "single",
    "joint": "joint",
    "single_count_model": "single_baseline",
    "soft_masked": "soft_masked",
    "other": "other",
}
PRINTED = ("hidden_letters", "bits", "standard_error", "count_model", "composition", "single", "joint")
WHERE_KNOWN = ("soft_masked", "other")  # printed for data sets that have them
GROUPS = 20  # printed
TOTAL = "(all)"


@dataclass(frozen=True)
class _DataSet:
    """A token folder that fits the checkpoint and the settings, its codec, and the text hidden in it.

    ``groups`` holds the group of every row of the split that is scored; empty if there are none.
    """

    splits: dict[str, "TokenSplit"]
    codec: "Codec"
    groups: list[str]
    text: "HiddenText"


def _window(config: EvaluateConfig, model, codec: "Codec") -> int:
    """Return the letters of a window: as many as are asked for, or as the model's context has room for."""
    from pipeline.tokens.kmers import KmerCodec

    room = model.config.max_position_embeddings - 2
    longest = room * codec.stride if isinstance(codec, KmerCodec) else room
    if (config.window or 0) > longest:
        raise UserError(
            f"window: {config.window}: the model's context is {longest} letters; use at most that"
        )
    return config.window or longest


def _names(folders: list[Path]) -> list[str]:
    """Return what data sets are called: by their folder, or its path where folders are called alike."""
    alike = Counter(folder.name for folder in folders)
    names = [folder.name if alike[folder.name] == 1 else str(folder) for folder in folders]
    if not folders:
        raise UserError("data: no token folder is given; name at least one")
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise UserError(f"data: {twice[0]} is given twice; name each token folder once")
    return names


def _splits(folder: Path, split: str, alphabet: str) -> tuple[dict[str, "TokenSplit"], "Codec"]:
    """Return the splits of a token folder, of which one is to be scored.

    Raises:
        UserError: there is no such split, or it is of another alphabet than the model's.
    """
    from pipeline.tokens.store import load_tokens

    splits, codec = load_tokens(folder)
    if codec.alphabet != alphabet:
        raise UserError(
            f"data: {folder} holds {codec.alphabet} sequences, but the checkpoint reads {alphabet}"
        )
    if split not in splits:
        raise UserError(f"split: {folder} has no {split} split, only {', '.join(splits)}; choose one of them")
    return splits, codec


def _groups(split: "TokenSplit", by: str, folder: Path) -> list[str]:
    """Return the group of every row."""
    columns = {"id": split.ids, **split.columns}
    if by not in columns:
        raise UserError(f"by: {folder} has no column {by!r}; its columns: {', '.join(columns)}")
    return [str(value) for value in columns[by]]


def _open(folder: Path, window: int, alphabet: str, config: EvaluateConfig) -> _DataSet:
    """Return a data set, ready to be scored.

    Raises:
        UserError: it does not fit the checkpoint or the settings.
    """
    from pipeline.tokens.bits import hidden_text

    splits, codec = _splits(folder, config.split, alphabet)
    groups = _groups(splits[config.split], config.by, folder) if config.by else []
    text = hidden_text(splits[config.split], codec, window, config.letters)
    if not text.windows:
        raise UserError(
            f"data: {folder}: no letters of the {config.split} split can be hidden: windows hold no "
            f"{text.run} real letters in a row in their frame; use longer rows or a larger window"
        )
    return _DataSet(splits, codec, groups, text)


def _references(data: _DataSet, window: int, config: EvaluateConfig) -> dict[str, "Bits"]:
    """Return what counting in the training split gives, where there is one, and say what is left out."""
    from pipeline.tokens.bits import hidden_text
    from pipeline.training.scores import reference_bits

    splits, codec, text = data.splits, data.codec, data.text
    if "train" not in splits:
        say("no train split, so neither count model nor composition to compare with")
        return {}
    if not config.count_model or config.split == "train":
        if config.count_model:
            say("the train split is what the count model would learn from, so there is none to compare with")
        return reference_bits(splits["train"], codec, text, None)
    held_out = splits.get("validation", splits[config.split])
    tuning = hidden_text(held_out, codec, window, config.letters)
    return reference_bits(splits["train"], codec, text, tuning if tuning.windows else text)


def _evaluate(
    model, codec: "Codec", data: _DataSet, window: int, config: EvaluateConfig
) -> list[dict[str, Any]]:
    """Return the scores of a data set, then those of each of its groups."""
    from pipeline.training.scores import network_bits, summary

    bits, facts = network_bits(model, codec, data.text)
    bits |= _references(data, window, config)
    rows = [{"group": TOTAL, **summary(bits), **facts}]
    groups = data.groups
    group_W = np.array([groups[record] for record in data.text.records if groups])
    return rows + [{"group": name, **summary(bits, group_W == name)} for name in sorted(set(groups))]


def _write_table(rows: list[dict[str, Any]], path: Path) -> None:
    import pandas as pd

    columns = {"data_set": "data_set", "group": "group", **COLUMNS}
    table = pd.DataFrame({name: [row.get(key) for row in rows] for name, key in columns.items()})
    table.to_csv(path, sep="\t", index=False, float_format="%.6g")


def _say_table(rows: list[dict[str, Any]]) -> None:
    """Print the scores of a data set and of its largest groups."""
    from rich.console import Console
    from rich.table import Table

    groups = sorted(rows[1:], key=lambda row: -row["hidden_letters"])[:GROUPS]
    printed = [*PRINTED, *(name for name in WHERE_KNOWN if COLUMNS[name] in rows[0])]
    table = Table(box=None, pad_edge=False)
    for name in ("group", *printed):
        table.add_column(name.replace("_", " "), justify="left" if name == "group" else "right")
    for row in (rows[0], *groups):
        numbers = [f"{row[COLUMNS[n]]:.4f}" if COLUMNS[n] in row else "" for n in printed[1:]]
        table.add_row(row["group"], f"{row['hidden_letters']:,}", *numbers)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table, highlight=False)
    for line in capture.get().splitlines():
        say(line.rstrip())
    if len(rows) > 1 + GROUPS:
        say(f"{len(rows) - 1 - GROUPS} smaller groups are in scores.tsv")


def _say_caveats(row: dict[str, Any], split: str) -> None:
    from pipeline.training.scores import say_if_few

    say_if_few(row["hidden_letters"], split)
    if not row["comparable"]:
        say("not to be compared with other tokenizers: this one cannot hide runs of 6 bases alone")
    if row["not_scored"]:
        say(f"{row['not_scored']:,} letters are in no run that all tokenizers can hide, and not scored")


def run(config: EvaluateConfig) -> Result:
    """Write scores.tsv, one row for each data set and one for each of its groups, and metrics.json."""
    names = _names(config.data)

    def build(workspace: Workspace) -> None:
        from pipeline.training.scores import load_language_model, metric_name

        model, codec = load_language_model(config.checkpoint)
        window = _window(config, model, codec)
        opened = [_open(folder, window, codec.alphabet, config) for folder in config.data]
        table, metrics = [], {}
        for name, data in zip(names, opened, strict=True):
            say(f"{name}, {config.split} split:")
            rows = _evaluate(model, codec, data, window, config)
            _say_table(rows)
            _say_caveats(rows[0], config.split)
            table += [{"data_set": name, **row} for row in rows]
            metric = metric_name(codec.alphabet) + (f":{name}" if len(names) > 1 else "")
            metrics[metric] = {key: value for key, value in rows[0].items() if key != "group"}
            workspace.counts[name] = {key: rows[0][key] for key in ("hidden_letters", "not_scored")}
        _write_table(table, workspace.path / "scores.tsv")
        workspace.write_json("metrics.json", metrics)

    inputs = {"checkpoint": config.checkpoint, **{f"data{i}": path for i, path in enumerate(config.data)}}
    return produce("evaluate", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="evaluate")
