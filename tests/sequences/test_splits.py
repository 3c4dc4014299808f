"""Splits by content: stable, proportional, and never empty where one was asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.splits import assign_splits, count_shared, digest, group_digest

groups = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30)


def as_array(values):
    return np.array(values, dtype=np.uint64)


@given(groups, st.integers(0, 2**63), st.floats(0, 0.49), st.floats(0, 0.49))
def test_no_wanted_split_is_empty_and_groups_stay_together(values, seed, validation, test):
    splits = assign_splits(as_array(values), validation, test, seed)
    by_group = {}
    for group, split in zip(values, splits.tolist(), strict=True):
        assert by_group.setdefault(group, split) == split
    assert 0 in splits
    if len(set(values)) >= 3:
        assert (1 in splits) == (validation > 0)
        assert (2 in splits) == (test > 0)


def test_shares():
    splits = assign_splits(np.arange(20_000, dtype=np.uint64), 0.1, 0.05, seed=3)
    for split, share in ((1, 0.1), (2, 0.05)):
        assert binomtest(int((splits == split).sum()), len(splits), share).pvalue > 1e-4


def test_independent_of_order_and_of_other_records():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**63, 500).astype(np.uint64)
    splits = assign_splits(values, 0.1, 0.1, seed=1)
    order = rng.permutation(500)
    np.testing.assert_array_equal(assign_splits(values[order], 0.1, 0.1, seed=1), splits[order])
    more = np.concatenate([rng.integers(0, 2**63, 300).astype(np.uint64), values])
    np.testing.assert_array_equal(assign_splits(more, 0.1, 0.1, seed=1)[300:], splits)
    np.testing.assert_array_equal(assign_splits(values, 0.3, 0.1, seed=1) == 2, splits == 2)


def test_seeds_give_independent_splits():
    values = np.arange(20_000, dtype=np.uint64)
    first, second = (assign_splits(values, 0, 0.5 - 1e-9, seed) == 2 for seed in (0, 1))
    assert binomtest(int((first == second).sum()), 20_000, 0.5).pvalue > 1e-4


def test_nothing_left_for_training():
    with pytest.raises(UserError, match="leave nothing for training"):
        assign_splits(as_array([1, 2, 3]), 0.5, 0.5, seed=0)


@given(st.text("ACGTN", min_size=1))
def test_both_strands_are_one_group(sequence):
    assert group_digest(sequence, "dna") == group_digest(reverse_complement(sequence), "dna")
    assert group_digest(sequence, "protein") == digest(sequence)


def test_groups_in_several_splits():
    assert count_shared(as_array([1, 1, 2, 2, 3, 3]), np.array([0, 2, 1, 1, 0, -1], dtype=np.int8)) == 1
