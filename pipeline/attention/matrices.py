"""From enriched words to motifs: position count matrices estimated on the attended regions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.attention.words import BASES as LETTERS
from pipeline.attention.words import OTHER, Regions, Word, encode_text

FLANK = 2  # columns that a matrix may reach beyond its seed word, on each side
FLANK_BITS = 0.3  # information that a flanking column must carry to be kept
END_BITS = 0.1  # information below which an outer column of the word itself is cut
MIN_WIDTH = 4
NARROWEST = 5  # columns of a matrix at least: no window of four is rarer than one in some 250
MIN_SITES = 5.0  # expected sites below which a matrix is not reported
ROUNDS = 50
SAME = 0.8  # correlation from which two matrices are one motif
SHARED = 5  # columns that it is over at least: four are often alike by chance


@dataclass(frozen=True)
class Seed:
    """An enriched word and the head, written layer.head, in whose regions it was found."""

    word: Word
    q_value: float
    head: str


@dataclass(frozen=True, eq=False)
class Motif:
    """A position count matrix with the word that it grew from."""

    name: str
    counts: np.ndarray
    """(w, 4) expected number of sites with A, C, G, T in each column"""
    background: np.ndarray
    """(4,) composition of the sequences that the counts are from"""
    sites: list[tuple[int, int]]
    """(index of the sequence, 0-based start), where a site is more likely than not, one a sequence at most"""
    word: str
    p_value: float
    q_value: float
    heads: list[str] = field(default_factory=list)

    @property
    def frequencies(self) -> np.ndarray:
        """(w, 4) frequencies; one pseudo-site of background composition is added to the counts."""
        return _frequencies(self.counts, self.background)

    @property
    def n_sites(self) -> float:
        """Expected number of sites."""
        return float(self.counts.sum(axis=1).max())

    @property
    def consensus(self) -> str:
        """The commonest base of each column, in lower case where it makes up less than half."""
        best = self.frequencies.argmax(axis=1)
        upper = self.frequencies.max(axis=1) >= 0.5
        return "".join(LETTERS[b] if u else LETTERS[b].lower() for b, u in zip(best, upper, strict=True))


def grow(
    seeds: Iterable[Seed], sequences: Sequence[str], regions: Mapping[str, Regions], max_motifs: int
) -> list[Motif]:
    """Grow significant words into motifs.

    The best instance of a word (at most one mismatch) in the regions of every sequence gives a first matrix,
    with 2 more columns on each side. It is refined by expectation maximisation with zero or one site per
    sequence (ZOOPS; Bailey and Elkan 1994, ISMB 2, 28-36): candidate sites are the windows inside regions,
    widened by 2 bases, and log-odds are against the composition of ``sequences``. Outer columns are cut:
    added ones under 0.3 bits, the word's own under 0.1 bits (relative entropy, corrected for small samples:
    Schneider et al. 1986, doi:10.1016/0022-2836(86)90165-8). If four are left the better one beside them is
    kept, and the rest is refined again.

    The best word goes first. Bases that a motif explains are erased, by its posterior, for those after it.
    Words whose first matrix correlates with a motif (Pearson, at least 0.8 at the best offset, on either
    strand) are copies of it: they only add their heads. A word that refines to something unlike itself
    (correlation below 0.8) waits until another motif has been erased. Motifs stay in the orientation in
    which their word was read.

    Args:
        seeds: significant words of all heads.
        sequences: the positive sequences; letters other than A, C, G, T (either case) count for nothing.
        regions: by head, for every sequence, its half-open attended intervals.
        max_motifs: motifs returned, at most.

    Returns:
        Motifs named motif-1, motif-2, ..., the smallest p-value first; empty for no seeds.
    """
    text = _Text.of(sequences)
    attended = {head: text.mask(intervals) for head, intervals in regions.items()}
    anywhere = np.logical_or.reduce(list(attended.values())) if attended else np.zeros(0, dtype=bool)
    waiting = _drafts(seeds, text, attended)
    found: list[Motif] = []
    while len(found) < max_motifs and (motif := _next(waiting, found, text, attended)):
        copies = [draft for draft in waiting if draft.word == motif.word or _same(draft, motif)]
        heads = list(dict.fromkeys(head for copy in copies for head in copy.heads))
        found.append(replace(motif, heads=heads))
        waiting = [draft for draft in waiting if draft not in copies]
        text = text.erase(motif, anywhere)
    found.sort(key=lambda motif: motif.p_value)
    return [replace(motif, name=f"motif-{rank}") for rank, motif in enumerate(found, 1)]


def _next(
    waiting: list[Motif], found: list[Motif], text: "_Text", attended: Mapping[str, np.ndarray]
) -> Motif | None:
    """Refine drafts, best first, until one gives a motif that is new and still its own word."""
    for draft in waiting:
        motif = _refine(draft, text, attended[draft.heads[0]])
        if motif and _same(motif, draft) and not any(_same(motif, other) for other in found):
            return motif
    return None


def _drafts(seeds: Iterable[Seed], text: "_Text", attended: Mapping[str, np.ndarray]) -> list[Motif]:
    """Make a first matrix for each word, best first, from the head where it is most significant."""
    drafts: dict[str, Motif] = {}
    for seed in sorted(seeds, key=lambda s: (s.word.p_value, -s.word.foreground_count, s.word.word, s.head)):
        word = seed.word.word
        if word in drafts:
            drafts[word].heads.append(seed.head)
        else:
            counts = _first_counts(word, text, attended[seed.head])
            p, q = seed.word.p_value, seed.q_value
            drafts[word] = Motif("", counts, text.background, [], word, p, q, [seed.head])
    return list(drafts.values())


def _same(a: Motif, b: Motif) -> bool:
    return correlation(a.frequencies, b.frequencies) >= SAME


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest Pearson correlation of two matrices over offsets and strands.

    Args:
        a: (w, 4) frequencies.
        b: (v, 4) frequencies.

    Returns:
        The correlation over the shared columns at the best offset, of those that share at least 5 columns
        and all but 2 of the narrower matrix (all of one with 4); -1 where there is none.
    """
    narrower = min(len(a), len(b))
    overlap = max(MIN_WIDTH, min(SHARED, narrower), narrower - 2)
    best = -1.0
    for other in (b, b[::-1, ::-1]):
        for offset in range(overlap - len(other), len(a) - overlap + 1):
            start, stop = max(0, offset), min(len(a), offset + len(other))
            best = max(best, _pearson(a[start:stop], other[start - offset : stop - offset]))
    return best


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale > 0 else 0.0


def _frequencies(counts: np.ndarray, background: np.ndarray) -> np.ndarray:
    return (counts + background) / (counts.sum(axis=1, keepdims=True) + 1.0)


def _information(counts: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Return the (w,) bits of each column against ``background``, corrected for small samples."""
    f = _frequencies(counts, background)
    bias = 3 / (2 * np.log(2) * np.maximum(counts.sum(axis=1), 1.0))
    return (f * np.log2(f / background)).sum(axis=1) - bias


@dataclass(frozen=True)
class _Text:
    """Sequences as one array of base codes, with room (other letters: no evidence) around each."""

    codes: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    background: np.ndarray
    free: np.ndarray
    """probability that a base is not explained by a motif found before"""

    @classmethod
    def of(cls, sequences: Sequence[str]) -> "_Text":
        """Encode sequences; the composition gets one pseudo-count for each base."""
        gap = "-" * (2 * FLANK)
        joined = gap + "".join(sequence + gap for sequence in sequences)
        codes = encode_text(joined)
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        starts = np.cumsum(lengths + len(gap)) - lengths
        counts = np.bincount(codes, minlength=OTHER + 1)[:OTHER] + 1.0
        return cls(codes, starts, lengths, counts / counts.sum(), np.ones(len(codes)))

    def mask(self, regions: Regions) -> np.ndarray:
        """Mark the bases inside regions widened by FLANK."""
        mask = np.zeros(len(self.codes), dtype=bool)
        for start, length, intervals in zip(self.starts, self.lengths, regions, strict=True):
            for low, high in intervals:
                mask[start + max(0, low - FLANK) : start + min(length, high + FLANK)] = True
        return mask

    def candidates(self, mask: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return flat starts, and owners, of the windows of ``width`` marked bases A, C, G or T."""
        usable = np.concatenate([[0], np.cumsum(mask & (self.codes < OTHER))])
        positions = np.flatnonzero(usable[width:] - usable[:-width] == width)
        return positions, np.searchsorted(self.starts, positions, side="right") - 1

    def windows(self, positions: np.ndarray, width: int) -> np.ndarray:
        """Return the (n, width) codes that begin at flat positions."""
        return self.codes[positions[:, None] + np.arange(width)]

    def unexplained(self, positions: np.ndarray, width: int) -> np.ndarray:
        """Return the (n,) probability that windows overlap no motif found before."""
        return self.free[positions[:, None] + np.arange(width)].min(axis=1)

    def erase(self, motif: Motif, mask: np.ndarray) -> "_Text":
        """Take away the marked bases that ``motif`` explains."""
        width = len(motif.counts)
        positions, owners = self.candidates(mask, width)
        _, posterior = _maximise(motif.counts, self, positions, owners, self.unexplained(positions, width))
        explained = np.zeros(len(self.codes))
        np.add.at(explained, positions[:, None] + np.arange(width), posterior[:, None])
        return replace(self, free=self.free * (1 - np.minimum(explained, 1.0)))


def _count(windows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the (w, 4) weighted base counts of the columns of (n, w) windows."""
    width = windows.shape[1]
    cells = windows + (OTHER + 1) * np.arange(width)
    flat = np.bincount(cells.ravel(), np.repeat(weights, width), minlength=width * (OTHER + 1))
    return flat.reshape(width, OTHER + 1)[:, :OTHER]


def _first_counts(word: str, text: _Text, mask: np.ndarray) -> np.ndarray:
    """Count each sequence's best instance of ``word`` (at most one mismatch), FLANK columns around it."""
    positions, owners = text.candidates(mask, len(word))
    letters = np.array([LETTERS.index(letter) for letter in word])
    mismatches = (text.windows(positions, len(word)) != letters).sum(axis=1)
    near = np.flatnonzero(mismatches <= 1)
    near = near[np.lexsort((near, mismatches[near], owners[near]))]
    first = near[np.unique(owners[near], return_index=True)[1]]
    return _count(text.windows(positions[first] - FLANK, len(word) + 2 * FLANK), np.ones(len(first)))


def _refine(draft: Motif, text: _Text, mask: np.ndarray) -> Motif | None:
    """Refine the first matrix of a word, cut the ends, refine again; None if too little is left."""
    core = len(draft.word)
    positions, owners = text.candidates(mask, core)
    free = text.unexplained(positions, core)
    counts, _ = _maximise(draft.counts, text, positions - FLANK, owners, free)
    bits = _information(counts, text.background)
    low, high = _informative(bits, core)
    if high - low < MIN_WIDTH:
        return None
    low, high = _widened(bits, low, high)
    starts = positions - FLANK + low
    counts, posterior = _maximise(counts[low:high], text, starts, owners, free)
    if posterior.sum() < MIN_SITES:
        return None
    likely = posterior > 0.5
    own = owners[likely]
    sites = list(zip(own.tolist(), (starts[likely] - text.starts[own]).tolist(), strict=True))
    return replace(draft, counts=counts, sites=sites)


def _informative(bits: np.ndarray, core: int) -> tuple[int, int]:
    """Return the columns left when the outer ones that say too little are cut."""
    least = np.full(len(bits), FLANK_BITS)
    least[FLANK : FLANK + core] = END_BITS
    kept = np.flatnonzero(bits >= least)
    return (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, 0)


def _widened(bits: np.ndarray, low: int, high: int) -> tuple[int, int]:
    """Return the columns with, where they are few, the more informative ones beside them."""
    while high - low < NARROWEST:
        left = bits[low - 1] if low else -np.inf
        right = bits[high] if high < len(bits) else -np.inf
        low, high = (low - 1, high) if left > right else (low, high + 1)
    return low, high


def _maximise(
    counts: np.ndarray, text: _Text, starts: np.ndarray, owners: np.ndarray, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Run expectation maximisation (ZOOPS) from ``counts`` until no frequency moves by 1e-4.

    Args:
        counts: (w, 4) first counts.
        text: the sequences.
        starts: (n,) flat starts of the candidate windows.
        owners: (n,) their sequences.
        prior: (n,) factor on the odds of each window.

    Returns:
        (w, 4) expected counts, and the (n,) posterior of each window.
    """
    windows = text.windows(starts, len(counts))
    _, own, choices = np.unique(owners, return_inverse=True, return_counts=True)
    share = 0.5  # of the sequences with candidates that hold a site
    posterior = np.zeros(len(starts))
    for _ in range(ROUNDS):
        before = _frequencies(counts, text.background)
        log_odds = np.zeros((len(counts), OTHER + 1))
        log_odds[:, :OTHER] = np.log(before / text.background)
        odds = np.exp(log_odds[np.arange(len(counts)), windows].sum(axis=1)) * prior * share / choices[own]
        posterior = odds / (1 - share + np.bincount(own, odds))[own]
        counts = _count(windows, posterior)
        share = float(np.clip(posterior.sum() / max(1, len(choices)), 0.01, 0.99))
        if np.abs(_frequencies(counts, text.background) - before).max() < 1e-4:
            break
    return counts, posterior
