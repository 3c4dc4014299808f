"""Settings that would have no effect are refused; those that have one, and defaults, are not."""

import pytest

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.sequences.checks import check_settings

PROTEIN = {"alphabet": "protein"}
CLUSTER = {"split_by": "cluster"}
TESTS = {"test_input": ["t"]}
NAMES = {"split_by": "record", "test_names": ["r"]}


def check(**settings):
    check_settings(PrepareConfig(**{"output": "out", "input": ["a"], **settings}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"cluster_kmer": 20},
            "cluster_kmer: 20: only for split_by: cluster, or beside test_input; leave it",
        ),
        ({"identity": 0.9, **PROTEIN}, "identity: 0.9: only for split_by: cluster"),
        ({"coverage": 0.9, "block": 500}, "coverage: 0.9: only for split_by: cluster"),
        ({"cluster_with": "mmseqs2"}, "cluster_with: mmseqs2: only for"),
        ({"cluster_kmer": 20, "block": 500, **TESTS}, "cluster_kmer: 20: only for"),
        ({"identity": 0.9, **CLUSTER}, "identity: 0.9: only for proteins, or with cluster_with: mmseqs2"),
        ({"repeat": 50}, "repeat: 50: only for blocks"),
        ({"buffer": 0, "block": 500, "split_by": "record"}, "buffer: 0: only for blocks"),
        ({"buffer": 0, "block": 500, "split_column": "x"}, "buffer: 0: only for blocks"),
        ({"test": 0.2, "split_by": "file"}, "test: 0.2: only for splits drawn at random, and here they are"),
        ({"validation": 1, "split_column": "x"}, "validation: 1.0: only for splits drawn at random"),
        ({"test": 0.2, **TESTS}, "test: 0.2: only for splits drawn at random, and test_input gives this one"),
        ({"test": 0.2, **NAMES}, "test: 0.2: only for splits drawn at random, and test_names gives this one"),
        ({"validation": 0, "validation_names": ["r"], "split_by": "record"}, "validation: 0.0: only for"),
        ({"letters": {"rare": "x"}}, r"letters.rare: x: only for proteins \(alphabet\)"),
        ({"letters": {"stops": "split"}}, "letters.stops: split: only for proteins"),
        ({"letters": {"xle": "l"}}, "letters.xle: l: only for proteins"),
        ({"letters": {"uracil": "error"}, **PROTEIN}, "letters.uracil: error: only for DNA"),
        ({"letters": {"ambiguous": "error"}, **PROTEIN}, "letters.ambiguous: error: only for DNA"),
        ({"aligned": True}, "only proteins can be aligned; drop aligned, or give alphabet: protein"),
        ({"genome": "g", **PROTEIN}, "windows of a genome are DNA; drop genome, or alphabet: protein"),
    ],
)
def test_what_would_not_be_heeded(settings, message):
    with pytest.raises(UserError, match=f"^prepare: {message}") as error:
        check(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"cluster_kmer": 20, **CLUSTER},
        {"cluster_kmer": 20, **TESTS},
        {"identity": 0.9, "cluster_with": "mmseqs2", **CLUSTER},
        {"identity": 0.9, "coverage": 0.9, **CLUSTER, **PROTEIN},
        {"repeat": 50, "buffer": 0, "block": 500},
        {"repeat": 50, "block": 500, "split_by": "block"},
        {"validation": 0.2, **NAMES},
        {"letters": {"rare": "x", "stops": "split", "xle": "l", "gaps": "remove"}, **PROTEIN},
        {"letters": {"uracil": "error", "ambiguous": "error", "case": "soft-mask"}},
        {"aligned": True, **PROTEIN},
    ],
)
def test_what_is_heeded(settings):
    check(**settings)


def test_a_run_hands_over_every_default():
    handed = PrepareConfig(output="out", input=["a"], test_input=["t"]).model_dump()
    check_settings(PrepareConfig(**handed))
    check_settings(PrepareConfig(**(handed | {"alphabet": "protein", "test_input": []})))


def test_no_folder_is_made_inside_a_file(tmp_path):
    (tmp_path / "pos.fa").write_text(">a\nACGT\n")
    for output in (tmp_path / "pos.fa" / "x", tmp_path / "pos.fa" / "x" / "y"):
        with pytest.raises(UserError, match=r"pos.fa: Not a directory$"):
            check(output=output)
