"""What a scan reads of a genome: letters, the parts of records that are read, and a shuffled sample.

All coordinates are 0-based and half open. Shapes: N windows, I intervals.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.errors import UserError
from pipeline.keyed import generator
from pipeline.sequences.genomes import IndexedGenome
from pipeline.sequences.intervals import listed
from pipeline.sequences.negatives import dinucleotide_shuffle
from pipeline.sequences.places import Places, read_places, union
from pipeline.sequences.records import Notes

SAMPLE = 1_000_000  # bases that are shuffled, about
BLOCK = 10_000  # bases that are shuffled together
_BASES = re.compile("[ACGT]+")


class Letters(Protocol):
    """Records whose letters can be had in any part."""

    @property
    def lengths(self) -> Mapping[str, int]:
        """Letters of each record, in order."""
        ...

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Return upper-case A, C, G, T and N; past the end of a record it goes on at its beginning."""
        ...


@dataclass(frozen=True)
class Target:
    """A record and the parts of it that are read.

    Attributes:
        name: of the record.
        length: of the record.
        intervals: (I, 2) its parts, in order and apart from each other.
        joined: windows go on over the origin.
    """

    name: str
    length: int
    intervals: np.ndarray
    joined: bool = False

    def starts(self, size: int, stride: int, first: int, last: int) -> np.ndarray:
        """Return where windows start (N,): the multiples of ``stride`` in [first, last) that fit into a part.

        So a window that is read in a part starts where it starts in the whole record.
        """
        if self.joined:
            return np.arange(-(-first // stride) * stride, min(last, self.length), stride)
        begins = np.maximum(self.intervals[:, 0], first)
        ends = np.minimum(self.intervals[:, 1] - size + 1, last)
        runs = [
            np.arange(-(-b // stride) * stride, e, stride)
            for b, e in zip(begins.tolist(), ends.tolist(), strict=True)
            if e > b
        ]
        return np.concatenate([np.empty(0, np.int64), *runs])


def find_targets(
    genome: IndexedGenome, size: int, circular: Sequence[str], regions: Path | None, notes: Notes
) -> list[Target]:
    """Return what is read of each record: all, or what lies in the intervals of ``regions``.

    Args:
        genome: the records.
        size: bases of a window; shorter records are counted as ``records_too_short``.
        circular: names of records whose ends join; "*" stands for all.
        regions: interval file.
        notes: where is counted.

    Raises:
        UserError: unknown names, an interval that the genome does not have, or no part that holds a window.
    """
    unknown = [name for name in circular if name != "*" and name not in genome.lengths]
    if unknown:
        raise UserError(
            f"scan.circular: {genome.path} has no record {unknown[0]!r}; it has {listed(genome.lengths)}"
        )
    parts = None if regions is None else _parts(regions, genome, circular)
    targets = []
    for name, length in genome.lengths.items():
        if length < size:
            text = f"record {name!r}: {length} bases, shorter than a window of {size}; not read"
            notes.warn("records_too_short", text, length)
            continue
        whole = np.array([[0, length]])
        joined = parts is None and ("*" in circular or name in circular)
        targets.append(Target(name, length, whole if parts is None else parts[name], joined))
    if not any(np.diff(target.intervals).max(initial=0) >= size for target in targets):
        where = f"scan.regions: {regions}: no interval" if regions else f"{genome.path}: no record"
        raise UserError(f"{where} is as long as a window, {size} bases; nothing to read")
    return targets


def _parts(regions: Path, genome: IndexedGenome, circular: Sequence[str]) -> defaultdict[str, np.ndarray]:
    """Return what intervals cover of each record, (I, 2), those over an origin also from there on."""
    given = read_places(regions, genome.path, circular=circular)
    places = Places.join([given, given.unrolled(genome.lengths, circular)])
    found = defaultdict(lambda: np.empty((0, 2), np.int64))
    for name in np.unique(places.chromosome).tolist():
        of = places.chosen(places.chromosome == name)
        found[name] = np.stack(union([(of.start, of.end)]), 1)
    return found


class Shuffled:
    """A sample of a genome, each of its blocks shuffled so that dinucleotides keep their numbers.

    Blocks of 10,000 bases are drawn from the parts that are read until they have 1,000,000 bases (or all are
    drawn); every run of real bases in one is shuffled by itself, other letters stay.
    """

    def __init__(self, letters: Letters, targets: Sequence[Target], size: int, seed: int):
        rng = generator(seed, SAMPLE)
        blocks = [
            (target.name, start, min(start + BLOCK, end))
            for target in targets
            for first, end in target.intervals.tolist()
            for start in range(first, end - size + 1, BLOCK)
        ]
        self._blocks: dict[str, bytes] = {}
        taken = 0
        for place in rng.permutation(len(blocks)).tolist():
            if taken >= SAMPLE:
                break
            name, start, end = blocks[place]
            text = letters.fetch(name, start, end).decode()
            text = _BASES.sub(lambda run: dinucleotide_shuffle(run[0], rng), text)
            self._blocks[f"{name}:{start}-{end}"] = text.encode()
            taken += end - start

    @property
    def lengths(self) -> dict[str, int]:
        """Bases of each block."""
        return {name: len(block) for name, block in self._blocks.items()}

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Return letters of a block."""
        return self._blocks[name][start:end]

    def targets(self) -> list[Target]:
        """Return all of it, to be read."""
        return [Target(name, n, np.array([[0, n]])) for name, n in self.lengths.items()]
