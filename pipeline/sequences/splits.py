"""Splits by content, by name of record or file, and with a gap between neighbours.

Random ones depend on the sequences themselves, never on their order or number: a group's place is a hash of
the seed and of the group, so adding records moves no other group (except one that filled a split that would
have been empty, and one that weighs more, or no longer more, than the share asked for).
"""

import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from pipeline.errors import UserError
from pipeline.keyed import mix, uniforms
from pipeline.sequences.files import COMPRESSED

SPLITS = ("train", "validation", "test")
FILES = {"train": "train", "test": "test"}
FILES |= dict.fromkeys(("dev", "val", "valid", "validation"), "validation")


def digest(sequence: bytes | str) -> int:
    """Return 64 bits that stand for a sequence (two of ten million share them with a chance below 1e-5)."""
    letters = sequence.encode() if isinstance(sequence, str) else sequence
    return xxhash.xxh3_64_intdigest(letters)


def group_ids(cluster_N: np.ndarray, digest_N: np.ndarray) -> np.ndarray:
    """Return (N,) uint64: the smallest digest in each row's cluster, which no order of the rows changes."""
    _, cluster_N = np.unique(cluster_N, return_inverse=True)
    smallest_C = np.full(int(cluster_N.max(initial=-1)) + 1, 2**64 - 1, np.uint64)
    np.minimum.at(smallest_C, cluster_N, np.asarray(digest_N, dtype=np.uint64))
    return smallest_C[cluster_N]


def check_fractions(validation: float, test: float) -> None:
    """Raise a UserError if the held-out shares leave nothing for training."""
    if validation + test >= 1:
        raise UserError(
            f"validation {validation} + test {test} leave nothing for training; lower one of them"
        )


def assign_splits(
    groups_N: np.ndarray, validation: float, test: float, seed: int, weights_N: np.ndarray | None = None
) -> np.ndarray:
    """Assign every record to train (0), validation (1) or test (2), whole groups at a time.

    A group that alone weighs more than the share of a held-out split goes to train instead.

    Args:
        groups_N: uint64, the group of each record; records of one group share a split.
        validation: share expected in validation.
        test: share expected in test, which does not depend on ``validation``.
        seed: another seed gives another, independent split.
        weights_N: what shares are shares of, for example letters (default: records).

    Returns:
        int8 of the same length. Train is never empty; validation and test are not if asked for and there are
        at least three groups.

    Raises:
        UserError: nothing would be left for training.
    """
    check_fractions(validation, test)
    groups_G, group_of_N = np.unique(np.asarray(groups_N, dtype=np.uint64), return_inverse=True)
    weight_G = np.bincount(group_of_N, weights_N, minlength=len(groups_G))
    share_G = weight_G / max(weight_G.sum(), 1e-300)
    place_G = _uniform(groups_G, seed)
    split_G = np.select([place_G < test, place_G < test + validation], [2, 1], 0).astype(np.int8)
    split_G[share_G > np.array([1.0, validation, test])[split_G]] = 0
    centre = {0: 1.0, 1: test + validation / 2, 2: 0.0}
    for split, wanted in ((0, 1.0), (1, validation), (2, test)):
        if wanted > 0:
            _fill_empty(split_G, np.abs(place_G - centre[split]), share_G, split, wanted)
    return split_G[group_of_N]


def named_splits(
    names_N: Sequence[str] | np.ndarray, validation_names: Sequence[str], test_names: Sequence[str]
) -> np.ndarray:
    """Assign records by name (of record or chromosome): int8, train (0) where neither list has the name.

    Raises:
        UserError: a name that does not occur, or that is in both lists.
    """
    names_N = np.asarray(names_N, dtype=object)
    split_of = dict.fromkeys(names_N.tolist(), 0)
    for split, names in ((1, validation_names), (2, test_names)):
        for name in names:
            if name not in split_of:
                near = difflib.get_close_matches(name, split_of, 1, 0) or ["none at all"]
                raise UserError(
                    f"{SPLITS[split]}_names: {name!r} does not occur; the nearest name is {near[0]!r}"
                )
            if split_of[name] not in (0, split):
                raise UserError(f"test_names: {name!r} is in validation_names, too; remove one of the two")
            split_of[name] = split
    return np.array([split_of[name] for name in names_N], dtype=np.int8)


def file_split(path: Path) -> str:
    """Return the split that a file is named after, whatever its extensions: one of `FILES`, in any case.

    Raises:
        UserError: the name is none of those.
    """
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    if plain.stem.lower() not in FILES:
        raise UserError(
            f"{path}: {plain.stem!r} names no split, and split_by is file; call it train, dev (val, valid, "
            "validation) or test, or leave the file out"
        )
    return FILES[plain.stem.lower()]


def trim_buffers(
    record_N: np.ndarray, start_N: np.ndarray, length_N: np.ndarray, split_N: np.ndarray, buffer: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find out what to cut off blocks of a record so that different splits are ``buffer`` letters apart.

    Train is cut next to validation and test, validation next to test, test never. A block that vanishes in a
    cut does not end it: the cut goes on into the next.

    Args:
        record_N: number of the record that each block is from.
        start_N: 0-based offset of the block in the record; blocks of a record do not overlap.
        length_N: letters of the block.
        split_N: train (0), validation (1), test (2), or -1 for blocks that are left out.
        buffer: letters between two blocks of different splits, at least.

    Returns:
        front_N and back_N (int64): letters to cut off; a block that vanishes has front = length, back = 0.
    """
    front_N, back_N = np.zeros((2, len(record_N)), np.int64)
    order_N = np.lexsort((start_N, record_N))
    order_N = order_N[(split_N[order_N] >= 0) & (length_N[order_N] > 0)]
    begin_B = start_N[order_N].astype(np.int64)
    end_B, record_B, split_B = begin_B + length_N[order_N], record_N[order_N], split_N[order_N]
    new_begin_B, new_end_B = begin_B.copy(), end_B.copy()
    for split in (1, 0):  # test stays, so validation is cut first, and train against what is left of it
        _cut(record_B, new_begin_B, new_end_B, split_B, split, buffer)
    gone_B = new_begin_B >= new_end_B
    front_N[order_N] = np.where(gone_B, end_B - begin_B, new_begin_B - begin_B)
    back_N[order_N] = np.where(gone_B, 0, end_B - new_end_B)
    return front_N, back_N


def _cut(
    record_B: np.ndarray,
    begin_B: np.ndarray,
    end_B: np.ndarray,
    split_B: np.ndarray,
    split: int,
    buffer: int,
) -> None:
    """Cut the blocks of a split, in place, against what is left of the splits after it.

    The latter do not overlap and are in order, so the nearest on either side are the only ones that matter.
    """
    firm = np.flatnonzero((split_B > split) & (begin_B < end_B))
    if not len(firm):
        return
    cut = np.flatnonzero(split_B == split)
    place = np.searchsorted(firm, cut)
    left, right = firm[np.maximum(place - 1, 0)], firm[np.minimum(place, len(firm) - 1)]
    near_left = (place > 0) & (record_B[left] == record_B[cut])
    near_right = (place < len(firm)) & (record_B[right] == record_B[cut])
    begin_B[cut] = np.where(near_left, np.maximum(begin_B[cut], end_B[left] + buffer), begin_B[cut])
    end_B[cut] = np.where(near_right, np.minimum(end_B[cut], begin_B[right] - buffer), end_B[cut])


def _fill_empty(
    split_G: np.ndarray, distance_G: np.ndarray, share_G: np.ndarray, split: int, wanted: float
) -> None:
    """Give an empty split the group that came closest to it and is no heavier than wanted, or the lightest.

    It is taken from a split that has several.
    """
    sizes = np.bincount(split_G, minlength=len(SPLITS))
    spare_G = (sizes[split_G] > 1) | (split == 0)
    if sizes[split] == 0 and spare_G.any():
        excess_G = np.maximum(share_G - wanted, 0)
        split_G[np.lexsort((distance_G, np.where(spare_G, excess_G, np.inf)))[0]] = split


def _uniform(groups_G: np.ndarray, seed: int) -> np.ndarray:
    """Map groups to [0, 1)."""
    return uniforms(mix(groups_G ^ mix(np.array([seed % 2**64], dtype=np.uint64))))
