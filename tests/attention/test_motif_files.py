import gzip

import numpy as np
import pytest
from Bio import motifs as bio_motifs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.attention.motif_files import best_hits, read_motifs, write_jaspar, write_meme
from pipeline.errors import UserError

RNG = np.random.default_rng(4)
MOTIFS = {name: RNG.dirichlet(np.full(4, 0.5), width) for name, width in (("one", 6), ("MA1.1 two", 9))}
SITES = {"one": 400, "MA1.1 two": 1000}
BACKGROUND = np.array([0.3, 0.2, 0.2, 0.3])

JASPAR = """>MA0001.1\tAGL3
A [ 0 3 79 40 ]
C [94 75 4 3]
G [ 1 0 3 4 ]
T [ 2 19 11 50 ]

>MA0002.1
0 3 79
94 75 4
1 0 3
2 19 11
"""


def matrix(word: str) -> np.ndarray:
    return np.array([[0.85 if letter == base else 0.05 for letter in "ACGT"] for base in word])


@pytest.fixture(scope="module")
def database():
    rng = np.random.default_rng(0)
    decoys = {f"decoy{i}": rng.dirichlet(np.full(4, 0.3), rng.integers(6, 12)) for i in range(60)}
    return {"box": matrix("TTGACA"), **decoys}


def test_what_is_written_is_read_back(tmp_path):
    write_meme(tmp_path / "m.meme", MOTIFS, SITES, BACKGROUND)
    back = read_motifs(tmp_path / "m.meme")
    assert list(back) == list(MOTIFS)
    for name, frequencies in MOTIFS.items():
        assert back[name] == pytest.approx(frequencies, abs=1e-6)
        assert back[name].sum(axis=1) == pytest.approx(np.ones(len(frequencies)), abs=1e-12)


def test_biopython_reads_what_is_written(tmp_path):
    write_meme(tmp_path / "m.meme", MOTIFS, SITES, BACKGROUND)
    with (tmp_path / "m.meme").open() as file:
        parsed = bio_motifs.parse(file, "minimal")
    assert parsed.version == "4"
    assert parsed.background == dict(zip("ACGT", BACKGROUND, strict=True))
    for motif, (name, frequencies) in zip(parsed, MOTIFS.items(), strict=True):
        counts = np.array([motif.counts[letter] for letter in "ACGT"]).T
        assert motif.name == name.split()[0]
        assert motif.num_occurrences == SITES[name]
        assert counts == pytest.approx(frequencies * SITES[name], abs=0.51)  # Biopython rounds to whole sites


# Six digits in each of four numbers, then normalised: off by 0.5e-6 + 2e-6 at most.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_any_matrix_survives_the_round_trip(tmp_path, width, seed):
    frequencies = np.random.default_rng(seed).dirichlet(np.full(4, 0.1), width)
    write_meme(tmp_path / "m.meme", {"x": frequencies}, {"x": 3})
    assert read_motifs(tmp_path / "m.meme")["x"] == pytest.approx(frequencies, abs=3e-6)


@pytest.mark.parametrize("compressed", [False, True])
def test_jaspar_as_biopython_reads_it(tmp_path, compressed):
    path = tmp_path / ("m.jaspar.gz" if compressed else "m.jaspar")
    path.write_bytes(gzip.compress(JASPAR.encode()) if compressed else JASPAR.encode())
    ours = read_motifs(path)
    assert list(ours) == ["MA0001.1 AGL3", "MA0002.1"]
    with gzip.open(path, "rt") if compressed else path.open() as file:
        theirs = bio_motifs.parse(file, "jaspar")
    for motif, frequencies in zip(theirs, ours.values(), strict=True):
        counts = np.array([motif.counts[letter] for letter in "ACGT"]).T
        assert frequencies == pytest.approx(counts / counts.sum(axis=1, keepdims=True), abs=1e-12)


def test_jaspar_counts_that_are_written_are_read_back(tmp_path):
    counts = {
        name: frequencies * 123.4
        for name, frequencies in (("one", MOTIFS["one"]), ("two", MOTIFS["MA1.1 two"]))
    }
    write_jaspar(tmp_path / "m.jaspar", counts, {"one": "ACG", "two": "tt"})
    back = read_motifs(tmp_path / "m.jaspar")
    assert list(back) == ["one ACG", "two tt"]
    with (tmp_path / "m.jaspar").open() as file:
        theirs = list(bio_motifs.parse(file, "jaspar"))
    for motif, own, count in zip(theirs, back.values(), counts.values(), strict=True):
        read = np.array([motif.counts[letter] for letter in "ACGT"]).T
        assert read == pytest.approx(count, abs=0.006)
        assert own == pytest.approx(count / 123.4, abs=1e-4)


def test_rows_of_jaspar_may_stand_in_any_order(tmp_path):
    (tmp_path / "m").write_text(">x\nT [1 0]\nG [0 1]\nA [2 0]\nC [1 1]\n")
    assert read_motifs(tmp_path / "m")["x"] == pytest.approx(
        np.array([[0.5, 0.25, 0, 0.25], [0, 0.5, 0.5, 0]])
    )


def test_meme_files_of_other_programs(tmp_path):
    """No width, no background, tabs, a URL line, Windows line ends, comments, a byte order mark."""
    text = "# by hand\nMEME version 5.5\n\nALPHABET=ACGT\n\nMOTIF\tx  NAME\n"
    text += "letter-probability matrix: alength= 4\n"
    text += (
        "0.1\t0.2\t0.3\t0.4\n 1 0 0 0 \n\nURL http://example.org\nMOTIF y\nletter-probability matrix: w=1\n"
    )
    text += "0.251 0.25 0.25 0.25"
    (tmp_path / "m").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    motifs = read_motifs(tmp_path / "m")
    assert list(motifs) == ["x NAME", "y"]
    assert motifs["x NAME"].tolist() == [[0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0]]
    assert motifs["y"].sum() == pytest.approx(1, abs=1e-12)


MEME = (
    "MEME version 4\n\nALPHABET= ACGT\n\nMOTIF x\nletter-probability matrix: alength= 4 w= 2 nsites= 9 E= 0\n"
)
ROW = "0.25 0.25 0.25 0.25\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "begins with ''"),
        ("hello\n", "begins with 'hello'"),
        ("MEME version 4\n", "holds no motif"),
        (MEME + ROW, "motif 'x', line 6: 1 rows where 2 should follow"),
        (MEME + ROW + "\n" + ROW, "motif 'x', line 6: 1 rows where 2 should follow"),
        (MEME + ROW + "0.5 0.5 0.5 0.5\n", "motif 'x', line 8: row '0.5 0.5 0.5 0.5'"),
        (MEME + ROW + "0.5 0.5\n", "motif 'x', line 8: row '0.5 0.5'"),
        (MEME + ROW + "0.5 0.5 x 0\n", "motif 'x', line 8: 'x' is no count"),
        (MEME + ROW + "1.5 -0.5 0 0\n", "motif 'x', line 8: '-0.5' is no count"),
        (MEME + ROW + "nan 0 0 0\n", "motif 'x', line 8: 'nan' is no count"),
        (MEME.replace("ACGT", "ACGU") + ROW + ROW, "line 3: alphabet 'ACGU'"),
        (MEME.replace("MOTIF x\n", "\n") + ROW + ROW, "line 6: matrix without a MOTIF line"),
        (MEME + ROW + ROW + "MOTIF y\n", "motif 'y', line 9: no letter-probability matrix"),
        (MEME + ROW + ROW + MEME[32:] + ROW + ROW, "motif 'x', line 9: this name was used before"),
        (">\nA [1]\n", "line 1: no name"),
        (">x\nA [1]\nC [1]\nG [1]\n", "motif 'x', line 1: 3 rows"),
        (">x\nA [1]\nC [1]\nG [1]\nA [1]\n", "motif 'x', line 5: row of 'A'"),
        (">x\nA [1 2]\nC [1]\nG [1]\nT [1]\n", "motif 'x', line 1: rows of [1, 2] numbers"),
        (">x\nA [1 z]\nC [1]\nG [1]\nT [1]\n", "motif 'x', line 2: 'z' is no count"),
        (">x\nA [1 0]\nC [1 0]\nG [1 0]\nT [1 0]\n", "motif 'x', line 1: column 2 has no counts"),
        (">x\nA []\nC []\nG []\nT []\n", "motif 'x', line 1: rows of [0] numbers"),
    ],
)
def test_bad_files_are_told_by_motif_and_line(tmp_path, text, told):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_motifs(path)
    assert str(error.value).startswith(f"{path}: ")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_damaged_and_binary_files(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_motifs(tmp_path / "none.meme")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(JASPAR.encode() * 50)[:60])
    with pytest.raises(UserError, match=r"cut\.gz: cannot be read: damaged"):
        read_motifs(tmp_path / "cut.gz")
    (tmp_path / "binary").write_bytes(b"MEME version 4\xff\xfe\x00")
    with pytest.raises(UserError, match="is not text"):
        read_motifs(tmp_path / "binary")


@pytest.mark.parametrize(
    ("query", "offset", "overlap", "strand"),
    [
        ("TTGACA", 0, 6, "+"),
        ("TGACA", 1, 5, "+"),
        ("GACA", 2, 4, "+"),
        ("CTTGACA", -1, 6, "+"),
        ("GCTTGACAT", -2, 6, "+"),
        ("TGTCAA", 0, 6, "-"),  # the reverse complement of the target
        ("GTCAA", 1, 5, "-"),
        ("CTGTCAAGG", -1, 6, "-"),
    ],
)
def test_offset_overlap_and_strand_of_planted_matches(database, query, offset, overlap, strand):
    (hit,) = best_hits({"q": matrix(query)}, database)
    assert (hit.query, hit.target, hit.offset, hit.overlap, hit.strand) == (
        "q",
        "box",
        offset,
        overlap,
        strand,
    )
    assert hit.p_value < 1e-6
    assert hit.e_value == pytest.approx(61 * hit.p_value, rel=1e-12)


def test_several_queries_and_hits_come_best_first(database):
    hits = best_hits({"a": matrix("TTGACA"), "b": database["decoy3"]}, database, per_motif=3)
    assert [h.query for h in hits] == ["a"] * 3 + ["b"] * 3
    assert (hits[0].target, hits[3].target) == ("box", "decoy3")
    assert hits[0].p_value <= hits[1].p_value <= hits[2].p_value


def test_an_unrelated_query_has_no_small_p_value(database):
    rng = np.random.default_rng(99)
    queries = {str(i): rng.dirichlet(np.full(4, 0.3), 8) for i in range(20)}
    assert min(h.e_value for h in best_hits(queries, database)) > 1e-3


def test_a_small_database_is_said_and_nothing_gives_nothing(database, capsys):
    few = {name: database[name] for name in list(database)[:5]}
    assert best_hits({"q": matrix("TTGACA")}, few)[0].target == "box"
    assert "5 known motifs" in capsys.readouterr().err
    assert best_hits({}, database) == []
    assert best_hits({"q": matrix("TTGACA")}, {}) == []
