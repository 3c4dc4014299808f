"""Places in a genome: where sequences and annotated features lie, and in which strata.

Coordinates are 0-based and half-open, on the strand "+".
Array suffixes: N places or windows, F features, R runs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from pipeline.errors import UserError
from pipeline.sequences.intervals import interval_format, read_intervals
from pipeline.sequences.records import Notes

OTHER = {"+": "-", "-": "+"}
SKIP = " (--on-bad-record skip)"

Spans = tuple[np.ndarray, np.ndarray]  # begins and ends


class Place(NamedTuple):
    """An interval of a genome; on a circular record ``end`` may exceed the record's length."""

    chromosome: str
    start: int
    end: int
    strand: str

    def __str__(self) -> str:
        return f"{self.chromosome}:{self.start}-{self.end}({self.strand})"


@dataclass(frozen=True)
class Places:
    """Many places: arrays (N,) of texts (chromosome, strand) and int64 (start, end)."""

    chromosome: np.ndarray
    start: np.ndarray
    end: np.ndarray
    strand: np.ndarray

    @classmethod
    def of(cls, places: Iterable[Place]) -> "Places":
        """Return places, or anything else that has their four parts, as arrays."""
        columns = list(zip(*places, strict=True)) or [(), (), (), ()]
        return cls(*(np.array(column, kind) for column, kind in zip(columns, "UqqU", strict=True)))

    @classmethod
    def join(cls, parts: "Sequence[Places]") -> "Places":
        """Return several together."""
        columns = zip(*((p.chromosome, p.start, p.end, p.strand) for p in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, which_N: np.ndarray) -> "Places":
        """Return some of the places, by truth values or numbers."""
        columns = (self.chromosome, self.start, self.end, self.strand)
        return Places(*(column[which_N] for column in columns))

    def starts(self) -> "Places":
        """Return the first base of each place, on its strand."""
        start_N = np.where(self.strand == "+", self.start, self.end - 1)
        return Places(self.chromosome, start_N, start_N + 1, self.strand)

    def unrolled(self, lengths: Mapping[str, int], circular: Collection[str], wider: int = 0) -> "Places":
        """Return the places, ``wider`` on both sides, as far as they lie within their records.

        What runs over the origin of a circular one goes on there, as a place of its own.

        Args:
            lengths: bases of each record.
            circular: names of those whose ends join; "*" stands for all.
            wider: bases.
        """
        names = self.chromosome.tolist()
        length_N = np.array([lengths[name] for name in names], np.int64)
        circular_N = np.array(["*" in circular or name in circular for name in names], bool)
        pieces = []
        for turn in (0, -1, 1):
            low_N = np.maximum(self.start - wider + turn * length_N, 0)
            high_N = np.minimum(self.end + wider + turn * length_N, length_N)
            there_N = (low_N < high_N) & (circular_N | (turn == 0))
            pieces.append(Places(self.chromosome, low_N, high_N, self.strand).chosen(there_N))
        return Places.join(pieces)


class _WithoutIds(Notes):
    """Notes about places, which have no ids: none is renamed."""

    def warn(self, reason: str, text: str, letters: int = 0) -> None:
        if reason != "renamed_ids":
            super().warn(reason, text, letters)


def read_places(
    path: Path,
    genome: Path,
    *,
    feature: str | None = None,
    circular: Sequence[str] = (),
    on_bad: Literal["error", "skip"] | None = None,
    notes: Notes | None = None,
) -> Places:
    """Return the intervals of a BED, narrowPeak, GFF3 or GTF file; a strand of "." or "?" is read as "+".

    Args:
        path: the file; see `read_intervals`, also for the other arguments.
        genome: sequence file whose records the intervals are on.
        feature: use only features of this type (GFF3, GTF; not heeded for other formats).
        circular: names of the records whose ends join; "*" stands for all.
        on_bad: what becomes of an interval that the genome does not have. None: an error, in a stage without
            a setting that leaves such ones out.
        notes: where is counted.

    Raises:
        UserError: the file cannot be read, holds variants, or an interval that the genome does not have.
    """
    form = interval_format(path)
    if form == "vcf":
        raise UserError(f"{path}: variants are no features; give a BED, GFF or GTF file")
    met = _WithoutIds()
    how = {"feature": feature if form in ("gff3", "gtf") else None, "circular": circular, "notes": met}
    try:
        records = read_intervals([path], genome, **how, on_bad=on_bad or "error")
        places = Places.of(place_of(record.columns) for record in records)
    except UserError as error:
        if on_bad:
            raise
        raise UserError(str(error).removesuffix(SKIP)) from None
    if notes is not None:
        notes.update(met)
    return places


def place_of(columns: dict[str, str]) -> Place:
    """Return the place that `read_intervals` puts into the columns of a record."""
    start, end = int(columns["window_start"]), int(columns["window_end"])
    return Place(columns["chromosome"], start, end, columns["strand"])


def strata(windows: Places, features: Places) -> np.ndarray:
    """Return the stratum_N (text) that each window belongs to, given the features (genes) of a genome.

    coding: wholly inside a feature on its own strand; antisense: wholly inside one on the other strand, and
    overlapping none on its own; intergenic: overlapping none on either strand; edge: all others, which lie
    across an end of a feature. Windows and features do not run over an origin (`Places.unrolled`).
    """
    _, code_N = np.unique(np.concatenate([windows.chromosome, features.chromosome]), return_inverse=True)
    size = max(windows.end.max(initial=0), features.end.max(initial=0)) + 1
    shift_N, shift_F = np.split(code_N * size, [len(windows)])
    within, overlaps = {}, {}
    for strand in OTHER:
        of_F = features.strand == strand
        spans = (features.start + shift_F)[of_F], (features.end + shift_F)[of_F]
        begin_N, end_N = windows.start + shift_N, windows.end + shift_N
        within[strand] = _furthest(spans, begin_N, "right") >= end_N
        overlaps[strand] = _furthest(spans, end_N, "left") > begin_N
    plus_N = windows.strand == "+"
    own_N, other_N = np.where(plus_N, within["+"], within["-"]), np.where(plus_N, within["-"], within["+"])
    touched_N = np.where(plus_N, overlaps["+"], overlaps["-"])
    kinds = {
        "coding": own_N,
        "antisense": other_N & ~touched_N,
        "intergenic": ~overlaps["+"] & ~overlaps["-"],
    }
    return np.select(list(kinds.values()), list(kinds), "edge")


def _furthest(spans: Spans, at_N: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
    """Return the furthest end of the spans that begin before each position (right: or at it); -1 for none."""
    order = np.argsort(spans[0], kind="stable")
    end_R = np.maximum.accumulate(np.concatenate([[-1], spans[1][order]]))
    return end_R[np.searchsorted(spans[0][order], at_N, side=side)]


# -- spans


def union(spans: Sequence[Spans]) -> Spans:
    """Return the sorted disjoint spans that cover the same positions."""
    begin_R, end_R = (np.concatenate(column) for column in zip(*spans, strict=True))
    order_R = np.argsort(begin_R, kind="stable")
    begin_R, end_R = begin_R[order_R], np.maximum.accumulate(end_R[order_R])
    first_R = np.append(True, begin_R[1:] > end_R[:-1])[: len(begin_R)]
    return begin_R[first_R], end_R[np.append(first_R[1:], True)[: len(end_R)]]


def between(spans: Spans, size: int) -> Spans:
    """Return what disjoint sorted spans leave of the positions from 0 to ``size`` - 1."""
    begin_R = np.maximum(np.concatenate([[0], spans[1]]), 0)
    end_R = np.minimum(np.concatenate([spans[0], [size]]), size)
    return begin_R[begin_R < end_R], end_R[begin_R < end_R]


def without(spans: Spans, taken: Spans) -> Spans:
    """Return what is left of spans where others are taken out, as sorted disjoint spans."""
    size = max(spans[1].max(initial=0), taken[1].max(initial=0))
    return between(union([between(union([spans]), size), taken]), size)
