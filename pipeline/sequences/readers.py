"""Records out of sequence files of any known format, plain or compressed, one at a time, each with an id.

Memory is a small multiple of the longest record (of the longest piece, for FASTA read in pieces), and about
200 bytes for every id.
"""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pipeline.config import Alphabet, LettersConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.alphabets import DEFAULTS, BadSequenceError, Cleaned, clean
from pipeline.sequences.fasta import read_fasta
from pipeline.sequences.fastq import read_fastq
from pipeline.sequences.files import FORMATS, extension, find_files, format_of, is_a3m, opened
from pipeline.sequences.flatfiles import read_flatfile, read_stockholm
from pipeline.sequences.records import SHOWN, Faults, Notes, Record, Source, listed
from pipeline.sequences.tables import DELIMITERS, read_parquet, read_table

__all__ = ["SHOWN", "Notes", "Record", "is_a3m", "load_sequences", "noted_sequences", "read_files"]


def read_files(
    paths: Sequence[Path],
    *,
    sequence_column: str = "sequence",
    id_column: str = "id",
    keep: Sequence[str] = (),
    duplicate_ids: Literal["error", "rename"] = "error",
    empty: Literal["error", "skip", "keep"] = "skip",
    on_bad: Literal["error", "skip"] = "error",
    notes: Notes | None = None,
    piece: int | None = None,
    header: bool = True,
    seen: Mapping[str, tuple[Path, int]] | None = None,
) -> Iterator[Record]:
    """Yield the records of several files, in order, each with an id of its own.

    A record without an id is named ``record_N``, where N counts the records of all files from 1.

    Args:
        paths: files, folders (their files with known extensions) or globs. FASTA, A3M, FASTQ, GenBank, EMBL,
            Stockholm, CSV, TSV or Parquet, told apart by extension, or else by content.
        sequence_column: column of tables that holds the sequence, or its overlapping k-mers between blanks.
        id_column: column of tables that holds the id; may be absent if it is "id".
        keep: further columns of tables, wanted in ``Record.columns``; "topology" of GenBank and EMBL.
        duplicate_ids: stop at a second record of the same id, or name it ``id_2``.
        empty: stop at a record without letters, skip it, or yield it.
        on_bad: stop at a record that its format does not allow, or skip it.
        notes: where ``generated_ids``, ``renamed_ids``, ``empty``, ``bad_records``, ``blanks_removed``
            (inside sequence lines), ``kmers_joined`` (records) and ``files_not_read`` are counted.
        piece: cut FASTA records into consecutive pieces of this many letters (the last one: at most); other
            formats give whole records.
        header: whether the first line of CSV and TSV names the columns; if not, they are called column_1,
            column_2, ..., and a text of unknown extension is a table of one column, unless it is FASTA.
        seen: ids that are taken, each with the file and line of its record.

    Raises:
        UserError: a file is missing, damaged, in no known format, holds intervals, or no record with letters.
    """
    notes = Notes() if notes is None else notes
    ids = _Ids(duplicate_ids, notes, seen or {})
    for path in find_files(paths, notes):
        first, empties, bad = ids.number, notes["empty"], notes["bad_records"]
        source = Source(path, sequence_column, id_column, keep, on_bad, notes, piece, header)
        for raw in _parse(source):
            record = ids.name(raw)
            if record.sequence or empty == "keep":
                yield record
            elif empty == "error":
                raise UserError(f"{record.where()}: no sequence; remove the record or complete it")
            else:
                notes.warn("empty", f"{record.where()}: no sequence, skipped")
        empties, bad = notes["empty"] - empties, notes["bad_records"] - bad
        if ids.number - first == empties:
            raise UserError(f"{path}: {_nothing(empties, bad)}; nothing to read")


def _nothing(empties: int, bad: int) -> str:
    if not empties and not bad:
        return "no records in it"
    return f"all {empties + bad} records are " + (
        "bad" if not empties else "empty or bad" if bad else "empty"
    )


def load_sequences(
    paths: Sequence[Path],
    alphabet: Alphabet,
    letters: LettersConfig = DEFAULTS,
    sequence_column: str = "sequence",
    id_column: str = "id",
) -> list[tuple[str, str]]:
    """Return (id, clean upper-case sequence) of every record, in input order.

    Raises:
        UserError: as `read_files` and `clean_record`; also an empty record.
    """
    records = read_files(paths, sequence_column=sequence_column, id_column=id_column, empty="error")
    return [(record.id, clean_record(record, alphabet, letters).sequence.decode()) for record in records]


def noted_sequences(
    paths: Sequence[Path],
    alphabet: Alphabet,
    letters: LettersConfig,
    faults: Faults,
    *,
    sequence_column: str,
    id_column: str,
    duplicate_ids: Literal["error", "rename"],
) -> list[tuple[str, str, str]]:
    """Return (id, clean upper-case sequence, nothing) of every record, in input order.

    One that cannot be used has its letters as they are, and in the third place the reason. Letters that were
    changed are counted, by kind, in the notes of ``faults``.

    Raises:
        UserError: as `read_files`; also for a record that cannot be used, if those are errors.
    """
    found, changed = [], Counter[str]()
    records = read_files(
        paths,
        sequence_column=sequence_column,
        id_column=id_column,
        duplicate_ids=duplicate_ids,
        empty="keep",
        notes=faults.notes,
    )
    for record in records:
        try:
            cleaned = _clean_whole(record.sequence, alphabet, letters)
        except BadSequenceError as error:
            fault = faults.note(record.where(), error)
            found.append((record.id, record.sequence.decode("latin-1"), fault))
        else:
            found.append((record.id, cleaned.sequence.decode(), ""))
            changed += cleaned.changed
    if changed:
        say("changed letters: " + listed(changed))
    faults.notes.update(changed)
    return found


def clean_record(record: Record, alphabet: Alphabet, letters: LettersConfig) -> Cleaned:
    """Return the upper-case letters of a whole record.

    What cannot be used is an error, and so are stops and gaps whatever the policy says of them: dealing with
    them would move coordinates.

    Raises:
        UserError: a letter outside the alphabet, or nothing else than what is left out.
    """
    try:
        return _clean_whole(record.sequence, alphabet, letters)
    except BadSequenceError as error:
        raise UserError(f"{record.where()}: {error}; correct or remove it") from None


def _clean_whole(sequence: bytes, alphabet: Alphabet, letters: LettersConfig) -> Cleaned:
    letters = letters.model_copy(update={"case": "fold", "stops": "error", "gaps": "error"})
    cleaned = clean(sequence, alphabet, letters)
    if not cleaned.sequence:
        raise BadSequenceError("no residues but a stop" if sequence else "no sequence")
    return cleaned


def _parse(source: Source) -> Iterator[Record]:
    """Yield raw records: ids may be empty or repeated, sequences may be empty."""
    with opened(source.path) as file:
        kind = format_of(source.path, file)
        if kind == "fasta" and not source.header and _is_list(source.path, file):
            kind = "tsv"
        if kind in DELIMITERS:
            yield from read_table(source, file, DELIMITERS[kind])
        elif kind == "parquet":
            yield from read_parquet(source, file)
        elif kind == "fastq":
            yield from read_fastq(source, file)
        elif kind == "stockholm":
            yield from read_stockholm(source, file)
        elif kind == "fasta":
            yield from read_fasta(source, file)
        else:
            yield from read_flatfile(source, file, kind)


def _is_list(path: Path, file: io.BufferedReader) -> bool:
    """Tell whether a text that no extension says the format of is no FASTA."""
    return extension(path) not in FORMATS and not file.peek(1).lstrip().startswith((b">", b";"))


class _Ids:
    """Counts records, and sees to it that every one has an id, and that no two have the same."""

    def __init__(self, duplicates: str, notes: Notes, seen: Mapping[str, tuple[Path, int]]):
        self.duplicates = duplicates
        self.notes = notes
        self.number = 0
        self.current = ""
        self.seen = dict(seen)
        self.copies: Counter[str] = Counter()

    def name(self, record: Record) -> Record:
        """Return a record, or a piece of one, under the name that it gets."""
        if record.start == 0:
            self.number += 1
            free = record.id and record.id not in self.seen
            self.current = record.id if free else self._new_name(record)
            self.seen[self.current] = (record.path, record.line)
        return record if record.id == self.current else replace(record, id=self.current)

    def _new_name(self, record: Record) -> str:
        if not record.id:
            record = replace(record, id=f"record_{self.number}")
            self.notes.warn("generated_ids", f"{record.path}: line {record.line}: no id, named {record.id}")
        return self._rename(record) if record.id in self.seen else record.id

    def _rename(self, record: Record) -> str:
        if self.duplicates == "error":
            path, line = self.seen[record.id]
            other = f"line {line}" + (f" of {path}" if path != record.path else "")
            raise UserError(
                f"{record.where()}: the same id as {other}; give every record its own id "
                "(or pass --duplicate-ids rename, where there is that option)"
            )
        number = max(self.copies[record.id], 1) + 1
        while f"{record.id}_{number}" in self.seen:
            number += 1
        self.copies[record.id] = number
        renamed = f"{record.id}_{number}"
        self.notes.warn("renamed_ids", f"{record.where()}: id seen before, renamed {renamed}")
        return renamed
