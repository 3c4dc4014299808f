"""The corpus folder that prepare writes, and how folders of splits are written and read."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.artifacts import read_manifest
from pipeline.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset, DatasetDict, Features

RESERVED = frozenset(("id", "label", "labels", "letters", "note"))  # columns of predict that are no class


def save_splits(
    folder: Path,
    splits: Mapping[str, "pa.Table"],
    features: "Features",
    digest: bytes,
    rows: Mapping[str, "np.ndarray"] | None = None,
) -> None:
    """Write tables that lie on disk as a ``DatasetDict``, with the memory of a batch of rows.

    Args:
        folder: where to.
        splits: the table of each split; empty splits are left out.
        features: types of the columns.
        digest: stands for the content of the tables; the same content gives the same bytes.
        rows: numbers of the rows of each split, if not all of the table, in order.
    """
    import xxhash
    from datasets import Dataset, DatasetDict, DatasetInfo, NamedSplit, disable_progress_bars

    disable_progress_bars()
    written = {}
    for name, table in splits.items():
        chosen = None if rows is None else rows[name]
        mark = xxhash.xxh3_64(digest + name.encode() + (b"" if chosen is None else chosen.tobytes()))
        info = DatasetInfo(features=features)
        dataset = Dataset(table, info, NamedSplit(name), fingerprint=mark.hexdigest())
        if chosen is not None:
            dataset = dataset.select(chosen, keep_in_memory=True, new_fingerprint=mark.hexdigest())
        if len(dataset):
            written[name] = dataset
    DatasetDict(written).save_to_disk(folder)


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


def window_facts(folder: Path) -> tuple[int | None, int | None]:
    """Return the length that all rows of a corpus have, and the index of the anchor base in each.

    The anchor is what windows of a genome were cut around, such as a transcription start; its index counts
    from 0, along the window's strand. It is None where there was no anchor, or where some rows are not whole
    windows around one. The length, and with it the index, is None where rows differ in length.

    Raises:
        UserError: the folder was not written by prepare.
    """
    import pyarrow.compute as pc

    splits, config = load_corpus(folder), read_manifest(folder)["config"]
    lengths: set[int] = set()
    for rows in splits.values():
        letters = rows.data.column("sequence")
        lengths.update(pc.call_function("binary_length", [letters]).unique().to_pylist())
    if len(lengths) != 1:
        return None, None
    length, upstream = lengths.pop(), config["upstream"]
    if config["anchor"] is None or length != upstream + 1 + config["downstream"]:
        return length, None
    uncut = any("" in rows.data.column("chromosome").unique().to_pylist() for rows in splits.values())
    return length, None if uncut else upstream


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
