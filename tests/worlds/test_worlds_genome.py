"""The simulated chromosome against Biopython's code table and a likelihood written base by base."""

from math import log2

import numpy as np
import pytest
from Bio.Seq import Seq

from pipeline.worlds import genome as world
from pipeline.worlds import to_text
from pipeline.worlds.promoters import layouts, log_likelihood

STARTS = {"ATG": 0.83, "GTG": 0.14, "TTG": 0.03}
STOPS = {"TAA": 0.64, "TGA": 0.29, "TAG": 0.07}
Q = {"A": 0.29, "C": 0.21, "G": 0.21, "T": 0.29}


@pytest.fixture(scope="module")
def genome():
    return world.sample_genome(200_000, np.random.default_rng(0))


def oriented(genome, feature):
    piece = Seq(to_text(genome.codes[feature.start : feature.end]))
    return str(piece if feature.strand == "+" else piece.reverse_complement())


def usage(genome):
    codons = [a + b + c for a in "ACGT" for b in "ACGT" for c in "ACGT"]
    return dict(zip(codons, genome.codon_usage, strict=True))


def of_kind(genome, kind):
    return [f for f in genome.features if f.kind == kind]


def test_genes_are_open_reading_frames_on_both_strands(genome):
    genes = of_kind(genome, "gene")
    assert {g.strand for g in genes} == {"+", "-"}
    for gene in genes:
        sequence = oriented(genome, gene)
        protein = str(Seq(sequence).translate(table=11))
        assert sequence[:3] in STARTS
        assert protein.index("*") == len(protein) - 1


def test_every_gene_has_its_promoter_upstream_in_its_orientation(genome):
    promoters = {p.name[-4:]: p for p in of_kind(genome, "promoter")}
    for gene in of_kind(genome, "gene"):
        promoter = promoters[gene.name[-4:]]
        gap = gene.start - promoter.end if gene.strand == "+" else promoter.start - gene.end
        assert promoter.strand == gene.strand
        assert 10 <= gap < 40
        assert promoter.end - promoter.start == 81


def test_promoter_windows_come_from_the_promoter_model(genome):
    kinds = layouts(81)
    windows = [["ACGT".index(b) for b in oriented(genome, p)] for p in of_kind(genome, "promoter")]
    odds = log_likelihood(np.array(windows), kinds["promoter"]) - log_likelihood(
        np.array(windows), kinds["plain"]
    )
    assert np.mean(odds) > 2


def test_features_do_not_overlap_and_lie_inside(genome):
    ends = [0, *(f.end for f in genome.features)]
    assert all(f.start >= end for f, end in zip(genome.features, ends[:-1], strict=True))
    assert ends[-1] <= len(genome.codes) == 200_000


def test_synonymous_codons_only(genome):
    from Bio.Data.CodonTable import unambiguous_dna_by_id

    sense = set(unambiguous_dna_by_id[11].forward_table)
    assert {codon for codon, share in usage(genome).items() if share > 0} == sense
    assert genome.codon_usage.sum() == pytest.approx(1)


def test_sampled_codons_follow_the_usage(genome):
    counts = dict.fromkeys(usage(genome), 0)
    for gene in of_kind(genome, "gene"):
        sequence = oriented(genome, gene)
        for i in range(3, len(sequence) - 3, 3):
            counts[sequence[i : i + 3]] += 1
    total = sum(counts.values())
    for codon, share in usage(genome).items():
        error = np.sqrt(share * (1 - share) / total)
        assert counts[codon] / total == pytest.approx(share, abs=5 * error + 1e-12)


def slow_bits(genome):
    """-log2 P of the chromosome and the same with independent codon positions, base by base."""
    share, inside = usage(genome), set()
    position = [{b: sum(p for c, p in share.items() if c[k] == b) for b in "ACGT"} for k in range(3)]
    exact = independent = 0.0
    for feature in genome.features:
        inside.update(range(feature.start, feature.end))
        sequence = oriented(genome, feature)
        if feature.kind == "promoter":
            codes = np.array([["ACGT".index(b) for b in sequence]])
            bits = -log_likelihood(codes, layouts(81)["promoter"])[0] / np.log(2)
            exact, independent = exact + bits, independent + bits
            continue
        codons = [sequence[i : i + 3] for i in range(0, len(sequence), 3)]
        exact -= log2(STARTS[codons[0]]) + log2(STOPS[codons[-1]])
        exact -= sum(log2(share[codon]) for codon in codons[1:-1])
        independent -= sum(log2(position[k][codon[k]]) for codon in codons for k in range(3))
    rest = -sum(log2(Q[b]) for i, b in enumerate(to_text(genome.codes)) if i not in inside)
    return (exact + rest) / len(genome.codes), (independent + rest) / len(genome.codes)


def test_bits_per_base(genome):
    bits = world.genome_bits(genome)
    exact, independent = slow_bits(genome)
    text = to_text(genome.codes)
    shares = [text.count(b) / len(text) for b in "ACGT"]
    composition = -sum(p * log2(p) for p in shares)
    assert bits["entropy_bits_per_base"] == pytest.approx(exact, abs=1e-9)
    assert bits["codon_position_bits_per_base"] == pytest.approx(independent, abs=1e-9)
    assert bits["composition_bits_per_base"] == pytest.approx(composition, abs=1e-9)
    assert bits["structure_bits"] == pytest.approx(composition - exact, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_codons_are_worth_more_than_a_twentieth_of_a_bit(seed):
    bits = world.genome_bits(world.sample_genome(200_000, np.random.default_rng(seed)))
    assert bits["structure_bits"] > 0.1
    assert bits["composition_bits_per_base"] - bits["codon_position_bits_per_base"] > 0.05


def test_intergenic_bases_have_the_background_composition(genome):
    free = np.ones(len(genome.codes), bool)
    for feature in genome.features:
        free[feature.start : feature.end] = False
    found = np.bincount(genome.codes[free], minlength=4) / free.sum()
    assert found == pytest.approx(np.array(list(Q.values())), abs=2 / np.sqrt(free.sum()))


def test_a_chromosome_too_short_for_a_gene_is_intergenic():
    genome = world.sample_genome(200, np.random.default_rng(0))
    assert genome.features == []
    assert len(genome.codes) == 200
    assert world.genome_bits(genome)["coding_fraction"] == 0
