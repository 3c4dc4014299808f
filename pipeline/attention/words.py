"""Words that the attended regions of positive sequences hold more often than those of negative ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BASES = "ACGT"
OTHER = 4  # code of every other letter
MAX_GAP = 2  # bases under the threshold that a region may bridge
MAD_TO_SD = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
FLAT = 1e-6  # relative spread below which a sequence has no attended region

Regions = Sequence[Sequence[tuple[int, int]]]  # half-open intervals of every sequence, 0-based


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


def spell(code: int, word_length: int) -> str:
    """Return the word of a code: its letters in the order A, C, G, T as digits to base 4."""
    return "".join(BASES[code >> 2 * place & 3] for place in range(word_length - 1, -1, -1))


def word_code(word: str) -> int:
    """Return the code that `spell` spells as ``word``."""
    code = 0
    for letter in word:
        code = 4 * code + BASES.index(letter)
    return code


def encode_text(text: str) -> np.ndarray:
    """Return letters as 0 to 3 for A, C, G, T (either case) and 4 for any other, int8."""
    table = np.full(256, OTHER, np.int8)
    for code, letter in enumerate(BASES):
        table[[ord(letter), ord(letter.lower())]] = code
    return table[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]


def held_words(
    sequences: Sequence[str], regions: Regions, word_length: int, both: bool = False
) -> "csr_array":
    """Tell which words the regions of each sequence hold.

    Args:
        sequences: N sequences, either case; words with letters other than A, C, G and T are passed over.
        regions: for every sequence, its half-open intervals; a word lies wholly inside one of them.
        word_length: k, the bases in a word.
        both: read both strands: a word and its reverse complement are one, the first of the two in the
            alphabet.

    Returns:
        (N, 4**k) sparse, 1 where the regions of a sequence hold the word of that code (`spell`), else 0.
    """
    from scipy.sparse import csr_array

    rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for row, (sequence, intervals) in enumerate(zip(sequences, regions, strict=True)):
        code_W = _word_codes(encode_text(sequence), word_length, both)
        inside = [code_W[start : max(start, stop - word_length + 1)] for start, stop in intervals]
        found_W = np.unique(np.concatenate(inside)) if inside else np.zeros(0, np.int64)
        found_W = found_W[found_W >= 0]
        columns.append(found_W)
        rows.append(np.full(len(found_W), row))
    row_M, column_M = np.concatenate(rows), np.concatenate(columns)
    shape = len(sequences), 4**word_length
    return csr_array((np.ones(len(row_M), np.int64), (row_M, column_M)), shape=shape)


def _word_codes(letter_L: np.ndarray, word_length: int, both: bool) -> np.ndarray:
    """Return the code of the word that begins at each letter (W,), -1 where it holds another letter."""
    if len(letter_L) < word_length:
        return np.zeros(0, np.int64)
    windows_WK = np.lib.stride_tricks.sliding_window_view(letter_L, word_length)
    power_K = 4 ** np.arange(word_length - 1, -1, -1)
    code_W = windows_WK @ power_K
    if both:
        code_W = np.minimum(code_W, (3 - windows_WK[:, ::-1]) @ power_K)
    return np.where((windows_WK == OTHER).any(1), -1, code_W)


def enriched(
    held: "csr_array", positive_N: np.ndarray, word_length: int, words: Sequence[str] | None = None
) -> list[Word]:
    """Test words for occurring in the regions of more positive sequences than by chance.

    One-sided Fisher exact test: among all sequences that hold the word, how many are positive, against
    the hypergeometric distribution (Fisher 1922, doi:10.2307/2340521). Sequences, not occurrences, are
    counted, since occurrences in one sequence are not independent. The distribution is discrete, so that
    under the null hypothesis a p-value below x comes about with a chance of x at most.

    Args:
        held: (N, 4**k) which words the regions of each sequence hold (`held_words`).
        positive_N: bool, which sequences are positive.
        word_length: k.
        words: those that are tested (default: all that some sequence holds).

    Returns:
        One record for every word, the smallest p-value first (then the larger foreground count, then the
        alphabet); words that no sequence holds have a p-value of 1.
    """
    positive_W = np.asarray(positive_N.astype(np.int64) @ held)
    other_W = np.asarray((~positive_N).astype(np.int64) @ held)
    if words is None:
        code_W = np.flatnonzero(positive_W + other_W)
    else:
        code_W = np.array([word_code(word) for word in words], np.int64)
    table = np.stack([positive_W[code_W], other_W[code_W]], 1)
    n_positive, n_other = int(positive_N.sum()), int((~positive_N).sum())
    p_W = _enrichment(table, n_positive, n_other)
    order_W = np.lexsort((code_W, -table[:, 0], p_W))
    chosen = zip(code_W[order_W].tolist(), table[order_W].tolist(), p_W[order_W].tolist(), strict=True)
    return [Word(spell(code, word_length), a, b, n_positive, n_other, p) for code, (a, b), p in chosen]


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
