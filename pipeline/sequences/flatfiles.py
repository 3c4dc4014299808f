"""GenBank and EMBL (by Biopython) and Stockholm: files whose records end with a line ``//``."""

import io
import warnings
from collections.abc import Iterator
from typing import BinaryIO

from pipeline.errors import UserError
from pipeline.sequences.records import BLANKS, Record, Source

END = b"//"
TOPOLOGY = "topology"


def read_flatfile(source: Source, file: BinaryIO, kind: str) -> Iterator[Record]:
    """Yield the records of a GenBank ("genbank") or EMBL ("embl") file, features left out.

    The id is accession.version; the column "topology" (linear or circular) can be kept. These formats say
    nothing by letter case, so the letters are upper case.

    Raises:
        UserError: a bad record, unless bad records are to be skipped.
    """
    name = {"genbank": "GenBank", "embl": "EMBL"}[kind]
    source.only(name, TOPOLOGY)
    for line, text, ended in _entries(file):
        entry = _parse(text, kind) if ended else "it does not end with //: the file is incomplete"
        if isinstance(entry, str):
            source.refuse(f"record at line {line}", entry, f"give a complete {name} record")
            continue
        columns = {name: str(entry.annotations.get(name, "linear")) for name in source.keep}
        yield Record(entry.id or "", bytes(entry.seq), line, source.path, columns)


def _entries(file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Yield first line, text without feature tables, and whether a line // ended it, for every entry."""
    start, lines, in_features = 1, [], False
    for number, line in enumerate(file, 1):
        if line.startswith(END):
            yield start, b"".join(lines), True
            lines = []
        elif lines or line.strip():
            start = start if lines else number
            in_features = line.startswith(b"FEATURES") or (in_features and line.startswith(b" "))
            if not line.startswith((b"FT", b" " * 5) if in_features else b"FT"):
                lines.append(line)
    if lines:
        yield start, b"".join(lines), False


def _parse(text: bytes, kind: str):
    """Return Biopython's record of an entry, or what is wrong with it."""
    from Bio import SeqIO
    from Bio.Seq import UndefinedSequenceError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "Expected sequence length")
            entry = SeqIO.read(io.StringIO(text.decode() + "//\n"), kind)
            bytes(entry.seq)
    except UndefinedSequenceError:
        return "it has no sequence, only a reference to other records"
    except (ValueError, Warning, AssertionError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else "it cannot be read"
    return entry


def read_stockholm(source: Source, file: BinaryIO) -> Iterator[Record]:
    """Yield the rows of the alignments in a Stockholm file, gaps and letter case as they are.

    Raises:
        UserError: the file is not Stockholm or incomplete, or rows of one alignment differ in length.
    """
    source.only("Stockholm")
    rows: dict[str, tuple[int, list[bytes]]] = {}
    number = 0
    for number, raw in enumerate(file, 1):
        line = raw.strip(BLANKS)
        if line == END:
            yield from _rows(source, rows)
            rows = {}
        elif line and not line.startswith(b"#"):
            name, *letters = line.split()
            if len(letters) != 1:
                raise UserError(f"{source.path}: line {number}: not 'name letters'; is this Stockholm?")
            rows.setdefault(name.decode("utf-8", "replace"), (number, []))[1].append(letters[0])
    if rows:
        raise UserError(f"{source.path}: line {number}: the alignment does not end with //: it is incomplete")


def _rows(source: Source, rows: dict[str, tuple[int, list[bytes]]]) -> Iterator[Record]:
    columns = None
    for name, (line, pieces) in rows.items():
        record = Record(name, b"".join(pieces), line, source.path)
        columns = columns or len(record.sequence)
        if len(record.sequence) != columns:
            raise UserError(
                f"{record.where()}: {len(record.sequence)} columns where the first row has {columns}; "
                "the file is damaged"
            )
        yield record
