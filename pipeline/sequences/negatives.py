"""Negatives for given positives: matched windows of a genome, shuffles, and partly random sequences.

What a classifier learns is what tells its negatives from its positives: composition, if they differ in it;
whether words are whole, if they are shuffled; what the place is for, if they are windows that are alike.

Array suffixes: C candidates, R runs of window starts, N places, L letters of a window.
"""

import hashlib
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pipeline.errors import UserError
from pipeline.keyed import generator
from pipeline.log import track
from pipeline.sequences.genomes import GenomeInMemory
from pipeline.sequences.places import OTHER, Place, Places, Spans, between, union

Where = Literal["any", "intergenic", "coding", "antisense"]
PIECES, REPLACED = 20, 12
BATCH, LETTERS = 64, 1 << 17  # windows looked at together: the first ones; letters in the next
KEPT = 256  # lengths of windows whose starts are kept in memory
ROUNDING = 1e-9
_BASES = np.array(list("ACGT"))
_IS_GC = np.isin(np.arange(256), np.frombuffer(b"CGcg", np.uint8))


def dinucleotide_shuffle(sequence: str, rng: np.random.Generator) -> str:
    """Return a random sequence that has each letter and each pair of neighbours as often as a given one.

    Such sequences are the Euler paths through the graph whose edges are the pairs (Altschul & Erickson 1985,
    doi:10.1093/oxfordjournals.molbev.a040370). All of them, the given one too, are equally likely, and all
    have its first and last letter. A path is given by the order in which each letter's edges are left by:
    the last one of every letter is from a random tree that leads to the end, all other orders are free. The
    tree is drawn by a walk whose loops are erased (Wilson 1996, doi:10.1145/237814.237880), which ends soon
    on any sequence, where drawing until the edges make a tree may not.

    Args:
        sequence: letters of any kind, in any case (each is a letter of its own).
        rng: source of the randomness.
    """
    following: dict[str, list[str]] = {letter: [] for letter in sequence}
    for letter, after in pairwise(sequence):
        following[letter].append(after)
    last = _last_exits(following, sequence[-1:], rng)
    for letter, exits in following.items():
        if letter in last:
            exits.remove(last[letter])
        following[letter] = [exits[i] for i in rng.permutation(len(exits))]
        following[letter] += [last[letter]] if letter in last else []
    ways, path = {letter: iter(exits) for letter, exits in following.items()}, list(sequence[:1])
    path.extend(next(ways[path[-1]]) for _ in range(len(sequence) - 1))
    return "".join(path)


def _last_exits(following: dict[str, list[str]], end: str, rng: np.random.Generator) -> dict[str, str]:
    """Return the letter that each letter but the end is last left to: a random tree that leads to the end.

    The chance of a tree is proportional to the number of ways to take it out of the edges.
    """
    others = {letter: [after for after in exits if after != letter] for letter, exits in following.items()}
    last: dict[str, str] = {}
    joined = {end}
    for begin in following:
        letter = begin
        while letter not in joined:
            last[letter] = others[letter][rng.integers(len(others[letter]))]
            letter = last[letter]
        letter = begin
        while letter not in joined:
            joined.add(letter)
            letter = last[letter]
    return last


def partly_shuffled(sequence: str, rng: np.random.Generator) -> str:
    """Return a sequence with 12 of its 20 pieces, drawn at random, replaced by random bases.

    These are the negatives of DeePromoter (Oubounyt et al. 2019, doi:10.3389/fgene.2019.00286): 40 % of the
    positive stays, at its place, so that no single motif tells the classes apart. The pieces differ by one
    letter in length at most; A, C, G and T are equally likely.

    Raises:
        UserError: fewer than 20 letters.
    """
    if len(sequence) < PIECES:
        raise UserError(f"{len(sequence)} bases, and {PIECES} are the least that can be partly shuffled")
    ends = [len(sequence) * piece // PIECES for piece in range(PIECES + 1)]
    replaced = set(rng.permutation(PIECES)[:REPLACED].tolist())
    pieces = (
        "".join(rng.choice(_BASES, end - begin)) if piece in replaced else sequence[begin:end]
        for piece, (begin, end) in enumerate(pairwise(ends))
    )
    return "".join(pieces)


def gc_share(sequence: str) -> float:
    """Return the share of G and C among the bases of an upper-case sequence that are known (A C G T)."""
    strong = sequence.count("G") + sequence.count("C")
    return strong / (strong + sequence.count("A") + sequence.count("T"))


@dataclass(frozen=True, slots=True)
class Positive:
    """A sequence (upper case, with one known base at least) to make negatives for, and where it lies."""

    id: str
    sequence: str
    places: Sequence[Place] = ()


@dataclass(frozen=True, slots=True)
class Negative:
    """A window of a genome.

    Attributes:
        positive: number of the positive that it is matched to.
        sequence: its letters, upper case, on its strand.
        place: where it lies.
        gc_difference: |share of G and C - that of the positive|.
        repeat_difference: |share of lower-case letters - that of the positive's first place|, or None if the
            positive has no place, or the genome no such letters.
    """

    positive: int
    sequence: str
    place: Place
    gc_difference: float
    repeat_difference: float | None


def seeds(positives: Sequence[Positive]) -> list[tuple[int, int]]:
    """Return a key of each positive's randomness, which does not depend on the order of the positives.

    It is a digest of the sequence, and a number among equal sequences, in the order of their ids.
    """
    order = sorted(range(len(positives)), key=lambda i: (positives[i].sequence, positives[i].id))
    key: dict[int, tuple[int, int]] = {}
    copies: Counter[int] = Counter()
    for i in order:
        digest = hashlib.blake2b(positives[i].sequence.encode(), digest_size=8).digest()
        number = int.from_bytes(digest)
        key[i] = (number, copies[number])
        copies[number] += 1
    return [key[i] for i in range(len(positives))]


def genome_windows(
    genome: GenomeInMemory,
    positives: Sequence[Positive],
    *,
    features: Places | None = None,
    starts: Places | None = None,
    where: Where = "any",
    away: int = 500,
    ratio: int = 1,
    gc_tolerance: float = 0.02,
    repeat_tolerance: float = 0.1,
    tries: int = 5000,
    seed: int = 0,
) -> list[Negative]:
    """Return for each positive, in order, ``ratio`` windows of its length that are like it in composition.

    A window holds only A, C, G and T, lies within its record, does not overlap another one, and is at least
    ``away`` bases from every start and every place of a positive (1: next to it). Of all such windows, on
    both strands, some are drawn at random; the first that differs from the positive by ``gc_tolerance`` in
    the share of G and C, and by ``repeat_tolerance`` in the share of soft-masked (lower-case) letters, or
    less, is taken. If ``tries`` have none, it is the one that goes least beyond the two in sum.

    What is drawn depends on the positives and the seed, not on their order; as windows do not overlap, it
    may depend on all positives.

    Args:
        genome: where windows are from.
        positives: what they are matched to.
        features: genes, on their strands, within their records (`GenomeInMemory.unrolled`).
        starts: bases to keep away from.
        where: stratum of the windows (`strata`), which ``features`` give.
        away: bases from the nearest base of a window to a start or a positive, 1 or more.
        ratio: windows for each positive.
        gc_tolerance: see above.
        repeat_tolerance: see above.
        tries: windows looked at for each one taken, at most.
        seed: of the randomness.

    Raises:
        UserError: no window is left for some positive.
    """
    assert away >= 1
    assert where == "any" or features is not None
    near = Places.of(place for positive in positives for place in positive.places)
    kept_off = [genome.unknown(), genome.spans(near, away - 1)]
    if starts is not None:
        kept_off.append(genome.spans(starts, away - 1))
    windows = _Windows(genome, *_rules(genome, kept_off, features, where))
    key = seeds(positives)
    targets = [_Target.of(genome, positive, gc_tolerance, repeat_tolerance) for positive in positives]
    usual = genome.gc_share()
    order = sorted(range(len(positives)), key=lambda i: (-abs(targets[i].gc - usual), key[i]))
    jobs = [(i, copy) for i in order for copy in range(ratio)]
    drawn: dict[tuple[int, int], Negative] = {}
    for i, copy in track(jobs, len(jobs), "drawing windows"):
        target = targets[i]
        found = windows.draw(target, generator(seed, *key[i], copy), tries)
        if found is None:
            raise _no_room(positives[i], len(drawn), len(jobs), where)
        drawn[i, copy] = _negative(genome, i, target, *found)
    return [drawn[i, copy] for i in range(len(positives)) for copy in range(ratio)]


def _no_room(positive: Positive, done: int, wanted: int, where: str) -> UserError:
    stratum = "" if where == "any" else f"{where} "
    text = f"no {stratum}window of the genome fits" if not done else f"no {stratum}window is left"
    return UserError(
        f"negatives: {text} for record {positive.id!r}, {len(positive.sequence)} bases ({done} of {wanted} "
        "negatives have one); give a smaller away or ratio, another where, or a larger genome"
    )


def _rules(
    genome: GenomeInMemory, kept_off: list[Spans], features: Places | None, where: Where
) -> tuple[dict[str, Spans], dict[str, Spans | None]]:
    """Return for each strand what windows may not overlap, and what they have to lie in (None: anything)."""
    blocked, inside = {}, {}
    for strand, other in OTHER.items():
        of = {}
        if features is not None:
            of = {s: genome.spans(features.chosen(features.strand == s)) for s in (strand, other)}
        barred = {"intergenic": (strand, other), "antisense": (strand,)}.get(where, ())
        blocked[strand] = union([*kept_off, *(of[s] for s in barred)])
        inside[strand] = {"coding": of.get(strand), "antisense": of.get(other)}.get(where)
    return blocked, inside


@dataclass(frozen=True)
class _Target:
    """What a window should be like."""

    length: int
    gc: float
    repeats: float | None
    gc_tolerance: float
    repeat_tolerance: float

    @classmethod
    def of(cls, genome: GenomeInMemory, positive: Positive, gc: float, repeats: float) -> "_Target":
        """Return what windows for a positive should be like, given the two tolerances."""
        share = None
        if genome.masked and positive.places:
            begin_N, end_N = genome.spans(Places.of(positive.places[:1]))
            spans = zip(begin_N.tolist(), end_N.tolist(), strict=True)
            letters_L = np.concatenate([genome.letters_L[begin:end] for begin, end in spans])
            share = float((letters_L >= ord("a")).mean())
        return cls(len(positive.sequence), gc_share(positive.sequence), share, gc, repeats)

    def differences(self, letters_CL: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return how far off windows are in the share of G and C, and of lower case if that is to match."""
        gc_C = np.abs(np.count_nonzero(_IS_GC[letters_CL], axis=1) / self.length - self.gc)
        if self.repeats is None:
            return gc_C, None
        return gc_C, np.abs(np.count_nonzero(letters_CL >= ord("a"), axis=1) / self.length - self.repeats)

    def excess(self, letters_CL: np.ndarray) -> np.ndarray:
        """Return by how much windows go beyond what is tolerated; 0 is a match."""
        gc_C, lower_C = self.differences(letters_CL)
        excess_C = np.maximum(gc_C - self.gc_tolerance - ROUNDING, 0)
        if lower_C is not None:
            excess_C += np.maximum(lower_C - self.repeat_tolerance - ROUNDING, 0)
        return excess_C


def _negative(genome: GenomeInMemory, number: int, target: _Target, begin: int, strand: str) -> Negative:
    place = genome.place(begin, begin + target.length, strand)
    gc_1, lower_1 = target.differences(genome.letters_L[None, begin : begin + target.length])
    lower = None if lower_1 is None else float(lower_1[0])
    return Negative(number, genome.fetch(place), place, float(gc_1[0]), lower)


def _sizes(length: int, tries: int) -> Iterator[int]:
    """Yield how many windows are looked at together, first a few, then as many as there are memory for."""
    size, left = BATCH, tries
    while left > 0:
        yield min(size, left)
        left -= size
        size = max(BATCH, LETTERS // length)


class _Windows:
    """The windows of a genome that obey the rules; one that is drawn takes its place."""

    def __init__(self, genome: GenomeInMemory, blocked: dict[str, Spans], inside: dict[str, Spans | None]):
        self.letters_L = genome.letters_L
        self.blocked, self.inside = blocked, inside
        self.taken: list[tuple[int, int]] = []  # sorted and disjoint
        self.starts: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def draw(self, target: _Target, rng: np.random.Generator, tries: int) -> tuple[int, str] | None:
        """Return begin and strand of a window, and take it; None if none is free."""
        best, least = None, np.inf
        for size in _sizes(target.length, tries):
            found = self._best(target, rng, size, least)
            if found is None and best is None:
                self._look(target.length)  # none was free: leave out what has been taken since
                found = self._best(target, rng, size, least)
            if found:
                least, best = found[0], found[1:]
            if best is None or least == 0:
                break
        if best:
            insort(self.taken, (best[0], best[0] + target.length))
        return best

    def _best(
        self, target: _Target, rng: np.random.Generator, size: int, bound: float
    ) -> tuple[float, int, str] | None:
        """Return excess, begin and strand of the best free one of so many windows, if it is below a bound."""
        begin_C, minus_C = self._candidates(target.length, rng, size)
        if not len(begin_C):
            return None
        excess_C = target.excess(sliding_window_view(self.letters_L, target.length)[begin_C])
        for i in np.argsort(excess_C, kind="stable"):
            begin = int(begin_C[i])
            if excess_C[i] >= bound:
                return None
            if self._free(begin, begin + target.length):
                return float(excess_C[i]), begin, "-" if minus_C[i] else "+"
        return None

    def _free(self, begin: int, end: int) -> bool:
        after = bisect_right(self.taken, (begin, end))
        left = after == 0 or self.taken[after - 1][1] <= begin
        return left and (after == len(self.taken) or end <= self.taken[after][0])

    def _candidates(self, length: int, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return begin and strand (true: minus) of random windows, all equally likely."""
        if length not in self.starts:
            self._look(length)
        begin_R, last_R, minus_R = self.starts[length]
        if not len(begin_R):
            return begin_R, minus_R
        number_C = rng.integers(0, last_R[-1], size)
        run_C = np.searchsorted(last_R, number_C, side="right")
        before_C = np.concatenate([[0], last_R])[run_C]
        return begin_R[run_C] + number_C - before_C, minus_R[run_C]

    def _look(self, length: int) -> None:
        """Find all windows of a length that are free now: runs of begins, summed sizes, strands."""
        if len(self.starts) >= KEPT:
            self.starts.clear()
        taken = np.array(self.taken, np.int64).reshape(-1, 2)
        size = max(0, len(self.letters_L) - length + 1)
        runs = []
        for strand, blocked in self.blocked.items():
            begin_R, end_R = union([blocked, (taken[:, 0], taken[:, 1])])
            barred = [(begin_R - length + 1, end_R)]
            inside = self.inside[strand]
            if inside is not None:
                roomy_F = inside[1] - inside[0] >= length
                barred.append(between(union([(inside[0][roomy_F], inside[1][roomy_F] - length + 1)]), size))
            begin_R, end_R = between(union(barred), size)
            runs.append((begin_R, end_R - begin_R, np.full(len(begin_R), strand == "-")))
        begin_R, size_R, minus_R = (np.concatenate(column) for column in zip(*runs, strict=True))
        self.starts[length] = begin_R, np.cumsum(size_R), minus_R
