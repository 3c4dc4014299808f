"""Records out of FASTA, A3M, CSV and TSV files, plain or compressed, one at a time.

The FASTA reader accepts what real files hold (CRLF, a byte order mark, comments, blank lines, blanks after
``>``) and refuses what it would have to guess. Memory is a small multiple of the longest record.
"""

import csv
import io
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from backports.zstd import ZstdError
from xopen import xopen

from pipeline.config import Alphabet
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.alphabets import BadSequenceError, clean

COMPRESSED = {".gz", ".bgz", ".bgzf", ".zst", ".bz2", ".xz"}
FASTA = {".fa", ".fasta", ".fna", ".faa", ".ffn", ".frn", ".fas", ".afa", ".a3m"}
TABLES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
BOM = b"\xef\xbb\xbf"
SHOWN = 3
_NOT_LETTERS = frozenset(b">;# \t\r\n\v\f")
_BLANKS = b" \t\r\n\v\f"
_MISPLACED = b"0123456789>"


@dataclass(frozen=True, slots=True)
class Record:
    """One sequence as its file gives it, and where it stood."""

    id: str
    sequence: str
    line: int
    path: Path
    columns: dict[str, str] = field(default_factory=dict)

    def where(self) -> str:
        """Return file, record and line, as error messages begin."""
        return f"{self.path}: record {self.id!r}, line {self.line}"


class Notes(Counter[str]):
    """What was met while reading, counted by reason; the first few of each reason are also said."""

    def warn(self, reason: str, text: str) -> None:
        """Count ``reason`` and say ``text``, unless it was said often enough."""
        self[reason] += 1
        if self[reason] <= SHOWN:
            say(text)
        elif self[reason] == SHOWN + 1:
            say(f"{reason.replace('_', ' ')}: further ones are counted only")


def read_records(
    path: Path,
    *,
    sequence_column: str = "sequence",
    id_column: str = "id",
    keep: Sequence[str] = (),
    notes: Notes | None = None,
) -> Iterator[Record]:
    """Yield the records of one file; see `read_files`."""
    return read_files([path], sequence_column=sequence_column, id_column=id_column, keep=keep, notes=notes)


def read_files(
    paths: Sequence[Path],
    *,
    sequence_column: str = "sequence",
    id_column: str = "id",
    keep: Sequence[str] = (),
    duplicate_ids: Literal["error", "rename"] = "error",
    empty: Literal["error", "skip"] = "skip",
    notes: Notes | None = None,
) -> Iterator[Record]:
    """Yield the records of several files, in order, each with an id of its own.

    A record without an id is named ``record_N``, where N counts the records of all files from 1.

    Args:
        paths: FASTA, A3M, CSV or TSV files, told apart by extension, or else by content.
        sequence_column: column of tables that holds the sequence.
        id_column: column of tables that holds the id; may be absent if it is "id".
        keep: further columns of tables, wanted in ``Record.columns``.
        duplicate_ids: stop at a second record of the same id, or name it ``id_2``.
        empty: stop at a record without letters, or skip it.
        notes: where ``generated_ids``, ``renamed_ids`` and ``empty`` are counted.

    Raises:
        UserError: a file is missing, damaged, in no known format, or holds no record with letters.
    """
    notes = Notes() if notes is None else notes
    ids = _Ids(duplicate_ids, notes)
    number = 0
    for path in paths:
        first, usable = number, 0
        for raw in _parse(path, sequence_column, id_column, keep):
            number += 1
            record = ids.name(raw, number)
            if record.sequence:
                usable += 1
                yield record
            elif empty == "error":
                raise UserError(f"{record.where()}: no sequence; remove the record or complete it")
            else:
                notes.warn("empty", f"{record.where()}: no sequence, skipped")
        if not usable:
            found = f"all {number - first} records are empty" if number > first else "no records in it"
            raise UserError(f"{path}: {found}; nothing to read")


def load_sequences(
    paths: Sequence[Path], alphabet: Alphabet, sequence_column: str = "sequence", id_column: str = "id"
) -> list[tuple[str, str]]:
    """Return (id, clean sequence) of every record, in input order; what cannot be used is an error.

    Raises:
        UserError: as `read_files`; also an empty record or a letter outside the alphabet.
    """
    records = read_files(paths, sequence_column=sequence_column, id_column=id_column, empty="error")
    sequences = []
    for record in records:
        try:
            sequence, _ = clean(record.sequence, alphabet)
        except BadSequenceError as error:
            raise UserError(f"{record.where()}: {error}; correct or remove it") from None
        if not sequence:
            raise UserError(f"{record.where()}: no residues; remove the record or complete it")
        sequences.append((record.id, sequence))
    return sequences


def is_a3m(path: Path) -> bool:
    """Tell whether a file's name says A3M, where lower-case letters are insertions."""
    return _extension(path) == ".a3m"


class _Ids:
    """Sees to it that every record has an id, and that no two have the same."""

    def __init__(self, duplicates: str, notes: Notes):
        self.duplicates = duplicates
        self.notes = notes
        self.seen: dict[str, tuple[Path, int]] = {}
        self.copies: Counter[str] = Counter()

    def name(self, record: Record, number: int) -> Record:
        if not record.id:
            record = replace(record, id=f"record_{number}")
            self.notes.warn("generated_ids", f"{record.path}: line {record.line}: no id, named {record.id}")
        if record.id in self.seen:
            record = self._rename(record)
        self.seen[record.id] = (record.path, record.line)
        return record

    def _rename(self, record: Record) -> Record:
        if self.duplicates == "error":
            path, line = self.seen[record.id]
            other = f"line {line}" + (f" of {path}" if path != record.path else "")
            raise UserError(
                f"{record.where()}: the same id as {other}; give every record its own id "
                "(prepare can: --duplicate-ids rename)"
            )
        number = max(self.copies[record.id], 1) + 1
        while f"{record.id}_{number}" in self.seen:
            number += 1
        self.copies[record.id] = number
        renamed = replace(record, id=f"{record.id}_{number}")
        self.notes.warn("renamed_ids", f"{record.where()}: id seen before, renamed {renamed.id}")
        return renamed


def _extension(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSED), "")


def _parse(path: Path, sequence_column: str, id_column: str, keep: Sequence[str]) -> Iterator[Record]:
    """Yield raw records: ids may be empty or repeated, sequences may be empty."""
    with _opened(path) as file:
        delimiter = _delimiter(path, file)
        if delimiter:
            yield from _parse_table(path, file, delimiter, sequence_column, id_column, keep)
        elif keep:
            raise UserError(f"{path}: FASTA has no column {keep[0]!r}; give a CSV or TSV file")
        else:
            yield from _parse_fasta(path, file)


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a plain or compressed file for bytes, byte order mark skipped; tell its faults in one line."""
    try:
        with xopen(path, "rb", threads=0) as stream:
            file = io.BufferedReader(cast(Any, stream), 1 << 20)
            if file.peek(len(BOM)).startswith(BOM):
                file.read(len(BOM))
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ZstdError) as error:
        reason = getattr(error, "strerror", None) or f"damaged or incomplete compressed file ({error})"
        raise UserError(f"{path}: cannot be read: {reason}") from None


def _delimiter(path: Path, file: io.BufferedReader) -> str | None:
    """Return what separates the columns, or None for FASTA."""
    extension = _extension(path)
    if extension in TABLES or extension in FASTA:
        return TABLES.get(extension)
    start = file.peek(1).lstrip()
    line = start.splitlines()[0] if start else b""
    if line.startswith((b">", b";")):
        return None
    return "\t" if b"\t" in line else "," if b"," in line else None


def _parse_fasta(path: Path, file: BinaryIO) -> Iterator[Record]:
    header, start, pieces = b"", 0, []
    for number, line in enumerate(file, 1):
        if line[0] in _NOT_LETTERS:
            text = line.strip()
            if text.startswith(b">"):
                if header:
                    yield _fasta_record(path, header, start, pieces)
                header, start, pieces = text, number, []
                continue
            if text.startswith(b";") or (text.startswith(b"#") and not header):
                line = b""
        if header:
            pieces.append(line)
        elif line.strip():
            found = line.strip()[:20].decode("utf-8", "replace")
            raise UserError(
                f"{path}: not FASTA: line {number} is {found!r}; a header line with '>' must come first"
            )
    if header:
        yield _fasta_record(path, header, start, pieces)


def _fasta_record(path: Path, header: bytes, start: int, pieces: list[bytes]) -> Record:
    words = header[1:].split(maxsplit=1)
    try:
        name = words[0].decode() if words else ""
    except UnicodeDecodeError:
        raise UserError(f"{path}: line {start}: the id is not UTF-8 text; save the file as UTF-8") from None
    if b"\r" in header:
        raise UserError(f"{path}: line {start}: lines end in CR only; convert the file to Unix line ends")
    letters = b"".join(pieces).translate(None, _BLANKS)
    if not letters.isalpha() and len(letters.translate(None, _MISPLACED)) < len(letters):
        raise UserError(f"{path}: record {name!r}, {_blame(start, pieces)}")
    return Record(name, letters.decode("utf-8", "replace"), start, path)


def _blame(start: int, pieces: list[bytes]) -> str:
    """Name the line of a record that holds a digit or a '>', and what is wrong with it."""
    for number, line in enumerate(pieces, start + 1):
        if b">" in line:
            return f"line {number}: '>' inside the sequence; start a new line before it"
        column = next((i for i, letter in enumerate(line) if letter in _MISPLACED), None)
        if column is not None:
            digit = f"digit {chr(line[column])!r} in the sequence"
            return f"line {number}, column {column + 1}: {digit}; remove the numbers (GenBank is not FASTA)"
    raise AssertionError("no misplaced letter in the record")


def _parse_table(
    path: Path, file: BinaryIO, delimiter: str, sequence_column: str, id_column: str, keep: Sequence[str]
) -> Iterator[Record]:
    rows = _table_rows(path, file, delimiter)
    _, header = next(rows, (1, []))
    place = _places(path, [name.strip() for name in header], sequence_column, id_column, keep)
    for line, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{path}: line {line}: {len(row)} cells under {len(header)} columns; quote cells "
                f"that hold {delimiter!r}"
            )
        name = row[place[id_column]].strip() if id_column in place else ""
        columns = {column: row[place[column]].strip() for column in keep}
        yield Record(name, row[place[sequence_column]].strip(), line, path, columns)


def _table_rows(path: Path, file: BinaryIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, with the line each begins on."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except UnicodeDecodeError:
        raise UserError(f"{path}: after line {line}: not UTF-8 text; save the file as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{path}: line {line}: {error}; correct the quotes of this row") from None


def _places(
    path: Path, header: list[str], sequence_column: str, id_column: str, keep: Sequence[str]
) -> dict[str, int]:
    """Return where the wanted columns are; only a column called "id" may be missing."""
    if not header:
        return {}
    wanted = [sequence_column, *keep, *([id_column] if id_column != "id" or "id" in header else [])]
    for name in wanted:
        if header.count(name) != 1:
            fault = "no column" if name not in header else "more than one column"
            raise UserError(f"{path}: {fault} {name!r}; the columns are {', '.join(map(repr, header))}")
    return {name: header.index(name) for name in wanted}
