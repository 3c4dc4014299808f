"""Letters, codes and tokens as arrays: the fast equal of the Hugging Face tokenizer of the same folder.

Letters are small integers: first those a k-mer or a mask may consist of (A, C, G, T, or 20 residues), then
the others (N; or B, J, O, U, X, Z and gaps). The *track* of a sequence has one token for every letter: the
k-mer that begins there, or the single letter where that k-mer is not wholly of real letters or runs over the
end. So the first letters of a track are the sequence: nothing is lost.

Shapes: L letters, T tokens, B windows, S segments, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.artifacts import read_keys
from pipeline.config import Alphabet
from pipeline.errors import UserError
from pipeline.tokens.vocabulary import DNA_LETTERS, PROTEIN_TOKENS, RESIDUES, kmer_vocabulary

PROTEIN_LETTERS = RESIDUES + "XBUZO.-"
CLS, EOS = 253, 254  # letter codes of special tokens between the windows of a batch
_STRANGE = 255
_BLOCK = 1 << 16  # letters whose k-mers are computed at once, so that they stay in the cache


@dataclass(frozen=True)
class Tokens:
    """Text as tokens: ``ids`` (T,), and the letters [start, start + span) that each covers."""

    ids: np.ndarray
    starts: np.ndarray
    spans: np.ndarray


@dataclass(frozen=True)
class TokenBatch(Tokens):
    """Windows end to end, each between its special tokens.

    ``codes`` (L,) are the letter codes, CLS and EOS among them; ``begins`` (B,) and ``sizes`` (B,) say which
    of them are the letters of a window, ``offsets`` (B + 1,) which tokens are its own, specials included.
    """

    codes: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray


class Codec:
    """What the codecs of all tokenizers have in common."""

    alphabet: Alphabet
    k: int
    overlapping: bool
    vocabulary: dict[str, int]
    letter_at: np.ndarray

    @cached_property
    def letters(self) -> str:
        """All letters, the real ones first."""
        return DNA_LETTERS if self.alphabet == "dna" else PROTEIN_LETTERS

    @property
    def n_real(self) -> int:
        """Number of letters that can be hidden and predicted: 4 or 20."""
        return 4 if self.alphabet == "dna" else len(RESIDUES)

    @cached_property
    def dtype(self) -> type:
        """Smallest unsigned type that holds every id."""
        return next(
            t for t in (np.uint8, np.uint16, np.uint32) if len(self.vocabulary) <= np.iinfo(t).max + 1
        )

    def special(self, name: str) -> int:
        """Return the id of pad, cls, eos or mask."""
        return self.vocabulary[f"<{name}>"]

    @cached_property
    def single_ids(self) -> np.ndarray:
        """(256,) id of each letter code as a token of its own, CLS and EOS included."""
        table = np.zeros(256, self.dtype)
        table[: len(self.letters)] = [self.vocabulary[letter] for letter in self.letters]
        table[[CLS, EOS]] = self.special("cls"), self.special("eos")
        return table

    @cached_property
    def _code_of_byte(self) -> bytes:
        table = bytearray([_STRANGE] * 256)
        for code, letter in enumerate(self.letters):
            table[ord(letter)] = code
        return bytes(table)

    @cached_property
    def _first_letter(self) -> np.ndarray:
        table = np.full(len(self.vocabulary), _STRANGE, np.uint8)
        for token, i in self.vocabulary.items():
            if not token.startswith("<"):
                table[i] = self.letters.index(token[0])
        return table

    @cached_property
    def _letters_as_bytes(self) -> bytes:
        return self.letters.encode().ljust(256, b"?")

    def codes(self, sequence: str | bytes) -> np.ndarray:
        """Return the letter codes (L,), uint8, of a cleaned sequence.

        Raises:
            UserError: a letter is not in the alphabet.
        """
        text = sequence.encode("ascii", "replace") if isinstance(sequence, str) else sequence
        codes_L = np.frombuffer(text.translate(self._code_of_byte), np.uint8)
        if codes_L.max(initial=0) == _STRANGE:
            at = int(np.argmax(codes_L == _STRANGE))
            raise UserError(f"letter {chr(text[at])!r} at position {at + 1} is no {self.alphabet} letter")
        return codes_L

    def text(self, codes_L: np.ndarray) -> str:
        """Return the letters that codes stand for."""
        return codes_L.astype(np.uint8).tobytes().translate(self._letters_as_bytes).decode()

    def track(self, codes_L: np.ndarray) -> np.ndarray:
        """Return the track (L,): for every letter the token that begins there, whatever the frame."""
        if self.single_ids.dtype == np.uint8:
            return np.frombuffer(codes_L.tobytes().translate(self.single_ids.tobytes()), np.uint8)
        return self.single_ids[codes_L]

    def codes_of_track(self, track_L: np.ndarray) -> np.ndarray:
        """Return the letter codes (L,) of a track: the inverse of ``track``."""
        return self._first_letter[track_L]

    def tokens(self, codes_L: np.ndarray) -> Tokens:
        """Return the tokens of a window as the Hugging Face tokenizer gives them, without specials."""
        return self._tokenize(codes_L, np.array([0]), np.array([len(codes_L)]))

    def batch(self, windows: Sequence[np.ndarray]) -> TokenBatch:
        """Return the tokens of windows of letter codes, end to end, each between its special tokens."""
        sizes = np.array([len(window) for window in windows])
        edge = np.array([EOS, CLS], np.uint8)
        pieces = [piece for window in windows for piece in (edge, window)]
        codes_L = np.concatenate((*pieces, edge))[1:-1]
        begins = np.cumsum(sizes + 2) - sizes - 1
        tokens = self._tokenize(codes_L, begins, sizes)
        offsets = np.concatenate(([0], np.searchsorted(tokens.starts, begins + sizes) + 1))
        return TokenBatch(tokens.ids, tokens.starts, tokens.spans, codes_L, begins, sizes, offsets)

    def most_tokens(self, letters: int) -> int:
        """Return how many tokens a window of so many real letters has at most."""
        return letters

    def reencode(self, codes_L: np.ndarray, starts: np.ndarray, spans: np.ndarray) -> np.ndarray:
        """Return the ids of the tokens that cover real letters [start, start + span) of ``codes_L``."""
        raise NotImplementedError

    def _tokenize(self, codes_L: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> Tokens:
        raise NotImplementedError


@dataclass(frozen=True)
class KmerCodec(Codec):
    """Letters <-> codes <-> token ids of a tokenizer of k-mers, codons or single letters.

    Overlapping k-mers begin at every letter; others follow one another from the first real letter after each
    letter that is not real, and codons from the first letter on, whatever it is.
    """

    alphabet: Alphabet
    k: int
    overlapping: bool
    codons: bool = False

    @classmethod
    def of(cls, folder: Path) -> "KmerCodec":
        """Return the codec of a tokenizer folder or checkpoint, unless it is one of byte pairs.

        Raises:
            UserError: the folder is not one of our tokenizers.
        """
        facts = read_facts(folder)
        return cls(facts["alphabet"], facts["k"], facts["overlapping"], facts["units"] == "codons")

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
    def first_kmer(self) -> int:
        """Id of the first k-mer (AAA...); the others follow in alphabetical order."""
        return self.vocabulary["A" * self.k]

    def track(self, codes_L: np.ndarray) -> np.ndarray:
        """Return the track (L,): for every letter the id of the k-mer that begins there, or of the letter."""
        if self.k == 1:
            return super().track(codes_L)
        ids_L = np.empty(len(codes_L), self.dtype)
        for begin in range(0, len(codes_L), _BLOCK):
            block = codes_L[begin : begin + _BLOCK + self.k - 1]
            ids_L[begin : begin + _BLOCK] = self._track_block(block)[:_BLOCK]
        return ids_L

    def _track_block(self, codes_L: np.ndarray) -> np.ndarray:
        whole = len(codes_L) - self.k + 1
        other = np.flatnonzero(codes_L > 3)
        if whole < 1:
            return self.single_ids[codes_L]
        ids_L = np.empty(len(codes_L), self.dtype)
        np.add(self._rolling(codes_L), self.first_kmer, out=ids_L[:whole], dtype=self.dtype)
        ids_L[whole:] = self.single_ids[codes_L[whole:]]
        for shift in range(self.k if len(other) else 0):  # every k-mer that one of these is part of
            places = other[np.searchsorted(other, shift) :] - shift
            ids_L[places] = self.single_ids[codes_L[places]]
        return ids_L

    def _rolling(self, codes_L: np.ndarray) -> np.ndarray:
        """Return the number of the k-mer at every letter but the last k - 1, by doubling its length."""
        kind = np.uint8 if self.k <= 4 else np.uint16 if self.k <= 8 else np.uint32
        power, length = codes_L.astype(kind), 1
        number, done = np.zeros(1, kind), 0
        while True:
            if self.k & length:
                tail = len(codes_L) - self.k + 1
                part = power[self.k - done - length :][:tail]
                number = number | (part << kind(2 * done))
                done += length
            if done == self.k:
                return number
            power = (power[:-length] << kind(2 * length)) | power[length:]
            length *= 2

    def most_tokens(self, letters: int) -> int:
        """Return how many tokens a window of so many real letters has at most."""
        return letters if self.stride == 1 else letters // self.k + letters % self.k

    def reencode(self, codes_L: np.ndarray, starts: np.ndarray, spans: np.ndarray) -> np.ndarray:
        """Return the ids of the tokens that cover real letters [start, start + span) of ``codes_L``."""
        if len(starts) * self.k > len(codes_L) // 2:  # most of the text: faster all at once
            ids = self.track(codes_L)[starts].astype(np.int64)
            singles = np.flatnonzero(spans == 1)
            ids[singles] = self.single_ids[codes_L[starts[singles]]]
            return ids
        ids = self.single_ids[codes_L[starts]].astype(np.int64)
        kmers = np.flatnonzero(spans > 1)
        ids[kmers] = self._kmers_at(codes_L, starts[kmers])
        return ids

    def _kmers_at(self, codes_L: np.ndarray, starts: np.ndarray) -> np.ndarray:
        number = codes_L[starts].astype(np.uint32)
        for shift in range(1, self.k):
            number = (number << np.uint32(2)) | codes_L[starts + shift]
        return number + np.uint32(self.first_kmer)

    def _tokenize(self, codes_L: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> Tokens:
        if self.k == 1:
            every = np.arange(len(codes_L))
            return Tokens(self.track(codes_L), every, np.ones_like(every))
        if self.overlapping:
            return self._overlapping(codes_L, begins, sizes)
        segments = self._codons(codes_L, begins, sizes) if self.codons else self._stretches(codes_L)
        starts, spans = _tile(*segments, self.k)
        return Tokens(self.reencode(codes_L, starts, spans).astype(self.dtype), starts, spans)

    def _overlapping(self, codes_L: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> Tokens:
        """Read a k-mer or letter at every place but the last k - 1 of a window that ends in a k-mer."""
        ids_L = self.track(codes_L)
        last = (begins + sizes - self.k)[sizes >= self.k]
        last = last[ids_L[last] >= self.first_kmer]
        cuts = [0, *(last + self.k).tolist()], [*(last + 1).tolist(), len(ids_L)]
        ids = np.concatenate([ids_L[start:stop] for start, stop in zip(*cuts, strict=True)])
        skipped = np.arange(len(last) + 1) * (self.k - 1)
        starts = np.arange(len(ids)) + np.repeat(skipped, np.subtract(cuts[1], cuts[0]))
        return Tokens(ids, starts, np.where(ids >= self.first_kmer, self.k, 1))

    def _stretches(self, codes_L: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return start, length and number of k-mers (S,) of each stretch of real or of other letters."""
        real_L = codes_L < 4
        edges = np.flatnonzero(real_L[1:] != real_L[:-1]) + 1
        starts = np.concatenate(([0], edges)) if len(codes_L) else np.empty(0, int)
        lengths = np.diff(starts, append=len(codes_L))
        return starts, lengths, np.where(real_L[starts], lengths // self.k, 0)

    def _codons(self, codes_L: np.ndarray, begins: np.ndarray, sizes: np.ndarray):
        """Return the same of codons in frame, of what is left over at the ends, and of special tokens."""
        frames = sizes // self.k
        codons = np.repeat(begins, frames) + ranges(frames) * self.k
        real = (codes_L[codons[:, None] + np.arange(self.k)] < 4).all(1)
        rest = begins + frames * self.k
        specials = np.flatnonzero(codes_L >= CLS)
        starts = np.concatenate((codons, rest, specials))
        lengths = np.concatenate((np.full(len(codons), self.k), sizes % self.k, np.ones_like(specials)))
        kmers = np.concatenate((real.astype(int), np.zeros(len(rest) + len(specials), int)))
        order = np.argsort(starts, kind="stable")
        return starts[order], lengths[order], kmers[order]

    @cached_property
    def letter_at(self) -> np.ndarray:
        """(k, V) code of the letter that token v has at offset o, or 255."""
        table = np.full((self.k, len(self.vocabulary)), _STRANGE, np.uint8)
        table[0] = self._first_letter
        if self.k > 1:
            kmers = np.arange(4**self.k)
            for offset in range(self.k):
                table[offset, self.first_kmer :] = kmers // 4 ** (self.k - 1 - offset) % 4
        return table


def ranges(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, ..., count - 1 for each count, end to end."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _tile(
    starts: np.ndarray, lengths: np.ndarray, kmers: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and spans (T,) of the tokens of segments (S,): their k-mers, then letters one by one."""
    counts = lengths - kmers * (k - 1)
    number = ranges(counts)
    kmers_T = np.repeat(kmers, counts)
    starts_T = np.repeat(starts, counts) + number + np.minimum(number, kmers_T) * (k - 1)
    return starts_T, np.where(number < kmers_T, k, 1)


def read_facts(folder: Path) -> dict:
    """Return what a tokenizer folder or checkpoint of ours says of its tokens.

    Raises:
        UserError: the folder is not one of our tokenizers.
    """
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file, so {folder} holds no tokenizer")
    config = read_keys(path)
    missing = [key for key in ("alphabet", "k", "overlapping", "units") if key not in config]
    if missing:
        raise UserError(f"{path}: no key {missing[0]!r}; make tokenizers with strandlm build-tokenizer")
    return config


def codec_of(folder: Path) -> Codec:
    """Return the codec of a tokenizer folder or checkpoint.

    Raises:
        UserError: the folder is not one of our tokenizers.
    """
    if read_facts(folder)["units"] == "byte-pairs":
        from pipeline.tokens.bytepairs import BytePairCodec

        return BytePairCodec(folder)
    return KmerCodec.of(folder)
