"""Random splits that depend on the sequences themselves, never on their order or number.

A sequence's place is a hash of the seed and of its canonical strand, so a sequence, its duplicates and its
reverse complements always share a split, and adding records moves no other record (except where a split that
would have been empty was filled).
"""

import hashlib

import numpy as np

from pipeline.config import Alphabet
from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement

SPLITS = ("train", "validation", "test")


def digest(sequence: str) -> int:
    """Return 64 bits that stand for a sequence (two of ten million share them with a chance below 1e-5)."""
    return int.from_bytes(hashlib.blake2b(sequence.encode(), digest_size=8).digest(), "little")


def group_digest(sequence: str, alphabet: Alphabet) -> int:
    """Return the digest of what must stay in one split: for DNA, a sequence and its reverse complement."""
    return digest(min(sequence, reverse_complement(sequence)) if alphabet == "dna" else sequence)


def check_fractions(validation: float, test: float) -> None:
    """Raise a UserError if the held-out shares leave nothing for training."""
    if validation + test >= 1:
        raise UserError(
            f"validation {validation} + test {test} leave nothing for training; lower one of them"
        )


def assign_splits(groups_N: np.ndarray, validation: float, test: float, seed: int) -> np.ndarray:
    """Assign every record to train (0), validation (1) or test (2), whole groups at a time.

    Args:
        groups_N: uint64, the group of each record; records of one group share a split.
        validation: share of the groups expected in validation.
        test: share of the groups expected in test; does not depend on ``validation``.
        seed: another seed gives another, independent split.

    Returns:
        int8 of the same length. Train is never empty; validation and test are not if asked for and there are
        at least three groups.

    Raises:
        UserError: nothing would be left for training.
    """
    check_fractions(validation, test)
    groups_G, group_of_N = np.unique(np.asarray(groups_N, dtype=np.uint64), return_inverse=True)
    place_G = _uniform(groups_G, seed)
    split_G = np.select([place_G < test, place_G < test + validation], [2, 1], 0).astype(np.int8)
    wanted = {0: 1.0, 1: test + validation / 2, 2: 0.0}
    for split, share in ((0, 1.0), (1, validation), (2, test)):
        if share > 0:
            _fill_empty(split_G, place_G, split, wanted[split])
    return split_G[group_of_N]


def count_shared(groups_N: np.ndarray, splits_N: np.ndarray) -> int:
    """Return how many groups have records in more than one split (records at split -1 are left out)."""
    kept_N = splits_N >= 0
    pairs = np.unique(np.stack([groups_N[kept_N], splits_N[kept_N].astype(np.uint64)]), axis=1)
    return int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())


def _fill_empty(split_G: np.ndarray, place_G: np.ndarray, split: int, centre: float) -> None:
    """Give an empty split the group that came closest to it, from a split that has several."""
    sizes = np.bincount(split_G, minlength=len(SPLITS))
    spare_G = (sizes[split_G] > 1) | (split == 0)
    if sizes[split] == 0 and spare_G.any():
        split_G[np.argmin(np.where(spare_G, np.abs(place_G - centre), np.inf))] = split


def _uniform(groups_G: np.ndarray, seed: int) -> np.ndarray:
    """Map groups to [0, 1) with SplitMix64's mixer (Steele et al. 2014, doi:10.1145/2660193.2660195)."""
    mixed_G = _mix(groups_G ^ _mix(np.array([seed % 2**64], dtype=np.uint64)))
    return (mixed_G >> np.uint64(11)) / 2.0**53


def _mix(words: np.ndarray) -> np.ndarray:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
