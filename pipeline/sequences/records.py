"""What a reader yields, and what it counts on the way."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.errors import UserError
from pipeline.log import say

SHOWN = 3
BLANKS = b" \t\r\n\v\f"


@dataclass(frozen=True, slots=True)
class Record:
    """One sequence, or a piece of one, as its file gives it, and where it stood.

    Attributes:
        id: name; the same for all pieces of a sequence.
        sequence: letters as read, in their case, without blanks.
        line: where the record begins, from 1 (Parquet: the number of the row).
        path: the file.
        columns: further columns that were asked for.
        start: 0-based offset of the piece in the record's letters.
        last: the record ends with this piece.
    """

    id: str
    sequence: bytes
    line: int
    path: Path
    columns: dict[str, str] = field(default_factory=dict)
    start: int = 0
    last: bool = True

    def where(self) -> str:
        """Return file, record and line, as error messages begin."""
        return f"{self.path}: record {self.id!r}, line {self.line}"


class Notes(Counter[str]):
    """What was met while reading, counted by reason; the first few of each reason are also said.

    Attributes:
        letters: by reason, the letters of what was dropped.
    """

    def __init__(self):
        super().__init__()
        self.letters: Counter[str] = Counter()

    def warn(self, reason: str, text: str, letters: int = 0) -> None:
        """Count ``reason`` and its letters, and say ``text``, unless it was said often enough."""
        self[reason] += 1
        self.letters[reason] += letters
        if self[reason] <= SHOWN:
            say(text)
        elif self[reason] == SHOWN + 1:
            say(f"{reason.replace('_', ' ')}: further ones are counted only")

    def take_back(self, reason: str, letters: int) -> None:
        """Count one less, and its letters."""
        self[reason] -= 1
        self.letters[reason] -= letters


def listed(counts: Mapping[str, int]) -> str:
    """Return counts by kind in words: 3 lower case folded, 1 u to t."""
    return ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())


@dataclass(frozen=True)
class Faults:
    """What becomes of rows that cannot be scored: they stop the run, or are counted and said."""

    on_bad: Literal["error", "note"]
    notes: Notes

    def note(self, where: str, fault: object) -> str:
        """Return why a row has no score, or stop because of it.

        Raises:
            UserError: such rows are errors.
        """
        if self.on_bad == "error":
            raise UserError(f"{where}: {fault}; correct it, or pass --on-bad-record note")
        self.notes.warn("failed", f"{where}: {fault}; no score")
        return str(fault)


@dataclass(frozen=True)
class Source:
    """A file, and how it is to be read: what every parser needs to know."""

    path: Path
    sequence_column: str
    id_column: str
    keep: Sequence[str]
    on_bad: Literal["error", "skip"]
    notes: Notes
    piece: int | None
    header: bool = True

    def refuse(self, where: str, fault: str, remedy: str, letters: int = 0) -> None:
        """Stop because of a bad record, or count and name it and the letters known of it, as was asked.

        Raises:
            UserError: bad records are errors.
        """
        if self.on_bad == "error":
            raise UserError(f"{self.path}: {where}: {fault}; {remedy}")
        self.notes.warn("bad_records", f"{self.path}: {where}: {fault}, skipped", letters)

    def only(self, kind: str, *columns: str) -> None:
        """Check that a file of this kind has every column that is to be kept.

        Raises:
            UserError: it does not.
        """
        for name in self.keep:
            if name not in columns:
                has = f"only the column {', '.join(map(repr, columns))}" if columns else f"no column {name!r}"
                raise UserError(f"{self.path}: {kind} has {has}; give a table for {name!r}")
