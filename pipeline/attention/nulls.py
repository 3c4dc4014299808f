"""What motifs are sought in, too, where there are none to be found, or without heeding attention.

Regions are half-open intervals of 0-based positions, a list for each sequence. What is drawn is a function of
the arguments alone.

Shapes: N sequences, R regions of all sequences.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.attention.words import Regions
from pipeline.keyed import generator
from pipeline.sequences.negatives import Positive, dinucleotide_shuffle, seeds

SHUFFLE, LABELS, PLACES = 0x5AFE, 0x1ABE, 0x91AC  # what a generator is for
TRIES = 20  # draws for a region that is not to overlap another


def shuffled(sequences: Sequence[str], seed: int, copy: int = 0) -> list[str]:
    """Return random sequences with the letters and pairs of neighbours of each (`dinucleotide_shuffle`).

    They are none of the negatives that the same seed gives, and do not depend on the order of the sequences.

    Args:
        sequences: letters of any kind.
        seed: of the randomness.
        copy: number 0, 1, 2... of the shuffles of each sequence.
    """
    key = seeds([Positive("", sequence) for sequence in sequences])
    return [
        dinucleotide_shuffle(sequence, generator(SHUFFLE, seed, *each, copy))
        for sequence, each in zip(sequences, key, strict=True)
    ]


def permuted(positive_N: np.ndarray, seed: int, number: int) -> np.ndarray:
    """Return labels (N,) in random order, all orders equally likely: as many are positive as before.

    Each half of the new classes is not made to hold half of the old ones: such balanced permutations give
    p-values that are too small (Southworth et al. 2009, doi:10.1089/cmb.2008.0144).

    Args:
        positive_N: labels of any type.
        seed: of the randomness.
        number: number 0, 1, 2... of the permutation.
    """
    return generator(LABELS, seed, number).permutation(positive_N)


def matched_regions(
    regions: Regions, lengths: Sequence[int], seed: int
) -> tuple[list[list[tuple[int, int]]], int]:
    """Return random regions, in each sequence as many and as long as its own, where others have theirs.

    The middle of a region is that of a region of another sequence, drawn with replacement, all regions of all
    other sequences equally likely; so positions that are attended to in any sequence still are. It is moved
    as far as it has to be to lie within its sequence. Long regions are placed first, and one that overlaps
    one before it is drawn again, up to 20 times. Where no other sequence has a region, all places are equally
    likely.

    Args:
        regions: of each sequence.
        lengths: letters of each sequence.
        seed: of the randomness.

    Returns:
        The regions of each sequence, ascending, and how many of them all the same overlap one before them.
    """
    rng = generator(PLACES, seed)
    ends_R2 = np.array([region for each in regions for region in each], np.int64).reshape(-1, 2)
    drawn, overlapping, first = [], 0, 0
    for own, length in zip(regions, lengths, strict=True):
        mine = slice(first, first + len(own))
        placed, overlaps = _placed(length, ends_R2, mine, rng)
        first, overlapping = mine.stop, overlapping + overlaps
        drawn.append(placed)
    return drawn, overlapping


def _placed(
    length: int, ends_R2: np.ndarray, own: slice, rng: np.random.Generator
) -> tuple[list[tuple[int, int]], int]:
    """Return regions as long as one's own, with the middles of others, and how many overlap."""
    placed: list[tuple[int, int]] = []
    overlapping, others = 0, len(ends_R2) - (own.stop - own.start)
    for size in sorted(np.diff(ends_R2[own])[:, 0].tolist(), reverse=True):
        if others:
            other = rng.integers(others, size=TRIES)
            other += np.where(other < own.start, 0, own.stop - own.start)
            starts = (ends_R2[other].sum(1) - size) // 2
        else:
            starts = rng.integers(length - size + 1, size=TRIES)
        starts = np.clip(starts, 0, length - size).tolist()
        free = [s for s in starts if all(s + size <= begin or end <= s for begin, end in placed)]
        overlapping += not free
        start = (free or starts)[0]
        placed.append((start, start + size))
    return sorted(placed), overlapping


def whole(lengths: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return whole sequences as regions: what is found in them owes nothing to attention."""
    return [[(0, length)] for length in lengths]
