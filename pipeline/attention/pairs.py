"""Motifs that occur together: how often, in which order and orientation, and how far apart.

Each sequence has at most one site of a motif, its best one. For two motifs the sequences with both are looked
at. In some the first motif lies before the second, in others behind it, and in some the sites overlap; each
order is a pair of its own. The spacing is the number of bases between the two.

The null hypothesis is that the places of the two sites in a sequence are independent, each with its own
distribution over the window: as if the second's sites were dealt out anew to the sequences. The number of
sequences with a given spacing is then close to Poisson, with a variance that is no larger than its mean
(matchings of a random permutation: Barbour, Holst and Janson 1992, Poisson Approximation, section 4.3). Sites
of one sequence cannot overlap as dealt-out ones may, so the mean is raised to what it is among those that do
not. Q-values are over all pairs and all spacings together (Benjamini and Hochberg).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pipeline.attention.instances import Sites
from pipeline.attention.words import false_discovery

SIGNS = {1: "+", -1: "-"}


@dataclass(frozen=True)
class Pair:
    """Two motifs in one order and orientation, and the spacing between them that chance explains least."""

    first: str
    second: str
    orientation: str
    """strands of the two, such as ++"""
    sequences: int
    """sequences with both in this order and orientation, not overlapping"""
    odds_ratio: float
    """of having one motif, with the other against without it, whatever their places; half a sequence is added
    to each cell of the table (Haldane 1956, doi:10.1111/j.1469-1809.1956.tb01285.x)"""
    together_p: float
    """of occurring together so often (Fisher's exact test, one-sided)"""
    spacing: int | None
    """bases between the two; None if no sequence has them within the largest spacing"""
    at_spacing: int
    expected: float
    p_value: float
    q_value: float


@dataclass(frozen=True)
class Spacing:
    """How many sequences have two motifs at a distance."""

    first: str
    second: str
    orientation: str
    spacing: int
    sequences: int
    expected: float
    p_value: float
    q_value: float


def find_pairs(
    sites: Mapping[str, Sites], max_spacing: int, both: bool = False
) -> tuple[list[Pair], list[Spacing]]:
    """Return every ordered pair of motifs, and its spacings from 0 to ``max_spacing``.

    Args:
        sites: by motif, the best site of each sequence; the sequences are the same for all.
        max_spacing: largest number of bases between two sites that is looked at.
        both: sites may be on either strand, so that there are four orientations instead of one.

    Returns:
        The pairs, the smallest p-value first, and the spacings that some sequence has, pair by pair.
    """
    signs = (1, -1) if both else (1,)
    found = [
        table
        for (one, other) in combinations(sites, 2)
        for strands in [(a, b) for a in signs for b in signs]
        for table in _tables(sites, (one, other), strands, max_spacing)
    ]
    q_values = false_discovery(np.concatenate([table.p_values for table in found]) if found else [])
    pairs, spacings = [], []
    for table, q_D in zip(found, np.split(q_values, len(found)) if found else [], strict=True):
        pairs.append(_pair(table, q_D, sites))
        spacings += _spacings(table, q_D)
    pairs.sort(key=lambda pair: (pair.p_value, -pair.sequences))
    return pairs, spacings


@dataclass(frozen=True, eq=False)
class _Table:
    """Observed and expected sequences with each spacing of an ordered pair."""

    names: tuple[str, str]
    strands: tuple[int, int]
    sequences: int
    counts: np.ndarray
    expected: np.ndarray
    p_values: np.ndarray


def _tables(
    sites: Mapping[str, Sites], names: tuple[str, str], strands: tuple[int, int], max_spacing: int
) -> Iterator[_Table]:
    """Yield both orders of two motifs on given strands."""
    from scipy.stats import poisson

    one, other = (sites[name] for name in names)
    held = (one.strand == strands[0]) & (other.strand == strands[1])
    start_N, start_M = one.start[held], other.start[held]
    width = one.width, other.width
    ahead = start_M - start_N - width[0], start_N - start_M - width[1]  # spacing in either order
    apart = sum(int((spacing_N >= 0).sum()) for spacing_N in ahead)
    dealt = _dealt(start_N, start_M, width)
    scale = max(1.0, apart / max(sum(float(mean.sum()) for mean in dealt), 1e-12))
    for turn, (spacing_N, mean) in enumerate(zip(ahead, dealt, strict=True)):
        counts = np.bincount(
            spacing_N[(spacing_N >= 0) & (spacing_N <= max_spacing)], minlength=max_spacing + 1
        )
        expected = np.zeros(max_spacing + 1)
        shown = mean[: max_spacing + 1]
        expected[: len(shown)] = scale * shown
        p_D = np.where(counts > 0, poisson.sf(counts - 1, np.maximum(expected, 1e-12)), 1.0)
        order = ((names[1], names[0]), (strands[1], strands[0])) if turn else (names, strands)
        yield _Table(*order, int((spacing_N >= 0).sum()), counts, expected, p_D)


def _dealt(start_N: np.ndarray, start_M: np.ndarray, width: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean number of sequences with spacing 0, 1, ... in either order, partners dealt out anew."""
    number = max(len(start_N), 1)
    size = int(max(start_N.max(initial=0), start_M.max(initial=0))) + 1
    one, other = np.bincount(start_N, minlength=size), np.bincount(start_M, minlength=size)
    apart = np.correlate(other, one, "full") / number  # of start of other - start of one = -(size - 1), ...
    return apart[size - 1 + width[0] :], apart[::-1][size - 1 + width[1] :]


def _pair(table: _Table, q_D: np.ndarray, sites: Mapping[str, Sites]) -> Pair:
    best = int(np.lexsort((-table.counts, table.p_values))[0])
    some = bool(table.counts[best])
    return Pair(
        *table.names,
        "".join(SIGNS[strand] for strand in table.strands),
        table.sequences,
        *together(*(sites[name].found for name in table.names)),
        best if some else None,
        int(table.counts[best]),
        float(table.expected[best]),
        float(table.p_values[best]),
        float(q_D[best]),
    )


def together(one_N: np.ndarray, other_N: np.ndarray) -> tuple[float, float]:
    """Return how much two properties of rows go together: odds ratio, and p-value of so many rows with both.

    Half a row is added to each cell of the table for the ratio; the p-value is Fisher's, one-sided.

    Args:
        one_N: which rows have the one, bool.
        other_N: which rows have the other, bool.
    """
    from scipy.stats import hypergeom

    table = np.array([[(a & b).sum() for b in (other_N, ~other_N)] for a in (one_N, ~one_N)])
    (both, only), (others, none) = (table + 0.5).tolist()
    p_value = hypergeom.sf(table[0, 0] - 1, len(one_N), other_N.sum(), one_N.sum())
    return both * none / (only * others), float(p_value)


def _spacings(table: _Table, q_D: np.ndarray) -> Iterator[Spacing]:
    orientation = "".join(SIGNS[strand] for strand in table.strands)
    for spacing in np.flatnonzero(table.counts).tolist():
        numbers = (column[spacing] for column in (table.expected, table.p_values, q_D))
        yield Spacing(*table.names, orientation, spacing, int(table.counts[spacing]), *map(float, numbers))
