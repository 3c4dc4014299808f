"""Splits by content (stable, proportional, never empty where asked for), by name, and with buffers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from pipeline.errors import UserError
from pipeline.sequences.splits import (
    assign_splits,
    file_split,
    group_ids,
    named_splits,
    trim_buffers,
)

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


def test_group_ids_are_those_of_the_members():
    digests = as_array([9, 2**64 - 1, 5, 7, 3])
    ids = group_ids(np.array([4, -1, 4, 8, 8]), digests)
    assert ids.dtype == np.uint64
    assert ids.tolist() == [5, 2**64 - 1, 5, 3, 3]


def test_heavy_groups_are_trained_on():
    values = np.repeat(np.arange(200, dtype=np.uint64), 5)
    weights = np.where(values < 100, 40, 1)
    weights[values == 199] = 1000  # a fifth of the letters in one group
    seeds = [assign_splits(values, 0.1, 0.1, seed, weights_N=weights) for seed in range(40)]
    assert all(set(splits[values == 199].tolist()) == {0} for splits in seeds)
    without = [assign_splits(values, 0.1, 0.1, seed) for seed in range(40)]
    assert any(splits[values == 199].any() for splits in without)
    for weighted, plain in zip(seeds, without, strict=True):
        np.testing.assert_array_equal(weighted[values != 199], plain[values != 199])


def test_filling_prefers_groups_that_are_not_too_heavy():
    values, weights = as_array([1, 2, 3, 4]), np.array([46, 46, 4, 4])
    for seed in range(20):
        splits = assign_splits(values, 0.05, 0.05, seed, weights_N=weights)
        assert sorted(splits[2:].tolist()) == [1, 2]


def test_files_are_named_after_splits():
    names = {"train": "train", "test": "test"} | dict.fromkeys(
        ("dev", "val", "valid", "validation"), "validation"
    )
    for name, split in names.items():
        for extension in ("", ".csv", ".TSV", ".fa.gz", ".bed.zst"):
            assert file_split(Path("a.b/test") / f"{name}{extension}") == split
            assert file_split(Path(f"{name.upper()}{extension}")) == split
    for name in (
        "trains.csv",
        "train.1.csv",
        "train_x.tsv.gz",
        "train/x.csv",
        ".csv",
        "eval.csv",
        "train.csv.old",
    ):
        with pytest.raises(
            UserError, match=rf"^{name}: '.*' names no split, and split_by is file; call it train"
        ):
            file_split(Path(name))


def test_named():
    names = ["chr1", "chr2", "chrX", "chr2"]
    assert named_splits(names, ["chrX"], ["chr2"]).tolist() == [0, 2, 1, 2]
    assert named_splits(np.array(names), [], []).tolist() == [0, 0, 0, 0]
    with pytest.raises(UserError, match="test_names: 'chr_2' does not occur; the nearest name is 'chr2'"):
        named_splits(names, [], ["chr_2"])
    with pytest.raises(UserError, match="'chrX' is in validation_names, too"):
        named_splits(names, ["chrX"], ["chrX"])


def slow_trim(blocks, buffer):
    """Drop every base of train near validation or test, after those of validation near test."""
    base = {
        (r, i): split
        for r, start, length, split in blocks
        if split >= 0
        for i in range(start, start + length)
    }
    for split in (1, 0):
        firm = [place for place, of in base.items() if of > split]
        for (record, i), of in list(base.items()):
            if of == split and any(r == record and abs(i - j) <= buffer for r, j in firm):
                del base[record, i]
    return base


block_lists = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 8), st.integers(-1, 2)),
    min_size=4,
    max_size=12,
)


@given(block_lists, st.integers(0, 14), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_buffers_as_base_by_base(pieces, buffer, random):
    blocks, ends = [], [0, 0]
    for record, gap, length, split in pieces:
        blocks.append((record, ends[record] + gap, length, split))
        ends[record] += gap + length
    random.shuffle(blocks)
    record_N, start_N, length_N, split_N = np.array(blocks, np.int64).reshape(-1, 4).T
    front_N, back_N = trim_buffers(record_N, start_N, length_N, split_N, buffer)
    assert (front_N + back_N <= length_N).all()
    assert not (front_N + back_N)[split_N == 2].any()
    left = {
        (record, i): split
        for (record, start, length, split), front, back in zip(blocks, front_N, back_N, strict=True)
        if split >= 0
        for i in range(start + front, start + length - back)
    }
    assert left == slow_trim(blocks, buffer)


def test_a_cut_goes_on_into_the_next_block():
    start_N = np.arange(6) * 10
    split_N = np.array([0, 0, 2, 1, 1, 0], np.int8)
    front_N, back_N = trim_buffers(np.zeros(6, int), start_N, np.full(6, 10), split_N, buffer=12)
    assert front_N.tolist() == [0, 10, 0, 10, 2, 10]
    assert back_N.tolist() == [2, 0, 0, 0, 0, 0]


def test_what_vanishes_cuts_nothing():
    split_N = np.array([0, 1, 2], np.int8)
    front_N, back_N = trim_buffers(np.zeros(3, int), np.array([0, 10, 12]), np.array([10, 2, 8]), split_N, 3)
    assert (front_N + back_N).tolist() == [1, 2, 0]
    assert back_N.tolist() == [1, 0, 0]
