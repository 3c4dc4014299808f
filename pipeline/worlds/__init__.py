"""Simulated worlds: sequences drawn from models whose likelihoods, motifs and contacts are known exactly."""

import numpy as np

BASES = "ACGT"
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def draw(rng: np.random.Generator, probabilities: np.ndarray, size: int) -> np.ndarray:
    """Draw ``size`` indices from the distribution ``probabilities``."""
    edges = np.cumsum(probabilities)
    return np.searchsorted(edges / edges[-1], rng.random(size), side="right")


def to_text(codes: np.ndarray, letters: str = BASES) -> str:
    """Return the string that a vector of letter indices spells."""
    return np.frombuffer(letters.encode(), np.uint8)[codes].tobytes().decode()


def entropy(probabilities: np.ndarray) -> float:
    """Return the Shannon entropy of a distribution, in bits."""
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log2(positive)).sum())
