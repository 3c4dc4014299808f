"""The token folder: one track for every record of the corpus, as flat arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.artifacts import read_manifest
from pipeline.errors import UserError
from pipeline.tokens.kmers import Codec, codec_of


@dataclass(frozen=True)
class TokenSplit:
    """One split: the tracks of its rows in flat arrays, as the file holds them.

    ``chunks`` are the tracks of consecutive rows end to end; row r lies in chunk ``chunk_of[r]`` from
    ``begins[r]`` on. ``soft_mask`` is None where the corpus has none.
    """

    chunks: list[np.ndarray]
    chunk_of: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    ids: list[str]
    starts: np.ndarray
    columns: dict[str, list] = field(default_factory=dict)
    soft_mask: "SoftMask | None" = None

    def __len__(self) -> int:
        return len(self.ids)

    def slice(self, record: int, start: int, length: int) -> np.ndarray:
        """Return the track of letters [start, start + length) of a row."""
        begin = self.begins[record] + start
        return self.chunks[self.chunk_of[record]][begin : begin + length]

    def row(self, record: int) -> np.ndarray:
        """Return the whole track of a row."""
        return self.slice(record, 0, int(self.lengths[record]))

    def soft_letters(self, record: int, start: int, length: int) -> np.ndarray:
        """Return (length,) whether each of these letters is soft-masked."""
        soft = np.zeros(length, bool)
        if self.soft_mask is not None:
            for begin, end in self.soft_mask.row(record) - start:
                soft[max(begin, 0) : max(end, 0)] = True
        return soft


@dataclass(frozen=True)
class SoftMask:
    """Soft-masked runs of all rows: those of row r are ``bounds[offsets[r] : offsets[r + 1]]``, in pairs."""

    bounds: np.ndarray
    offsets: np.ndarray

    def row(self, record: int) -> np.ndarray:
        """Return the [start, stop) pairs (runs, 2) of a row."""
        return self.bounds[self.offsets[record] : self.offsets[record + 1]].reshape(-1, 2).astype(np.int64)


Splits = dict[str, TokenSplit]


def split_of(tracks: list[np.ndarray], ids: list[str] | None = None) -> TokenSplit:
    """Return a split of tracks that are in memory."""
    lengths = np.array([len(track) for track in tracks])
    begins = np.cumsum(lengths) - lengths
    zeros = np.zeros(len(tracks), int)
    names = ids or [str(i) for i in range(len(tracks))]
    return TokenSplit([np.concatenate(tracks)], zeros, begins, lengths, names, zeros)


def joined(splits: Sequence[TokenSplit]) -> TokenSplit:
    """Return the rows of several splits, one after another, without further columns."""
    if len(splits) == 1:
        return splits[0]
    chunks = np.cumsum([0, *(len(split.chunks) for split in splits)])
    masks = [split.soft_mask for split in splits if split.soft_mask is not None]
    return TokenSplit(
        [chunk for split in splits for chunk in split.chunks],
        np.concatenate([split.chunk_of + first for split, first in zip(splits, chunks, strict=False)]),
        np.concatenate([split.begins for split in splits]),
        np.concatenate([split.lengths for split in splits]),
        [name for split in splits for name in split.ids],
        np.concatenate([split.starts for split in splits]),
        soft_mask=_joined_masks(masks) if len(masks) == len(splits) else None,
    )


def _joined_masks(masks: Sequence[SoftMask]) -> SoftMask:
    sizes = np.concatenate([np.diff(mask.offsets) for mask in masks])
    bounds = np.concatenate([mask.bounds for mask in masks])
    return SoftMask(bounds, np.concatenate(([0], np.cumsum(sizes))))


def _flat(column) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return values and offsets of each chunk of a list column, without a copy where Arrow allows it."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    return [c.values.to_numpy(zero_copy_only=False) for c in chunks], [c.offsets.to_numpy() for c in chunks]


def _soft_mask(table) -> SoftMask | None:
    if "soft_mask" not in table.column_names:
        return None
    values, offsets = _flat(table.column("soft_mask"))
    bounds = [v[o[0] : o[-1]] for v, o in zip(values, offsets, strict=True)]
    lengths = np.concatenate([np.diff(o) for o in offsets])
    return SoftMask(np.concatenate(bounds), np.concatenate(([0], np.cumsum(lengths))))


def _read(dataset) -> TokenSplit:
    table = dataset.with_format("arrow")[:]
    chunks, offsets = _flat(table.column("input_ids"))
    chunk_of = np.repeat(np.arange(len(chunks)), [len(o) - 1 for o in offsets])
    begins = np.concatenate([o[:-1] for o in offsets]).astype(np.int64)
    lengths = np.concatenate([np.diff(o) for o in offsets]).astype(np.int64)
    known = ("id", "start", "input_ids", "soft_mask")
    columns = {n: table.column(n).to_pylist() for n in table.column_names if n not in known}
    names, starts = table.column("id").to_pylist(), table.column("start").to_numpy()
    return TokenSplit(chunks, chunk_of, begins, lengths, names, starts, columns, _soft_mask(table))


def load_tokens(folder: Path) -> tuple[Splits, Codec]:
    """Return the splits of a token folder and the codec of the tokenizer beside them.

    Raises:
        UserError: the folder was not written by tokenize.
    """
    from datasets import DatasetDict, load_from_disk

    if (stage := read_manifest(folder)["stage"]) != "tokenize":
        raise UserError(f"{folder}: written by {stage}, not by tokenize; pass a token folder")
    splits = load_from_disk(str(folder))
    assert isinstance(splits, DatasetDict)
    codec = codec_of(folder / "tokenizer")
    return {str(name): _read(dataset) for name, dataset in splits.items()}, codec


def load_token_sets(folders: Sequence[Path]) -> tuple[dict[str, Splits], Codec]:
    """Return the splits of several token folders, by the folders' names, and the codec they share.

    Raises:
        UserError: a folder was not written by tokenize, or the tokenizers differ.
    """
    once = len({folder.name for folder in folders}) == len(folders)
    sets, codecs = {}, []
    for folder in folders:
        sets[folder.name if once else str(folder)], codec = load_tokens(folder)
        codecs.append(codec)
        if (codec.vocabulary, codec.overlapping) != (codecs[0].vocabulary, codecs[0].overlapping):
            raise UserError(f"data: {folder} has another tokenizer than {folders[0]}; tokenize both with one")
    if len(sets) < len(folders):
        raise UserError("data: a folder is given twice; to read more of it, use mixture.weights")
    return sets, codecs[0]
