"""Motif matrices of a simulated world: the planted boxes and decoys, as MEME files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.worlds import BASES
from pipeline.worlds.promoters import BACKGROUND

MIN_WIDTH, MAX_WIDTH = 6, 14
# Digits after the point; columns are rounded so that they still sum to 1.
DIGITS = 6


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


def _rounded(column: np.ndarray) -> np.ndarray:
    column = np.round(column, DIGITS)
    column[column.argmax()] += 1 - column.sum()
    return column


def write_meme(path: Path, matrices: Mapping[str, np.ndarray], sites: int) -> None:
    """Write base probabilities [width, 4] in the minimal MEME motif format, version 4.

    Source of the format: https://meme-suite.org/meme/doc/meme-format.html.
    """
    background = " ".join(f"{base} {share:g}" for base, share in zip(BASES, BACKGROUND, strict=True))
    lines = ["MEME version 4", "", "# simulated: no matrix of a real database", "", f"ALPHABET= {BASES}", ""]
    lines += ["strands: + -", "", "Background letter frequencies", background, ""]
    for name, matrix in matrices.items():
        lines.append(f"MOTIF {name}")
        lines.append(f"letter-probability matrix: alength= 4 w= {len(matrix)} nsites= {sites} E= 0")
        lines += [" ".join(f"{p:.{DIGITS}f}" for p in _rounded(column)) for column in matrix]
        lines.append("")
    path.write_text("\n".join(lines))
