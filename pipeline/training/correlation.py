"""How well scores rank what was measured."""

import numpy as np
from scipy.stats import rankdata

from pipeline.training.resampling import interval

RESAMPLES = 2000


def spearman(score_N: np.ndarray, measured_N: np.ndarray, seed: int) -> dict[str, float]:
    """Return Spearman's rank correlation, ties at their mean rank, and how sure it is.

    The interval is that of resampled pairs; resamples without two different values are left out.

    Args:
        score_N: (N,) scores.
        measured_N: (N,) what was measured.
        seed: of the resampling.
    """

    def of_rows(rows_RN: np.ndarray) -> np.ndarray:
        return _rank_correlation(score_N[rows_RN], measured_N[rows_RN])

    size = len(score_N)
    low, high = interval(of_rows, size, RESAMPLES, seed)
    value = of_rows(np.arange(size)[None])[0]
    return {"value": float(value), "low": low, "high": high, "n": size}


def _rank_correlation(first_RN: np.ndarray, second_RN: np.ndarray) -> np.ndarray:
    """Return the correlation of the ranks in each row, (R,); not a number where all ranks are one."""
    ranks = [rankdata(each, axis=1) - (each.shape[1] + 1) / 2 for each in (first_RN, second_RN)]
    with np.errstate(invalid="ignore"):
        return (ranks[0] * ranks[1]).sum(1) / np.sqrt((ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1))
