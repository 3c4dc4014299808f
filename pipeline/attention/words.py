"""Words that the attended regions of positive sequences hold more often than those of negative ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

BASES = frozenset("ACGT")
MAX_GAP = 2  # bases under the threshold that a region may bridge
MAD_TO_SD = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
FLAT = 1e-6  # relative spread below which a sequence has no attended region


@dataclass(frozen=True)
class Word:
    """A word of the attended regions: in how many sequences it occurs, and how unlikely that is by chance."""

    word: str
    foreground_count: int
    background_count: int
    n_foreground: int
    n_background: int
    p_value: float


def high_regions(scores: np.ndarray, min_length: int) -> list[tuple[int, int]]:
    """Find the regions of one sequence that attention singles out.

    A base is high if its score is above the mean and above median + 1.4826 x MAD (one standard deviation,
    estimated robustly) of the sequence's seen bases. High bases at most 2 seen bases apart form one run.
    Runs shorter than half of ``min_length`` are dropped; the others grow, base by base towards the higher
    neighbour (the left one in a tie), to ``min_length``. Regions that then touch are merged. A sequence
    whose scores are equal (spread below 1e-6 of the largest) has no region.

    Args:
        scores: (L,) attention of each base; NaN is a base that the model did not see, never in a region.
        min_length: shortest region, in bases.

    Returns:
        Half-open intervals of 0-based positions, ascending; empty where nothing stands out.
    """
    seen = np.isfinite(scores)
    values = scores[seen]
    if len(values) < min_length or np.ptp(values) <= FLAT * np.abs(values).max():
        return []
    median = np.median(values)
    threshold = max(values.mean(), median + MAD_TO_SD * np.median(np.abs(values - median)))
    high = np.zeros(len(scores), dtype=bool)
    high[seen] = values > threshold
    runs = _join(_runs(high), seen, MAX_GAP)
    grown = (_grow(run, scores, seen, min_length) for run in runs if 2 * (run[1] - run[0]) >= min_length)
    return _join([run for run in grown if run[1] - run[0] >= min_length], seen, 0)


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _join(runs: list[tuple[int, int]], seen: np.ndarray, max_gap: int) -> list[tuple[int, int]]:
    """Merge ascending runs that overlap or lie at most ``max_gap`` seen bases apart."""
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        last = joined[-1] if joined else None
        if last and start - last[1] <= max_gap and seen[last[1] : start].all():
            joined[-1] = (last[0], max(stop, last[1]))
        else:
            joined.append((start, stop))
    return joined


def _grow(run: tuple[int, int], scores: np.ndarray, seen: np.ndarray, length: int) -> tuple[int, int]:
    """Widen a run to ``length`` bases, or as far as the seen bases around it reach."""
    start, stop = run
    while stop - start < length:
        left = scores[start - 1] if start > 0 and seen[start - 1] else -np.inf
        right = scores[stop] if stop < len(scores) and seen[stop] else -np.inf
        if max(left, right) == -np.inf:
            break
        start, stop = (start - 1, stop) if left >= right else (start, stop + 1)
    return start, stop


def count_words(regions: Iterable[Sequence[str]], word_length: int) -> Counter[str]:
    """Count in how many sequences each word occurs, once per sequence.

    Args:
        regions: for every sequence, the text of its regions (either case).
        word_length: bases in a word; words with letters other than A, C, G and T are passed over.

    Returns:
        Number of sequences by word, in upper case.
    """
    counts: Counter[str] = Counter()
    for texts in regions:
        upper = [text.upper() for text in texts]
        words = {text[i : i + word_length] for text in upper for i in range(len(text) - word_length + 1)}
        counts.update(word for word in words if BASES.issuperset(word))
    return counts


def enriched(
    foreground: Sequence[Sequence[str]], background: Sequence[Sequence[str]], word_length: int
) -> list[Word]:
    """Test every word for occurring in the regions of more foreground sequences than by chance.

    One-sided Fisher exact test: among all sequences that hold the word, how many are foreground, against
    the hypergeometric distribution (Fisher 1922, doi:10.2307/2340521). Sequences, not occurrences, are
    counted, so a repeat inside one sequence is one piece of evidence. Words that never occur are not tested.

    Args:
        foreground: for every positive sequence, the text of its regions (possibly none).
        background: the same for the negative sequences.
        word_length: bases in a word.

    Returns:
        Every word that occurs, smallest p-value first (then the more frequent, then by alphabet).
    """
    positives, negatives = count_words(foreground, word_length), count_words(background, word_length)
    words = sorted(positives.keys() | negatives.keys())
    table = np.array([(positives[word], negatives[word]) for word in words], dtype=int).reshape(-1, 2)
    p_values = _enrichment(table, len(foreground), len(background))
    records = [
        Word(word, int(n_pos), int(n_neg), len(foreground), len(background), float(p))
        for word, (n_pos, n_neg), p in zip(words, table, p_values, strict=True)
    ]
    return sorted(records, key=lambda w: (w.p_value, -w.foreground_count, w.word))


def _enrichment(table: np.ndarray, n_foreground: int, n_background: int) -> np.ndarray:
    """Return P(at least this many foreground sequences) for rows (foreground count, background count)."""
    from scipy.stats import hypergeom

    if not len(table):
        return np.zeros(0)
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    p_values = hypergeom.sf(rows[:, 0] - 1, n_foreground + n_background, n_foreground, rows.sum(axis=1))
    return np.clip(p_values, 0.0, 1.0)[inverse.reshape(-1)]


def false_discovery(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Turn p-values into q-values: the false discovery rate at which each is just accepted.

    Step-up procedure of Benjamini and Hochberg (1995, doi:10.1111/j.2517-6161.1995.tb02031.x). Pass the
    p-values of all tests that were made (all heads and all words) at once.

    Args:
        p_values: (n,) values in [0, 1].

    Returns:
        (n,) q-values in the order given; empty for no tests.
    """
    from scipy.stats import false_discovery_control

    p = np.asarray(p_values, dtype=float)
    return false_discovery_control(p, method="bh") if p.size else p
