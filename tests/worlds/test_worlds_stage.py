"""The simulate stage: what its folder holds, at the default sizes."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from Bio import SeqIO
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score

from pipeline import simulate
from pipeline.config import SimulateConfig

SMALL = {
    "genome_length": 20_000,
    "promoters": 60,
    "family_sequences": 40,
    "family_length": 25,
    "decoy_motifs": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return simulate.run(SimulateConfig(output=tmp_path_factory.mktemp("world") / "out", seed=3)).folder


@pytest.fixture(scope="module")
def truth(folder):
    return json.loads((folder / "truth.json").read_text())


@pytest.fixture(scope="module")
def table(folder):
    return pd.read_csv(folder / "promoters.tsv", sep="\t")


def test_folder(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "genome.fa",
        "genome_features.bed",
        "promoters.tsv",
        "planted.meme",
        "database.meme",
        "family.fa",
        "family_contacts.tsv",
        "truth.json",
        "manifest.json",
    }


def test_chromosome(folder, truth):
    (record,) = SeqIO.parse(folder / "genome.fa", "fasta")
    lines = (folder / "genome.fa").read_text().splitlines()[1:]
    assert record.id == "simulated_chromosome"
    assert len(record.seq) == 600_000
    assert set(record.seq) == set("ACGT")
    assert {len(line) for line in lines[:-1]} == {60}
    assert truth["structure_bits"] >= 0.05
    features = [line.split("\t") for line in (folder / "genome_features.bed").read_text().splitlines()]
    coding = sum(int(f[2]) - int(f[1]) for f in features if "_gene_" in f[3])
    assert coding / 600_000 == pytest.approx(truth["coding_fraction"])
    for _, start, end, name, _, strand in features:
        piece = record.seq[int(start) : int(end)]
        oriented = piece if strand == "+" else piece.reverse_complement()
        assert "_gene_" not in name or str(oriented.translate(table=11)).find("*") == len(oriented) // 3 - 1


def test_windows(table):
    assert list(table.columns) == ["id", "sequence", "label", "kind", "log_odds", "split", "tss"]
    assert table["label"].value_counts().to_dict() == {"promoter": 6000, "background": 6000}
    assert table["kind"].value_counts().to_dict() == {
        "promoter": 6000,
        "plain": 2400,
        "minus35_only": 900,
        "minus10_only": 900,
        "wrong_spacing": 900,
        "wrong_order": 900,
    }
    assert table["id"].is_unique
    assert all(re.fullmatch(rf"simulated_{r.label}_\d{{6}}", r.id) for r in table.itertuples())
    assert table["sequence"].str.fullmatch("[ACGT]{81}").all()
    assert ((table["kind"] == "promoter") == (table["label"] == "promoter")).all()
    assert (table["tss"].notna() == (table["label"] == "promoter")).all()
    assert table["tss"].dropna().between(57, 63).all()


def test_splits_have_the_same_shares_in_every_kind(table):
    shares = pd.crosstab(table["kind"], table["split"], normalize="index")
    for split, share in (("train", 0.8), ("validation", 0.05), ("test", 0.15)):
        assert shares[split].to_numpy() == pytest.approx(np.full(6, share), abs=1e-3)


def test_composition_does_not_tell_labels_apart(table):
    joined = table.groupby("label")["sequence"].agg("".join)
    for base in "ACGT":
        difference = joined["promoter"].count(base) - joined["background"].count(base)
        assert abs(difference) / (6000 * 81) < 4 * 0.5 * np.sqrt(2 / (6000 * 81))


def test_bayes_auroc_is_that_of_the_column(table, truth):
    test = table[table["split"] == "test"]
    expected = roc_auc_score(test["label"] == "promoter", test["log_odds"])
    assert truth["bayes_auroc"]["overall"] == pytest.approx(expected, abs=1e-12)
    assert 0.8 < expected < 0.97
    assert len(truth["bayes_auroc"]["by_kind"]) == 5
    for kind, value in truth["bayes_auroc"]["by_kind"].items():
        part = test[test["kind"].isin(["promoter", kind])]
        expected = roc_auc_score(part["label"] == "promoter", part["log_odds"])
        assert value == pytest.approx(expected, abs=1e-12)


def test_family(folder, truth):
    records = list(SeqIO.parse(folder / "family.fa", "fasta"))
    assert [r.id for r in records[:2]] == ["simulated_family_0000", "simulated_family_0001"]
    assert len(records) == 2000
    assert all(re.fullmatch("[ACDEFGHIKLMNPQRSTVWY]{60}", str(r.seq)) for r in records)
    contacts = pd.read_csv(folder / "family_contacts.tsv", sep="\t")
    assert list(contacts.columns) == ["i", "j"]
    assert len(contacts) == truth["family_contacts"] >= 60
    assert (contacts["j"] - contacts["i"] >= 6).all()
    assert contacts["i"].min() >= 1
    assert contacts["j"].max() <= 60
    assert 0.5 < truth["family_mi_precision_at_L"] < 0.9


def test_contacts_are_one_based(folder):
    """Columns i and j of the table covary more than columns i + 1 and j + 1."""
    from sklearn.metrics import mutual_info_score

    rows = np.array([list(r.seq) for r in SeqIO.parse(folder / "family.fa", "fasta")])
    pairs = pd.read_csv(folder / "family_contacts.tsv", sep="\t").to_numpy() - 1
    inside = pairs[pairs[:, 1] < 59]
    at, beside = (
        np.mean([mutual_info_score(rows[:, i], rows[:, j]) for i, j in inside + shift]) for shift in (0, 1)
    )
    assert at > 1.1 * beside


def test_truth_says_that_it_is_simulated_and_what_was_planted(truth):
    assert truth["simulated"] is True
    assert "simulated" in truth["note"]
    assert truth["planted_motifs"] == ["minus35", "minus10"]
    assert np.array(truth["boxes"]["minus10"])[5] == pytest.approx(
        np.array([0.04 * 29 / 71, 0.04 * 21 / 71, 0.04 * 21 / 71, 0.96])
    )
    assert truth["spacers"]["17"] == max(truth["spacers"].values())


def test_same_seed_same_bytes_and_parts_do_not_depend_on_each_other(tmp_path):
    runs = {
        "one": SMALL,
        "two": SMALL,
        "longer": SMALL | {"genome_length": 21_000},
        "other": SMALL | {"seed": 1},
    }
    files = {
        name: simulate.run(SimulateConfig(output=tmp_path / name, **settings)).manifest["files"]
        for name, settings in runs.items()
    }
    assert files["one"] == files["two"]
    for name in ("promoters.tsv", "family.fa", "database.meme"):
        assert files["longer"][name] == files["one"][name]
        assert files["other"][name] != files["one"][name]
    assert files["longer"]["genome.fa"] != files["one"]["genome.fa"]


def test_prints_the_best_possible_score_as_simulated(tmp_path, capsys):
    simulate.run(SimulateConfig(output=tmp_path / "out", **SMALL))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("simulated") for line in lines)
    assert any("Bayes" in line for line in lines)


@pytest.mark.parametrize(
    ("field", "value"),
    [("window", 63), ("promoters", 10), ("family_length", 8), ("decoy_motifs", -1), ("genome_length", 100)],
)
def test_sizes_that_make_no_world_are_refused(tmp_path, field, value):
    with pytest.raises(ValidationError, match=field):
        SimulateConfig(output=tmp_path / "out", **{field: value})
