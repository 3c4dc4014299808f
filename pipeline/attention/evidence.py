"""Whether what attention singles out matters: attention and motifs against the effects of substitutions.

An effect says by how much a substitution of a base lowers the score (`mutagenesis.position_effects`).
Attention and effects are compared within each sequence, and the sequences are averaged: attention sums to one
in every sequence, and the size of effects is another one in each, so that numbers of different sequences have
no common scale. As some positions may be attended to, and matter, in all sequences, the attention of each one
is also compared with the effects of another: what it says beyond that, it says of the sequence.

Regions are half-open intervals of 0-based positions, a list for each sequence. Bases that were not seen are
not a number, and a region that holds one is left out.

Shapes: L bases of a sequence (where sequences are rows, of the longest one; the rest is not a number),
N sequences, P positions where a region may begin, n sites and m controls of a stratum.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.stats import rankdata

from pipeline.attention.words import Regions, false_discovery
from pipeline.keyed import generator

HIGH = 0.1  # share of the bases of a sequence whose effects count as high
CONTROLS = 10  # regions that a site is compared with, at most
LEAST_SEQUENCES = 10  # without a site at a position, for it to be told from the position
PERMUTATIONS = 1999
ROUNDING = 1e-9
AT_ONCE = 1 << 21  # random numbers in memory
PARTNERS, DRAWS = 0xA6EE, 0x517E  # what a generator is for


@dataclass(frozen=True)
class Agreement:
    """How well attention agrees with the effects of substitutions, on average over sequences.

    Attributes:
        spearman: rank correlation over the bases of a sequence.
        auroc: chance that one of the bases with high effects has more attention than one of the others.
        sequences: that have a rank correlation: attention and effects that are not all the same.
        spearman_elsewhere: that with the effects of another sequence, which positions alone give.
        auroc_elsewhere: the same.
    """

    spearman: float
    auroc: float
    sequences: int
    spearman_elsewhere: float
    auroc_elsewhere: float


def agreement(
    attention: Mapping[str, Sequence[np.ndarray]], effects: Sequence[np.ndarray], seed: int
) -> dict[str, Agreement]:
    """Compare the attention of every head with the effects of substitutions.

    High effects are the highest tenth of those of a sequence, as far as they are above 0.

    Args:
        attention: by head, (L,) of each sequence.
        effects: (L,) of the same sequences.
        seed: of whose effects stand for another's.

    Returns:
        Agreement by head; not a number where no sequence can be compared.
    """
    order = generator(PARTNERS, seed).permutation(len(effects))
    other = np.empty_like(order)
    other[order] = np.roll(order, 1)
    found = {}
    for head, scores in attention.items():
        own = [_agreement(*pair) for pair in zip(scores, effects, strict=True)]
        mixed = [_agreement(scores[i], effects[j]) for i, j in enumerate(other) if i != j]
        counted = int(np.isfinite([rho for rho, _ in own]).sum())
        found[head] = Agreement(*_means(own), counted, *_means(mixed))
    return found


def _agreement(score_L: np.ndarray, effect_L: np.ndarray) -> tuple[float, float]:
    """Return Spearman's correlation and the AUROC for high effects, over the first bases that both have."""
    score_L, effect_L = score_L[: len(effect_L)], effect_L[: len(score_L)]
    seen = np.isfinite(score_L) & np.isfinite(effect_L)
    score, effect = score_L[seen], effect_L[seen]
    if len(score) < 2:
        return np.nan, np.nan
    rank, other = rankdata(score), rankdata(effect)
    cut = np.sort(effect)[-max(1, round(HIGH * len(effect)))]
    high = (effect >= cut) & (effect > 0)
    n, m = int(high.sum()), int((~high).sum())
    area = (rank[high].sum() - n * (n + 1) / 2) / (n * m) if n and m else np.nan
    flat = np.ptp(score) == 0 or np.ptp(effect) == 0
    return np.nan if flat else float(np.corrcoef(rank, other)[0, 1]), float(area)


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the means of both members over the pairs where they are numbers."""
    columns = np.array(pairs).reshape(-1, 2).T
    rho, area = (column[np.isfinite(column)] for column in columns)
    return float(rho.mean()) if len(rho) else np.nan, float(area.mean()) if len(area) else np.nan


# -- sites against other regions


@dataclass(frozen=True)
class Stratum:
    """Sites and the regions that they are compared with: means over their bases, (n,) and (m,), and the
    sequences (m,) of the latter."""

    inside: np.ndarray
    controls: np.ndarray
    rows: np.ndarray


def as_rows(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return values of sequences as rows (N, L), not a number behind the end of a sequence."""
    value_NL = np.full((len(values), max(map(len, values), default=0)), np.nan)
    for row_L, value_L in zip(value_NL, values, strict=True):
        row_L[: len(value_L)] = value_L
    return value_NL


def _by_length(
    value_NL: np.ndarray, sites: Regions, taken: Regions
) -> Iterator[tuple[int, list[tuple[int, int]], np.ndarray, np.ndarray]]:
    """Yield each length of a site, the sites (sequence, begin) that were wholly seen, the mean of the region
    (N, P) that begins at each position, and whether it is seen and overlaps nothing taken."""
    pairs = [(stop - start, row, start) for row, each in enumerate(sites) for start, stop in each]
    for length in sorted({length for length, _, _ in pairs}):
        mean_NP = sliding_window_view(value_NL, length, axis=1).mean(-1)
        free_NP = np.isfinite(mean_NP)
        own = [(row, at) for size, row, at in pairs if size == length and free_NP[row, at]]
        for row, each in enumerate(taken):
            for start, stop in each:
                free_NP[row, max(0, start - length + 1) : stop] = False
        yield length, own, mean_NP, free_NP


def _at_positions(value_NL: np.ndarray, sites: Regions, taken: Regions) -> list[Stratum]:
    """Return a stratum for each length and position: the controls are other sequences there."""
    strata = []
    for _, own, mean_NP, free_NP in _by_length(value_NL, sites, taken):
        for at in sorted({at for _, at in own}):
            inside = [row for row, start in own if start == at]
            rows = np.flatnonzero(free_NP[:, at])
            strata.append(Stratum(mean_NP[inside, at], mean_NP[rows, at], rows))
    return [stratum for stratum in strata if len(stratum.rows)]


def _within(value_NL: np.ndarray, sites: Regions, rng: np.random.Generator) -> list[Stratum]:
    """Return a stratum for each site: the controls are other positions of its sequence.

    No control overlaps another. If they did they would be alike, and a site that is not like them would often
    be the highest of them all.
    """
    strata = []
    for length, own, mean_NP, free_NP in _by_length(value_NL, sites, sites):
        for row, at in own:
            places = _apart(np.flatnonzero(free_NP[row]), length, rng)
            strata.append(Stratum(mean_NP[[row], at], mean_NP[row, places], np.full(len(places), row)))
    return [stratum for stratum in strata if len(stratum.rows)]


def _apart(starts: np.ndarray, length: int, rng: np.random.Generator) -> list[int]:
    """Return some of the starts of regions, drawn at random, that overlap no other, as many as are wanted."""
    chosen: list[int] = []
    for start in rng.permutation(starts).tolist():
        if len(chosen) < CONTROLS and all(abs(start - other) >= length for other in chosen):
            chosen.append(start)
    return chosen


@dataclass(frozen=True)
class SiteArea:
    """Attention inside sites against the same positions of sequences without one.

    Attributes:
        auroc: chance that a site has more attention than a control, ties counted half; not a number if there
            are no controls. Sites count equally, and each is compared with all controls at its position.
        sites: that were compared.
        unmatched: that were not: with an unseen base, or without controls.
    """

    auroc: float
    sites: int
    unmatched: int


def site_auroc(
    attention: Mapping[str, Sequence[np.ndarray]], sites: Regions, taken: Regions | None = None
) -> dict[str, SiteArea]:
    """Return for every head how well attention finds sites, positions apart.

    A region's score is its mean attention, in units of the sequence's mean. The controls of a site are the
    regions at its place in all sequences that have nothing taken there.

    Args:
        attention: by head, (L,) of each sequence.
        sites: regions that should be attended to, of the same sequences; some may have none.
        taken: regions that no control overlaps (default: the sites).
    """
    found, number = {}, sum(map(len, sites))
    for head, scores in attention.items():
        relative = [score_L / np.nanmean(score_L) for score_L in scores]
        strata = _at_positions(as_rows(relative), sites, sites if taken is None else taken)
        n = sum(len(stratum.inside) for stratum in strata)
        above = sum(_above(stratum.inside, stratum.controls) for stratum in strata)
        found[head] = SiteArea(above / n if n else np.nan, n, number - n)
    return found


def _above(inside: np.ndarray, controls: np.ndarray) -> float:
    """Return the sum over sites of the share of controls that they are above, ties counted half."""
    ordered = np.sort(controls)
    below = np.searchsorted(ordered, inside, "left") + np.searchsorted(ordered, inside, "right")
    return float(below.sum() / (2 * len(ordered)))


# -- motifs against the effects of substitutions


@dataclass(frozen=True)
class Comparison:
    """Effects inside the sites of a motif against those in other regions of the same length.

    Attributes:
        sites: that have controls.
        controls: regions they are compared with, ten for each site at most, drawn at random: of one sequence
            they overlap nowhere, of others there is one each.
        sequences: that the controls are from.
        mean: of the effects inside these sites.
        difference: by how much that is above the mean of their controls.
        p_value: one-sided, of as high a mean if the site and its controls had been told apart by chance;
            not a number without controls.
    """

    sites: int
    controls: int
    sequences: int
    mean: float
    difference: float
    p_value: float


@dataclass(frozen=True)
class Support:
    """Whether mutagenesis supports a motif.

    Attributes:
        effect: mean effect inside all its sites that were wholly seen.
        sites: how many these are.
        within: against regions elsewhere in the same sequence.
        at_position: against the same positions of sequences without a site there.
        p_value: the larger one of those two that count; 1 if none does.
        q_value: corrected over motifs.
        supported: whether the effect is above 0 and the q-value below the level.
    """

    effect: float
    sites: int
    within: Comparison
    at_position: Comparison
    p_value: float
    q_value: float
    supported: bool


def support(
    motifs: Mapping[str, Regions],
    effects: Sequence[np.ndarray],
    seed: int,
    permutations: int = PERMUTATIONS,
    level: float = 0.05,
) -> dict[str, Support]:
    """Test whether the bases inside the sites of motifs matter more than others.

    Each site is compared with regions of its length that overlap no site of the motif: elsewhere in its
    sequence, which have the same score and other positions; and at its place in sequences without a site
    there, which have the same position. In the first comparison site and controls change places at random
    for each site, in the second for each position; the p-value is (1 + permutations with as high a mean) /
    (1 + permutations) (Phipson & Smyth 2010, doi:10.2202/1544-6115.1585). A motif has to pass both, so the
    larger p-value is its own (Berger 1982, doi:10.1080/00401706.1982.10487790). The second does not count
    where its controls are from fewer than ten sequences: with a site in every sequence, motif and position
    are the same.

    Args:
        motifs: by name, the sites in each sequence.
        effects: (L,) of each sequence, not a number for unseen bases.
        seed: of the randomness.
        permutations: how many.
        level: q-value below which a motif is supported.
    """
    value_NL = as_rows(effects)
    tested = [
        _tested(value_NL, sites, generator(DRAWS, seed, number), permutations)
        for number, sites in enumerate(motifs.values())
    ]
    q_values = false_discovery([each.p_value for each in tested]).tolist()
    return {
        name: replace(each, q_value=q, supported=q < level and each.effect > 0)
        for name, each, q in zip(motifs, tested, q_values, strict=True)
    }


def _tested(value_NL: np.ndarray, sites: Regions, rng: np.random.Generator, permutations: int) -> Support:
    """Compare one motif; nothing is said yet of its q-value."""
    inside = [mean_NP[row, at] for _, own, mean_NP, _ in _by_length(value_NL, sites, ()) for row, at in own]
    within = _compared(_within(value_NL, sites, rng), rng, permutations)
    at_position = _compared(_shared_out(_at_positions(value_NL, sites, sites), rng), rng, permutations)
    counted = [within.p_value] if within.sites else []
    counted += [at_position.p_value] if at_position.sequences >= LEAST_SEQUENCES else []
    effect, p_value = float(np.mean(inside)) if inside else np.nan, max(counted, default=1.0)
    return Support(effect, len(inside), within, at_position, p_value, np.nan, False)


def _compared(strata: list[Stratum], rng: np.random.Generator, permutations: int) -> Comparison:
    """Compare sites with their controls."""
    if not strata:
        return Comparison(0, 0, 0, np.nan, np.nan, np.nan)
    number = np.array([len(stratum.inside) for stratum in strata])
    sums, controls = zip(*((s.inside.sum(), s.controls.mean()) for s in strata), strict=True)
    mean = sum(sums) / number.sum()
    return Comparison(
        sites=int(number.sum()),
        controls=sum(len(stratum.rows) for stratum in strata),
        sequences=len(np.unique(np.concatenate([stratum.rows for stratum in strata]))),
        mean=float(mean),
        difference=float(mean - number @ np.array(controls) / number.sum()),
        p_value=_p_value(strata, rng, permutations),
    )


def _shared_out(strata: list[Stratum], rng: np.random.Generator) -> list[Stratum]:
    """Return the strata with each sequence among the controls of one alone, that with the fewest for a site.

    Were it in several, at neighbouring positions, these would not be independent, and p-values too small.
    """
    eligible: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number in rng.permutation(len(strata)).tolist():
        for place, row in enumerate(strata[number].rows.tolist()):
            eligible[row].append((number, place))
    kept: list[list[int]] = [[] for _ in strata]
    for row in rng.permutation(sorted(eligible)).tolist():
        shares = [len(kept[number]) / len(strata[number].inside) for number, _ in eligible[row]]
        least = int(np.argmin(shares))
        if shares[least] < CONTROLS:
            number, place = eligible[row][least]
            kept[number].append(place)
    pairs = zip(strata, kept, strict=True)
    return [Stratum(s.inside, s.controls[places], s.rows[places]) for s, places in pairs if places]


def _p_value(strata: Sequence[Stratum], rng: np.random.Generator, permutations: int) -> float:
    """Return the one-sided p-value of the sum inside sites, if which ones are sites is permuted in strata."""
    observed = sum(stratum.inside.sum() for stratum in strata)
    scale = sum(np.abs(stratum.inside).sum() for stratum in strata)
    drawn = np.zeros(permutations)
    for stratum in strata:
        values = np.concatenate([stratum.inside, stratum.controls])
        drawn += _random_sums(values, len(stratum.inside), rng, permutations)
    return float((1 + (drawn >= observed - ROUNDING * scale).sum()) / (1 + permutations))


def _random_sums(values: np.ndarray, n: int, rng: np.random.Generator, times: int) -> np.ndarray:
    """Return the sums (times,) of ``n`` of the values, drawn without replacement."""
    if n == 1:
        return values[rng.integers(len(values), size=times)]
    sums = np.empty(times)
    size = max(1, AT_ONCE // len(values))
    for begin in range(0, times, size):
        keys = rng.random((min(size, times - begin), len(values)))
        sums[begin : begin + size] = values[np.argpartition(keys, n - 1, axis=1)[:, :n]].sum(1)
    return sums
