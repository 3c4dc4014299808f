"""The token folder: one track for every record of the corpus, as flat arrays."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.artifacts import read_manifest
from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec


@dataclass(frozen=True)
class TokenSplit:
    """One split: the tracks of all its records end to end, without a copy where Arrow allows it."""

    track: np.ndarray
    offsets: np.ndarray
    ids: list[str]
    starts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """(records,) letters in each record."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.ids)

    def slice(self, record: int, start: int, length: int) -> np.ndarray:
        """Return the track of letters [start, start + length) of a record."""
        begin = self.offsets[record] + start
        return self.track[begin : begin + length]


def _read(dataset) -> TokenSplit:
    import pyarrow as pa

    column = dataset.with_format("arrow")[:]["input_ids"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    offsets = column.offsets.to_numpy().astype(np.int64)
    track = column.values.to_numpy(zero_copy_only=False)
    return TokenSplit(track, offsets, list(dataset["id"]), np.array(dataset["start"]))


def load_tokens(folder: Path) -> tuple[dict[str, TokenSplit], KmerCodec]:
    """Return the splits of a token folder and the codec of the tokenizer beside them.

    Raises:
        UserError: the folder was not written by tokenize.
    """
    from datasets import DatasetDict, load_from_disk

    if (stage := read_manifest(folder)["stage"]) != "tokenize":
        raise UserError(f"{folder}: written by {stage}, not by tokenize; pass a token folder")
    splits = load_from_disk(str(folder))
    assert isinstance(splits, DatasetDict)
    codec = KmerCodec.of(folder / "tokenizer")
    return {str(name): _read(dataset) for name, dataset in splits.items()}, codec
