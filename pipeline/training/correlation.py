"""How well scores rank, or give, what was measured."""

from collections.abc import Callable

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
    return _resampled(_rank_correlation, score_N, measured_N, seed)


def pearson(score_N: np.ndarray, measured_N: np.ndarray, seed: int) -> dict[str, float]:
    """Return Pearson's correlation and its interval, as ``spearman`` does."""
    return _resampled(_correlation, score_N, measured_N, seed)


def rmse(score_N: np.ndarray, measured_N: np.ndarray, seed: int) -> dict[str, float]:
    """Return the root of the mean squared error and its interval, in the units of what was measured."""
    return _resampled(_error, score_N, measured_N, seed)


def _resampled(
    statistic: Callable, score_N: np.ndarray, measured_N: np.ndarray, seed: int
) -> dict[str, float]:
    def of_rows(rows_RN: np.ndarray) -> np.ndarray:
        return statistic(score_N[rows_RN], measured_N[rows_RN])

    size = len(score_N)
    low, high = interval(of_rows, size, RESAMPLES, seed)
    value = of_rows(np.arange(size)[None])[0]
    return {"value": float(value), "low": low, "high": high, "n": size}


def _error(first_RN: np.ndarray, second_RN: np.ndarray) -> np.ndarray:
    return np.sqrt(((first_RN - second_RN) ** 2).mean(1))


def _rank_correlation(first_RN: np.ndarray, second_RN: np.ndarray) -> np.ndarray:
    """Return the correlation of the ranks in each row, (R,); not a number where all ranks are one."""
    return _correlation(rankdata(first_RN, axis=1), rankdata(second_RN, axis=1))


def _correlation(first_RN: np.ndarray, second_RN: np.ndarray) -> np.ndarray:
    """Return the correlation in each row, (R,); not a number where all values are one."""
    parts = [each - each.mean(1, keepdims=True) for each in (first_RN, second_RN)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return (parts[0] * parts[1]).sum(1) / np.sqrt((parts[0] ** 2).sum(1) * (parts[1] ** 2).sum(1))
