"""Decoy matrices."""

import numpy as np

from pipeline.worlds import entropy, matrices


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
