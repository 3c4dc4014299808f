"""What a contact map is drawn from and scored against: records, a query among them, and the truth."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.attention.contact_files import Numbering, Truth
from pipeline.config import ContactsConfig
from pipeline.errors import UserError
from pipeline.log import say

GAP = "-"
CANDIDATES = 20


@dataclass(frozen=True)
class Family:
    """The records of the data, and which of them the map is about."""

    rows: list[tuple[str, str]]
    query: int

    @property
    def name(self) -> str:
        """Return the query's id."""
        return self.rows[self.query][0]

    @property
    def letters(self) -> str:
        """Return the query's residues, without gaps."""
        return self.rows[self.query][1].replace(GAP, "")

    @property
    def columns(self) -> np.ndarray:
        """Return the places of the query's residues in its row, (n,)."""
        return np.flatnonzero(np.array(list(self.rows[self.query][1])) != GAP)

    @property
    def aligned(self) -> bool:
        """Tell whether the rows are those of an alignment: several, all of one length."""
        return len(self.rows) > 1 and len({len(row) for _, row in self.rows}) == 1


def read_inputs(config: ContactsConfig) -> tuple[Family, Truth | None, Numbering | None]:
    """Return the records with the query chosen, and what is known about it, if anything is given.

    Raises:
        UserError: a file cannot be read, has no such record, or does not fit the query.
    """
    from pipeline.sequences.structure import align_to, contact_map, read_structure

    rows = _read_rows(config.data)
    if config.structure is None:
        family = Family(rows, _find(rows, config) if config.query else 0)
        return family, _read_contacts(config.contacts, family.letters) if config.contacts else None, None
    structure = read_structure(config.structure, config.chain)
    say(f"{config.structure}: {structure.describe()}")
    family = Family(rows, _find(rows, config) if config.query else _closest(rows, structure))
    letters = family.letters
    index = align_to(letters, structure)
    found = index >= 0
    other = sum(letters[i] != structure.sequence[index[i]] for i in np.flatnonzero(found))
    say(
        f"{family.name}: {found.sum()} of {len(letters)} residues are in the chain, {other} as another "
        f"letter; {structure.resolved[index[found]].sum()} have coordinates"
    )
    pairs = np.ix_(index, index)
    contacts, known = contact_map(structure, config.distance)
    both = np.outer(found, found)
    numbers = [structure.numbers[k] if k >= 0 else "" for k in index]
    return family, Truth(contacts[pairs] & both, known[pairs] & both), Numbering(structure.chain, numbers)


def _read_rows(path: Path) -> list[tuple[str, str]]:
    """Return (id, clean sequence, gaps kept) of every record of a FASTA file or a corpus."""
    from pipeline.sequences.alphabets import BadSequenceError, clean
    from pipeline.sequences.readers import is_a3m, read_files

    if path.is_dir():
        return _read_corpus(path)
    rows = []
    for record in read_files([path], duplicate_ids="rename"):
        try:
            cleaned = clean(record.sequence, "protein", aligned=True, insertions=is_a3m(record.path))
        except BadSequenceError as error:
            raise UserError(f"{record.where()}: {error}; correct or remove it") from None
        rows.append((record.id, cleaned.sequence.decode()))
    return rows


def _read_corpus(path: Path) -> list[tuple[str, str]]:
    from datasets import load_from_disk

    try:
        splits: Any = load_from_disk(path)
    except FileNotFoundError:
        raise UserError(f"{path}: neither a corpus written by prepare nor a FASTA file") from None
    return [
        pair for split in splits.values() for pair in zip(split["id"][:], split["sequence"][:], strict=True)
    ]


def _find(rows: list[tuple[str, str]], config: ContactsConfig) -> int:
    for number, (name, _) in enumerate(rows):
        if name == config.query:
            return number
    raise UserError(
        f"{config.data}: no record {config.query!r}; correct --query (the first record is {rows[0][0]!r})"
    )


def _words(sequence: str) -> set[str]:
    return {sequence[i : i + 3] for i in range(len(sequence) - 2)}


def _closest(rows: list[tuple[str, str]], structure) -> int:
    """Return the row with most residues identical to the structure's, aligning the likeliest rows only."""
    from pipeline.sequences.structure import identities

    bare = [row.replace(GAP, "") for _, row in rows]
    words = _words(structure.sequence)
    likely = sorted(range(len(rows)), key=lambda n: -len(words & _words(bare[n])))[:CANDIDATES]
    return max(likely, key=lambda n: (identities(bare[n], structure), -n))


def _read_contacts(path: Path, letters: str) -> Truth:
    """Return the truth in a table with the columns i and j, in 1-based residues of the query.

    Where it has the columns aa_i and aa_j, they are compared with the query's letters.
    """
    n = len(letters)
    contacts = np.zeros((n, n), bool)
    with path.open(newline="") as file:
        header = file.readline()
        delimiter = "," if "," in header else "\t"
        columns = [name.strip() for name in header.split(delimiter)]
        if not {"i", "j"} <= set(columns):
            raise UserError(f"{path}: line 1: columns {', '.join(columns)}, but i and j are needed")
        for line, row in enumerate(csv.DictReader(file, columns, delimiter=delimiter), 2):
            i, j = (_place(path, line, row, column, letters) for column in "ij")
            contacts[i, j] = contacts[j, i] = True
    return Truth(contacts, np.ones((n, n), bool))


def _place(path: Path, line: int, row: dict[str, str], column: str, letters: str) -> int:
    """Return the 0-based place of the residue that a row names."""
    value, n = row[column], len(letters)
    if value is None or not value.strip().isdecimal() or not 1 <= int(value) <= n:
        raise UserError(
            f"{path}: line {line}: residue {value!r}, but the query has residues 1 to {n}; correct the row"
        )
    place, letter = int(value) - 1, (row.get(f"aa_{column}") or "").strip()
    if letter and letter.upper() != letters[place]:
        raise UserError(
            f"{path}: line {line}: residue {value} is {letter}, but {letters[place]} in the query; count "
            "residues in the sequence that is given"
        )
    return place
