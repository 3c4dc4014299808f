"""The labelled rows that motifs are found on and tested on, and where in their genome the rows lie.

Shapes: N rows, G places where gaps were removed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.corpus import classes, load_corpus
from pipeline.sequences.places import OTHER, Place
from pipeline.sequences.splits import SPLITS, digest

if TYPE_CHECKING:
    from datasets import Dataset

# As bedtools and this package write windows: 0-based, half-open.
WINDOW = re.compile(r"(?P<chromosome>.+):(?P<start>[0-9]+)-(?P<end>[0-9]+)\((?P<strand>[+-])\)")


@dataclass(frozen=True)
class Frame:
    """Where the letters of a row lie, in a genome or in the record that the row is from."""

    place: Place
    genomic: bool
    """the place is one of a genome, not of the record"""
    gaps: tuple[tuple[int, int], ...] = ()
    """(offset in the row, letters that were removed before it)"""

    def span(self, start: int, stop: int, strand: int = 1) -> Place:
        """Return where letters [start, stop) of the row lie; strand -1 is the other one than the row's."""
        first, last = self._offset(start), self._offset(stop - 1)
        side = self.place.strand if strand == 1 else OTHER[self.place.strand]
        if self.place.strand == "+":
            return Place(self.place.chromosome, self.place.start + first, self.place.start + last + 1, side)
        return Place(self.place.chromosome, self.place.end - last - 1, self.place.end - first, side)

    def _offset(self, at: int) -> int:
        return at + sum(number for offset, number in self.gaps if offset <= at)


@dataclass(frozen=True, eq=False)
class Rows:
    """N labelled rows: ids, clean letters, which are positive (N,), and where they lie."""

    ids: list[str]
    sequences: list[str]
    positive: np.ndarray
    frames: list[Frame]

    def chosen(self, which: np.ndarray) -> "Rows":
        """Return some of them, by truth values or numbers."""
        place = np.arange(len(self.ids))[which].tolist()
        ids, sequences = ([column[i] for i in place] for column in (self.ids, self.sequences))
        return Rows(ids, sequences, self.positive[place], [self.frames[i] for i in place])


def read_halves(
    folder: Path,
    splits: Mapping[str, Sequence[str]],
    positive: str | None,
    most: int,
    seed: int,
) -> tuple[Rows, Rows, str]:
    """Return the rows that motifs are found on, those that they are tested on, and the positive class.

    Rows of one cluster, or with equal letters on either strand where the corpus has no clusters, are in the
    same half. Of a cluster only one row of each class is tested, since related rows are not independent.

    Args:
        folder: a labelled corpus.
        splits: the splits of each half, ``discover_on`` and ``test_on``; if they are the same, their rows are
            divided in halves that are alike in every class.
        positive: name of the class (default: the last one).
        most: rows of positives, and of others, in each half; which ones is a function of the seed.
        seed: of what is drawn.

    Raises:
        UserError: no such split or class, the halves overlap, or a half lacks positives or others.
    """
    corpus = {str(name): rows for name, rows in load_corpus(folder).items()}
    names = {key: _present(corpus, folder, key, wanted) for key, wanted in splits.items()}
    (one, first), (other, second) = names.items()
    number_of = classes(next(iter(corpus.values())), folder, positive)
    if set(first) == set(second):
        halves = _halved(_joined(corpus, first), seed)
    elif set(first) & set(second):
        shared = next(name for name in first if name in second)
        raise UserError(f"{other}: {shared!r} is in {one}, too; name different splits, or the same ones")
    else:
        halves = _joined(corpus, first), _joined(corpus, second)
    drawn = [_drawn(rows, number_of[1], most, seed + i, i == 1) for i, rows in enumerate(halves)]
    name = number_of[0][number_of[1]]
    for key, rows in zip(names, drawn, strict=True):
        count = int(rows.positive.sum())
        if not 0 < count < len(rows.positive):
            others = len(rows.positive) - count
            raise UserError(f"data: {folder}: {key} has {count} {name}, {others} others; both are needed")
    return drawn[0], drawn[1], name


def _present(corpus: Mapping[str, Any], folder: Path, key: str, wanted: Sequence[str]) -> list[str]:
    """Return those of the wanted splits that the corpus has."""
    if unknown := sorted(set(wanted) - set(SPLITS)):
        raise UserError(f"{key}: {unknown[0]!r} is none of train, validation, test")
    found = [name for name in SPLITS if name in wanted and name in corpus]
    if not found:
        raise UserError(
            f"{key}: {folder} has no {' or '.join(wanted)}; it has {', '.join(corpus)}; name the same splits "
            "for --discover-on and --test-on, and they are halved"
        )
    return found


def _joined(corpus: Mapping[str, "Dataset"], names: Sequence[str]) -> "Dataset":
    from datasets import concatenate_datasets

    return concatenate_datasets([corpus[name] for name in names])


def _groups(rows: "Dataset") -> tuple[np.ndarray, np.ndarray, bool]:
    """Return what a row stays together with (N,), a digest of its letters (N,), whether by clusters."""
    from pipeline.training.folds import clusters_of

    digest_N = np.array([digest(min(s, reverse_complement(s))) for s in rows["sequence"][:]], np.uint64)
    cluster_N = clusters_of(rows, None)
    group_N = np.unique(digest_N if cluster_N is None else cluster_N, return_inverse=True)[1]
    return group_N, digest_N, cluster_N is not None


def _halved(rows: "Dataset", seed: int) -> tuple["Dataset", "Dataset"]:
    from pipeline.training.folds import assign_folds

    group_N, digest_N, _ = _groups(rows)
    fold_N = assign_folds(group_N, digest_N, np.array(rows["label"][:]), 2, seed)
    first, second = (rows.select(np.flatnonzero(fold_N == fold), keep_in_memory=True) for fold in (1, 2))
    return first, second


def _drawn(rows: "Dataset", positive: int, most: int, seed: int, single: bool) -> Rows:
    """Return ``most`` rows of either kind, drawn at random, in the order of the corpus."""
    positive_N = np.array(rows["label"][:]) == positive
    order = np.random.default_rng(seed).permutation(len(rows))
    if single:
        group_N, _, clustered = _groups(rows)
        order = _one_of_each(order, group_N, clustered, positive_N)
    places = np.sort(np.concatenate([order[positive_N[order] == kind][:most] for kind in (True, False)]))
    chosen = rows.select(places, keep_in_memory=True)
    frames = [_frame(dict(row)) for row in chosen]
    return Rows(list(chosen["id"][:]), list(chosen["sequence"][:]), positive_N[places], frames)


def _one_of_each(
    order: np.ndarray, group_N: np.ndarray, clustered: bool, positive_N: np.ndarray
) -> np.ndarray:
    """Return the places in ``order`` of the first row of each class in each group."""
    first = np.unique(2 * group_N[order] + positive_N[order], return_index=True)[1]
    if left := len(order) - len(first):
        why = "cluster" if clustered else "sequence, on either strand,"
        say(f"{left} rows are not tested: they share a {why} with a row of their class that is")
    return order[np.sort(first)]


def _frame(row: Mapping[str, Any]) -> Frame:
    """Return where a row lies: its window's columns, an id that names a window, or else its record."""
    size, flat = len(row["sequence"]), row.get("gaps") or []
    gaps = tuple(zip(flat[::2], flat[1::2], strict=True))
    if row.get("chromosome") not in (None, "") and row.get("window_start") is not None:
        window = Place(row["chromosome"], int(row["window_start"]), int(row["window_end"]), row["strand"])
        return Frame(_part(window, row["start"]), True, gaps)
    named = WINDOW.fullmatch(row["id"])
    if named and not gaps and row["start"] == 0 and int(named["end"]) - int(named["start"]) == size:
        place = Place(named["chromosome"], int(named["start"]), int(named["end"]), named["strand"])
        return Frame(place, True)
    return Frame(Place(row["id"], row["start"], row["start"] + size, "+"), False, gaps)


def _part(window: Place, start: int) -> Place:
    """Return the window without what lies before offset ``start`` on its strand."""
    if window.strand == "+":
        return window._replace(start=window.start + start)
    return window._replace(end=window.end - start)
