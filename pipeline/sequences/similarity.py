"""Which rows of a corpus are alike: shared stretches of k letters, clusters of proteins, MMseqs2.

Sequences come as a ``pyarrow.ChunkedArray`` of strings, usually mapped from disk, and are read through their
buffers in blocks. Stretches are compared by 64-bit hashes on all windows, not on a sample. What fits into 64
bits (32 bases, 12 residues) is not hashed but packed, without collisions; longer stretches have the same hash
with a chance of about 2^-64 a pair: 3e-6 for the E. coli genome, 3 % for a billion bases of one (and then two
rows too many are linked). Their cost hardly depends on k: letters are joined in log2(k) + 1 doublings.

Array suffixes: N rows, S slots, L letters of a block, W windows of a block, E entries of a table, G groups,
P pairs.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.config import Alphabet
from pipeline.errors import UserError
from pipeline.sequences.splits import digest

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BLOCK = 1 << 16
CAPACITY = 8 << 20
POSTINGS = 1000
PRODUCT = 500
SEED, LONG_SEED = 20, 32  # letters of a stretch whose absence elsewhere rules longer ones out
RESIDUES = b"ACDEFGHIKLMNPQRSTVWY"
_BASES = b"ACGT"
_GAP = np.uint8(0xFF)  # no ASCII
_MULTIPLIERS = np.random.default_rng(0).integers(0, 2**62, 64, dtype=np.uint64) * np.uint64(4) + np.uint64(3)

Entries = tuple[np.ndarray, np.ndarray]


class Block(NamedTuple):
    """Letters of neighbouring rows."""

    letters: np.ndarray  # (L,) uint8
    rows: np.ndarray  # (L,) int32, the row of each letter, -1 in rows that are left out
    begin: int  # letters of the corpus before the first of these


def blocks(
    sequences: pa.ChunkedArray, overlap: int = 0, chosen_N: np.ndarray | None = None
) -> Iterator[Block]:
    """Yield the letters of all rows in blocks of bounded size, without copying them.

    Args:
        sequences: strings without nulls, ASCII.
        overlap: letters that a block repeats at its end from the beginning of the next one.
        chosen_N: bool, false for rows to leave out (default: none).
    """
    step, first, before = max(BLOCK, overlap), 0, 0
    for chunk in sequences.chunks:
        offset_N, letters = _buffers(chunk)
        before -= int(offset_N[0])
        for begin in range(int(offset_N[0]), int(offset_N[-1]), step):
            end = min(begin + step + overlap, int(offset_N[-1]))
            low, high = np.searchsorted(offset_N, [begin, end], side="right")
            length_N = np.diff(np.clip(offset_N[low - 1 : high + 1], begin, end))
            row_N = np.arange(first + low - 1, first + low - 1 + len(length_N), dtype=np.int32)
            if chosen_N is not None:
                row_N[~chosen_N[row_N]] = -1
            yield Block(letters[begin:end], np.repeat(row_N, length_N), before + begin)
        first, before = first + len(chunk), before + int(offset_N[-1])


def rows(sequences: pa.ChunkedArray) -> Iterator[bytes]:
    """Yield the letters of every row."""
    for chunk in sequences.chunks:
        offset_N, letters = _buffers(chunk)
        for begin, end in pairwise(offset_N.tolist()):
            yield letters[begin:end].tobytes()


def _buffers(chunk: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets (n + 1) and the bytes (uint8) of an array of strings, zero copy."""
    assert chunk.null_count == 0, "sequences have no nulls"
    if len(chunk) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    kind = np.int64 if pa.types.is_large_string(chunk.type) else np.int32
    _, offsets, letters = chunk.buffers()
    assert offsets is not None
    offset_N = np.frombuffer(offsets, kind)[chunk.offset : chunk.offset + len(chunk) + 1]
    return offset_N, np.frombuffer(letters or b"", np.uint8)


def _lengths(sequences: pa.ChunkedArray) -> np.ndarray:
    """Return the letters of every row (int64)."""
    return np.concatenate(
        [np.zeros(0, np.int64), *(np.diff(_buffers(chunk)[0]) for chunk in sequences.chunks)]
    )


@dataclass(frozen=True)
class KmerHash:
    """Hashes of all stretches of k letters, on one strand or the same for both; case is folded."""

    k: int
    both_strands: bool = False
    letters: bytes = _BASES

    def __call__(self, letters_L: np.ndarray) -> np.ndarray:
        """Return hash_W (uint64) of the L - k + 1 windows of a block, whatever their letters are."""
        hash_W = self._strand(letters_L)
        if self.both_strands:
            np.minimum(hash_W, self._strand(letters_L, backward=True), out=hash_W)
        return _mixed(hash_W * _MULTIPLIERS[-1])

    def valid(self, letters_L: np.ndarray, row_L: np.ndarray) -> np.ndarray:
        """Return valid_W: the windows that lie in one row and hold only letters of the alphabet."""
        row_W = row_L[: len(row_L) - self.k + 1]
        valid_W = (row_W == row_L[self.k - 1 :]) & (row_W >= 0)
        known = self.letters + self.letters.lower()
        strange = letters_L.tobytes().translate(bytes.maketrans(known, bytes(len(known))))
        strange_L = np.frombuffer(strange, np.uint8)
        if strange_L.any():
            valid_W &= _sliding(np.maximum, strange_L, self.k) == 0
        return valid_W

    def _strand(self, letters_L: np.ndarray, backward: bool = False) -> np.ndarray:
        """Pack the letters of every window, the first one highest, as long as they fit; hash those packs."""
        bits, hash_W = (2, letters_L >> 1 & 3) if self.letters == _BASES else (5, letters_L & 31)
        if backward:
            hash_W ^= 2  # A and T, C and G
        for level, (width, shift) in enumerate(_doublings(self.k)):
            packed, factor = (width + shift) * bits <= 64, _MULTIPLIERS[2 * level]
            if packed:
                kind = np.min_scalar_type(2 ** ((width + shift) * bits) - 1)
                hash_W, factor = hash_W.astype(kind, copy=False), kind.type(2 ** (shift * bits))
            else:
                hash_W = _mixed(hash_W * _MULTIPLIERS[2 * level + 1])
            left_W, right_W = hash_W[:-shift], hash_W[shift:]
            high_W, low_W = (right_W, left_W) if backward else (left_W, right_W)
            hash_W = high_W * factor
            hash_W = (np.bitwise_or if packed else np.add)(hash_W, low_W, out=hash_W)
        return hash_W.astype(np.uint64, copy=False)


def _mixed(hash_W: np.ndarray) -> np.ndarray:
    hash_W ^= hash_W >> np.uint64(32)
    return hash_W


def _doublings(width: int) -> list[tuple[int, int]]:
    """Return the steps that make a width of 1 grow to this one: the width so far, and what it grows by."""
    steps, done = [], 1
    while done < width:
        steps.append((done, min(done, width - done)))
        done += steps[-1][1]
    return steps


def _sliding(function: np.ufunc, value_L: np.ndarray, width: int) -> np.ndarray:
    """Return the least or greatest (the function says) of every ``width`` neighbours."""
    for _, shift in _doublings(width):
        value_L = function(value_L[:-shift], value_L[shift:])
    return value_L


def shared_kmer_clusters(sequences: pa.ChunkedArray, k: int, both_strands: bool) -> np.ndarray:
    """Cluster the rows that share an exact stretch of k bases, directly or through others.

    Args:
        sequences: DNA in either case; any letter but A C G T breaks a stretch.
        k: length of a stretch.
        both_strands: whether a stretch and its reverse complement are the same.

    Returns:
        cluster_N (int64): connected components, numbered from 0 in the order of their first rows.
    """
    cluster_N = np.arange(len(sequences), dtype=np.int64)
    for hash_E, row_E in repeated_kmers(sequences, KmerHash(k, both_strands)):
        alike_E = hash_E[1:] == hash_E[:-1]
        cluster_N = link(cluster_N, row_E[:-1][alike_E], row_E[1:][alike_E])
    return cluster_N


def link(cluster_N: np.ndarray, one_P: np.ndarray, other_P: np.ndarray) -> np.ndarray:
    """Return the clusters after joining those of every pair of rows, numbered by their first rows."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(cluster_N.max(initial=-1)) + 1
    pairs = (np.ones(len(one_P), bool), (cluster_N[one_P], cluster_N[other_P]))
    joined_C = connected_components(coo_array(pairs, (size, size)), directed=False)[1]
    return joined_C.astype(np.int64)[cluster_N]


def shared_with(sequences: pa.ChunkedArray, groups_N: np.ndarray, kmer: KmerHash) -> np.ndarray:
    """Find out which groups of rows each row shares a stretch with.

    Args:
        sequences: rows.
        groups_N: uint8, a bit for each group that a row is in; rows with 0 are left out.
        kmer: the stretches compared.

    Returns:
        uint8 of the same length: the bits of all rows that share a stretch with this one, its own among them
        if there is another such row at all.
    """
    found_N = np.zeros(len(sequences), np.uint8)
    for hash_E, row_E in repeated_kmers(sequences, kmer, groups_N != 0):
        begin_G = np.flatnonzero(np.diff(hash_E, prepend=~hash_E[:1]))
        bits_G = np.bitwise_or.reduceat(groups_N[row_E], begin_G)
        np.bitwise_or.at(found_N, row_E, np.repeat(bits_G, np.diff(begin_G, append=len(row_E))))
    return found_N


def close_to(
    sequences: pa.ChunkedArray, candidates_N: np.ndarray, targets_N: np.ndarray, k: int, both_strands: bool
) -> np.ndarray:
    """Tell which candidates share an exact stretch of k bases with a target (or are one).

    Args:
        sequences: DNA in either case.
        candidates_N: bool, the rows asked about.
        targets_N: bool, the rows to stay clear of.
        k: length of a stretch.
        both_strands: whether a stretch and its reverse complement are the same.

    Returns:
        bool of the same length, false for all but candidates.
    """
    groups_N = candidates_N.astype(np.uint8) | targets_N.astype(np.uint8) << 1
    shared_N = shared_with(sequences, groups_N, KmerHash(k, both_strands))
    return candidates_N & (targets_N | (shared_N & 2 > 0))


def repeated_kmers(
    sequences: pa.ChunkedArray, kmer: KmerHash, chosen_N: np.ndarray | None = None
) -> Iterator[Entries]:
    """Yield the stretches that occur in two rows or more, in tables of bounded size.

    Where there are too many for one table, the range of hashes is gone through in several passes over the
    rows. First those letters are ruled out where no stretch begins whose least seed (the minimizer of Roberts
    et al. 2004, doi:10.1093/bioinformatics/bth408) occurs in other rows: rows that share a stretch share its
    minimizer.

    Args:
        sequences: rows.
        kmer: the stretches compared.
        chosen_N: bool, the rows compared (default: all).

    Yields:
        hash_E (uint64, ascending) and row_E (int32): every row once for each stretch; all rows of a stretch
        are in one table.
    """
    np.empty(30 << 20, np.uint8)  # glibc's malloc now keeps what blocks free, which is 1.6 times as fast
    listed_S = _listed_slots(sequences, kmer, chosen_N) if kmer.k > SEED else None
    yield from _tables(sequences, kmer.k, chosen_N, partial(_stretches, kmer, listed_S))


def _listed_slots(sequences: pa.ChunkedArray, kmer: KmerHash, chosen_N: np.ndarray | None) -> np.ndarray:
    """Return listed_S: the slots where a window begins whose minimizer is in several rows.

    A slot is k letters of the corpus; all windows that begin in one hold its last letter: one row's.
    """
    k, end_N = kmer.k, np.cumsum(_lengths(sequences))
    seed = KmerHash(max(SEED, min(LONG_SEED, k // 2)), kmer.both_strands, kmer.letters)
    listed_S = np.zeros(end_N.max(initial=0) // k + 1, bool)
    for hash_E, slot_E in _tables(sequences, k, chosen_N, partial(_minimizers, kmer, seed)):
        row_E = np.searchsorted(end_N, (slot_E + np.int64(1)) * k - 1, side="right")
        begin_G = np.flatnonzero(np.diff(hash_E, prepend=~hash_E[:1]))
        size_G = np.diff(begin_G, append=len(hash_E))
        several_G = row_E[begin_G] != row_E[begin_G + size_G - 1]
        listed_S[slot_E[np.repeat(several_G, size_G)]] = True
    return listed_S


def _minimizers(kmer: KmerHash, seed: KmerHash, block: Block) -> Entries:
    """Return the least seed of every window and its slot, once where it stays the same in a slot."""
    hash_W = _sliding(np.minimum, seed(block.letters), kmer.k - seed.k + 1)
    begins_W = np.zeros(len(hash_W), bool)
    begins_W[-block.begin % kmer.k :: kmer.k] = True
    place_E = _fresh(hash_W, begins_W, kmer.valid(block.letters, block.rows))
    return hash_W[place_E] * _MULTIPLIERS[-1], ((block.begin + place_E) // kmer.k).astype(np.int32)


def _stretches(kmer: KmerHash, listed_S: np.ndarray | None, block: Block) -> Entries:
    """Return the hash of every window in a listed slot and its row, once where they stay the same."""
    letters_L, row_L = block[:2] if listed_S is None else _listed_letters(block, listed_S, kmer.k)
    if len(letters_L) < kmer.k:
        return np.zeros(0, np.uint64), np.zeros(0, np.int32)
    hash_W, row_W = kmer(letters_L), row_L[: len(row_L) - kmer.k + 1]
    place_E = _fresh(hash_W, np.diff(row_W, prepend=-1) != 0, kmer.valid(letters_L, row_L))
    return hash_W[place_E], row_W[place_E]


def _listed_letters(block: Block, listed_S: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return letters and rows of the windows that begin in listed slots, a strange letter in the gaps."""
    slot = block.begin // k
    near_S = listed_S[slot : (block.begin + len(block.letters)) // k + 1]
    near_S = near_S | np.append(listed_S[max(slot - 1, 0)], near_S[:-1])
    if not near_S.any():
        return block.letters[:0], block.rows[:0]
    wanted_L = np.repeat(near_S, k)[block.begin % k :][: len(block.letters)]
    kept_L = wanted_L | np.append(False, wanted_L[:-1])
    return np.where(wanted_L, block.letters, _GAP)[kept_L], block.rows[kept_L]


def _fresh(hash_W: np.ndarray, begins_W: np.ndarray, valid_W: np.ndarray) -> np.ndarray:
    """Return the places of the valid windows that differ from the one before or begin something."""
    begins_W[1:] |= (hash_W[1:] != hash_W[:-1]) | ~valid_W[:-1]
    begins_W[0] = True
    return np.flatnonzero(begins_W & valid_W)


def _tables(
    sequences: pa.ChunkedArray, k: int, chosen_N: np.ndarray | None, entries: Callable[[Block], Entries]
) -> Iterator[Entries]:
    """Yield what several rows share, in as many passes as the capacity of a table makes necessary."""
    capacity, first, span = max(CAPACITY, 2 * max(BLOCK, k)), 0, 2**64
    while first < 2**64:
        table = _Table(capacity, first, min(first + span, 2**64) - 1)
        for block in blocks(sequences, k - 1, chosen_N):
            if len(block.letters) >= k:
                table.add(*entries(block))
        table.sort()
        yield table.shared()
        span = (table.last + 1 - first) * 7 * capacity // max(8 * table.size, 1)
        first = table.last + 1
        span = max(span, (2**64 - first + 15) // 16)  # also behind a hash that filled a table


class _Table:
    """Entries with hashes from ``first`` to ``last``; ``last`` comes down when the table is full."""

    def __init__(self, capacity: int, first: int, last: int):
        self.hash_E, self.row_E = np.empty(capacity, np.uint64), np.empty(capacity, np.int32)
        self.first, self.last, self.size = first, last, 0

    def add(self, hash_E: np.ndarray, row_E: np.ndarray) -> None:
        if self.size + len(hash_E) > len(self.hash_E):
            self._shrink()
        within_E = hash_E - np.uint64(self.first) <= np.uint64(self.last - self.first)
        end = self.size + int(within_E.sum())
        self.hash_E[self.size : end], self.row_E[self.size : end] = hash_E[within_E], row_E[within_E]
        self.size = end

    def sort(self) -> None:
        """Sort by hash, then row, and keep each pair once."""
        order_E = _order(self.hash_E[: self.size])  # rows came in ascending order
        hash_E, row_E = self.hash_E[order_E], self.row_E[order_E]
        fresh_E = np.append(True, (hash_E[1:] != hash_E[:-1]) | (row_E[1:] != row_E[:-1]))[: self.size]
        self.size = int(fresh_E.sum())
        self.hash_E[: self.size], self.row_E[: self.size] = hash_E[fresh_E], row_E[fresh_E]

    def shared(self) -> Entries:
        """Return the sorted entries whose hash has several rows."""
        hash_E = self.hash_E[: self.size]
        alike_E = hash_E[1:] == hash_E[:-1]
        shared_E = np.append(alike_E, False) | np.append(False, alike_E)
        return hash_E[shared_E[: self.size]], self.row_E[: self.size][shared_E[: self.size]]

    def _shrink(self) -> None:
        """Make room: leave the upper half of the hashes to a later pass."""
        self.sort()
        half = len(self.hash_E) // 2
        if self.size > half:
            self.last = max(int(self.hash_E[half]) - 1, int(self.hash_E[0]))
            self.size = int(np.searchsorted(self.hash_E[: self.size], np.uint64(self.last), side="right"))
        if self.size > half:  # one hash only
            self.hash_E, self.row_E = np.resize(self.hash_E, 4 * half), np.resize(self.row_E, 4 * half)


def _order(hash_E: np.ndarray) -> np.ndarray:
    """Return the stable order: a fast sort of hash and place in one number, then its few ties."""
    low = (1 << len(hash_E).bit_length()) - 1
    key_E = hash_E & np.uint64(2**64 - 1 - low)
    key_E |= np.arange(len(hash_E), dtype=np.uint64)
    key_E.sort()
    key_E &= np.uint64(low)
    order_E = key_E.view(np.int64)
    return order_E[np.argsort(hash_E[order_E], kind="stable")]


def protein_clusters(
    sequences: pa.ChunkedArray, identity: float = 0.5, coverage: float = 0.8, k: int = 5
) -> np.ndarray:
    """Cluster proteins by single linkage of the pairs that ``protein_links`` finds, and of equal ones.

    Clusters grow by chains: two members may be less alike than ``identity``.

    Args:
        sequences: proteins in either case.
        identity: share of equal residues, 0 to 1.
        coverage: share of both lengths.
        k: residues of the words that candidates share.

    Returns:
        cluster_N (int64), numbered from 0 in the order of their first rows.
    """
    equal_N = equal_rows(sequences)
    return link(equal_N, *protein_links(sequences, equal_N, identity, coverage, k))


def protein_links(
    sequences: pa.ChunkedArray, equal_N: np.ndarray, identity: float, coverage: float, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find pairs of similar proteins, just enough of them to connect what is similar, without alignments.

    Two proteins are similar if the shorter has ``coverage`` of the longer's length, if they share two k-mers
    or more and half of those expected were the differences evenly spread (coverage * identity^k for a residue
    of the longer), and if the edits between them (insertions, deletions, substitutions) are no more than
    1 - identity * (1 + coverage) / 2 of the longer's length. So the pairs missed are those whose differences
    leave too few k-mers intact, and domains of longer proteins. A k-mer of more than 1000 proteins is
    compared among 1000 of neighbouring lengths at a time. Memory is about 50 bytes a residue.

    Args:
        sequences: proteins in either case.
        equal_N: clusters of equal rows; only the first row of each is compared.
        identity: share of equal residues, 0 to 1.
        coverage: share of both lengths.
        k: residues of the words that candidates share.

    Returns:
        one_P and other_P (int64), rows: at most one pair less than there are rows.
    """
    allowed = 1 - identity * (1 + coverage) / 2
    parent = list(range(len(sequences)))
    links = []
    for one, other in _candidates(sequences, equal_N, identity, coverage, k).tolist():
        root, branch = _root(parent, one), _root(parent, other)
        if root != branch and _alike(_text(sequences, one), _text(sequences, other), allowed):
            parent[branch] = root
            links.append((one, other))
    one_P, other_P = np.array(links, np.int64).reshape(-1, 2).T
    return one_P, other_P


def equal_rows(sequences: pa.ChunkedArray) -> np.ndarray:
    """Return clusters of equal rows, numbered by the first of each."""
    first: dict[int, int] = {}
    return np.array([first.setdefault(digest(row.upper()), len(first)) for row in rows(sequences)], np.int64)


def _candidates(
    sequences: pa.ChunkedArray, equal_N: np.ndarray, identity: float, coverage: float, k: int
) -> np.ndarray:
    """Return (P, 2) rows of similar length that share enough k-mers, the most alike first."""
    length_N = _lengths(sequences)
    first_N = np.zeros(len(length_N), bool)
    first_N[np.unique(equal_N, return_index=True)[1]] = True
    words = _word_table(sequences, KmerHash(k, letters=RESIDUES), first_N, length_N)
    transposed, pairs, likeness = words.T.tocsr(), [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    for begin in range(0, len(length_N), PRODUCT):
        shared = (words[begin : begin + PRODUCT] @ transposed).tocoo()
        pairs_P2 = np.stack([shared.row + begin, shared.col], axis=1)
        shorter_P, longer_P = np.sort(length_N[pairs_P2], axis=1).T
        close_P = (pairs_P2[:, 0] < pairs_P2[:, 1]) & (shorter_P >= coverage * longer_P)
        close_P &= shared.data >= np.maximum(2, coverage * identity**k / 2 * longer_P)
        pairs.append(pairs_P2[close_P])
        likeness.append(shared.data[close_P] / longer_P[close_P])
    return np.concatenate(pairs)[np.argsort(-np.concatenate(likeness), kind="stable")]


def _word_table(
    sequences: pa.ChunkedArray, kmer: KmerHash, chosen_N: np.ndarray, length_N: np.ndarray
) -> "csr_array":
    """Return which rows hold which k-mers, 0 or 1; a k-mer of many rows is one column for every 1000."""
    from scipy.sparse import csr_array

    tables = list(repeated_kmers(sequences, kmer, chosen_N))
    hash_E, row_E = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    order_E = np.lexsort((length_N[row_E], hash_E))
    hash_E, row_E = hash_E[order_E], row_E[order_E]
    begin_E = np.append(True, hash_E[1:] != hash_E[:-1])[: len(hash_E)]
    place_E = np.arange(len(hash_E)) - np.flatnonzero(begin_E)[np.cumsum(begin_E) - 1]
    column_E = np.cumsum(place_E % POSTINGS == 0) - 1
    shape = (len(sequences), int(column_E.max(initial=-1)) + 1)
    return csr_array((np.ones(len(row_E), np.int32), (row_E, column_E)), shape)


def _text(sequences: pa.ChunkedArray, row: int) -> str:
    return sequences[row].as_py().upper()


def _root(parent: list[int], row: int) -> int:
    while parent[row] != row:
        parent[row] = row = parent[parent[row]]
    return row


def _alike(one: str, other: str, allowed: float) -> bool:
    """Tell whether the edits between two proteins are at most a share of the longer's length."""
    longer = max(len(one), len(other))
    return common_letters(one, other) >= (1 - allowed) * longer and edits(one, other) <= allowed * longer


def _places(text: str) -> dict[str, int]:
    """Return a number for every letter, whose bits are the letter's places."""
    places: dict[str, int] = {}
    for i, letter in enumerate(text):
        places[letter] = places.get(letter, 0) | 1 << i
    return places


def common_letters(one: str, other: str) -> int:
    """Return the length of the longest common subsequence, the most letters an alignment can match.

    Bit-parallel (Hyyro 2004, "Bit-parallel LCS-length computation revisited").
    """
    places, everywhere = _places(one), (1 << len(one)) - 1
    open_ = everywhere
    for letter in other:
        matched = open_ & places.get(letter, 0)
        open_ = (open_ + matched | open_ - matched) & everywhere
    return len(one) - open_.bit_count()


def edits(one: str, other: str) -> int:
    """Return the edit distance (Levenshtein), bit-parallel (Myers 1999, doi:10.1145/316542.316550)."""
    if not one:
        return len(other)
    places, everywhere, last = _places(one), (1 << len(one)) - 1, 1 << len(one) - 1
    up, down, distance = everywhere, 0, len(one)
    for letter in other:
        equal = places.get(letter, 0)
        vertical = equal | down
        equal |= ((equal & up) + up) ^ up
        right, left = down | ~(equal | up) & everywhere, up & equal
        distance += bool(right & last) - bool(left & last)
        right, left = right << 1 | 1, left << 1
        up, down = (left | ~(vertical | right)) & everywhere, right & vertical & everywhere
    return distance


def mmseqs_clusters(
    sequences: pa.ChunkedArray, alphabet: Alphabet, identity: float, coverage: float, threads: int = 1
) -> np.ndarray:
    """Cluster with MMseqs2 (Steinegger & Soding 2017, doi:10.1038/nbt.3988), which has to be on the PATH.

    Args:
        sequences: rows; they are copied to a temporary folder.
        alphabet: "dna" (either strand) or "protein".
        identity: smallest share of equal letters in an alignment.
        coverage: smallest share of both sequences in it.
        threads: MMseqs2's.

    Returns:
        cluster_N (int64), numbered from 0 in the order of their first rows: connected components of the pairs
        that it aligns (``--cluster-mode 1``).

    Raises:
        UserError: no ``mmseqs`` on the PATH, or it failed.
    """
    program = shutil.which("mmseqs")
    if not program:
        raise UserError("cluster_with mmseqs2: no program mmseqs on the PATH; install MMseqs2, or use kmers")
    with tempfile.TemporaryDirectory(prefix="mmseqs-") as folder:
        _write_fasta(sequences, Path(folder, "rows.fasta"))
        _run_mmseqs(program, folder, alphabet, identity, coverage, threads)
        rows_2P = np.loadtxt(Path(folder, "clusters_cluster.tsv"), np.int64, ndmin=2).T
    return link(np.arange(len(sequences), dtype=np.int64), *rows_2P)


def _run_mmseqs(
    program: str, folder: str, alphabet: Alphabet, identity: float, coverage: float, threads: int
) -> None:
    kind = ["--dbtype", "2", "-k", "13"] if alphabet == "dna" else ["--dbtype", "1"]  # its 15 takes 8 GB
    limits = ["--min-seq-id", str(identity), "-c", str(coverage), "--cov-mode", "0", "--cluster-mode", "1"]
    command = [program, "easy-cluster", "rows.fasta", "clusters", "scratch", *limits, *kind]
    done = subprocess.run([*command, "--threads", str(threads)], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UserError(f"{program} easy-cluster failed: {last}; run it by hand, or use cluster_with kmers")


def _write_fasta(sequences: pa.ChunkedArray, path: Path) -> None:
    with path.open("wb") as file:
        for number, letters in enumerate(rows(sequences)):
            file.write(b">%d\n%s\n" % (number, letters.upper()))
