"""Count models: what the letters next to a hidden run say about it, by counting.

For the j-th letter of a run the two-sided model looks up how often each letter stood there between the same
``order`` letters left of the run and the same ``order`` right of it, the one-sided model after the same
letters left of it (a Markov chain that reads over the run). Both mix the orders from 0 upwards, each the
prior of the next (a Dirichlet prior, MacKay and Peto 1995, doi:10.1017/S1351324900000218).
"""

from collections.abc import Iterable, Iterator

import numpy as np

from pipeline.tokens.bits import HiddenText
from pipeline.tokens.kmers import Codec
from pipeline.tokens.store import TokenSplit

LARGEST_TABLE = 5_000_000
HIDDEN, EDGE = 254, 255
STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
_BLOCK = 1 << 20  # places counted at once


def _join(texts: Iterable[np.ndarray], margin: int) -> np.ndarray:
    """Return texts of letter codes end to end, with ``margin`` EDGE codes before, between and behind them."""
    edge = np.full(margin, EDGE, np.uint8)
    pieces = [edge]
    for text in texts:
        pieces += [text, edge]
    return np.concatenate(pieces)


class CountModel:
    """Counts of letters inside runs of ``run`` letters, by the letters on both sides or on the left alone.

    Args:
        codec: a tokenizer's codec, for the letters.
        run: letters in a hidden run.
        two_sided: whether the letters right of a run are read, too.
    """

    def __init__(self, codec: Codec, run: int, two_sided: bool = True):
        self.letters, self.run, self.two_sided = codec.n_real, run, two_sided
        self.tables: list[np.ndarray] = []
        while run * self.letters * self._contexts(len(self.tables)) <= LARGEST_TABLE:
            contexts = self._contexts(len(self.tables))
            self.tables.append(np.zeros((run, contexts, self.letters), np.int64))
        self.strength = STRENGTHS[0]

    def _contexts(self, order: int) -> int:
        return self.letters ** (order * (1 + self.two_sided))

    @property
    def _margin(self) -> int:
        return max(len(self.tables), self.run)

    def _numbers(self, codes: np.ndarray, starts: np.ndarray) -> Iterator[np.ndarray]:
        """Yield for each order the number of every run's context, negative where not all of it is seen.

        What is negative stays so: -1 times the number of letters plus a letter is below 0.
        """
        number = np.zeros(len(starts), np.int64)
        yield number
        for shift in range(len(self.tables) - 1):
            sides = (starts - 1 - shift, starts + self.run + shift)
            for places in sides[: 1 + self.two_sided]:
                letter = codes[places]
                number = np.where(letter < self.letters, number * self.letters + letter, -1)
            yield number

    def fit(self, split: TokenSplit, codec: Codec) -> "CountModel":
        """Count every place of every record of the training split."""
        rows = (codec.codes_of_track(split.row(record)) for record in range(len(split)))
        codes = _join(rows, self._margin)
        for begin in range(self._margin, len(codes) - self._margin, _BLOCK):
            starts = np.arange(begin, min(begin + _BLOCK, len(codes) - self._margin))
            edges = sum((codes[starts + j] == EDGE).astype(np.uint8) for j in range(self.run))
            self._count(codes, starts[edges == 0])
        return self

    def _count(self, codes: np.ndarray, starts: np.ndarray) -> None:
        for table, context in zip(self.tables, self._numbers(codes, starts), strict=True):
            for j in range(self.run):
                letter = codes[starts + j]
                size = table[j].size
                counted = (context >= 0) & (letter < self.letters)
                flat = np.where(counted, context * self.letters + letter, size)
                table[j] += np.bincount(flat, minlength=size + 1)[:size].reshape(table[j].shape)

    def bits_by_order(self, text: HiddenText) -> np.ndarray:
        """Return (orders, N) bits of every hidden letter, in the order of ``text.truth``, for orders 0, 1...

        Each mixes all orders up to it. Letters of other hidden runs are hidden from it, too.
        """
        assert text.run == self.run
        shown = [w.copy() for w in text.windows]
        for codes, places in zip(shown, text.places, strict=True):
            codes[places] = HIDDEN
        sizes = np.array([len(w) + self._margin for w in shown])
        begins = np.cumsum(sizes) - sizes + self._margin
        starts = np.concatenate([s + begin for s, begin in zip(text.starts, begins, strict=True)])
        probability_RJA = np.full((len(starts), self.run, self.letters), 1 / self.letters)
        truth_RJ = text.truth.reshape(-1, self.run).astype(np.int64)
        bits = []
        codes = _join(shown, self._margin)
        for table, context in zip(self.tables, self._numbers(codes, starts), strict=True):
            counts_RJA = table[:, np.maximum(context, 0)].swapaxes(0, 1) * (context >= 0)[:, None, None]
            total = counts_RJA.sum(-1, keepdims=True) + self.strength
            probability_RJA = (counts_RJA + self.strength * probability_RJA) / total
            bits.append(-np.log2(np.take_along_axis(probability_RJA, truth_RJ[..., None], -1).ravel()))
        return np.stack(bits)

    def bits(self, text: HiddenText) -> np.ndarray:
        """Return (N,) bits of every hidden letter, in the order of ``text.truth``, of all orders mixed."""
        return self.bits_by_order(text)[-1]

    def tune(self, text: HiddenText) -> "CountModel":
        """Choose the strength of the priors on validation text, in which letters are hidden."""
        assert len(text.truth)

        def cost(strength: float) -> float:
            self.strength = strength
            return float(self.bits(text).mean())

        self.strength = min(STRENGTHS, key=cost)
        return self


def composition_bits(split: TokenSplit, codec: Codec, text: HiddenText) -> np.ndarray:
    """Return (N,) bits of every hidden letter under the training split's letter frequencies."""
    counts = np.ones(codec.n_real)
    for record, length in enumerate(split.lengths):
        for begin in range(0, int(length), _BLOCK):
            letters = codec.codes_of_track(split.slice(record, begin, min(_BLOCK, int(length) - begin)))
            counts += np.bincount(letters, minlength=codec.n_real)[: codec.n_real]
    return -np.log2(counts / counts.sum())[text.truth]
