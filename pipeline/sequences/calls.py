"""Calls of start sites out of scores along a genome, how often they are false, and how they agree with genes.

Everything here works on arrays, whatever gave the scores. Positions are 0-based and ascend on each strand;
strands are 1, -1, or 0 where both are one. Several records lie on one axis, see `Axis`. "Near" is always on
the same strand.

Suffixes: N places or calls, S start sites, G genes, I intervals.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

REACH = 1_000_000  # bases; a gene farther away is not downstream of a call
WITHIN = 10  # bases between a start site and a call that finds it
OUTSIDE = 100  # bases; a call farther than that from every start site is outside
DRAWS = 20
CONFIDENCE = 0.95
RATES = (0.1, 1.0)  # false calls for every 1000 bases


@dataclass(frozen=True)
class Axis:
    """Records end to end, so far apart that nothing of one is near anything of another.

    Attributes:
        lengths: bases of each record, by name, in order.
    """

    lengths: Mapping[str, int]

    def begin(self, name: str) -> int:
        """Return where a record begins."""
        return self._begins[name]

    def places(self, position_N: np.ndarray) -> list[tuple[str, int]]:
        """Return record, and base of it, of positions on the axis."""
        begins, names = np.array(list(self._begins.values())), list(self._begins)
        record_N = np.searchsorted(begins, position_N, side="right") - 1
        bases = (position_N - begins[record_N]).tolist()
        return [(names[record], base) for record, base in zip(record_N.tolist(), bases, strict=True)]

    @cached_property
    def _begins(self) -> dict[str, int]:
        ends = accumulate(length + 2 * REACH for length in self.lengths.values())
        return dict(zip(self.lengths, [0, *ends], strict=False))


@dataclass(frozen=True)
class Calls:
    """Places with a strand and a score each, (N,)."""

    position: np.ndarray
    strand: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.position)

    def where(self, chosen: np.ndarray) -> "Calls":
        """Return some of them: a mask (N,), or indices in the order wanted."""
        return Calls(self.position[chosen], self.strand[chosen], self.score[chosen])

    def above(self, threshold: float) -> "Calls":
        """Return those that score above a threshold."""
        return self.where(self.score > threshold)

    def in_order(self) -> "Calls":
        """Return them by position, the + strand before the - strand."""
        return self.where(np.lexsort((-self.strand, self.position)))

    @classmethod
    def join(cls, parts: "list[Calls]") -> "Calls":
        """Return several together."""
        empty = cls(np.empty(0, np.int64), np.empty(0, np.int8), np.empty(0, np.float32))
        both = [empty, *parts]
        return cls(*(np.concatenate([getattr(c, n) for c in both]) for n in ("position", "strand", "score")))


@dataclass(frozen=True)
class Genes:
    """Genes: first base, base after the last one, and strand of each, (G,)."""

    start: np.ndarray
    end: np.ndarray
    strand: np.ndarray


def local_maxima(
    position_N: np.ndarray, score_N: np.ndarray, apart: int, length: int | None = None
) -> np.ndarray:
    """Return the indices of the places of one strand that nothing near by exceeds, so all > ``apart`` apart.

    A place is one if no place within ``apart`` bases scores higher, and none of those to its left as much; so
    of a plateau only the left end is one. Places without a score (NaN) are none, and exceed nothing.

    Args:
        position_N: places in ascending order.
        score_N: their scores.
        apart: bases.
        length: bases of the record, if its ends join.
    """
    order = np.arange(len(position_N))
    if length is not None:
        copies = [position_N - length, position_N, position_N + length]
        position_N, score_N = np.concatenate(copies), np.tile(score_N, 3)
    best_N = ~np.isnan(score_N)
    for step in range(1, len(position_N)):
        near = position_N[step:] - position_N[:-step] <= apart
        if not near.any():
            break
        left, right = score_N[:-step], score_N[step:]
        best_N[:-step] &= ~(near & (right > left))
        best_N[step:] &= ~(near & (left >= right))
    middle = slice(len(order), 2 * len(order)) if length is not None else slice(None)
    return order[best_N[middle]]


def threshold_at(score_N: np.ndarray, kilobases: float, rate: float) -> float:
    """Return the lowest threshold above which at most ``rate`` scores are left for every 1000 bases.

    That is one of the scores, as "above" does not include it, or minus infinity if all may be left.
    """
    allowed = int(rate * kilobases + 1e-9)
    if allowed >= len(score_N):
        return -np.inf
    return float(np.sort(score_N)[::-1][allowed])


def false_calls(score_N: np.ndarray, null_M: np.ndarray, kilobases: float) -> np.ndarray:
    """Return how many calls of the null score at least as much as each call, for every 1000 bases (N,)."""
    below_N = np.searchsorted(np.sort(null_M), score_N, side="left")
    return (len(null_M) - below_N) / kilobases


def distances(
    position_N: np.ndarray, strand_N: np.ndarray, other_M: np.ndarray, other_strand_M: np.ndarray
) -> np.ndarray:
    """Return the bases from each place to the nearest other one on its strand (N,); infinite without one."""
    found_N = np.full(len(position_N), np.inf)
    for strand in np.unique(strand_N):
        on_N, others = strand_N == strand, np.sort(other_M[other_strand_M == strand])
        if len(others):
            place = np.searchsorted(others, position_N[on_N])
            right = others[np.minimum(place, len(others) - 1)]
            left = others[np.maximum(place - 1, 0)]
            found_N[on_N] = np.minimum(abs(right - position_N[on_N]), abs(left - position_N[on_N]))
    return found_N


def wilson(successes: int, total: int) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of a share (Wilson 1927, doi:10.1080/01621459.1927.10502953), if any."""
    from scipy.stats import binomtest

    if not total:
        return None, None
    interval = binomtest(successes, total).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _share(successes: int, total: int) -> dict[str, float | None]:
    low, high = wilson(successes, total)
    return {"value": successes / total if total else None, "low": low, "high": high}


def against_starts(calls: Calls, starts: Calls, kilobases: float) -> dict[str, Any]:
    """Return how calls agree with annotated start sites.

    Returns:
        ``value``: share of start sites with a call within 10 bases, with a Wilson interval ``low`` to
        ``high``; ``found`` of ``starts``; ``calls``, ``calls_per_kb`` and ``outside_per_kb``: those farther
        than 100 bases from every start site; ``median_distance`` in bases from start sites to the nearest
        call, over those that have one within 100.
    """
    to_call_S = distances(starts.position, starts.strand, calls.position, calls.strand)
    found = int((to_call_S <= WITHIN).sum())
    matched_S = to_call_S[to_call_S <= OUTSIDE]
    return {
        **_share(found, len(starts)),
        "found": found,
        "starts": len(starts),
        "calls": len(calls),
        "calls_per_kb": len(calls) / kilobases,
        "outside_per_kb": int(outside(calls, starts).sum()) / kilobases,
        "median_distance": float(np.median(matched_S)) if len(matched_S) else None,
    }


def outside(calls: Calls, starts: Calls) -> np.ndarray:
    """Return which calls (N,) are farther than 100 bases from every annotated start site."""
    return distances(calls.position, calls.strand, starts.position, starts.strand) > OUTSIDE


def downstream_agreement(calls: Calls, genes: Genes) -> dict[str, Any]:
    """Return the share of calls whose strand is that of the nearest gene downstream.

    Downstream of a call on the + strand is the first gene, of either strand, that begins at or right of it;
    on the - strand the first that ends at or left of it. Where there is none within `REACH`, a call is left
    out and counted.

    Returns:
        ``value`` with a Wilson interval ``low`` to ``high``, ``agree`` of ``calls``, and ``without_gene``.
    """
    agree = total = 0
    for strand in (1, -1):
        position_N = strand * calls.position[calls.strand == strand]
        edge_G = genes.start if strand == 1 else 1 - genes.end
        order = np.argsort(edge_G, kind="stable")
        edge_G, strand_G = edge_G[order], genes.strand[order]
        place_N = np.searchsorted(edge_G, position_N)
        has_N = place_N < len(edge_G)
        has_N[has_N] = edge_G[place_N[has_N]] - position_N[has_N] <= REACH
        total += int(has_N.sum())
        agree += int((strand_G[place_N[has_N]] == strand).sum())
    return {**_share(agree, total), "agree": agree, "calls": total, "without_gene": len(calls) - total}


# -- controls


def swapped(calls: Calls) -> Calls:
    """Return calls with their strands swapped."""
    return Calls(calls.position, -calls.strand, calls.score)


def shuffled(calls: Calls, space_I2: np.ndarray, rng: np.random.Generator) -> Calls:
    """Return calls moved to random bases of intervals (at least one base), strands and scores as they are."""
    sizes_I = space_I2[:, 1] - space_I2[:, 0]
    ends_I = np.cumsum(sizes_I)
    base_N = rng.integers(0, ends_I[-1], len(calls))
    place_N = np.searchsorted(ends_I, base_N, side="right")
    position_N = space_I2[place_N, 1] - (ends_I[place_N] - base_N)
    return Calls(position_N, calls.strand, calls.score)


def averaged(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of several results, key by key, over those that have a number there."""
    found = {key: [each[key] for each in figures if each[key] is not None] for key in figures[0]}
    return {key: float(np.mean(values)) if values else None for key, values in found.items()}


# -- all of it together


@dataclass(frozen=True)
class Scored:
    """What a way of scoring found in a genome, and in its shuffled sample.

    Attributes:
        maxima: its local maxima on each strand.
        kilobases: of the genome, in which they are.
        null: (M,) scores of the local maxima in the sample.
        null_kilobases: of the sample.
    """

    maxima: Calls
    kilobases: float
    null: np.ndarray
    null_kilobases: float

    def at_rate(self, rate: float) -> Calls:
        """Return the calls above the threshold that leaves ``rate`` calls per kilobase of the sample."""
        return self.maxima.above(threshold_at(self.null, self.null_kilobases, rate))

    def at_outside(self, rate: float, starts: Calls) -> Calls:
        """Return those above the threshold that leaves ``rate`` per kilobase far from every start site."""
        scores = self.maxima.score[outside(self.maxima, starts)]
        return self.maxima.above(threshold_at(scores, self.kilobases, rate))


@dataclass(frozen=True)
class Comparison:
    """What calls are compared with.

    Attributes:
        ours: the way of scoring that is judged.
        others: simpler ways, by name.
        intergenic: (I, 2) intervals that no gene of either strand covers, or None: no calls are shuffled.
        rng: source of the shuffling.
    """

    ours: Scored
    others: Mapping[str, Scored]
    intergenic: np.ndarray | None
    rng: np.random.Generator

    def against(
        self, choose: Callable[[Scored], Calls], measure: Callable[[Calls], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return what is measured of calls, and under ``controls`` the same of others.

        These are the calls of the simpler ways, ``strands_swapped``, and ``shuffled``: moved to random bases
        between genes (means over 20 draws).

        Args:
            choose: the calls of a way of scoring.
            measure: what is to be known of calls.
        """
        calls = choose(self.ours)
        controls = {name: measure(choose(other)) for name, other in self.others.items()}
        if calls.strand.any():
            controls["strands_swapped"] = measure(swapped(calls))
        if self.intergenic is not None and len(self.intergenic):
            draws = [measure(shuffled(calls, self.intergenic, self.rng)) for _ in range(DRAWS)]
            controls["shuffled"] = averaged(draws)
        return {**measure(calls), "controls": controls}

    def recall(self, starts: Calls) -> dict[str, dict[str, Any]]:
        """Return `against_starts` at each of `RATES`.

        False are calls in the shuffled sample, or (``outside``) those in the genome that are farther than 100
        bases from every start site. A start site that nobody has annotated counts as false in the latter.
        """

        def measure(calls: Calls) -> dict[str, Any]:
            return against_starts(calls, starts, self.ours.kilobases)

        found = {}
        for rate in RATES:
            name = f"recall_at_{rate:g}"
            found[f"{name}_false_calls_per_kb"] = self.against(lambda s, r=rate: s.at_rate(r), measure)
            found[f"{name}_calls_outside_per_kb"] = self.against(
                lambda s, r=rate: s.at_outside(r, starts), measure
            )
        return found
