"""Folds against what they have to be, whatever the order of the rows."""

import json

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.training.folds import Division, assign_folds, divide, in_words, shared_by_folds

NAMES = ["background", "promoter"]


def rows(size=60, seed=0, **columns):
    """Rows of random bases of two classes, a third of them promoters."""
    rng = np.random.default_rng(seed)
    kinds = {"id": Value("string"), "sequence": Value("string"), "label": ClassLabel(names=NAMES)}
    texts = ["".join(rng.choice(list("ACGT"), 12)) for _ in range(size)]
    content = {"id": [f"{seed}-{i}" for i in range(size)], "sequence": texts}
    content["label"] = [int(i % 3 == 0) for i in range(size)]
    kinds |= {name: Value("string") for name in columns}
    return Dataset.from_dict({**content, **columns}, features=Features(kinds))


def reverse(text):
    """Return the other strand."""
    return text[::-1].translate(str.maketrans("ACGT", "TGCA"))


@pytest.fixture
def corpus(tmp_path):
    """Write the manifest that says that a corpus is of DNA; return its folder."""
    manifest = {"stage": "prepare", "key": "", "content": "", "config": {"alphabet": "dna"}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), min_size=40, max_size=200),
    st.integers(3, 6),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_groups_are_whole_and_the_order_of_rows_does_not_matter(pairs, folds, seed, random):
    group, label = np.array(pairs).T
    digest = np.random.default_rng(1).integers(0, 2**63, len(group)).astype(np.uint64)
    fold = assign_folds(group, digest, label, folds, seed)
    assert set(fold) <= set(range(1, folds + 1))
    assert all(len(set(fold[group == g])) == 1 for g in set(group))
    order = list(range(len(group)))
    random.shuffle(order)
    names = np.random.default_rng(2).permutation(31)
    assert (assign_folds(names[group[order]], digest[order], label[order], folds, seed) == fold[order]).all()


@pytest.mark.parametrize("folds", [3, 5])
def test_folds_of_single_rows_differ_by_one_row_of_a_class_at_most(folds):
    label = np.arange(101) % 3 == 0
    digest = np.random.default_rng(0).integers(0, 2**63, 101).astype(np.uint64)
    fold, other = (assign_folds(np.arange(101), digest, label.astype(int), folds, seed) for seed in (0, 1))
    for chosen in (label, ~label, label | True):
        assert np.ptp(np.bincount(fold[chosen])[1:]) <= 1
    assert (fold != other).mean() > 0.4


def test_folds_of_clusters_are_alike_in_size_and_classes():
    rng = np.random.default_rng(0)
    group, label = rng.geometric(0.02, 3000), rng.random(3000) < 0.3
    digest = rng.integers(0, 2**63, 3000).astype(np.uint64)
    fold = assign_folds(group, digest, label.astype(int), 5, 0)
    sizes = np.bincount(fold)[1:]
    shares = np.bincount(fold[label])[1:] / sizes
    assert sizes.max() < 1.02 * sizes.min()
    assert shares.max() - shares.min() < 0.02


def test_each_row_is_tested_once_and_validates_once(corpus):
    splits = {"train": rows(60), "validation": rows(20, 1), "test": rows(25, 2)}
    division = divide(splits, corpus, 4, "sequence", 0, "cluster")
    everything = [name for split in splits.values() for name in split["id"]]
    assert list(division.rows["id"]) == everything
    parts = {fold: {n: set(s["id"]) for n, s in division.of(fold).items()} for fold in division.folds}
    assert sorted(name for each in parts.values() for name in each["test"]) == sorted(everything)
    for fold, each in parts.items():
        assert sum(map(len, each.values())) == len(set().union(*each.values())) == 105
        assert each["validation"] == parts[fold % 4 + 1]["test"]
    tested = [name for fold in parts for name in division.of(fold)["test"]["id"]]
    assert [name for fold in parts for name in np.array(everything)[division.numbers == fold]] == tested
    assert sum(count["rows"] for count in division.counts(NAMES).values()) == 105


def test_without_folds_the_splits_are_the_corpus_own(corpus):
    splits = {"train": rows(60), "validation": rows(20, 1)}
    division = divide(splits, corpus, 0, "sequence", 0, "cluster")
    assert division == Division(splits)
    assert (division.folds, division.scored, len(division.rows)) == ([None], "validation", 20)
    assert division.of(None) == splits


def test_equal_sequences_stay_together_on_either_strand(corpus):
    table = rows(60)
    texts = list(table["sequence"])
    other = [reverse(text).lower() for text in texts]
    test = rows(60, 1).remove_columns("sequence").add_column("sequence", other)
    test = test.select_columns(table.column_names)
    division = divide({"train": table, "test": test}, corpus, 5, "sequence", 0, "cluster")
    assert (division.numbers[:60] == division.numbers[60:]).all()


@pytest.mark.parametrize(("by", "column"), [("cluster", "cluster"), ("chromosome", "chromosome")])
def test_rows_of_one_value_stay_together(corpus, by, column):
    value = [f"c{i % 7}" for i in range(60)]
    division = divide({"train": rows(60, **{column: value})}, corpus, 3, by, 0, "cluster")
    assert {len(set(division.numbers[np.array(value) == each])) for each in value} == {1}
    assert set(division.numbers) == {1, 2, 3}


@pytest.mark.parametrize("folds", [3, 10])
def test_what_folds_share_is_counted_on_either_strand(folds):
    """Against every pair of rows and every stretch; more folds than there are bits, too."""
    rng = np.random.default_rng(folds)
    texts = ["".join(rng.choice(list("ACGT"), 40)) for _ in range(60)]
    for i in range(0, 16, 4):
        texts[i + 1] = reverse(texts[i]) if i % 8 else texts[i]
        texts[i + 3] = texts[i + 2][:5] + reverse(texts[i])[2:37]
    number = rng.permutation(np.arange(60) % folds) + 1
    table = rows(60).remove_columns("sequence").add_column("sequence", texts)

    def stretches(text):
        return {strand[i : i + 30] for strand in (text, reverse(text)) for i in range(len(text) - 29)}

    equal = near = 0
    for i, text in enumerate(texts):
        others = [other for j, other in enumerate(texts) if number[j] != number[i]]
        equal += text in others or reverse(text) in others
        near += any(stretches(text) & stretches(other) for other in others)
    division = Division({"train": table}, number)
    found = shared_by_folds(division, "dna")
    assert 0 < equal < near < 60
    assert found == {"equal": equal, "shared_kmer": near, "kmer": 30}
    lines = list(in_words(division, NAMES, found))
    assert lines[1].startswith(f"WARNING: {equal} of 60 rows have their sequence ")
    assert lines[2].startswith(f"note: {near} of 60 rows ({near / 60:.1%}) share 30 letters in a row with ")
    clean = {"equal": 0, "shared_kmer": 0, "kmer": 30}
    assert len(list(in_words(division, NAMES, clean))) == 1


def test_rows_that_are_records_of_their_own_are_no_chromosomes(corpus):
    with pytest.raises(UserError, match="no column 'chromosome', and every row is a record of its own; prep"):
        divide({"train": rows(60)}, corpus, 3, "chromosome", 0, "cluster")


def test_records_stand_for_chromosomes_that_are_not_told(corpus):
    table = rows(60).remove_columns("id").add_column("id", [f"chr{i % 9}" for i in range(60)])
    numbers = divide({"train": table}, corpus, 3, "chromosome", 0, "cluster").numbers
    assert {len(set(numbers[i::9])) for i in range(9)} == {1}


@pytest.mark.parametrize(
    ("by", "columns", "message"),
    [
        ("cluster", {}, "fold_by: cluster: .* has no column 'cluster'; prepare it with --split-by cluster"),
        (
            "cluster",
            {"cluster": ["a", "b"] * 30},
            "fold_by: cluster: .* has only 2 values to divide into 3 folds; pass fewer --folds",
        ),
        (
            "chromosome",
            {"chromosome": ["", "chr1", "chr2"] * 20},
            "fold_by: chromosome: 20 rows of .* have no chromosome; pass another --fold-by",
        ),
    ],
)
def test_what_cannot_be_divided_is_told_in_a_line(corpus, by, columns, message):
    with pytest.raises(UserError, match=message) as error:
        divide({"train": rows(60, **columns)}, corpus, 3, by, 0, "cluster")
    assert "\n" not in str(error.value)
