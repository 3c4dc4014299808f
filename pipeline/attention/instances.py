"""Instances of motifs: where windows score, how unlikely such a score is, and where the best ones lie.

A window's score is its log-odds against a background of independent bases, in bits, rounded to thousandths;
its p-value is the chance that such a background scores as high or higher, and is exact for rounded scores
(dynamic programming over columns: Staden 1989, doi:10.1093/bioinformatics/5.2.89). The q-value is over all
windows, on all strands, that the motif was tried on (Benjamini and Hochberg, as FIMO: Grant et al. 2011,
doi:10.1093/bioinformatics/btr064).

Shapes: N sequences, M windows, W columns of a motif, S scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.attention.words import OTHER, encode_text, false_discovery
from pipeline.keyed import generator

STEPS = 1000  # of a score, in a bit
BIN = 5  # bases, of the positional test
PSEUDO = 0.01  # share of the background in the frequencies that log-odds are of


@dataclass(frozen=True, eq=False)
class Windows:
    """M windows of sequences, each read on one strand, and what a motif makes of them."""

    sequence: np.ndarray
    """(M,) number of the sequence"""
    start: np.ndarray
    """(M,) first base, from 0 on the strand that was given"""
    strand: np.ndarray
    """(M,) 1, or -1 where the reverse complement is read"""
    score: np.ndarray
    """(M,) log-odds in bits"""
    p_value: np.ndarray
    q_value: np.ndarray
    width: int

    def chosen(self, which: np.ndarray) -> "Windows":
        """Return some of them, by truth values or numbers."""
        place, value = (self.sequence, self.start, self.strand), (self.score, self.p_value, self.q_value)
        (a, b, c), (d, e, f) = ([column[which] for column in columns] for columns in (place, value))
        return Windows(a, b, c, d, e, f, self.width)


@dataclass(frozen=True, eq=False)
class Sites:
    """The best site of one motif in each of N sequences."""

    start: np.ndarray
    """(N,) first base, from 0; -1 where the sequence has none"""
    strand: np.ndarray
    """(N,) 1 or -1; 0 where the sequence has none"""
    width: int

    @property
    def found(self) -> np.ndarray:
        """Which sequences have a site, (N,) bool."""
        return self.start >= 0

    @property
    def regions(self) -> list[list[tuple[int, int]]]:
        """The sites as half-open intervals, none or one for each sequence."""
        return [[(start, start + self.width)] if start >= 0 else [] for start in self.start.tolist()]


def score_steps(frequencies: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Return the scores (W, 4) of bases in each column, whole numbers of thousandths of a bit.

    Args:
        frequencies: (W, 4) of A, C, G, T; one per cent of the background is mixed in, so that none is 0.
        background: (4,) their probabilities outside of sites.
    """
    mixed = (1 - PSEUDO) * frequencies + PSEUDO * background
    return np.round(STEPS * np.log2(mixed / background)).astype(np.int64)


def tail_probabilities(steps_W4: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Return P(score >= lowest + s) of random windows for s = 0, 1, ..., the largest score there is.

    Args:
        steps_W4: scores of bases in each column, whole numbers.
        background: (4,) probabilities of independent bases.

    Returns:
        (S,) probabilities, exact up to rounding of floats; lowest is the sum of the columns' smallest scores.
    """
    chance_S = np.ones(1)
    for column in steps_W4 - steps_W4.min(1, keepdims=True):
        wider_S = np.zeros(len(chance_S) + int(column.max()))
        for step, share in zip(column.tolist(), background.tolist(), strict=True):
            wider_S[step : step + len(chance_S)] += share * chance_S
        chance_S = wider_S
    return np.minimum(np.cumsum(chance_S[::-1])[::-1], 1.0)


def scan(
    sequences: Sequence[str], frequencies: np.ndarray, background: np.ndarray, both: bool = False
) -> Windows:
    """Score a motif at every window of sequences that holds only A, C, G and T (either case).

    Args:
        sequences: N sequences.
        frequencies: (W, 4) of the motif.
        background: (4,) probabilities of independent bases.
        both: read the reverse complement of every window, too.
    """
    steps_W4 = score_steps(frequencies, background)
    width = len(steps_W4)
    gap = "-" * width
    code_L = encode_text(gap.join([*sequences, ""]))
    start_N = np.cumsum([0, *(len(text) + width for text in sequences)])[:-1]
    bad_L = np.concatenate([[0], np.cumsum(code_L == OTHER)])
    at_M = np.flatnonzero(bad_L[width:] == bad_L[:-width])
    window_MW = code_L[at_M[:, None] + np.arange(width)]
    parts = [(1, steps_W4)] + ([(-1, steps_W4[::-1, ::-1])] if both else [])
    score = np.concatenate([table[np.arange(width), window_MW].sum(1) for _, table in parts])
    strand = np.repeat([sign for sign, _ in parts], len(at_M))
    sequence_M = np.searchsorted(start_N, at_M, side="right") - 1
    tails = [(table, tail_probabilities(table, background)) for _, table in parts]
    p_value = np.concatenate(
        [
            tail[part - table.min(1).sum()]
            for (table, tail), part in zip(tails, np.split(score, len(parts)), strict=True)
        ]
    )
    return Windows(
        np.tile(sequence_M, len(parts)),
        np.tile(at_M - start_N[sequence_M], len(parts)),
        strand,
        score / STEPS,
        p_value,
        false_discovery(p_value),
        width,
    )


def best_sites(windows: Windows, number: int, largest_p: float, seed: int) -> Sites:
    """Return the best window of each of ``number`` sequences, if its p-value is small enough.

    Of equally good ones one is drawn at random: the first would make sites seem to lie early.
    """
    good = np.flatnonzero(windows.p_value <= largest_p)
    tie = generator(seed, number, windows.width).random(len(good))
    order = good[np.lexsort((tie, windows.p_value[good], windows.sequence[good]))]
    first = order[np.unique(windows.sequence[order], return_index=True)[1]]
    start, strand = np.full(number, -1), np.zeros(number, np.int64)
    start[windows.sequence[first]] = windows.start[first]
    strand[windows.sequence[first]] = windows.strand[first]
    return Sites(start, strand, windows.width)


@dataclass(frozen=True)
class Positions:
    """Where the sites of a motif begin, counted from an origin (0; before it negative)."""

    first: int
    """position that the first count is of"""
    counts: list[int]
    """sites that begin at each position"""
    sequences: int
    """sequences with a site"""
    mode: int | None
    """position at which most sites begin (of equal ones, the one with most neighbours); None without sites"""
    best_bin: tuple[int, int] | None
    """five neighbouring positions that hold more sites than chance, the least likely ones: first and last"""
    in_bin: int
    expected: float
    """sites expected there if they began anywhere in their sequence, all places equally likely"""
    p_value: float
    """of the best bin, corrected for the number of bins tried; 1 without sites"""


def positions(sites: Sites, lengths: Sequence[int], origin: int) -> Positions:
    """Count where sites begin, and test whether they gather somewhere.

    Every five neighbouring positions are tried: the number of sites in them against the binomial distribution
    with the chance that a site has which may begin anywhere in its sequence. The smallest p-value is
    multiplied by the number of bins (CentriMo's local mode: Bailey and Machanick 2012,
    doi:10.1093/nar/gks433). Where sequences differ in length so do the chances; with their mean the binomial
    tail is too large, if anything (Hoeffding 1956, doi:10.1214/aoms/1177728178). Bases are taken to be alike
    everywhere in a window; where they are not, that alone may gather sites.

    Args:
        sites: at most one in a sequence.
        lengths: bases of each sequence.
        origin: the base that positions count from, in every sequence.
    """
    from scipy.stats import binom

    place_N = np.flatnonzero(sites.found)
    choices = np.array(lengths, np.int64)[place_N] - sites.width + 1
    size = int(choices.max(initial=0))
    counts = np.bincount(sites.start[place_N], minlength=size)
    if not len(place_N):
        return Positions(-origin, [], 0, None, None, 0, 0.0, 1.0)
    chance = np.array([(1 / choices[choices > position]).sum() for position in range(size)])
    width = min(BIN, size)
    held, expected = (np.convolve(values, np.ones(width), "valid") for values in (counts, chance))
    p_B = binom.sf(np.round(held) - 1, len(place_N), np.minimum(expected / len(place_N), 1))
    best = int(np.lexsort((-held, p_B))[0])
    near = np.convolve(counts, np.ones(3), "same")
    mode = int(np.lexsort((-near, -counts))[0])
    return Positions(
        -origin,
        counts.tolist(),
        len(place_N),
        mode - origin,
        (best - origin, best + width - 1 - origin),
        round(float(held[best])),
        float(expected[best]),
        float(min(1.0, p_B[best] * len(p_B))),
    )
