"""A simulated bacterial chromosome whose probability is known exactly.

Genes on both strands, each with a promoter upstream in its own orientation; everything else is independent
intergenic bases. Given where the genes and promoters are, the likelihood of the chromosome is a product of
codon probabilities, promoter windows and background bases.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.worlds import BASES, draw, entropy
from pipeline.worlds.promoters import BACKGROUND, layouts, log_likelihood, sample_windows

# The standard genetic code, codons in the order TTT, TTC, TTA, TTG, TCT, ... (NCBI translation table 11).
RESIDUE_OF_CODON = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
CODON_ORDER = "TCAG"
# Shares of start and stop codons: chosen, mostly ATG and TAA as in many bacteria.
START_CODONS = {"ATG": 0.83, "GTG": 0.14, "TTG": 0.03}
STOP_CODONS = {"TAA": 0.64, "TGA": 0.29, "TAG": 0.07}
# How much each base is favoured at the third position of a codon (chosen: GC-rich, as in many bacteria).
THIRD_BASE = dict(zip(BASES, (0.08, 0.46, 0.34, 0.12), strict=True))
WINDOW = 81
MIN_CODONS = 60
MEAN_CODONS = 320


@dataclass(frozen=True)
class Feature:
    """A gene or promoter window: 0-based, half open, on strand + or -."""

    start: int
    end: int
    strand: str
    kind: str
    name: str


@dataclass(frozen=True)
class Genome:
    """Base codes of a chromosome, its features, and the codon probabilities its genes were drawn from."""

    codes: np.ndarray
    features: list[Feature]
    codon_usage: np.ndarray


def codon_index(codon: str) -> int:
    """Return the number of a codon: 16, 4 and 1 times its bases in the order A, C, G, T."""
    first, second, third = (BASES.index(base) for base in codon)
    return 16 * first + 4 * second + third


def codon_probabilities(shares: dict[str, float]) -> np.ndarray:
    """Return a distribution over all 64 codons [64] from shares of some."""
    table = np.zeros(64)
    for codon, share in shares.items():
        table[codon_index(codon)] = share
    return table


def sample_codon_usage(rng: np.random.Generator) -> np.ndarray:
    """Draw probabilities of the 64 codons: amino-acid frequencies times a bias among synonymous codons."""
    codons: dict[str, list[str]] = {}
    for number, residue in enumerate(RESIDUE_OF_CODON):
        a, b, c = number // 16, number // 4 % 4, number % 4
        codons.setdefault(residue, []).append(CODON_ORDER[a] + CODON_ORDER[b] + CODON_ORDER[c])
    del codons["*"]
    usage = {}
    for synonymous, frequency in zip(codons.values(), rng.dirichlet(np.full(20, 6.0)), strict=True):
        bias = rng.dirichlet(np.full(len(synonymous), 3.0)) * [THIRD_BASE[codon[2]] for codon in synonymous]
        usage |= dict(zip(synonymous, frequency * bias / bias.sum(), strict=True))
    return codon_probabilities(usage)


def reverse_complement(codes: np.ndarray) -> np.ndarray:
    """Return base codes of the other strand."""
    return 3 - codes[::-1]


def _to_bases(codons: np.ndarray) -> np.ndarray:
    return np.stack([codons // 16, codons // 4 % 4, codons % 4], axis=-1).reshape(-1)


def to_codons(codes: np.ndarray) -> np.ndarray:
    """Return codon numbers [n] of 3 n base codes."""
    return codes.reshape(-1, 3).astype(int) @ [16, 4, 1]


def _sample_gene(usage: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    sense = MIN_CODONS + int(rng.gamma(2.0, (MEAN_CODONS - MIN_CODONS) / 2))
    start = draw(rng, codon_probabilities(START_CODONS), 1)
    stop = draw(rng, codon_probabilities(STOP_CODONS), 1)
    return _to_bases(np.concatenate([start, draw(rng, usage, sense), stop]))


def sample_genome(length: int, rng: np.random.Generator) -> Genome:
    """Draw a chromosome of ``length`` bases; what is too short for another gene stays intergenic."""
    usage = sample_codon_usage(rng)
    promoter = layouts(WINDOW)["promoter"]
    pieces, features, filled = [], [], 0
    while True:
        before, between = int(rng.integers(20, 120)), int(rng.integers(10, 40))
        window = sample_windows(promoter, 1, WINDOW, rng)[0][0]
        gene, strand = _sample_gene(usage, rng), "+-"[rng.integers(2)]
        unit = np.concatenate([window, draw(rng, BACKGROUND, between), gene])
        if filled + before + len(unit) > length:
            break
        start = filled + before
        pieces += [draw(rng, BACKGROUND, before), unit if strand == "+" else reverse_complement(unit)]
        features += _features(start, len(unit), len(gene), strand, len(features) // 2)
        filled = start + len(unit)
    codes = np.concatenate([*pieces, draw(rng, BACKGROUND, length - filled)]).astype(np.uint8)
    return Genome(codes, features, usage)


def _features(start: int, unit: int, gene: int, strand: str, number: int) -> list[Feature]:
    """Return promoter and gene of a unit (promoter window, gap, gene) in the order of their coordinates."""
    spans = {"promoter": (0, WINDOW), "gene": (unit - gene, unit)}
    if strand == "-":
        spans = {kind: (unit - b, unit - a) for kind, (a, b) in reversed(spans.items())}
    return [
        Feature(start + a, start + b, strand, kind, f"simulated_{kind}_{number:04d}")
        for kind, (a, b) in spans.items()
    ]


def _oriented(genome: Genome, kind: str) -> list[np.ndarray]:
    pieces = [(f, genome.codes[f.start : f.end]) for f in genome.features if f.kind == kind]
    return [codes if f.strand == "+" else reverse_complement(codes) for f, codes in pieces]


def _intergenic_bits(genome: Genome) -> float:
    free = np.ones(len(genome.codes), bool)
    for feature in genome.features:
        free[feature.start : feature.end] = False
    bits = -np.log2(BACKGROUND)[genome.codes[free]].sum()
    windows = _oriented(genome, "promoter")
    if windows:
        bits -= log_likelihood(np.stack(windows), layouts(WINDOW)["promoter"]).sum() / np.log(2)
    return float(bits)


def _codon_bits(genome: Genome) -> float:
    start, stop = codon_probabilities(START_CODONS), codon_probabilities(STOP_CODONS)
    bits = 0.0
    for gene in _oriented(genome, "gene"):
        codons = to_codons(gene)
        bits -= np.log2(start[codons[0]]) + np.log2(stop[codons[-1]])
        bits -= np.log2(genome.codon_usage[codons[1:-1]]).sum()
    return float(bits)


def _position_bits(genome: Genome) -> float:
    """Return bits of all genes if each base is known only by its position in the codon."""
    usage = genome.codon_usage.reshape(4, 4, 4)
    marginals = np.stack([usage.sum((1, 2)), usage.sum((0, 2)), usage.sum((0, 1))])
    bits = 0.0
    for gene in _oriented(genome, "gene"):
        bits -= np.log2(marginals[np.arange(3), gene.reshape(-1, 3)]).sum()
    return float(bits)


def genome_bits(genome: Genome) -> dict[str, float]:
    """Return what the chromosome's bases are worth, in bits per base.

    ``entropy_bits_per_base`` is -log2 P(chromosome | positions of genes and promoters) over its length: the
    exact likelihood of the process that made it. ``composition_bits_per_base`` is the entropy of its base
    frequencies, ``structure_bits`` the difference. ``codon_position_bits_per_base`` treats the bases of a
    codon as independent given their position in it.
    """
    length = len(genome.codes)
    outside = _intergenic_bits(genome)
    composition = entropy(np.bincount(genome.codes, minlength=4) / length)
    exact = (outside + _codon_bits(genome)) / length
    return {
        "entropy_bits_per_base": exact,
        "codon_position_bits_per_base": (outside + _position_bits(genome)) / length,
        "composition_bits_per_base": composition,
        "structure_bits": composition - exact,
        "coding_fraction": sum(f.end - f.start for f in genome.features if f.kind == "gene") / length,
    }
