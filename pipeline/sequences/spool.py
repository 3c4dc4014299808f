"""Rows of a corpus on their way: text in a temporary file, and in memory what choosing among them takes.

A row takes about 60 bytes of memory, whatever its length. Which rows the corpus gets, and in which split, is
known only when all have been read.
"""

import struct
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from pipeline.config import Alphabet
from pipeline.sequences.alphabets import without_case
from pipeline.sequences.rows import Row

SPOOL_ROWS = 10_000
SPOOL_LETTERS = 1 << 22
FACTS = np.dtype(
    [
        ("exact", "V16"),
        ("canonical", "V16"),
        ("start", "i8"),
        ("letters", "i4"),
        ("label", "i4"),
        ("record", "i4"),
        ("split", "i1"),
        ("kept", "?"),
    ]
)
_PACKED = struct.Struct("<16s16sqiiib?")
_PAIRED = bytes.maketrans(b"ACGT", b"TGCA")
assert _PACKED.size == FACTS.itemsize


def digests(sequence: bytes, alphabet: Alphabet) -> tuple[bytes, bytes]:
    """Return 16 bytes that stand for a clean sequence, and 16 for it and its other strand alike.

    Case is ignored. XXH3 (Collet 2019, https://xxhash.com) is not a cryptographic hash, but as fast as
    memory; with 128 bits, any two of a billion sequences share a digest with a chance of about 1e-21.
    """
    letters = without_case(sequence)
    own = xxhash.xxh3_128_digest(letters)
    if alphabet == "protein":
        return own, own
    other = np.frombuffer(letters.translate(_PAIRED), np.uint8)[::-1].tobytes()
    return own, min(own, xxhash.xxh3_128_digest(other))


class RowFile:
    """An Arrow file of rows that is being written, and a running digest of what is in it."""

    def __init__(self, path: Path, schema: pa.Schema):
        self.path, self.schema = path, schema
        self.digest = xxhash.xxh3_128()
        self._writer = pa.ipc.new_stream(str(path), schema)
        self._rows: list[tuple[str, Row, Sequence[str]]] = []
        self._waiting = 0

    def add(self, id: str, row: Row, texts: Sequence[str]) -> None:
        """Append a row: its record's id, the row, and the further columns' cells."""
        if self._waiting + len(row.sequence) > SPOOL_LETTERS or len(self._rows) == SPOOL_ROWS:
            self._flush()
        self._rows.append((id, row, texts))
        self._waiting += len(row.sequence)

    def close(self) -> pa.Table:
        """Finish the file and return it as a table that stays on disk."""
        self._flush()
        self._writer.close()
        return pa.ipc.open_stream(pa.memory_map(str(self.path))).read_all()

    def _flush(self) -> None:
        if self._rows:
            batch = self._batch()
            for buffer in filter(None, chain.from_iterable(column.buffers() for column in batch.columns)):
                self.digest.update(buffer)
            self._writer.write_batch(batch)
        self._rows, self._waiting = [], 0

    def _batch(self) -> pa.RecordBatch:
        ids, rows, texts = zip(*self._rows, strict=True)
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([len(row.sequence) for row in rows], out=offsets[1:])
        letters = pa.py_buffer(b"".join([row.sequence for row in rows]))
        columns = {
            "id": pa.array(ids, pa.string()),
            "start": pa.array([row.start for row in rows], pa.int64()),
            "sequence": pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), letters),
            "gaps": pa.array([[*chain.from_iterable(row.gaps)] for row in rows], pa.list_(pa.int32())),
        }
        names = [name for name in self.schema.names if name not in columns]
        cells = zip(*texts, strict=True)
        columns |= {name: pa.array(next(cells), pa.string()) for name in names}
        return pa.record_batch([columns[name] for name in self.schema.names], schema=self.schema)


class Spool(RowFile):
    """Rows numbered from 0 as they were added, and the facts about each.

    Args:
        path: the temporary file.
        alphabet: of the sequences.
        texts: names of the columns beside id, start and sequence.
        gaps: whether there is a column ``gaps``: offset, number, offset, number, ... of each row.
    """

    def __init__(self, path: Path, alphabet: Alphabet, texts: Sequence[str] = (), gaps: bool = False):
        columns = {"id": pa.string(), "start": pa.int64(), "sequence": pa.string()}
        columns |= dict.fromkeys(texts, pa.string()) | ({"gaps": pa.list_(pa.int32())} if gaps else {})
        super().__init__(path, pa.schema(columns))
        self.alphabet: Alphabet = alphabet
        self.texts = list(texts)
        self._packed = bytearray()

    def __len__(self) -> int:
        return len(self._packed) // FACTS.itemsize

    def put(self, id: str, row: Row, texts: Sequence[str], record: int, label: int, split: int) -> None:
        """Append a row of the record numbered ``record``; label -1 is none."""
        facts = (row.start, len(row.sequence), label, record, split, True)
        self._packed += _PACKED.pack(*digests(row.sequence, self.alphabet), *facts)
        self.add(id, row, texts)

    def discard(self, first: int) -> None:
        """Unmark the rows from number ``first`` on: they are not kept."""
        self.facts["kept"][first:] = False

    @property
    def facts(self) -> np.ndarray:
        """(rows,) of `FACTS`: a view, and rows can only be added while nobody holds it."""
        return np.frombuffer(self._packed, FACTS)
