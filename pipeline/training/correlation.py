"""How well scores rank what was measured."""

import numpy as np
from scipy.stats import rankdata

from pipeline.keyed import generator

RESAMPLES = 2000
AT_ONCE = 1 << 22  # ranks of resamples


def spearman(score_N: np.ndarray, measured_N: np.ndarray, seed: int) -> dict[str, float]:
    """Return Spearman's rank correlation, ties at their mean rank, and how sure it is.

    The interval holds 95 % of the correlations of resampled pairs (percentile bootstrap, Efron 1979,
    doi:10.1214/aos/1176344552); resamples without two different values are left out.

    Args:
        score_N: (N,) scores.
        measured_N: (N,) what was measured.
        seed: of the resampling.
    """
    rng, size = generator(seed), len(score_N)
    drawn = []
    for begin in range(0, RESAMPLES, step := max(1, AT_ONCE // size)):
        rows = rng.integers(0, size, (min(step, RESAMPLES - begin), size))
        drawn.append(_rank_correlation(score_N[rows], measured_N[rows]))
    low, high = np.nanquantile(np.concatenate(drawn), (0.025, 0.975))
    value = _rank_correlation(score_N[None], measured_N[None])[0]
    return {"value": float(value), "low": float(low), "high": float(high), "n": size}


def _rank_correlation(first_RN: np.ndarray, second_RN: np.ndarray) -> np.ndarray:
    """Return the correlation of the ranks in each row, (R,); not a number where all ranks are one."""
    ranks = [rankdata(each, axis=1) - (each.shape[1] + 1) / 2 for each in (first_RN, second_RN)]
    with np.errstate(invalid="ignore"):
        return (ranks[0] * ranks[1]).sum(1) / np.sqrt((ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1))
