"""Intervals by drawing rows again."""

from collections.abc import Callable

import numpy as np

from pipeline.keyed import generator

AT_ONCE = 1 << 22  # rows drawn at once


def interval(
    statistic: Callable[[np.ndarray], np.ndarray], size: int, resamples: int, seed: int
) -> tuple[float, float]:
    """Return what holds 95 % of a statistic's values in resamples of N rows.

    It is the percentile bootstrap (Efron 1979, doi:10.1214/aos/1176344552); resamples without a value are
    left out.

    Args:
        statistic: takes (R, N) numbers of rows, gives (R,) values.
        size: N.
        resamples: how many.
        seed: of the resampling.
    """
    rng, drawn = generator(seed), []
    for begin in range(0, resamples, step := max(1, AT_ONCE // size)):
        drawn.append(statistic(rng.integers(0, size, (min(step, resamples - begin), size))))
    low, high = np.nanquantile(np.concatenate(drawn), (0.025, 0.975))
    return float(low), float(high)
