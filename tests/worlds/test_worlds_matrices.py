"""Motif files, read back with Biopython and memelite."""

import numpy as np
import pytest
from Bio import motifs as bio_motifs
from memelite.io import read_meme

from pipeline.worlds import entropy, matrices
from pipeline.worlds.promoters import box_matrix


def test_meme_file_reads_back(tmp_path):
    planted = {name: box_matrix(name) for name in ("minus35", "minus10")}
    decoys = matrices.sample_decoys(20, np.random.default_rng(0))
    matrices.write_meme(tmp_path / "all.meme", planted | decoys, 5000)
    found = read_meme(str(tmp_path / "all.meme"))
    assert list(found) == ["minus35", "minus10", *(f"decoy_{n:03d}" for n in range(1, 21))]
    for name, matrix in (planted | decoys).items():
        assert pytest.approx(matrix, abs=2.1e-6) == found[name].T
        assert found[name].sum(0) == pytest.approx(np.ones(len(matrix)), abs=1e-9)
    with (tmp_path / "all.meme").open() as file:
        record = bio_motifs.parse(file, "minimal")
    assert [motif.name for motif in record] == list(found)
    assert record[0].consensus == "TTGACA"
    assert record[1].consensus == "TATAAT"
    assert record[0].background == pytest.approx({"A": 0.29, "C": 0.21, "G": 0.21, "T": 0.29})


def test_file_says_that_it_is_simulated(tmp_path):
    matrices.write_meme(tmp_path / "none.meme", {}, 10)
    assert "simulated" in (tmp_path / "none.meme").read_text()


def test_decoys_mix_conserved_and_degenerate_columns():
    decoys = matrices.sample_decoys(300, np.random.default_rng(0)).values()
    widths = [len(matrix) for matrix in decoys]
    information = np.array([2 - entropy(column) for matrix in decoys for column in matrix])
    assert (min(widths), max(widths)) == (6, 14)
    assert 0.6 < information.mean() < 1.2
    assert (information > 1.2).mean() > 0.25
    assert (information < 0.5).mean() > 0.25


def test_decoys_are_conserved_in_the_middle():
    wide = [m for m in matrices.sample_decoys(500, np.random.default_rng(0)).values() if len(m) == 12]
    information = np.mean([[2 - entropy(column) for column in matrix] for matrix in wide], axis=0)
    assert information[4:8].mean() > information[[0, 11]].mean() + 0.3
