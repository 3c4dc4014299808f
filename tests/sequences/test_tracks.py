import shutil

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.sequences import tracks
from pipeline.sequences.tracks import Site, bigwig, table, write_calls

LENGTHS = {"chr2": 1000, "chr10": 50, "empty": 7}


@pytest.fixture(params=[1 << 18, 3])
def folder(tmp_path, request, monkeypatch):
    """Tracks of both strands, written at once and in small pieces."""
    monkeypatch.setattr(tracks, "AT_ONCE", request.param)
    with tracks.tracks(tmp_path, LENGTHS, (1, -1)) as files:
        for write in files[1]:
            write("chr2", np.arange(0, 1000, 10), np.linspace(0, 1, 100))
            write("chr10", np.array([3, 4, 49]), np.array([0.25, 1e-7, 1.0], np.float32))
        for write in files[-1]:
            write("chr10", np.array([0]), np.array([0.123456789]))
    return tmp_path


def test_lengths_are_in_order(folder):
    assert (folder / "chrom.sizes").read_text() == "chr2\t1000\nchr10\t50\nempty\t7\n"
    names = {f"{strand}.{kind}" for strand in ("plus", "minus") for kind in ("bedgraph", "bw")}
    assert {path.name for path in folder.iterdir()} == {"chrom.sizes", *names}


def test_bedgraph_passes_bedtools(folder):
    pybedtools = pytest.importorskip("pybedtools")
    if shutil.which("bedtools") is None:
        pytest.skip("the program bedtools is not installed")
    bed = pybedtools.BedTool(str(folder / "plus.bedgraph"))
    rows = [(i.chrom, i.start, i.end, float(i.fields[3])) for i in bed]
    expected = [("chr2", 10 * i, 10 * i + 1, pytest.approx(i / 99, abs=1e-6)) for i in range(100)]
    ends = ((3, 0.25), (4, 1e-7), (49, 1.0))
    expected += [("chr10", at, at + 1, pytest.approx(score, rel=1e-5)) for at, score in ends]
    assert rows == expected
    sizes = str(folder / "chrom.sizes")
    assert [i.fields for i in bed.sort(faidx=sizes)] == [i.fields for i in bed]
    assert len(bed.merge(d=-1)) == len(bed), "entries overlap"


def test_bigwig_gives_back_what_was_written(folder):
    pyBigWig = pytest.importorskip("pyBigWig")
    with pyBigWig.open(str(folder / "plus.bw")) as file:
        assert file.chroms() == LENGTHS
        found = file.intervals("chr2")
        assert [(start, end) for start, end, _ in found] == [(at, at + 1) for at in range(0, 1000, 10)]
        assert [score for *_, score in found] == pytest.approx(np.linspace(0, 1, 100), abs=1e-7)
        small = file.intervals("chr10")
        assert [start for start, *_ in small] == [3, 4, 49]
        assert [score for *_, score in small] == pytest.approx([0.25, 1e-7, 1.0], rel=1e-6)
        assert file.intervals("empty") is None
    with pyBigWig.open(str(folder / "minus.bw")) as file:
        assert file.intervals("chr10") == ((0, 1, pytest.approx(0.123456789, rel=1e-6)),)


def test_positions_have_to_ascend(tmp_path):
    with tracks.bedgraph(tmp_path / "t") as write, pytest.raises(AssertionError, match="ascend"):
        write("chr2", np.array([5, 5]), np.array([0.0, 0.1]))


def test_a_record_too_long_for_bigwig_is_an_error(tmp_path):
    with (
        pytest.raises(UserError, match=r"record 'x': 4294967296 bases; a bigWig file has at most 4294967295"),
        bigwig(tmp_path / "t.bw", {"x": 2**32}),
    ):
        pass


def test_calls_are_named_alike_in_both_files(tmp_path):
    sites = [Site("chr2", 7, 1, 0.98765), Site("chr10", 0, -1, 1.0), Site("chr10", 3, 0, 0.0004)]
    write_calls(tmp_path, sites, [0.0, 1 / 3, None])
    assert (tmp_path / "calls.bed").read_text().splitlines() == [
        "chr2\t7\t8\tcall_1\t987\t+",
        "chr10\t0\t1\tcall_2\t1000\t-",
        "chr10\t3\t4\tcall_3\t0\t.",
    ]
    assert (tmp_path / "calls.tsv").read_text().splitlines() == [
        "name\tchromosome\tposition\tstrand\tprobability\tfalse_calls_per_kb",
        "call_1\tchr2\t7\t+\t0.98765\t0",
        "call_2\tchr10\t0\t-\t1\t0.333333",
        "call_3\tchr10\t3\t.\t0.0004\t",
    ]


def test_a_table_has_its_header_even_without_rows(tmp_path):
    with table(tmp_path / "t.tsv", "a b") as write:
        write([])
    assert (tmp_path / "t.tsv").read_text() == "a\tb\n"
