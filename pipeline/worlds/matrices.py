"""Decoy matrices of a simulated world, to stand beside the planted boxes in a motif database."""

import numpy as np

MIN_WIDTH, MAX_WIDTH = 6, 14


def sample_decoy(rng: np.random.Generator) -> np.ndarray:
    """Draw a matrix [width, 4] with a conserved core and degenerate ends, like those of JASPAR."""
    width = int(rng.integers(MIN_WIDTH, MAX_WIDTH + 1))
    from_centre = np.abs(np.linspace(-1, 1, width))
    conserved = rng.random(width) < 0.8 - 0.5 * from_centre
    return np.stack([_sample_column(bool(c), rng) for c in conserved])


def _sample_column(conserved: bool, rng: np.random.Generator) -> np.ndarray:
    concentration = np.full(4, 0.3 if conserved else 2.0)
    concentration[rng.integers(4)] += 8.0 if conserved else 0.0
    return rng.dirichlet(concentration)


def sample_decoys(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw ``count`` matrices named decoy_001, decoy_002, ..."""
    return {f"decoy_{number:03d}": sample_decoy(rng) for number in range(1, count + 1)}
