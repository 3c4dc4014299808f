"""Protein chains out of PDB and mmCIF files, and which of their residues touch.

Chains and residue numbers are the author's, as the PDB writes and people cite them.
"""

import io
import math
import string
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import UserError

LEAST_IDENTITY = 0.5
GAPPED_LAMBDA, GAPPED_K = 0.267, 0.041
BREAK = 4.5  # angstrom between C-alphas; neighbours in a chain are at most 3.9 apart


@dataclass(frozen=True)
class Structure:
    """One chain, in the order of its sequence record (SEQRES), or of its coordinates where there is none.

    Attributes:
        sequence: one letter for each residue, n in all; X where the residue has no letter.
        numbers: author's residue number with insertion code ("52A"); empty where unresolved.
        coords_cb: (n, 3) in angstrom: the observed C-beta, C-alpha for glycine and where C-beta is missing;
            NaN where unresolved.
        chain: the author's chain name.
        label_chain: the mmCIF file's own name of the chain; the same as ``chain`` for PDB files.
        counts: ``models`` in the file, of which the first is read; residues that are ``modified``, have
            ``alternatives`` (the most occupied is read) or, not being glycine, are ``without_cb``.
    """

    sequence: str
    numbers: list[str]
    coords_cb: np.ndarray
    chain: str
    label_chain: str
    counts: dict[str, int]

    def describe(self) -> str:
        """Return in words what was read, and what about it is not plain."""
        names = "" if self.label_chain == self.chain else f" (author), {self.label_chain} (label)"
        words = {
            "modified": "modified, read as the residues they were made from",
            "alternatives": "in alternative places, of which the most occupied is read",
            "without_cb": "without C-beta, C-alpha in its place",
        }
        unresolved = int((~self.resolved).sum())
        parts = [f"{len(self.sequence)} residues"] + ([f"{unresolved} unresolved"] if unresolved else [])
        parts += [f"{self.counts[key]} {text}" for key, text in words.items() if self.counts[key]]
        parts += [f"first of {self.counts['models']} models"] if self.counts["models"] > 1 else []
        return f"chain {self.chain}{names}: {'; '.join(parts)}"

    @property
    def resolved(self) -> np.ndarray:
        """Return (n,) bool: the residue has coordinates."""
        return ~np.isnan(self.coords_cb[:, 0])


@dataclass(frozen=True)
class _Residue:
    """A residue with coordinates."""

    letter: str
    number: str
    coords: np.ndarray
    alpha: np.ndarray
    traits: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Record:
    """The sequence record of a chain: letters, and author numbers where the file gives them."""

    letters: str
    numbers: list[str] | None


def read_structure(path: Path, chain: str | None = None) -> Structure:
    """Read one chain of the first model of a PDB or mmCIF file, plain or compressed.

    Waters and ligands are left out; modified residues count as the residue they were made from (MSE is M); of
    alternative places the one with the highest occupancy is taken. Without a sequence record, residues that
    are missing by the numbers where the chain is broken (C-alphas over 4.5 angstrom apart) are X, unresolved.

    Args:
        path: the file.
        chain: author's name of the chain; may be left out if there is only one protein chain, or if the
            file's name ends in it, as that of 1ABC_B.pdb does.

    Raises:
        UserError: no such file or chain, several chains to choose from, or a file that contradicts itself.
    """
    text = _read_text(path)
    cif = _read_cif(text) if _is_cif(path, text) else None
    chains, models = _read_chains(path, text, cif is not None)
    chain = _choose_chain(path, chains, chain, _label_chains(cif))
    observed = chains[chain]
    record = _cif_record(cif, chain) if cif is not None else _seqres(text, chain)
    if record is None:
        record = _observed_record(observed)
    places = _place(path, chain, record, observed)
    numbers, coords = [""] * len(record.letters), np.full((len(record.letters), 3), np.nan)
    for place, residue in zip(places, observed, strict=True):
        numbers[place], coords[place] = residue.number, residue.coords
    traits = [trait for residue in observed for trait in residue.traits]
    counts = {key: traits.count(key) for key in ("modified", "alternatives", "without_cb")}
    label = _label_chains(cif).get(chain, chain)
    return Structure(record.letters, numbers, coords, chain, label, {"models": models, **counts})


def contact_map(structure: Structure, distance: float = 8.0) -> tuple[np.ndarray, np.ndarray]:
    """Return which residues are in contact and of which pairs that is known, both (n, n) bool.

    A contact is a C-beta distance below ``distance`` angstrom; pairs with an unresolved residue are unknown.
    No residue is in contact with itself.
    """
    steps = structure.coords_cb[:, None] - structure.coords_cb[None]
    contacts = np.sqrt((steps**2).sum(-1)) < distance
    np.fill_diagonal(contacts, False)
    return contacts, np.outer(structure.resolved, structure.resolved)


def align_to(sequence: str, structure: Structure) -> np.ndarray:
    """Return for each letter of ``sequence`` the index of its residue in ``structure``, or -1.

    Global alignment with free ends, BLOSUM62, gaps 11 + 1 for each further position.

    Raises:
        UserError: the two are not the same protein nor near relatives: less than half of the shorter one is
            aligned, or less than half of what is aligned is identical.
    """
    aligned = _pairs(sequence, structure.sequence)
    same = _same(aligned, sequence, structure)
    shorter = min(len(sequence), len(structure.sequence))
    if len(aligned) < shorter / 2 or same < LEAST_IDENTITY * len(aligned):
        share = same / max(1, len(aligned))
        raise UserError(
            f"the sequence ({sequence[:10]}..., {len(sequence)} residues) does not match chain "
            f"{structure.chain} of the structure ({structure.sequence[:10]}..., {len(structure.sequence)} "
            f"residues): {len(aligned)} residues can be aligned, {share:.0%} of them identical; give the "
            "structure of this protein, another chain, or another record"
        )
    index = np.full(len(sequence), -1)
    for i, j in aligned:
        index[i] = j
    return index


def expectation(one: str, other: str) -> float:
    """Return how many local alignments as good as the best one chance would give: BLAST's E-value of a pair.

    BLOSUM62, a gap of n residues costs 11 + n; the constants are those of gapped alignments (Altschul et al.
    1997, doi:10.1093/nar/25.17.3389). The search space is the product of the two lengths.
    """
    aligner, plain = _of_proteins(one, other)
    aligner.mode = "local"
    aligner.open_gap_score = -12
    return GAPPED_K * len(one) * len(other) * math.exp(-GAPPED_LAMBDA * aligner.score(*plain))


def identities(sequence: str, structure: Structure) -> int:
    """Return how many residues are the same when ``sequence`` is aligned to ``structure``; see `align_to`."""
    return _same(_pairs(sequence, structure.sequence), sequence, structure)


def _same(pairs: list[tuple[int, int]], sequence: str, structure: Structure) -> int:
    return sum(sequence[i].upper() == structure.sequence[j] for i, j in pairs)


def _aligner(**scores: float) -> Any:
    from Bio.Align import PairwiseAligner

    aligner = PairwiseAligner(mode="global", **scores)
    aligner.end_gap_score = 0.0
    return aligner


def _columns(aligner: Any, target: str, query: str) -> list[tuple[int, int]]:
    """Return the pairs of places that the best alignment puts in one column."""
    if not target or not query:
        return []
    best = aligner.align(target, query)[0]
    blocks = zip(*best.aligned, strict=True)
    return [
        (int(i), int(j)) for (a, b), (c, d) in blocks for i, j in zip(range(a, b), range(c, d), strict=True)
    ]


def _pairs(sequence: str, other: str) -> list[tuple[int, int]]:
    aligner, plain = _of_proteins(sequence, other)
    return _columns(aligner, *plain)


def _of_proteins(*sequences: str) -> tuple[Any, list[str]]:
    """Return an aligner with BLOSUM62, and the sequences in letters that it knows."""
    from Bio.Align import substitution_matrices

    matrix: Any = substitution_matrices.load("BLOSUM62")
    known = set(matrix.alphabet)
    plain = ["".join(letter if letter in known else "X" for letter in text.upper()) for text in sequences]
    return _aligner(substitution_matrix=matrix, open_gap_score=-11, extend_gap_score=-1), plain


def _read_text(path: Path) -> str:
    from xopen import xopen

    try:
        with xopen(path, "rt", threads=0, encoding="utf-8", errors="replace") as file:
            return str(file.read())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def _is_cif(path: Path, text: str) -> bool:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return bool({".cif", ".mmcif"} & {s.lower() for s in path.suffixes}) or next(lines, "").startswith(
        "data_"
    )


def _read_cif(text: str) -> dict[str, Any]:
    from Bio.PDB.MMCIF2Dict import MMCIF2Dict

    return dict(MMCIF2Dict(io.StringIO(text)))


def _read_chains(path: Path, text: str, is_cif: bool) -> tuple[dict[str, list[_Residue]], int]:
    """Return the residues with coordinates of every protein chain of the first model, and the models."""
    from Bio.PDB.MMCIFParser import MMCIFParser
    from Bio.PDB.PDBParser import PDBParser

    parser = MMCIFParser(QUIET=True) if is_cif else PDBParser(QUIET=True)
    try:
        with warnings.catch_warnings(action="ignore"):
            parsed: Any = parser.get_structure("x", io.StringIO(text))
            model = next(iter(parsed), ())
    except Exception as error:  # Biopython's parsers raise whatever the bad line trips
        kind = "mmCIF" if is_cif else "PDB"
        raise UserError(
            f"{path}: no {kind} structure could be read from it ({error!r}); check the file"
        ) from None
    chains = {chain.id: [r for r in map(_residue, chain) if r is not None] for chain in model}
    return {name: residues for name, residues in chains.items() if residues}, len(parsed)


def _letter(name: str) -> str:
    from Bio.Data.PDBData import protein_letters_3to1_extended

    return protein_letters_3to1_extended.get(name.strip().ljust(3), "X")


def _residue(residue: Any) -> _Residue | None:
    """Return a residue of the polymer; None for waters, ligands, nucleotides and where C-alpha is missing."""
    from Bio.Data.PDBData import protein_letters_3to1

    several = bool(residue.is_disordered())
    if residue.is_disordered() == 2:  # a point mutation: two residues in one place
        residue = max(residue.disordered_get_list(), key=lambda r: max(a.get_occupancy() or 0 for a in r))
    hetero, number, insertion = residue.id
    name = residue.resname.strip()
    backbone = all(atom in residue for atom in ("N", "CA", "C"))
    modified = hetero.startswith("H_") and name not in protein_letters_3to1
    if "CA" not in residue:
        return None
    if not (hetero == " " or (modified and (backbone or _letter(name) != "X"))):
        return None
    atom = residue["CB"] if "CB" in residue and name != "GLY" else residue["CA"]
    traits = {
        "modified": modified,
        "alternatives": several,
        "without_cb": "CB" not in residue and name != "GLY",
    }
    place, alpha = (np.asarray(found.coord, float) for found in (atom, residue["CA"]))
    found = tuple(trait for trait, has in traits.items() if has)
    return _Residue(_letter(name), f"{number}{insertion}".strip(), place, alpha, found)


def _observed_record(observed: Sequence[_Residue]) -> _Record:
    """Return the record of a chain that has none: what has coordinates, and X for what is missing between."""
    letters, numbers = observed[0].letter, [observed[0].number]
    for before, residue in pairwise(observed):
        jump = _plain_number(residue) - _plain_number(before)
        broken = np.linalg.norm(residue.alpha - before.alpha) > BREAK
        missing = max(0, jump - 1) if broken else 0
        letters += "X" * missing + residue.letter
        numbers += [""] * missing + [residue.number]
    return _Record(letters, numbers)


def _plain_number(residue: _Residue) -> int:
    """Return the residue's number without its insertion code."""
    return int(residue.number.rstrip(string.ascii_letters))


def _choose_chain(path: Path, chains: dict, wanted: str | None, labels: dict[str, str]) -> str:
    names = ", ".join(chains)
    if not chains:
        raise UserError(f"{path}: no protein chain with coordinates in it; give another structure")
    if wanted is None and len(chains) > 1:
        wanted = path.name.split(".")[0].rpartition("_")[2]
        if wanted in chains and "_" in path.name:
            return wanted
        raise UserError(
            f"{path}: holds the chains {names}; choose one with --chain, or by a name such as 1ABC_B.pdb"
        )
    if wanted is None:
        return next(iter(chains))
    if wanted not in chains:
        meant = [author for author, label in labels.items() if label == wanted and author in chains]
        hint = f"; did you mean label chain {wanted}, which is author chain {meant[0]}?" if meant else ""
        raise UserError(f"{path}: no chain {wanted!r} (author naming); the chains are {names}{hint}")
    return wanted


def _label_chains(cif: dict[str, Any] | None) -> dict[str, str]:
    """Return author chain -> label chain, for the polymers of an mmCIF file."""
    if cif is None:
        return {}
    keys = ("auth_asym_id", "label_asym_id", "label_seq_id")
    columns = [cif.get(f"_atom_site.{key}", []) for key in keys]
    labels: dict[str, str] = {}
    for author, label, seq_id in zip(*columns, strict=False):
        if seq_id not in (".", "?"):
            labels.setdefault(author, label)
    return labels


def _cif_record(cif: dict[str, Any], chain: str) -> _Record | None:
    keys = ("pdb_strand_id", "seq_id", "mon_id", "pdb_seq_num", "pdb_ins_code")
    rows = zip(*(cif.get(f"_pdbx_poly_seq_scheme.{key}", []) for key in keys), strict=False)
    letters: dict[str, tuple[str, str]] = {}
    for strand, seq_id, name, number, insertion in rows:
        if strand == chain:
            letters.setdefault(seq_id, (_letter(name), number + insertion.strip(".?")))
    if not letters:
        return None
    return _Record("".join(letter for letter, _ in letters.values()), [n for _, n in letters.values()])


def _seqres(text: str, chain: str) -> _Record | None:
    lines = [line for line in text.splitlines() if line.startswith("SEQRES") and line[11:12] == chain]
    names = [name for line in lines for name in line[19:].split()]
    return _Record("".join(map(_letter, names)), None) if names else None


def _place(path: Path, chain: str, record: _Record, observed: Sequence[_Residue]) -> list[int]:
    """Return the index in the sequence record of each residue with coordinates, in rising order."""
    for places in (_by_number(record, observed), _by_shift(record.letters, observed)):
        if places is not None:
            return places
    aligner = _aligner(match_score=5, mismatch_score=-5, open_gap_score=-2, extend_gap_score=0)
    aligner.open_internal_insertion_score = aligner.extend_internal_insertion_score = -20
    letters = "".join(residue.letter for residue in observed)
    place = {j: i for i, j in _columns(aligner, record.letters, letters) if record.letters[i] == letters[j]}
    for j, residue in enumerate(observed):
        if j not in place:
            raise UserError(
                f"{path}: chain {chain}: residue {residue.letter}{residue.number} has coordinates but no "
                "place in the sequence record (SEQRES); correct the record or remove it"
            )
    return [place[j] for j in range(len(observed))]


def _by_number(record: _Record, observed: Sequence[_Residue]) -> list[int] | None:
    """Place residues where the record gives their author numbers."""
    if record.numbers is None:
        return None
    where = {number: place for place, number in enumerate(record.numbers)}
    return [where[r.number] for r in observed] if all(r.number in where for r in observed) else None


def _by_shift(letters: str, observed: Sequence[_Residue]) -> list[int] | None:
    """Place residues by their numbers, if one shift of these agrees with every letter (1 is tried first)."""
    try:
        numbers = [int(residue.number) for residue in observed]
    except ValueError:
        return None
    if any(b <= a for a, b in pairwise(numbers)):
        return None
    for shift in sorted(range(numbers[-1] - len(letters) + 1, numbers[0] + 1), key=lambda s: abs(s - 1)):
        if all(letters[n - shift] == r.letter for n, r in zip(numbers, observed, strict=True)):
            return [n - shift for n in numbers]
    return None
