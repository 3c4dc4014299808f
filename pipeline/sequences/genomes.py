"""Genomes: one held in memory, to be searched through, and one on disk, to be read in parts.

Coordinates are 0-based and half-open, on the strand "+"; those of `GenomeInMemory.spans` count through all
records.
Array suffixes: N places, R runs, W windows of k letters, Q queries, L letters.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.config import LettersConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import BadSequenceError, clean, reverse_complement, without_case
from pipeline.sequences.intervals import listed, open_indexed
from pipeline.sequences.places import Place, Places, Spans
from pipeline.sequences.readers import read_files
from pipeline.sequences.records import Notes
from pipeline.sequences.similarity import KmerHash

if TYPE_CHECKING:
    from pyfaidx import Faidx

SEED = 32  # letters that fit into a hash without collisions
BLOCK = 1 << 20
PIECE = 1 << 22
_GAP = b"N"
_IS_BASE = np.isin(np.arange(256), np.frombuffer(b"ACGTacgt", np.uint8))


class GenomeInMemory:
    """The letters of a genome, case kept: one byte for every base.

    Args:
        records: name and letters of each.
        circular: names of those whose ends join; "*" stands for all.

    Attributes:
        letters_L: uint8, the records one after the other, an N between.
        begins: where each record begins in them.
        lengths: letters of each record.
        masked: whether some of its bases are lower case, and some are not.
    """

    def __init__(self, records: Iterable[tuple[str, bytes]], circular: Sequence[str] = ()):
        texts = dict(records)
        self.lengths = {name: len(letters) for name, letters in texts.items()}
        after = np.cumsum([length + 1 for length in self.lengths.values()], dtype=np.int64).tolist()
        self.begins = dict(zip(self.lengths, [0, *after[:-1]], strict=True))
        self.letters_L = np.frombuffer(_GAP.join(texts.values()), np.uint8)
        self.circular = set(texts) if "*" in circular else set(circular)
        lower_L = self.letters_L[_IS_BASE[self.letters_L]] >= ord("a")
        self.masked = bool(lower_L.any()) and not bool(lower_L.all())

    @classmethod
    def read(cls, path: Path, circular: Sequence[str] = (), notes: Notes | None = None) -> "GenomeInMemory":
        """Read a genome from a sequence file of any format.

        Raises:
            UserError: the file cannot be read, or has no record of a name in ``circular``.
        """
        records = ((record.id, record.sequence) for record in read_files([path], notes=notes))
        genome = cls(records, circular)
        for name in genome.circular - genome.lengths.keys():
            known = listed(genome.lengths)
            raise UserError(f"{path}: no record {name!r} to be circular; the records are {known}")
        return genome

    def fetch(self, place: Place) -> str:
        """Return the letters of a place that does not run over the origin, upper case, on its strand."""
        begin = self.begins[place.chromosome]
        text = without_case(self.letters_L[begin + place.start : begin + place.end].tobytes()).decode()
        return text if place.strand == "+" else reverse_complement(text)

    def gc_share(self) -> float:
        """Return the share of G and C among the bases."""
        count = np.bincount(self.letters_L & 0xDF, minlength=256)
        strong, weak = (int(count[list(pair)].sum()) for pair in (b"CG", b"AT"))
        return strong / max(1, strong + weak)

    def place(self, begin: int, end: int, strand: str) -> Place:
        """Return what is at a position counted through all records."""
        names, begins = self._index
        record = bisect_right(begins, begin) - 1
        return Place(names[record], begin - begins[record], end - begins[record], strand)

    @cached_property
    def _index(self) -> tuple[list[str], list[int]]:
        return list(self.begins), list(self.begins.values())

    def unknown(self) -> Spans:
        """Return the runs of what is no base (A C G T), those between the records among them."""
        base_L = _IS_BASE[self.letters_L]
        edge_R = np.flatnonzero(base_L[1:] != base_L[:-1]) + 1
        edge_R = np.concatenate([[0], edge_R, [len(base_L)]])
        gap_R = ~base_L[edge_R[:-1]]
        return edge_R[:-1][gap_R], edge_R[1:][gap_R]

    def spans(self, places: Places, wider: int = 0) -> Spans:
        """Return begin and end of places, ``wider`` on both sides, counted through all records.

        They end where their records end; what runs over the origin of a circular one goes on there, as a span
        of its own.
        """
        pieces = places.unrolled(self.lengths, self.circular, wider)
        begin_N = np.array([self.begins[name] for name in pieces.chromosome.tolist()], np.int64)
        return begin_N + pieces.start, begin_N + pieces.end

    def unrolled(self, places: Places) -> Places:
        """Return the same places, those that run over an origin cut in two there."""
        return places.unrolled(self.lengths, self.circular)


def locate(genome: GenomeInMemory, sequences: Sequence[str]) -> list[list[Place]]:
    """Return all places of each sequence (upper case) in a genome: exact matches on both strands.

    On circular records they may run over the origin. The first letters of every sequence, at most 32, are
    looked up at every base of the genome, and what they hit is compared letter by letter.
    """
    found: list[list[Place]] = [[] for _ in sequences]
    queries = [(text.encode(), "+", i) for i, text in enumerate(sequences)]
    queries += [(reverse_complement(text), "-", i) for text, _, i in queries]
    if not queries:
        return found
    kmer = KmerHash(min(SEED, *(len(text) for text in sequences)))
    hash_Q = np.array([kmer(np.frombuffer(text[: kmer.k], np.uint8))[0] for text, _, _ in queries])
    order_Q = np.argsort(hash_Q, kind="stable")
    longest = max(map(len, sequences))
    for name in genome.lengths:
        letters_L = _joined(genome, name, longest)
        for at, query in _hits(letters_L, kmer, hash_Q[order_Q]):
            text, strand, i = queries[order_Q[query]]
            inside = at < genome.lengths[name]
            if inside and without_case(letters_L[at : at + len(text)].tobytes()) == text:
                found[i].append(Place(name, at, at + len(text), strand))
    return found


def _joined(genome: GenomeInMemory, name: str, longest: int) -> np.ndarray:
    """Return the letters of a record; of a circular one, once more as many as lie across its origin."""
    begin, length = genome.begins[name], genome.lengths[name]
    letters_L = genome.letters_L[begin : begin + length]
    more = min(longest, length) - 1 if name in genome.circular else 0
    return np.concatenate([letters_L, letters_L[:more]]) if more > 0 else letters_L


def _hits(letters_L: np.ndarray, kmer: KmerHash, sorted_Q: np.ndarray) -> Iterable[tuple[int, int]]:
    """Yield each place whose k letters have a query's hash, in order, with the queries' numbers."""
    for begin in range(0, len(letters_L) - kmer.k + 1, BLOCK):
        hash_W = kmer(letters_L[begin : begin + BLOCK + kmer.k - 1])
        first_W = np.searchsorted(sorted_Q, hash_W)
        hit_W = sorted_Q[np.minimum(first_W, len(sorted_Q) - 1)] == hash_W
        for at in np.flatnonzero(hit_W).tolist():
            last = int(np.searchsorted(sorted_Q, hash_W[at], side="right"))
            yield from ((begin + at, query) for query in range(int(first_W[at]), last))


# -- on disk


class IndexedGenome:
    """A genome on disk, any part of which can be had, letters read by the rules of a tokenizer.

    Memory holds the names of its records and what is fetched.
    """

    def __init__(self, path: Path, index: "Faidx", letters: LettersConfig):
        self.path, self._index, self._letters = path, index, letters
        self.lengths = {name: int(entry.rlen) for name, entry in index.index.items()}

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Return clean letters; past the end of a record they go on at its beginning.

        Raises:
            UserError: a letter that is not one of DNA.
        """
        length = self.lengths[name]
        spans = [(start, end)] if end <= length else [(start, length), (0, end - length)]
        return b"".join(self._clean(name, *span)[0] for span in spans)

    def survey(self) -> Counter[str]:
        """Read all letters once; return how many are changed, by kind.

        Raises:
            UserError: a letter that is not one of DNA.
        """
        changed = Counter[str]()
        for name, length in self.lengths.items():
            for start in range(0, length, PIECE):
                changed += self._clean(name, start, min(start + PIECE, length))[1]
        return changed

    def raw(self, name: str, start: int, end: int) -> bytes:
        """Return letters as the file has them, within a record."""
        return str(self._index.fetch(name, start + 1, end)).encode() if start < end else b""

    def _clean(self, name: str, start: int, end: int) -> tuple[bytes, Counter[str]]:
        try:
            cleaned = clean(self.raw(name, start, end), "dna", self._letters, start=start)
        except BadSequenceError as error:
            raise UserError(f"{self.path}: record {name!r}: {error}; correct or remove it") from None
        return cleaned.sequence, cleaned.changed


@contextmanager
def open_genome(path: Path, letters: LettersConfig, notes: Notes) -> Iterator[IndexedGenome]:
    """Open a genome in any sequence format.

    Raises:
        UserError: the file cannot be read.
    """
    policy = letters.model_copy(update={"case": "fold", "stops": "error", "gaps": "error"})
    with open_indexed(path, notes) as index:
        yield IndexedGenome(path, index, policy)
