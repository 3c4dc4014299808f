"""FASTA and A3M: accepts what real files hold, refuses what it would have to guess.

CRLF, comments (``;``, before the first record also ``#``), blank lines, and blanks around headers and letters
are accepted, and those inside sequence lines are taken out, see `BlankLines`; digits and ``>`` in the
sequence are not. The file is read in blocks; only a block that holds something unusual is looked at line by
line. Memory is a few blocks beside the record, or the piece of it, and a line from its first blank on.
"""

import io
from collections.abc import Iterator
from typing import BinaryIO

from pipeline.errors import UserError
from pipeline.sequences.blanks import BlankLines
from pipeline.sequences.records import BLANKS, Record, Source

BLOCK = 1 << 20
_MISPLACED = b"0123456789>"
_UNUSUAL = _MISPLACED + b";#" + BLANKS


class _Open:
    """The record that is being read: letters that no piece has taken yet, and where they begin."""

    def __init__(self, name: str, line: int, source: Source):
        self.name, self.line, self.source = name, line, source
        self.start = 0
        self.held: list[bytes] = []
        self.blank_lines = BlankLines(source)

    def pieces(self, last: bool) -> Iterator[Record]:
        """Yield the pieces that are full and not the last, and at the end of the record also the last."""
        piece = self.source.piece
        if piece is not None and sum(map(len, self.held)) > piece:
            letters = b"".join(self.held)
            taken = (len(letters) - 1) // piece * piece
            self.held = [letters[taken:]]
            for begin in range(0, taken, piece):
                yield self._record(letters[begin : begin + piece], last=False)
        if last:
            yield self._record(b"".join(self.held), last=True)

    def _record(self, letters: bytes, last: bool) -> Record:
        start = self.start
        self.start += len(letters)
        return Record(self.name, letters, self.line, self.source.path, {}, start, last)


def read_fasta(source: Source, file: BinaryIO) -> Iterator[Record]:
    """Yield the records of a FASTA or A3M file; with ``source.piece``, in pieces of that many letters.

    Misplaced digits and ``>`` are errors. If bad records are to be skipped, they are left in the letters:
    cleaning refuses them, and can drop a record of which pieces were yielded before.

    Raises:
        UserError: the file is not FASTA, or holds misplaced characters.
    """
    source.only("FASTA")
    parser = _Parser(source)
    for block in _blocks(file):
        yield from parser.read(block)
    parser.end_line()
    if parser.record:
        yield from parser.record.pieces(last=True)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the file in blocks of whole lines; a line longer than a block comes in several."""
    rest = b""
    while block := file.read(BLOCK):
        end = block.rfind(b"\n") + 1 or len(block)
        yield rest + block[:end]
        rest = block[end:]
    if rest:
        yield rest


def _segments(block: bytes) -> Iterator[bytes]:
    """Cut whole lines before every header."""
    begin = 0
    if block.rfind(b">") > 0:
        while (end := block.find(b"\n>", begin) + 1) > 0:
            yield block[begin:end]
            begin = end
    yield block[begin:]


class _Parser:
    """Turns blocks into records, and keeps count of the lines."""

    def __init__(self, source: Source):
        self.source = source
        self.record: _Open | None = None
        self.line = 1  # number of the line that comes next, or that is going on
        self.column = 0  # bytes of it that were read
        self.comment = False  # whether it is a comment
        self.waiting: list[bytes] = []  # what was read of it from the first blank on, or if it may be k-mers
        self.where = ""  # which line that is

    def read(self, block: bytes) -> Iterator[Record]:
        """Yield the records that end in a block, and the pieces that are full."""
        if self.column:
            end = block.find(b"\n") + 1 or len(block)
            yield from self._by_line(block[:end])
            block = block[end:]
        for segment in _segments(block):
            if segment.startswith(b">"):
                if self.record:
                    yield from self.record.pieces(last=True)
                header, newline, segment = segment.partition(b"\n")
                self._open(header)
                self._pass(header + newline)
            letters = self._usual(segment)
            if letters and self.record and not self.record.blank_lines.joining:
                self.record.held.append(letters)
                self._pass(segment)
            else:
                yield from self._by_line(segment)
        if self.record:
            yield from self.record.pieces(last=False)

    def _usual(self, raw: bytes) -> bytes:
        """Return the letters in whole lines, or nothing if these have to be looked at one by one."""
        letters = raw.replace(b"\n", b"")
        if not letters.isalpha():
            letters = raw.replace(b"\r\n", b"").replace(b"\n", b"")
            if len(letters.translate(None, _UNUSUAL)) < len(letters):
                return b""
        return letters

    def _by_line(self, raw: bytes) -> Iterator[Record]:
        for line in io.BytesIO(raw):
            text = line.strip(BLANKS)
            if self.column == 0:
                comments = b";" if self.record else (b";", b"#")
                self.comment = text.startswith(comments)
            if self.column == 0 and text.startswith(b">"):
                if self.record:
                    yield from self.record.pieces(last=True)
                self._open(text)
            elif text and not self.comment:
                self._take(line)
            self._pass(line)
            if self.column == 0:
                self.end_line()

    def end_line(self) -> None:
        """Take the letters of a line that had blanks in it, now that all of it was read."""
        if self.waiting and self.record:
            text = b"".join(self.waiting).rstrip(BLANKS)
            self.record.held.append(self.record.blank_lines.letters(text, self.where))
        self.waiting = []

    def _pass(self, raw: bytes) -> None:
        """Count lines, or a part of one, that are done with."""
        if raw.endswith(b"\n"):
            self.line += raw.count(b"\n")
            self.column = 0
        else:
            self.column += len(raw)

    def _open(self, header: bytes) -> None:
        if b"\r" in header.rstrip():
            raise self._fault("lines end in CR only; convert the file to Unix line ends")
        if len(header) >= BLOCK:
            raise self._fault(f"a header of {BLOCK} letters or more; is this FASTA?")
        words = header[1:].split(maxsplit=1)
        try:
            name = words[0].decode() if words else ""
        except UnicodeDecodeError:
            raise self._fault("the id is not UTF-8 text; save the file as UTF-8") from None
        self.record = _Open(name, self.line, self.source)

    def _fault(self, text: str) -> UserError:
        return UserError(f"{self.source.path}: line {self.line}: {text}")

    def _take(self, line: bytes) -> None:
        if self.record is None:
            found = line.strip(BLANKS)[:20].decode("utf-8", "replace")
            raise UserError(
                f"{self.source.path}: not FASTA: line {self.line} is {found!r}; a header line with '>' must "
                "come first"
            )
        if self.source.on_bad == "error" and len(line.translate(None, _MISPLACED)) < len(line):
            raise UserError(f"{self.source.path}: record {self.record.name!r}, {self._blame(line)}")
        body = line.rstrip(BLANKS) if line.endswith(b"\n") else line
        body = body if self.column else body.lstrip(BLANKS)
        joining = self.record.blank_lines.joining and not self.column
        if self.waiting or joining or len(body.translate(None, BLANKS)) < len(body):
            self.where = f"record {self.record.name!r}, line {self.line}"
            self.waiting.append(body)
        else:
            self.record.held.append(body)

    def _blame(self, line: bytes) -> str:
        if b">" in line:
            return f"line {self.line}: '>' inside the sequence; start a new line before it"
        index = next(i for i, letter in enumerate(line) if letter in _MISPLACED)
        digit = f"digit {chr(line[index])!r} in the sequence"
        column = self.column + index + 1
        return f"line {self.line}, column {column}: {digit}; remove the numbers (GenBank is not FASTA)"
