"""The corpus folder that prepare writes, as its readers need it."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.artifacts import read_manifest
from pipeline.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

RESERVED = ("id", "label")


def load_corpus(folder: Path, key: str = "data") -> "DatasetDict":
    """Return the splits of a corpus.

    Raises:
        UserError: the folder was not written by prepare; ``key`` is the setting that named it.
    """
    from datasets import DatasetDict, load_from_disk

    stage = read_manifest(folder)["stage"]
    if stage != "prepare":
        raise UserError(f"{key}: {folder} was written by {stage}, not by prepare; pass a corpus")
    splits = load_from_disk(str(folder))
    assert isinstance(splits, DatasetDict)
    return splits


def check_alphabet(folder: Path, alphabet: str, checkpoint: Path) -> None:
    """Refuse a corpus that a model cannot read: the letters of DNA are residues, too.

    Raises:
        UserError: the corpus ``folder`` is not of ``alphabet``, which ``checkpoint`` reads.
    """
    held = read_manifest(folder)["config"]["alphabet"]
    if held != alphabet:
        raise UserError(
            f"data: {folder} holds {held} sequences, but {checkpoint} reads {alphabet}; pass another corpus"
        )


def classes(rows: "Dataset", folder: Path, positive: str | None) -> tuple[list[str], int]:
    """Return the class names of a labelled split, and the number of the one called positive.

    Args:
        rows: a split of the corpus.
        folder: the corpus, for messages.
        positive: its name; the last class where None.

    Raises:
        UserError: there are no labels, or no class of that name, or one that tables of scores cannot hold.
    """
    if "label" not in rows.column_names:
        raise UserError(f"data: {folder} has no labels; prepare it with --classes or --label-column")
    names: list[str] = rows.features["label"].names
    reserved = [name for name in names if name in RESERVED]
    if reserved:
        raise UserError(
            f"data: {folder}: {reserved[0]!r} is a column of every table of scores; rename the class"
        )
    wanted = positive or names[-1]
    if wanted not in names:
        raise UserError(f"positive: {wanted!r} is no class of {folder}; its classes: {', '.join(names)}")
    return names, names.index(wanted)
