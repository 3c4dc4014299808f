"""Contact maps as files: tables, CASP's RR format, NumPy arrays, and scripts for ChimeraX and PyMOL.

Shapes: n residues of the query. Maps are (n, n); places in code count from 0, residues in files from 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FITTED_ON = "fitted_on.fa"  # in a checkpoint: the proteins that its contact regression was fitted on
RR_WIDTH = 50
COLOURS = {"right": "dodgerblue", "wrong": "orangered", "unknown": "gray"}
PYMOL = {"right": "marine", "wrong": "tv_red", "unknown": "grey50"}


@dataclass(frozen=True)
class Truth:
    """Contacts between the query's residues: which pairs touch, and of which pairs that is known, (n, n)."""

    contacts: np.ndarray
    known: np.ndarray


@dataclass(frozen=True)
class Numbering:
    """What the structure calls the query's residues: chain and author's numbers, empty where unresolved."""

    chain: str
    numbers: Sequence[str]


@dataclass(frozen=True)
class Map:
    """What is known and said of a query: its letters, scores (n, n), and the structure, where there is one.

    ``probabilities`` tells whether scores are probabilities of contact.
    """

    name: str
    letters: str
    scores: np.ndarray
    separation: int
    probabilities: bool = False
    truth: Truth | None = None
    numbering: Numbering | None = None

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield i < j, at least ``separation`` apart, best first; ties go to the earlier pair."""
        i, j = np.triu_indices(len(self.scores), self.separation)
        for n in np.argsort(-self.scores[i, j], kind="stable"):
            yield int(i[n]), int(j[n])

    def contact(self, i: int, j: int) -> bool | None:
        """Return whether the two touch, or None where that is not known."""
        if self.truth is None or not self.truth.known[i, j]:
            return None
        return bool(self.truth.contacts[i, j])


def write_table(path: Path, found: Map) -> None:
    """Write a row for each pair, best first.

    The columns: ``i`` and ``j``, residues of the query from 1; ``aa_i`` and ``aa_j``, their letters;
    ``structure_i`` and ``structure_j``, chain and author's number with insertion code, empty where there is
    no structure or it does not show the residue; ``score``; ``contact``, 1 or 0 where it is known.
    """
    names = [""] * len(found.letters)
    if (numbering := found.numbering) is not None:
        names = [f"{numbering.chain}:{number}" if number else "" for number in numbering.numbers]
    lines = ["i\tj\taa_i\taa_j\tstructure_i\tstructure_j\tscore\tcontact\n"]
    for i, j in found.pairs():
        touch = found.contact(i, j)
        letters = f"{found.letters[i]}\t{found.letters[j]}\t{names[i]}\t{names[j]}"
        contact = "" if touch is None else int(touch)
        lines.append(f"{i + 1}\t{j + 1}\t{letters}\t{found.scores[i, j]:.6g}\t{contact}\n")
    path.write_text("".join(lines))


def write_rr(path: Path, found: Map, method: str) -> None:
    """Write CASP's RR format, residues of the query from 1, distances 0 to 8 angstrom.

    Its last column is a probability: scores that are none are scaled to 0 to 1, and a remark says so.
    """
    pairs = list(found.pairs())
    values = np.array([found.scores[pair] for pair in pairs])
    remark = ""
    if not found.probabilities and len(values):
        values = (values - values.min()) / (np.ptp(values) or 1.0)
        remark = "REMARK the last column is a score scaled to 0-1, not a probability\n"
    sequence = (found.letters[k : k + RR_WIDTH] for k in range(0, len(found.letters), RR_WIDTH))
    lines = (f"{i + 1} {j + 1} 0 8 {value:.5f}\n" for (i, j), value in zip(pairs, values, strict=True))
    head = f"PFRMAT RR\nTARGET {found.name}\nMETHOD {method}\n{remark}MODEL 1\n"
    path.write_text(head + "".join(f"{part}\n" for part in sequence) + "".join(lines) + "END\n")


def write_arrays(path: Path, found: Map) -> None:
    """Write an NPZ file with ``scores`` and ``sequence``, and of the truth ``contacts`` and ``known``.

    Of a structure it also has ``numbers`` and ``chain``; there is nothing pickled in it.
    """
    arrays: dict[str, Any] = {"scores": found.scores, "sequence": np.array(list(found.letters))}
    if found.truth is not None:
        arrays |= {"contacts": found.truth.contacts, "known": found.truth.known}
    if found.numbering is not None:
        arrays |= {"numbers": np.array(found.numbering.numbers), "chain": np.array(found.numbering.chain)}
    np.savez_compressed(path, **arrays)


def _best(found: Map, numbering: Numbering) -> Iterator[tuple[str, str, str]]:
    """Yield right, wrong or unknown, and two numbers, of the L best pairs that the structure shows."""
    shown = sum(map(bool, numbering.numbers))
    pairs = (pair for pair in found.pairs() if all(numbering.numbers[k] for k in pair))
    for _, (i, j) in zip(range(shown), pairs, strict=False):
        touch = found.contact(i, j)
        kind = "unknown" if touch is None else "right" if touch else "wrong"
        yield kind, numbering.numbers[i], numbering.numbers[j]


def write_chimerax(path: Path, found: Map, numbering: Numbering) -> None:
    """Write ChimeraX pseudobonds between C-alphas of the L best pairs: open the structure, then this file."""
    chain = f"/{numbering.chain}" if numbering.chain.strip() else ""
    lines = ["; radius = 0.15\n; dashes = 0\n; halfbond = false\n"]
    for kind, one, other in _best(found, numbering):
        lines.append(f"{chain}:{one}@CA {chain}:{other}@CA {COLOURS[kind]}\n")
    path.write_text("".join(lines))


def write_pymol(path: Path, found: Map, numbering: Numbering) -> None:
    """Write a PyMOL script that draws the L best pairs: load the structure, then run this file."""
    chain = f"chain {numbering.chain} and " if numbering.chain.strip() else ""

    def atom(number: str) -> str:
        return f"({chain}resi {number.replace('-', chr(92) + '-')} and name CA)"

    best, lines = list(_best(found, numbering)), []
    lines += [f"distance {kind}, {atom(one)}, {atom(other)}\n" for kind, one, other in best]
    for kind in sorted({kind for kind, _, _ in best}):
        lines += [f"hide labels, {kind}\n", f"color {PYMOL[kind]}, {kind}\n", f"set dash_gap, 0, {kind}\n"]
    path.write_text("".join(lines))
