"""Byte pairs as arrays: pieces of DNA of many lengths, learnt from a corpus.

(Sennrich et al. 2016, arXiv:1508.07909.)
Which pieces a window is cut into depends on all of it, so token folders hold single letters and the cutting
is done window by window. Pieces do not overlap, so hiding a token hides its letters; but the number of masks
in a row tells something of how many letters are hidden, and no run of fixed length can be hidden alone.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.config import Alphabet
from pipeline.tokens.kmers import Codec, Tokens, ranges


@dataclass(frozen=True)
class BytePairCodec(Codec):
    """Letters <-> codes <-> token ids of a byte-pair tokenizer folder."""

    folder: Path

    alphabet: Alphabet = "dna"
    overlapping: bool = False

    @cached_property
    def _tokenizer(self):
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""
        return dict(sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1]))

    @cached_property
    def k(self) -> int:
        """Letters that a token carries on random DNA, about: those of a k-mer vocabulary of the same size."""
        return max(1, round(math.log(sum(self.spans > 1), 4)))

    @cached_property
    def spans(self) -> np.ndarray:
        """(V,) letters in each token; 1 for special tokens."""
        return np.array([1 if token.startswith("<") else len(token) for token in self.vocabulary])

    @property
    def dtype(self) -> type:
        """Type of the track, which holds single letters."""
        return np.uint8

    @cached_property
    def letter_at(self) -> np.ndarray:
        """(longest, V) code of the letter that token v has at offset o, or 255."""
        table = np.full((int(self.spans.max()), len(self.vocabulary)), 255, np.uint8)
        for token, i in self.vocabulary.items():
            if not token.startswith("<"):
                table[: len(token), i] = [self.letters.index(letter) for letter in token]
        return table

    @cached_property
    def _of_length(self) -> list[np.ndarray]:
        """The tokens of each length that consist of real letters."""
        real = (self.letter_at[0] < self.n_real) | (self.spans > 1)
        return [np.flatnonzero(real & (self.spans == n)) for n in range(int(self.spans.max()) + 1)]

    def reencode(self, codes_L: np.ndarray, starts: np.ndarray, spans: np.ndarray) -> np.ndarray:
        """Return a token of each span that the letters choose: most stretches of letters are no token."""
        place = np.repeat(starts, spans) + ranges(spans)
        number = np.zeros(len(starts), np.int64)
        power = 2 * np.minimum(ranges(spans), 30)
        np.add.at(number, np.repeat(np.arange(len(starts)), spans), codes_L[place].astype(np.int64) << power)
        choices = [self._of_length[span] for span in spans]
        return np.array([ids[n % len(ids)] for ids, n in zip(choices, number, strict=True)], np.int64)

    def _tokenize(self, codes_L: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> Tokens:
        texts = [self.text(codes_L[begin : begin + size]) for begin, size in zip(begins, sizes, strict=True)]
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        front, back = ([self.special("cls")], [self.special("eos")]) if begins[0] else ([], [])
        ids = np.concatenate([np.array([*front, *encoding.ids, *back], np.int64) for encoding in encoded])
        spans = self.spans[ids]
        return Tokens(ids, np.cumsum(spans) - spans, spans)
