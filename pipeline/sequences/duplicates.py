"""Which rows say the same: duplicates, conflicting labels, and what has to share a split."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def numbered(digests_N: np.ndarray) -> np.ndarray:
    """Return (N,) int64: equal digests (16 bytes each) get equal numbers, from 0 in order of appearance."""
    size = digests_N.dtype.itemsize
    buffer = pa.py_buffer(np.ascontiguousarray(digests_N))
    array = pa.Array.from_buffers(pa.binary(size), len(digests_N), [None, buffer])
    return array.dictionary_encode().indices.to_numpy().astype(np.int64)


def conflicting(sequence_N: np.ndarray, label_N: np.ndarray) -> np.ndarray:
    """Return (N,) whether a row's sequence has, in some row, another label."""
    size = int(sequence_N.max(initial=-1)) + 1
    low_S, high_S = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
    np.minimum.at(low_S, sequence_N, label_N)
    np.maximum.at(high_S, sequence_N, label_N)
    return (low_S != high_S)[sequence_N]


def repeated(sequence_N: np.ndarray, split_N: np.ndarray) -> np.ndarray:
    """Return (N,) whether a row repeats another: its sequence's first row in the last split that has one."""
    order_N = np.lexsort((np.arange(len(sequence_N)), -split_N.astype(np.int64), sequence_N))
    again = np.flatnonzero(np.diff(sequence_N[order_N]) == 0) + 1
    repeated_N = np.zeros(len(sequence_N), bool)
    repeated_N[order_N[again]] = True
    return repeated_N


def joined(numberings: Sequence[np.ndarray]) -> np.ndarray:
    """Return (N,) numbers of the groups of rows that are equal, transitively, in any of the numberings."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    group_N, *others = (np.unique(numbers_N, return_inverse=True)[1] for numbers_N in numberings)
    for number_N in others:
        groups = int(group_N.max(initial=-1)) + 1
        size = groups + int(number_N.max(initial=-1)) + 1
        links = coo_array((np.ones(len(group_N), bool), (group_N, number_N + groups)), (size, size))
        group_N = connected_components(links, directed=False)[1][group_N]
    return group_N.astype(np.int64)
