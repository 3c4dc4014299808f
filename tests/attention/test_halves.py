"""Which rows motifs are found on and tested on, and where they lie."""

import pandas as pd
import pytest

import pipeline.prepare
from pipeline.attention import halves
from pipeline.attention.halves import read_halves
from pipeline.config import PrepareConfig
from pipeline.sequences.corpus import load_corpus


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """60 rows in 20 clusters of three, ids that name windows, every cluster with both classes."""
    folder = tmp_path
    letters = "ACGTTGCATCAGGATC"
    rows = []
    for i in range(60):
        text = (
            "".join(letters[(i * 7 + j * (3 + i % 5) + j * j * (1 + i % 3)) % 16] for j in range(24))
            + f"{'ACGT'[i % 4]}"
        )
        text += "".join("ACGT"[(i >> s) & 3] for s in (0, 2, 4))
        row = {"id": f"chr{i % 2}:{10 * i}-{10 * i + 28}({'+-'[i % 2]})", "sequence": text}
        rows.append(row | {"class": "yes" if i % 3 else "no", "split": "test"})
    pd.DataFrame([{**row, "split": "train"} for row in rows[:1]] + rows[1:]).to_csv(
        folder / "rows.tsv", sep="\t", index=False
    )
    columns = {"label_column": "class", "split_column": "split"}
    config = PrepareConfig(output=folder / "corpus", input=[folder / "rows.tsv"], **columns)
    made = pipeline.prepare.run(config).folder

    def clustered(path):
        """Stand in for a corpus that was split by cluster: every three windows in a row are one."""
        splits = load_corpus(path)
        return splits.map(lambda row: {"cluster": cluster(row["id"])})

    monkeypatch.setattr(halves, "load_corpus", clustered)
    return made


def cluster(row: str) -> int:
    return int(row.split(":")[1].split("-")[0]) // 30


def test_clusters_stay_together_and_are_tested_once(corpus, capsys):
    same = {"discover_on": ["test"], "test_on": ["test"]}
    first, second, name = read_halves(corpus, same, "yes", 1000, 0)
    assert name == "yes"

    held = [[cluster(row) for row in part.ids] for part in (first, second)]
    assert not set(held[0]) & set(held[1])
    classes = list(zip(held[1], second.positive.tolist(), strict=True))
    assert len(set(classes)) == len(classes)
    assert len(held[0]) > len(set(held[0])) * 2  # the half that is searched keeps them all
    assert "rows are not tested: they share a cluster" in capsys.readouterr().err


def test_ids_that_name_windows_are_places(corpus):
    same = {"discover_on": ["test"], "test_on": ["test"]}
    for part in read_halves(corpus, same, "yes", 1000, 0)[:2]:
        for name, frame in zip(part.ids, part.frames, strict=True):
            assert frame.genomic
            assert str(frame.place) == name
