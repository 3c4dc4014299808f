"""Tables with a sequence in each row: CSV, TSV and Parquet."""

import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO

from pipeline.errors import UserError
from pipeline.sequences.blanks import join_kmers
from pipeline.sequences.records import Record, Source

DELIMITERS = {"csv": ",", "tsv": "\t"}
BATCH_ROWS = 1024
USUAL = ("sequence", "seq", "sentence", "text")
LONGEST_NAME = 40
_BASES = re.compile(r"[ACGTN]{20,}", re.IGNORECASE)


def read_table(source: Source, file: BinaryIO, delimiter: str) -> Iterator[Record]:
    """Yield the rows of a CSV or TSV file.

    Without a header line the columns are called column_1, column_2 and so on.

    Raises:
        UserError: a column is missing, the text is damaged, or a row is bad (unless those are to be skipped).
    """
    rows = table_rows(source, file, delimiter)
    first = next(rows, (1, []))
    names = [name.strip() for name in first[1]]
    if not source.header:
        names = [f"column_{i}" for i in range(1, len(names) + 1)]
        rows = chain([first], rows) if names else rows
    if names:
        _check_columns(source, names, first[1])
    for line, row in rows:
        if len(row) == len(names):
            yield from _record(source, line, dict(zip(names, row, strict=True)))
        else:
            fault = f"{len(row)} cells under {len(names)} columns"
            source.refuse(f"line {line}", fault, f"quote cells that hold {delimiter!r}")


def table_rows(source: Source, file: BinaryIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
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
        raise UserError(f"{source.path}: after line {line}: not UTF-8 text; save the file as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{source.path}: line {line}: {error}; correct the quotes of this row") from None


def read_parquet(source: Source, file: BinaryIO) -> Iterator[Record]:
    """Yield the rows of a Parquet file; ``line`` is a row's number, from 1, and a null is an empty cell.

    Raises:
        UserError: no Parquet, a column is missing, or a row is bad (unless those are to be skipped).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        wanted = _check_columns(source, names)
        batches = table.iter_batches(BATCH_ROWS, columns=wanted)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            texts = {name: "" if cell is None else str(cell) for name, cell in row.items()}
            yield from _record(source, number, texts)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{source.path}: cannot be read as Parquet: {reason}") from None


def _check_columns(source: Source, header: list[str], first: Sequence[str] = ()) -> list[str]:
    """Return the names of the columns that are needed; only one called "id" may be missing.

    ``first`` is the first line of a text, which may be data; an error names the way out if there is one.
    """
    has_id = source.id_column != "id" or "id" in header
    wanted = [source.sequence_column, *source.keep, *([source.id_column] if has_id else [])]
    for name in wanted:
        if header.count(name) != 1:
            fault = "no column" if name not in header else "more than one column"
            columns = ", ".join(map(_shown, header))
            lacks = name == source.sequence_column and name not in header
            hint = _way_out(source, header, first) if lacks else ""
            raise UserError(f"{source.path}: {fault} {name!r}; the columns are {columns}{hint}")
    return list(dict.fromkeys(wanted))


def _way_out(source: Source, header: list[str], first: Sequence[str]) -> str:
    """Return which flags give the column of sequences, if the names or the first line tell."""
    numbers = [i for i, cell in enumerate(first, 1) if _BASES.fullmatch("".join(cell.split()))]
    usual = [name for name in header if name.lower() in USUAL]
    if numbers:
        column = f"--sequence-column column_{numbers[0]}"
        if not source.header:
            return f"; pass {column}"
        fault = "line 1 looks like data, not like names"
        return f"; {fault}; give it a header line (prepare can do without: --header false {column})"
    return f"; pass --sequence-column {usual[0]}" if len(usual) == 1 else ""


def _shown(name: str) -> str:
    """Return a column's name for a message, the beginning of a long one."""
    return repr(name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + "...")


def _record(source: Source, line: int, row: dict[str, str]) -> Iterator[Record]:
    """Yield the record of a row, or refuse it."""
    name = row.get(source.id_column, "").strip()
    cell = row[source.sequence_column].strip()
    where = f"record {name!r}, line {line}" if name else f"line {line}"
    letters, words = cell.encode(), cell.split()
    if len(words) > 1:
        joined = join_kmers([word.encode() for word in words])
        if joined is None:
            place = next(i for i, letter in enumerate(cell, 1) if letter.isspace())
            fault = f"a blank at position {place} of column {source.sequence_column!r}"
            fault += ", and the words are no overlapping k-mers"
            source.refuse(where, fault, "remove the blanks", sum(map(len, words)))
            return
        k = len(words[0])
        source.notes.warn("kmers_joined", f"{source.path}: {where}: {len(words)} overlapping {k}-mers joined")
        letters = joined
    columns = {column: row[column].strip() for column in source.keep}
    yield Record(name, letters, line, source.path, columns)
