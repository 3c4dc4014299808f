"""Start sites and genes on the axis of calls, by hand and base by base."""

import numpy as np
import pytest

from pipeline.sequences.annotation import read_annotation
from pipeline.sequences.calls import Axis, Calls, downstream_agreement
from pipeline.sequences.places import Place, Places, read_places, strata
from pipeline.settings.sections import ScanConfig

LENGTHS = {"one": 60, "two": 40}
GENES = [("one", 10, 20, "+"), ("one", 15, 30, "-"), ("two", 5, 9, "-"), ("two", 36, 44, "+")]


@pytest.fixture
def genome(tmp_path):
    path = tmp_path / "g.fa"
    path.write_text("".join(f">{name}\n{'ACGTT' * (n // 5)}\n" for name, n in LENGTHS.items()))
    return path


@pytest.fixture
def genes(tmp_path):
    path = tmp_path / "genes.gff"
    rows = [f"{name}\t.\tgene\t{s + 1}\t{e}\t.\t{strand}\t.\tID=g{s}\n" for name, s, e, strand in GENES]
    path.write_text("".join(rows) + "one\t.\tCDS\t1\t60\t.\t+\t.\tID=c\n")
    return path


def annotation(genome, **settings):
    axis = Axis(LENGTHS)
    return read_annotation(ScanConfig(circular=["two"], **settings), genome, axis), axis


def test_a_start_site_is_the_first_base_on_its_strand_and_is_there_once(genome, tmp_path, capsys):
    rows = [
        ("two", 38, 43, "-"),
        ("two", 2, 8, "+"),
        ("one", 3, 4, "."),
        ("two", 0, 3, "-"),
        ("one", 2, 4, "-"),
    ]
    (tmp_path / "s.bed").write_text("".join(f"{c}\t{s}\t{e}\t.\t0\t{strand}\n" for c, s, e, strand in rows))
    found, axis = annotation(genome, starts=tmp_path / "s.bed")
    sites = list(zip(axis.places(found.starts.position), found.starts.strand.tolist(), strict=True))
    assert sites == [(("one", 3), -1), (("one", 3), 1), (("two", 2), -1), (("two", 2), 1)]
    assert "s.bed: 1 start sites given more than once, counted once" in capsys.readouterr().err
    assert not found.starts.score.any()
    assert (found.genes, found.covered) == (None, None)
    found, axis = annotation(genome, starts=tmp_path / "s.bed", strandless=True)
    assert axis.places(found.starts.position) == [("one", 3), ("two", 2)]
    assert found.starts.strand.tolist() == [0, 0]
    assert "3 start sites given more than once" in capsys.readouterr().err


def test_only_features_that_are_asked_for_are_start_sites(genome, genes):
    found, axis = annotation(genome, starts=genes, feature="CDS")
    assert axis.places(found.starts.position) == [("one", 0)]


def test_what_no_gene_covers_is_the_stratum_intergenic(genome, genes):
    found, axis = annotation(genome, genes=genes)
    spans = list(zip(*(column.tolist() for column in found.covered), strict=True))
    features = read_places(genes, genome, feature="gene", circular=["two"]).unrolled(LENGTHS, ["two"])
    for name, length in LENGTHS.items():
        kinds = strata(Places.of(Place(name, base, base + 1, "+") for base in range(length)), features)
        for base, kind in enumerate(kinds.tolist()):
            at = axis.begin(name) + base
            assert (kind != "intergenic") == any(start <= at < end for start, end in spans), (name, base)


def test_a_gene_downstream_may_be_on_the_other_side_of_the_origin(genome, genes):
    found, axis = annotation(genome, genes=genes)
    table = [
        ("one", 9, 1, True),
        ("one", 29, -1, True),
        ("one", 28, -1, False),  # the end of the gene before is farther to the left
        ("one", 31, 1, None),  # the record is linear
        ("two", 36, 1, True),
        ("two", 37, 1, False),  # over the origin, to the gene at 5
        ("two", 10, -1, True),
        ("two", 7, -1, False),  # the gene over the origin ends at 4
        ("two", 2, -1, True),  # over the origin, to the gene that ends at 9
    ]
    for name, base, strand, expected in table:
        at = np.array([axis.begin(name) + base])
        figures = downstream_agreement(Calls(at, np.array([strand]), np.zeros(1)), found.genes)
        assert figures["value"] == (None if expected is None else float(expected)), (name, base, strand)
