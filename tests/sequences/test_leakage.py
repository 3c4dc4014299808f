"""The leakage report: small hand-made corpora, and the official splits of GUE's promoters."""

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.sequences.leakage import leakage_report, say_leakage
from pipeline.sequences.similarity import shared_kmer_clusters
from pipeline.sequences.splits import assign_splits

DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
SEQUENCE = "ACGTTGCAAGGCTTAACCATGCATTGACGGTACC"


def gue(name):
    """Return sequences, labels and official splits of one GUE set."""
    folder = DATA / "promoters" / "gue" / "prom" / name
    if not folder.exists():
        pytest.skip(f"no {folder}; set STRANDLM_DATA")
    rows = []
    for split, part in enumerate(("train", "dev", "test")):
        with gzip.open(folder / f"{part}.csv.gz", "rt") as file:
            rows += [(row["sequence"], int(row["label"]), split) for row in csv.DictReader(file)]
    sequences, labels, splits = zip(*rows, strict=True)
    return pa.chunked_array([pa.array(sequences)]), np.array(labels), np.array(splits, np.int8)


def other_strand(sequence):
    return sequence.translate(str.maketrans("ACGT", "TGCA"))[::-1]


def test_small_corpus():
    other = "TTGACCATTAGGACCATAGACCAGGATTACAGGA"
    rows = [
        SEQUENCE,
        SEQUENCE,
        other,
        "G" * 40,
        SEQUENCE.lower(),
        other_strand(SEQUENCE),
        "CC" + other[:30],
        "A" * 20,
    ]
    splits = [0, 0, 0, 0, 2, 2, 2, 2]
    rows.append(other)
    splits.append(-1)
    clusters = np.array([0, 0, 1, 2, 0, 0, 1, 3, 1])
    labels = np.array([0, 0, 1, 0, 1, 0, 0, 0, 0])
    report = leakage_report(
        pa.chunked_array([pa.array(rows)]), np.array(splits, np.int8), "dna", clusters, labels
    )
    assert report["splits"] == {"train": {"rows": 4, "duplicates": 1}, "test": {"rows": 4, "duplicates": 0}}
    assert report["pairs"] == {
        "test in train": {
            "exact": 1,
            "exact_share": 0.25,
            "reverse_complement": 1,
            "reverse_complement_share": 0.25,
            "shared_kmer": 3,
            "shared_kmer_share": 0.75,
            "conflicting_labels": 1,
        }
    }
    largest = report["largest_cluster"]
    assert (largest["rows"], largest["rows_share"], largest["letters"]) == (4, 0.5, 4 * len(SEQUENCE))
    assert largest["letters_share"] == round(4 * 34 / (5 * 34 + 40 + 32 + 20), 6)
    warning, note, last = say_leakage(report)
    assert warning == (
        "WARNING: 1 test rows are in train, and the other strands of 1 test rows are in train, "
        "and 1 of these have another label there: scores on test will flatter"
    )
    assert note.startswith("note: 3 of 4 test rows (75.0%) share 30 letters in a row with train")
    assert last.startswith("largest cluster: 4 rows (50.0% of them")


def test_labels_on_both_sides_of_a_conflict():
    rows, splits = ["ACGT"] * 5 + ["CCCC"] * 2, np.array([0, 0, 2, 1, 2, 0, 2], np.int8)
    labels = np.array([0, 1, 0, 1, 1, 3, 3])
    report = leakage_report(pa.chunked_array([pa.array(rows)]), splits, "dna", labels_N=labels)
    conflicts = {name: pair["conflicting_labels"] for name, pair in report["pairs"].items()}
    assert conflicts == {"validation in train": 1, "test in train": 2, "test in validation": 1}


def test_proteins_have_one_strand():
    rows = ["MKVLAWDERSTPQ", "AAMKVLAWDERSAA", "MKVLAWDERXTPQ", "GGGG"]
    report = leakage_report(pa.chunked_array([pa.array(rows)]), np.array([0, 1, 1, 2], np.int8), "protein")
    assert report["kmer"] == 10
    assert report["pairs"]["validation in train"] == {
        "exact": 0,
        "exact_share": 0.0,
        "shared_kmer": 1,
        "shared_kmer_share": 0.5,
    }
    assert report["pairs"]["test in train"]["shared_kmer"] == 0
    assert len(say_leakage(report)) == 1
    splits = np.array([0, 1, 1, 2], np.int8)
    untold = leakage_report(pa.chunked_array([pa.array(rows)]), splits, "protein", shared_kmers=False)
    assert untold["pairs"]["validation in train"]["shared_kmer"] == 0
    assert not untold["kmer_counted"]


def test_one_split_has_nothing_to_leak_into():
    rows = pa.chunked_array([pa.array([SEQUENCE, SEQUENCE])])
    report = leakage_report(rows, np.zeros(2, np.int8), "dna")
    assert report["kmer"] == 30
    assert report["kmer_counted"]
    assert report["splits"] == {"train": {"rows": 2, "duplicates": 1}}
    assert report["pairs"] == {}
    assert say_leakage(report) == []


@pytest.mark.parametrize(
    ("name", "exact", "conflicts", "shared"),
    [("prom_core_all", 43, 6, 1322), ("prom_core_tata", 16, 1, 36)],  # 1308 on the forward strand alone
)
def test_official_splits_leak_and_a_cluster_split_does_not(name, exact, conflicts, shared):
    sequences, label_N, split_N = gue(name)
    report = leakage_report(sequences, split_N, "dna", labels_N=label_N)
    pair = report["pairs"]["test in train"]
    assert pair["exact"] == exact
    assert pair["conflicting_labels"] == conflicts
    assert pair["shared_kmer"] == shared
    cluster_N = shared_kmer_clusters(sequences, 30, both_strands=True)
    split_N = assign_splits(cluster_N, 0.1, 0.1, seed=0)
    report = leakage_report(sequences, split_N, "dna", cluster_N, label_N)
    assert len(report["pairs"]) == 3
    for pair in report["pairs"].values():
        assert not any(pair.values())
    assert report["largest_cluster"]["rows"] < 100


def test_promoters_copied_turned_and_shifted():
    """Ten promoters, each with its other strand and its neighbour window, rows split at random."""
    rng = np.random.default_rng(0)
    genomes = ["".join(rng.choice(list("ACGT"), 82)) for _ in range(10)]
    rows = [row for g in genomes for row in (g[:81], other_strand(g[:81]), g[1:])]
    sequences = pa.chunked_array([pa.array(rows)])
    at_random = np.where(rng.random(30) < 0.3, 2, 0).astype(np.int8)
    pair = leakage_report(sequences, at_random, "dna")["pairs"]["test in train"]
    assert pair["reverse_complement"] > 0
    assert pair["shared_kmer"] > pair["reverse_complement"]
    cluster_N = shared_kmer_clusters(sequences, 30, both_strands=True)
    assert cluster_N.tolist() == np.repeat(np.arange(10), 3).tolist()
    grouped = assign_splits(cluster_N, 0, 0.2, seed=0)
    assert not any(leakage_report(sequences, grouped, "dna")["pairs"]["test in train"].values())
