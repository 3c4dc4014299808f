"""FASTQ, in four lines for each read or in more (Cock et al. 2010, doi:10.1093/nar/gkp1137)."""

from collections.abc import Iterator
from typing import BinaryIO

from pipeline.errors import UserError
from pipeline.sequences.blanks import without_blanks
from pipeline.sequences.records import BLANKS, Record, Source

_REMEDY = "the file is damaged or no FASTQ; correct or remove the read"


class _BadReadError(Exception):
    """What is wrong with a read, and how many letters of it are known."""

    def __init__(self, fault: str, letters: int = 0):
        super().__init__(fault)
        self.letters = letters


class _Lines:
    """The lines of a file without their ends; the next one can be looked at before it is taken."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.number = 0
        self.next = b""
        self.take()

    def take(self) -> bytes:
        """Return the next line; ``number`` is that of the line after it."""
        line, raw = self.next, self.file.readline()
        self.number += 1
        self.ended = not raw
        self.next = raw.rstrip(b"\r\n")
        return line


def read_fastq(source: Source, file: BinaryIO) -> Iterator[Record]:
    """Yield the reads of a FASTQ file; the qualities are checked for their number and not kept.

    A line of qualities belongs to each line of letters. After a bad read that is skipped, the file is read on
    from the next line that begins with ``@``.

    Raises:
        UserError: a bad read, unless bad records are to be skipped, or an id that is not UTF-8.
    """
    source.only("FASTQ")
    lines = _Lines(file)
    while not lines.ended:
        line, header = lines.number, lines.take().strip(BLANKS)
        if not header:
            continue
        name = _name(source, line, header)
        try:
            if not header.startswith(b"@"):
                raise _BadReadError(
                    f"{header[:20].decode('utf-8', 'replace')!r} where a read should begin with '@'"
                )
            yield Record(name, _read(lines, header, source), line, source.path)
        except _BadReadError as fault:
            where = f"record {name!r}, line {line}" if header.startswith(b"@") else f"line {line}"
            source.refuse(where, str(fault), _REMEDY, fault.letters)
            while not lines.ended and not lines.next.startswith(b"@"):
                lines.take()


def _name(source: Source, line: int, header: bytes) -> str:
    words = header[1:].split(maxsplit=1)
    try:
        return words[0].decode() if words else ""
    except UnicodeDecodeError:
        where = f"{source.path}: line {line}"
        raise UserError(f"{where}: the id is not UTF-8 text; save the file as UTF-8") from None


def _read(lines: _Lines, header: bytes, source: Source) -> bytes:
    """Return the letters of the read whose header was taken."""
    letters: list[bytes] = []
    while not lines.next.startswith(b"+"):
        if lines.ended or lines.next.startswith(b"@"):
            raise _BadReadError("no line with '+' after the letters", sum(map(len, letters)))
        where = f"line {lines.number}"
        letters.append(without_blanks(lines.take().strip(BLANKS), where, source))
    known = sum(map(len, letters))
    repeated = lines.take()[1:].strip(BLANKS)
    if repeated and repeated != header[1:].strip(BLANKS):
        raise _BadReadError(f"the line with '+' names {repeated.decode('utf-8', 'replace')!r}", known)
    qualities = sum(len(lines.take()) for _ in letters if not lines.ended)
    if qualities != known:
        raise _BadReadError(f"{qualities} qualities for {known} letters", known)
    return b"".join(letters)
