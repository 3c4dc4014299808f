"""K-mer codes as arrays: the fast equal of the Hugging Face tokenizer of the same folder.

Letters are small integers: first those a k-mer or a mask may consist of (A, C, G, T, or 20 residues), then
the others (N; or B, J, O, U, X, Z and gaps). The *track* of a sequence has one token for every letter: the
k-mer that begins there, or the single letter where that k-mer is not wholly of real letters or runs over the
end. So the first letters of a track are the sequence: nothing is lost.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.config import Alphabet
from pipeline.errors import UserError
from pipeline.tokens.vocabulary import DNA_LETTERS, PROTEIN_TOKENS, RESIDUES, kmer_vocabulary

PROTEIN_LETTERS = RESIDUES + "XBUZO.-"


@dataclass(frozen=True)
class Tokens:
    """A window as tokens: ``ids`` (T,), and the letters [start, start + span) that each covers."""

    ids: np.ndarray
    starts: np.ndarray
    spans: np.ndarray


@dataclass(frozen=True)
class KmerCodec:
    """Letters <-> codes <-> token ids of one tokenizer."""

    alphabet: Alphabet
    k: int
    overlapping: bool

    @classmethod
    def of(cls, folder: Path) -> "KmerCodec":
        """Return the codec of a tokenizer folder or checkpoint.

        Raises:
            UserError: the folder is not one of our tokenizers.
        """
        path = folder / "tokenizer_config.json"
        if not path.is_file():
            raise UserError(f"{path}: no such file, so {folder} holds no tokenizer")
        config = json.loads(path.read_text())
        try:
            return cls(config["alphabet"], config["k"], config["overlapping"])
        except KeyError as missing:
            raise UserError(
                f"{path}: no key {missing}; make tokenizers with strandlm build-tokenizer"
            ) from None

    @cached_property
    def letters(self) -> str:
        """All letters, the real ones first."""
        return DNA_LETTERS if self.alphabet == "dna" else PROTEIN_LETTERS

    @property
    def n_real(self) -> int:
        """Number of letters that can be hidden and predicted: 4 or 20."""
        return 4 if self.alphabet == "dna" else len(RESIDUES)

    @property
    def stride(self) -> int:
        """Letters from one token to the next inside clean sequence."""
        return 1 if self.overlapping else self.k

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""
        if self.alphabet == "dna":
            return kmer_vocabulary(self.k)
        return {token: i for i, token in enumerate(PROTEIN_TOKENS)}

    @cached_property
    def single_ids(self) -> np.ndarray:
        """(letters,) id of each single letter."""
        return np.array([self.vocabulary[letter] for letter in self.letters], dtype=self.dtype)

    @cached_property
    def first_kmer(self) -> int:
        """Id of the first k-mer (AAA...); the others follow in alphabetical order."""
        return self.vocabulary["A" * self.k]

    @property
    def dtype(self) -> type:
        """Smallest unsigned type that holds every id."""
        return (
            np.uint8
            if len(self.vocabulary) <= 256
            else np.uint16
            if len(self.vocabulary) <= 65_536
            else np.uint32
        )

    def special(self, name: str) -> int:
        """Return the id of pad, cls, eos or mask."""
        return self.vocabulary[f"<{name}>"]

    @cached_property
    def _code_of_byte(self) -> np.ndarray:
        table = np.full(256, 255, np.uint8)
        for code, letter in enumerate(self.letters):
            table[ord(letter)] = code
        return table

    @cached_property
    def _first_letter(self) -> np.ndarray:
        table = np.full(len(self.vocabulary), 255, np.uint8)
        for token, i in self.vocabulary.items():
            if not token.startswith("<"):
                table[i] = self.letters.index(token[0])
        return table

    def codes(self, sequence: str | bytes) -> np.ndarray:
        """Return the letter codes (L,) of a cleaned sequence.

        Raises:
            UserError: a letter is not in the alphabet.
        """
        text = sequence.encode("ascii", "replace") if isinstance(sequence, str) else sequence
        codes = self._code_of_byte[np.frombuffer(text, np.uint8)]
        if (codes == 255).any():
            at = int(np.argmax(codes == 255))
            raise UserError(f"letter {chr(text[at])!r} at position {at + 1} is no {self.alphabet} letter")
        return codes

    def track(self, codes_L: np.ndarray) -> np.ndarray:
        """Return the track (L,): for every letter the id of the k-mer that begins there, or of the letter."""
        ids_L = self.single_ids[codes_L]
        whole = len(codes_L) - self.k + 1
        if self.k > 1 and whole > 0:
            rolling = np.zeros(whole, np.uint32)
            for i in range(self.k):
                rolling = rolling * 4 + codes_L[i : i + whole]
            other = np.concatenate(([0], np.cumsum(codes_L >= 4)))
            clean = other[self.k :] == other[:whole]
            ids_L[:whole] = np.where(clean, rolling + self.first_kmer, ids_L[:whole])
        return ids_L

    def codes_of_track(self, track_L: np.ndarray) -> np.ndarray:
        """Return the letter codes (L,) of a track: the inverse of ``track``."""
        return self._first_letter[track_L]

    def tokens(self, codes_L: np.ndarray) -> Tokens:
        """Return the tokens of a window as the Hugging Face tokenizer gives them, without specials."""
        track_L = self.track(codes_L)
        L, k = len(codes_L), self.k
        places = np.arange(L)
        spans = np.where(track_L >= self.first_kmer, k, 1) if k > 1 else np.ones(L, int)
        if self.overlapping and k <= L and spans[L - k] == k:
            places = places[: L - k + 1]
        elif not self.overlapping and k > 1:
            places = places[self._in_frame(codes_L)]
        return Tokens(track_L[places], places, spans[places])

    def _in_frame(self, codes_L: np.ndarray) -> np.ndarray:
        """Tell where non-overlapping tokens begin: every k real letters, and at each letter left over."""
        begins = np.ones(len(codes_L), bool)
        real = np.concatenate(([False], codes_L < 4, [False])).astype(np.int8)
        for start, stop in np.flatnonzero(np.diff(real)).reshape(-1, 2):
            offset = np.arange(stop - start)
            begins[start:stop] = (offset % self.k == 0) | (offset >= len(offset) // self.k * self.k)
        return begins

    @cached_property
    def letter_at(self) -> np.ndarray:
        """(k, V) code of the letter that token v has at offset o, or 255."""
        table = np.full((self.k, len(self.vocabulary)), 255, np.uint8)
        table[0] = self._first_letter
        if self.k > 1:
            kmers = np.arange(4**self.k)
            for offset in range(self.k):
                table[offset, self.first_kmer :] = kmers // 4 ** (self.k - 1 - offset) % 4
        return table
