"""The two-sided count model: what the letters next to a hidden run say about it, by counting.

For the j-th letter of a run it looks up how often each letter stood there between the same ``order`` letters
left of the run and the same ``order`` right of it, and mixes the orders from 0 upwards, each the prior of the
next (a Dirichlet prior, MacKay and Peto 1995, doi:10.1017/S1351324900000218).
"""

import numpy as np

from pipeline.tokens.bits import HiddenText
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import TokenSplit

LARGEST_TABLE = 5_000_000
HIDDEN = 255
STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0)


def _context(
    codes: np.ndarray, starts: np.ndarray, stops: np.ndarray, order: int, letters: int
) -> np.ndarray:
    """Return the number of the context of each run, or -1 where it holds other letters or leaves the text."""
    number = np.zeros(len(starts), np.int64)
    fits = (starts >= order) & (stops + order <= len(codes))
    for shift in range(order):
        for places in (starts - 1 - shift, stops + shift):
            letter = codes[np.clip(places, 0, len(codes) - 1)]
            fits &= letter < letters
            number = number * letters + letter
    return np.where(fits, number, -1)


class CountModel:
    """Counts of letters inside runs of ``run`` letters, by the letters on both sides."""

    def __init__(self, codec: KmerCodec, run: int):
        self.letters, self.run = codec.n_real, run
        self.tables: list[np.ndarray] = []
        while run * self.letters ** (2 * len(self.tables) + 1) <= LARGEST_TABLE:
            contexts = self.letters ** (2 * len(self.tables))
            self.tables.append(np.zeros((run, contexts, self.letters), np.int64))
        self.strength = STRENGTHS[0]

    def fit(self, split: TokenSplit, codec: KmerCodec) -> "CountModel":
        """Count every place of every record of the training split."""
        for record, length in enumerate(split.lengths):
            codes = codec.codes_of_track(split.slice(record, 0, int(length)))
            if length < self.run:
                continue
            starts = np.arange(len(codes) - self.run + 1)
            for order, table in enumerate(self.tables):
                context = _context(codes, starts, starts + self.run, order, self.letters)
                for j in range(self.run):
                    letter = codes[starts + j]
                    use = (context >= 0) & (letter < self.letters)
                    flat = context[use] * self.letters + letter[use]
                    table[j] += np.bincount(flat, minlength=table[j].size).reshape(table[j].shape)
        return self

    def bits(self, text: HiddenText) -> np.ndarray:
        """Return (N,) bits of every hidden letter, in the order of ``text.truth``."""
        return np.concatenate([self._window(w, h) for w, h in zip(text.windows, text.hidden, strict=True)])

    def tune(self, text: HiddenText) -> "CountModel":
        """Choose the strength of the priors on validation text."""

        def cost(strength: float) -> float:
            self.strength = strength
            return float(self.bits(text).mean())

        self.strength = min(STRENGTHS, key=cost)
        return self

    def _window(self, codes: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        places = np.flatnonzero(hidden)
        starts = places // self.run * self.run
        inside = places - starts
        stops = np.minimum(starts + self.run, len(codes))
        shown = np.where(hidden, HIDDEN, codes)
        probability = np.full((len(places), self.letters), 1 / self.letters)
        for order, table in enumerate(self.tables):
            context = _context(shown, starts, stops, order, self.letters)
            counts = table[inside, np.maximum(context, 0)] * (context >= 0)[:, None]
            total = counts.sum(1, keepdims=True) + self.strength
            probability = (counts + self.strength * probability) / total
        return -np.log2(probability[np.arange(len(places)), codes[places]])


def composition_bits(split: TokenSplit, codec: KmerCodec, text: HiddenText) -> np.ndarray:
    """Return (N,) bits of every hidden letter under the training split's letter frequencies."""
    letters = codec.codes_of_track(split.track)
    counts = np.bincount(letters, minlength=len(codec.letters))[: codec.n_real] + 1
    return -np.log2(counts / counts.sum())[text.truth]
