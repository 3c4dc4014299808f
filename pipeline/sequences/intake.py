"""Records, as readers give them, -> rows of a corpus: cleaned, cut, weighed, and everything counted."""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import BadSequenceError, Cleaned, clean, count_unknown
from pipeline.sequences.files import is_a3m
from pipeline.sequences.records import Notes, Record
from pipeline.sequences.rows import Cutter, Row
from pipeline.sequences.splits import SPLITS
from pipeline.sequences.spool import Spool

LONGEST_ROW = 1 << 24
DNA_SHARE = 0.95
BASES = b"ACGTUNacgtun"


@dataclass
class Tally:
    """What was read and changed, and of every labelled record the label and the share of lower case.

    Attributes:
        notes: where dropped rows, and records with bad letters, are counted.
        changed: letters changed or removed, by kind.
        records: how many came.
        letters: how many these held.
        refused: how many of the records had bad letters.
        rows: what the other records were cut into.
        residues: letters of usable rows of proteins, gaps left out.
        nucleic: those of them that are A C G T U or N.
        case_labels: label of each labelled record.
        case_shares: share of its letters that are lower case.
    """

    notes: Notes
    changed: Counter[str] = field(default_factory=Counter)
    records: int = 0
    letters: int = 0
    refused: int = 0
    rows: int = 0
    residues: int = 0
    nucleic: int = 0
    case_labels: array = field(default_factory=lambda: array("i"))
    case_shares: array = field(default_factory=lambda: array("d"))

    @property
    def lower_case(self) -> int:
        """Letters that were lower case."""
        return _lower_case(self.changed)

    @property
    def looks_like_dna(self) -> bool:
        """Whether the proteins are hardly anything but bases."""
        return self.residues > 0 and self.nucleic >= DNA_SHARE * self.residues


class Intake:
    """Takes the pieces of records one by one and spools the rows that they give.

    Rows have at most `LONGEST_ROW` letters (or those of a block): longer records are cut into rows of that
    length. A record with bad letters is an error or leaves no row, as ``on_bad_record`` says.

    Args:
        config: the settings of prepare.
        spool: where rows go.
        notes: where dropped rows are counted.
        class_of: class of each file, if files are classes.
        split_of: split of each file whose records are for one.
    """

    def __init__(
        self,
        config: PrepareConfig,
        spool: Spool,
        notes: Notes,
        class_of: Mapping[Path, str] | None = None,
        split_of: Mapping[Path, str] | None = None,
    ):
        self.config, self.spool = config, spool
        self.class_of, self.split_of = class_of or {}, split_of or {}
        self.tally = Tally(notes)
        self.labels: dict[str, int] = {name: code for code, name in enumerate(config.classes)}
        self._columns: int | None = None
        self._cutter = Cutter(config.block or LONGEST_ROW)
        self._begun = self._bad = False

    def take(self, record: Record) -> None:
        """Take the next piece of a record, or the whole of it."""
        if not self._begun:
            self._begin(record)
        self.tally.letters += len(record.sequence)
        self._letters += len(record.sequence)
        cleaned = None if self._bad else self._clean(record)
        for piece in cleaned.pieces if cleaned else []:
            for row in self._cutter.add(piece):
                self._put(record, row)
        if record.last:
            self._end(record)

    def _begin(self, record: Record) -> None:
        self.tally.records += 1
        self._begun, self._bad, self._first, self._letters = True, False, len(self.spool), 0
        self._changed: Counter[str] = Counter()
        self._label, self._split = self._label_of(record), self._split_of(record)
        self._cells = [record.columns[name] for name in self.spool.texts]
        self._rows = 0
        self._dropped: list[tuple[str, int]] = []

    def _end(self, record: Record) -> None:
        rest = list(self._cutter.end())
        self._begun = False
        if self._bad:
            self.tally.notes.letters["bad_letters"] += self._letters
            return
        for row in rest or ([] if self._rows else [Row(0, b"")]):
            self._put(record, row)
        self.tally.rows += self._rows
        self.tally.changed += self._changed
        if self._label >= 0:
            self.tally.case_labels.append(self._label)
            self.tally.case_shares.append(_lower_case(self._changed) / self._letters)

    def _clean(self, record: Record) -> Cleaned | None:
        config = self.config
        insertions = config.aligned and is_a3m(record.path)
        how = {"aligned": config.aligned, "insertions": insertions, "start": record.start}
        try:
            cleaned = clean(record.sequence, config.alphabet, config.letters, last=record.last, **how)
        except BadSequenceError as error:
            self._refuse(record, error)
            return None
        self._changed += cleaned.changed
        if config.aligned:
            self._check_columns(record, len(cleaned.sequence))
        return cleaned

    def _refuse(self, record: Record, error: BadSequenceError) -> None:
        if self.config.on_bad_record == "error":
            ways = "correct it, or use --on-bad-record skip"
            if self.config.alphabet == "dna":
                ways += " (or --alphabet protein, if these are proteins)"
            raise UserError(f"{record.where()}: {error}; {ways}") from None
        self.tally.notes.warn("bad_letters", f"{record.where()}: {error}, skipped")
        self.spool.discard(self._first)
        for reason, letters in self._dropped:
            self.tally.notes.take_back(reason, letters)
        self.tally.refused += 1
        self._bad = True

    def _check_columns(self, record: Record, columns: int) -> None:
        self._columns = self._columns or columns
        if columns != self._columns:
            raise UserError(
                f"{record.where()}: {columns} columns where the first record has {self._columns}; the rows "
                "of an alignment are equally long"
            )
        if columns > LONGEST_ROW:
            raise UserError(f"{record.where()}: {columns} columns; an alignment has at most {LONGEST_ROW}")

    def _put(self, record: Record, row: Row) -> None:
        self._rows += 1
        if self._usable(record, row):
            if self.config.alphabet == "protein":
                residues = row.sequence.translate(None, b"-")
                self.tally.residues += len(residues)
                self.tally.nucleic += len(residues) - len(residues.translate(None, BASES))
            self.spool.put(record.id, row, self._cells, self.tally.records - 1, self._label, self._split)

    def _usable(self, record: Record, row: Row) -> bool:
        config, letters = self.config, len(row.sequence)
        unknown = count_unknown(row.sequence, config.alphabet)
        if letters < config.min_length:
            reason, why = "too_short", f"{letters} letters, fewer than {config.min_length}"
        elif unknown == letters:
            reason, why = "all_unknown", "nothing but unknown letters"
        elif unknown > config.max_unknown * letters:
            reason = "too_unknown"
            why = f"{unknown} of {letters} letters unknown, a larger share than {config.max_unknown}"
        else:
            return True
        where = record.where() + (f", from letter {row.start + 1}" if row.start or config.block else "")
        self.tally.notes.warn(reason, f"{where}: {why}, dropped", letters)
        self._dropped.append((reason, letters))
        return False

    def _label_of(self, record: Record) -> int:
        """Return the number of the record's class in order of appearance, or -1."""
        if self.class_of:
            return self.labels[self.class_of[record.path]]
        column = self.config.label_column
        if not column:
            return -1
        name = record.columns[column]
        if not name:
            raise UserError(f"{record.where()}: no label in column {column!r}; complete or remove the row")
        return self.labels.setdefault(name, len(self.labels))

    def _split_of(self, record: Record) -> int:
        """Return the split that the record was given for; train where it was not."""
        column = self.config.split_column
        if not column:
            return SPLITS.index(self.split_of.get(record.path, "train"))
        name = record.columns[column]
        if name not in SPLITS:
            raise UserError(f"{record.where()}: {name!r} in column {column!r}; use train, validation or test")
        return SPLITS.index(name)


def _lower_case(changed: Counter[str]) -> int:
    return changed["lower_case_folded"] + changed["soft_masked"]
