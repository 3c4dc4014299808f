"""Vectors on disk: shards in Parquet or safetensors, in the order of the records, and an index of them.

A shard and the index appear complete or not at all. The index names the shards that are there, so that what
was stopped can go on after them.

Shapes: N records of a shard, R rows of vectors, D channels, Y layers.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts import read_keys, read_manifest, write_json
from pipeline.errors import UserError, reason

INDEX = "index.json"
PREFIX = "layer_"


def column_of(layer: int) -> str:
    """Return the name of the column, or tensor, with the vectors of a layer."""
    return f"{PREFIX}{layer}"


@dataclass(frozen=True)
class Shard:
    """Vectors of consecutive records.

    Attributes:
        ids: names of the records (N,).
        notes: what became of each because it does not fit into the model's context, or nothing; None where
            that cannot be.
        layers: as they were asked for (Y,).
        vectors: (Y, R, D).
        sizes: vectors of each record (N,): one or, of a skipped one, none; per letter, any number.
        per_letter: whether there is one for each letter.
    """

    ids: Sequence[str]
    notes: Sequence[str] | None
    layers: Sequence[int]
    vectors: np.ndarray
    sizes: np.ndarray
    per_letter: bool

    def write(self, path: Path) -> None:
        """Write a file, Parquet or safetensors by its extension."""
        partial = path.with_name(f"{path.name}.partial")
        (self._write_parquet if path.suffix == ".parquet" else self._write_safetensors)(partial)
        partial.replace(path)

    def _write_parquet(self, path: Path) -> None:
        """Write a row for each record: id, vector (or list of vectors) of each layer, note."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"id": pa.array(self.ids, pa.string())}
        for layer, vectors_RD in zip(self.layers, self.vectors, strict=True):
            columns[column_of(layer)] = self._column(vectors_RD)
        if self.notes is not None:
            columns["note"] = pa.array(self.notes, pa.string())
        pq.write_table(pa.table(columns), path, use_dictionary=False)

    def _column(self, vectors_RD: np.ndarray):
        """Return an Arrow array with one element for each record; of a skipped one, null."""
        import pyarrow as pa

        flat, width, skipped_N = pa.array(vectors_RD.ravel()), vectors_RD.shape[1], self.sizes == 0
        if self.per_letter:
            vectors = pa.FixedSizeListArray.from_arrays(flat, width)
            offsets = pa.array(np.append(0, np.cumsum(self.sizes)), mask=np.append(skipped_N, False))
            return pa.LargeListArray.from_arrays(offsets, vectors)
        full_ND = np.zeros((len(self.ids), width), vectors_RD.dtype)
        full_ND[~skipped_N] = vectors_RD
        return pa.FixedSizeListArray.from_arrays(pa.array(full_ND.ravel()), width, mask=pa.array(skipped_N))

    def _write_safetensors(self, path: Path) -> None:
        """Write a tensor for each layer: (N, D), NaN where skipped; or (R, D) and ``offsets`` (N + 1,)."""
        from safetensors.numpy import save_file

        tensors = {}
        for layer, vectors_RD in zip(self.layers, self.vectors, strict=True):
            tensors[column_of(layer)] = vectors_RD
            if not self.per_letter:
                full_ND = np.full((len(self.ids), vectors_RD.shape[1]), np.nan, vectors_RD.dtype)
                full_ND[self.sizes > 0] = vectors_RD
                tensors[column_of(layer)] = full_ND
        if self.per_letter:
            tensors["offsets"] = np.append(0, np.cumsum(self.sizes))
        facts = {"ids": json.dumps(list(self.ids), ensure_ascii=False)}
        if self.notes is not None:
            facts["notes"] = json.dumps(list(self.notes), ensure_ascii=False)
        save_file(tensors, path, facts)


class Index:
    """What the shards of a folder are, kept in index.json.

    Args:
        folder: where the shards are; the index of an unfinished stage there is taken up.
        facts: what all shards have in common.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]):
        self.folder, path = folder, folder / INDEX
        self.content = json.loads(path.read_text()) if path.is_file() else {**facts, "shards": []}

    @property
    def shards(self) -> list[dict[str, Any]]:
        """Return what is known of each whole shard: file, records, vectors, and what was counted."""
        return self.content["shards"]

    @property
    def records(self) -> int:
        """Return how many records the shards hold."""
        return sum(shard["records"] for shard in self.shards)

    def add(self, shard: Shard, counts: dict[str, int]) -> None:
        """Write the next shard, then the index."""
        name = f"vectors-{len(self.shards):06d}.{self.content['format']}"
        shard.write(self.folder / name)
        sizes = {"records": len(shard.ids), "vectors": int(shard.sizes.sum())}
        self.shards.append({"file": name, **sizes, "counts": counts})
        write_json(self.folder / INDEX, self.content)


# -- reading


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of a folder that embed wrote.

    Raises:
        UserError: another stage wrote it.
    """
    if (stage := read_manifest(folder)["stage"]) != "embed":
        raise UserError(f"{folder}: written by {stage}, not by embed; pass a folder of vectors")
    return read_keys(folder / INDEX)


def read_pooled(folder: Path, index: dict[str, Any], layer: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yield of each shard the ids of its records and their vectors (N, D) in float32, NaN where skipped."""
    for shard in index["shards"]:
        path = folder / shard["file"]
        read = _read_parquet if path.suffix == ".parquet" else _read_safetensors
        ids, vectors_ND = read(path, column_of(layer))
        yield ids, vectors_ND.astype(np.float32)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Say in a line that a file of vectors cannot be read."""
    from pyarrow import ArrowException
    from safetensors import SafetensorError

    try:
        yield
    except (ArrowException, SafetensorError, FileNotFoundError) as error:
        raise UserError(f"vectors: {path}: cannot be read: {reason(error)}; run embed again") from None


def _read_parquet(path: Path, column: str) -> tuple[list[str], np.ndarray]:
    import pyarrow.parquet as pq

    with _whole(path):
        table = pq.read_table(path, columns=["id", column]).combine_chunks()
    found = table[column].combine_chunks()
    vectors_ND = np.full((len(found), found.type.list_size), np.nan, np.float32)
    vectors_ND[found.is_valid().to_numpy(zero_copy_only=False)] = (
        found.drop_null().flatten().to_numpy().reshape(-1, found.type.list_size)
    )
    return table["id"].to_pylist(), vectors_ND


def _read_safetensors(path: Path, column: str) -> tuple[list[str], np.ndarray]:
    from safetensors import safe_open

    with _whole(path), safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["ids"]), file.get_tensor(column)
