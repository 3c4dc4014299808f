"""Motifs on disk (MEME minimal and JASPAR), and their best matches in a database of known motifs."""

import itertools
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.files import opened

LETTERS = "ACGT"
SUM_TOLERANCE = 0.02  # by which the probabilities of a column may miss 1
FEW_TARGETS = 25  # below this, Tomtom's p-values depend on the choice of targets

Found = Iterator[tuple[int, str, np.ndarray]]  # line, name, frequencies


@dataclass(frozen=True)
class Hit:
    """A known motif that a query resembles."""

    query: str
    target: str
    p_value: float
    """Tomtom's p-value of this pair"""
    e_value: float
    """p-value times the number of targets compared"""
    offset: int
    """column of the target, read in the direction of ``strand``, at which the query's first column lies;
    negative where the query begins before the target"""
    overlap: int
    """columns that both cover"""
    strand: str
    """+, or - if the query resembles the target's reverse complement"""


def write_meme(
    path: Path,
    motifs: Mapping[str, np.ndarray],
    nsites: Mapping[str, int],
    background: np.ndarray | None = None,
    note: str | None = None,
    strands: str = "+",
) -> None:
    """Write motifs in the MEME minimal format (version 4).

    Args:
        path: file to write.
        motifs: (w, 4) frequencies of A, C, G, T by name; a name's first word is the identifier.
        nsites: number of sites behind each motif.
        background: (4,) composition of the sequences (default: uniform).
        note: a line for people, written as a comment.
        strands: those that sites were sought on, "+" or "+ -".
    """
    composition = np.full(4, 0.25) if background is None else background
    shares = " ".join(f"{letter} {share:.6f}" for letter, share in zip(LETTERS, composition, strict=True))
    head = ["MEME version 4", "", *([f"# {note}", ""] if note else [])]
    head += ["ALPHABET= ACGT", "", f"strands: {strands}", ""]
    lines = [*head, "Background letter frequencies", shares, ""]
    for name, frequencies in motifs.items():
        width = f"alength= 4 w= {len(frequencies)} nsites= {nsites[name]}"
        lines += [f"MOTIF {name}", f"letter-probability matrix: {width} E= 0"]
        lines += [" ".join(f"{value:.6f}" for value in column) for column in frequencies]
        lines.append("")
    path.write_text("\n".join(lines))


def write_jaspar(path: Path, motifs: Mapping[str, np.ndarray], other_names: Mapping[str, str]) -> None:
    """Write motifs in JASPAR's format of counts, which may be fractions of a site here.

    Args:
        path: file to write.
        motifs: (w, 4) counts of A, C, G, T by name, without blanks.
        other_names: what stands behind the name.
    """
    lines = []
    for name, counts in motifs.items():
        lines.append(f">{name}\t{other_names[name]}")
        for letter, row in zip(LETTERS, counts.T, strict=True):
            lines.append(f"{letter} [ {' '.join(f'{value:.2f}' for value in row)} ]")
        lines.append("")
    path.write_text("\n".join(lines))


def read_motifs(path: Path) -> dict[str, np.ndarray]:
    """Read a file of DNA motifs: MEME minimal, or JASPAR counts; plain or compressed.

    Args:
        path: the file; its first line tells the format.

    Returns:
        (w, 4) frequencies of A, C, G, T, each column summing to 1, by name: the identifier, followed after a
        space by the motif's other name if it has one.

    Raises:
        UserError: the file is missing, damaged, of another format, or holds a matrix that is not one.
    """
    lines = _read_lines(path)
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    if first.startswith("MEME version"):
        found = _parse_meme(path, lines)
    elif first.startswith(">"):
        found = _parse_jaspar(path, lines)
    else:
        way_out = "give a MEME file ('MEME version 4' on top) or JASPAR counts ('>MA0001.1 NAME' on top)"
        raise UserError(
            f"{path}: begins with {first.strip()[:40]!r}, which is no motif format known; {way_out}"
        )
    motifs: dict[str, np.ndarray] = {}
    for line, name, frequencies in found:
        if name in motifs:
            raise _error(path, name, line, "this name was used before; rename one of the two")
        motifs[name] = frequencies
    if not motifs:
        raise UserError(f"{path}: holds no motif; give a file with at least one matrix")
    return motifs


def best_hits(
    motifs: Mapping[str, np.ndarray], database: Mapping[str, np.ndarray], per_motif: int = 1
) -> list[Hit]:
    """Compare motifs with known ones: Tomtom (Gupta et al. 2007, doi:10.1186/gb-2007-8-2-r24), by memelite.

    Both strands of the targets are tried; the p-value is that of the best alignment, with Euclidean distances
    of columns and scores completed over unaligned columns. The first call on a machine compiles for about
    a minute.

    Args:
        motifs: (w, 4) frequencies of A, C, G, T by name: the queries.
        database: the same of the known motifs; with fewer than 25, p-values are rough, which is said.
        per_motif: hits listed for each query, at most.

    Returns:
        Hits, query by query in the order given, the smallest p-value first (then the larger overlap, then
        the order of the database); empty if there are no motifs or no targets.
    """
    if not motifs or not database:
        return []
    if len(database) < FEW_TARGETS:
        say(f"{len(database)} known motifs: Tomtom's p-values are rough below {FEW_TARGETS}; give more")
    table = _tomtom(list(motifs.values()), list(database.values()))
    targets = list(database)
    hits = []
    for query, (p, _, offset, overlap, strand) in zip(motifs, table, strict=True):
        for t in np.lexsort((-overlap, p))[:per_motif]:
            side = "-" if strand[t] else "+"
            e_value = float(p[t]) * len(targets)
            hits.append(Hit(query, targets[t], float(p[t]), e_value, int(offset[t]), int(overlap[t]), side))
    return hits


def _tomtom(queries: list[np.ndarray], targets: list[np.ndarray]) -> np.ndarray:
    """Return (queries, 5, targets): p-value, score, offset, overlap, strand (1 is reverse) of each pair."""
    from memelite import tomtom

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="tomtom was given")
        result = tomtom([query.T for query in queries], [target.T for target in targets], n_jobs=1)
    return result.transpose(1, 0, 2)


def _read_lines(path: Path) -> list[str]:
    try:
        with opened(path) as file:
            return file.read().decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text; give a MEME or JASPAR file") from None


def _error(path: Path, name: str, line: int, text: str) -> UserError:
    return UserError(f"{path}: motif {name!r}, line {line}: {text}")


def _numbers(path: Path, name: str, line: int, words: list[str]) -> list[float]:
    """Parse the numbers of a row; all must be finite and not negative."""
    for word in words:
        try:
            good = 0 <= float(word) < np.inf
        except ValueError:
            good = False
        if not good:
            raise _error(path, name, line, f"{word!r} is no count or probability; correct the row")
    return [float(word) for word in words]


def _parse_meme(path: Path, lines: list[str]) -> Found:
    name, at = "", 0
    for number, line in enumerate(lines, 1):
        alphabet = re.match(r"ALPHABET\s*=\s*(\S*)", line)
        if alphabet and alphabet[1] != LETTERS:
            raise UserError(f"{path}: line {number}: alphabet {alphabet[1]!r}; only DNA ({LETTERS}) is read")
        if line.startswith("MOTIF"):
            if name:
                raise _error(path, name, at, "no letter-probability matrix follows; add it or drop the motif")
            name, at = " ".join(line.split()[1:3]), number
        elif line.startswith("letter-probability matrix"):
            if not name:
                raise UserError(f"{path}: line {number}: matrix without a MOTIF line before it; add its name")
            yield at, name, _meme_matrix(path, name, number, lines)
            name = ""
    if name:
        raise _error(path, name, at, "no letter-probability matrix follows; the file may be cut short")


def _meme_matrix(path: Path, name: str, header: int, lines: list[str]) -> np.ndarray:
    """Read the rows below line ``header`` (1-based): w= of them, or all up to an empty line."""
    width = re.search(r"\bw=\s*(\d+)", lines[header - 1])
    below = lines[header : header + int(width[1])] if width else lines[header:]
    rows = list(itertools.takewhile(str.strip, below))
    if not rows or (width and len(rows) < int(width[1])):
        wanted = width[1] if width else "some"
        raise _error(
            path, name, header, f"{len(rows)} rows where {wanted} should follow; complete the matrix"
        )
    matrix = []
    for number, row in enumerate(rows, header + 1):
        values = _numbers(path, name, number, row.split())
        if len(values) != 4 or abs(sum(values) - 1) > SUM_TOLERANCE:
            raise _error(path, name, number, f"row {row.strip()!r} is not 4 probabilities that sum to 1")
        matrix.append(values)
    return _normalised(np.array(matrix))


def _parse_jaspar(path: Path, lines: list[str]) -> Found:
    """Yield records: a line '>identifier name', then rows 'A [ 1 2 ]' in any order, or 4 bare rows."""
    kept = [(n, line.strip()) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    heads = [i for i, (_, line) in enumerate(kept) if line.startswith(">")]
    for head, stop in itertools.pairwise([*heads, len(kept)]):
        number, title = kept[head]
        name = " ".join(title[1:].split()[:2])
        if not name:
            raise UserError(f"{path}: line {number}: no name after '>'; name the motif")
        yield number, name, _jaspar_matrix(path, name, number, kept[head + 1 : stop])


def _jaspar_matrix(path: Path, name: str, at: int, rows: list[tuple[int, str]]) -> np.ndarray:
    if len(rows) != 4:
        raise _error(
            path, name, at, f"{len(rows)} rows follow where A, C, G and T should; complete the matrix"
        )
    counts: dict[str, list[float]] = {}
    for expected, (number, row) in zip(LETTERS, rows, strict=True):
        words = row.replace("[", " ").replace("]", " ").split()
        letter = words.pop(0) if words and words[0].isalpha() else expected
        if letter not in LETTERS or letter in counts:
            raise _error(path, name, number, f"row of {letter!r}; give one row each of A, C, G and T")
        counts[letter] = _numbers(path, name, number, words)
    lengths = {len(values) for values in counts.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise _error(path, name, at, f"rows of {sorted(lengths)} numbers; all 4 must be equally long")
    matrix = np.array([counts[letter] for letter in LETTERS]).T
    if not matrix.sum(axis=1).all():
        column = int(np.flatnonzero(matrix.sum(axis=1) == 0)[0]) + 1
        raise _error(path, name, at, f"column {column} has no counts; remove it or complete it")
    return _normalised(matrix)


def _normalised(matrix: np.ndarray) -> np.ndarray:
    return matrix / matrix.sum(axis=1, keepdims=True)
