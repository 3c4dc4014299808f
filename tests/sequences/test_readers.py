"""The readers against the files that people really have; Biopython is the oracle on well-formed ones."""

import io
import os
from pathlib import Path

import pytest
from Bio import bgzf
from Bio.SeqIO.FastaIO import SimpleFastaParser
from hypothesis import given
from hypothesis import strategies as st
from xopen import xopen

from pipeline.errors import UserError
from pipeline.sequences.readers import Notes, is_a3m, load_sequences, read_files, read_records

DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.fixture
def write(tmp_path):
    def write(content: bytes | str, name: str = "in.fa") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def read(path, **options):
    return [(record.id, record.sequence) for record in read_records(path, **options)]


def test_crlf_and_no_final_newline(write):
    unix = read(write(b">a x\nACGT\nAC\n>b\nGG\n"))
    assert read(write(b">a x\r\nACGT\r\nAC\r\n>b\r\nGG")) == unix == [("a", "ACGTAC"), ("b", "GG")]


def test_byte_order_mark(write):
    assert read(write(b"\xef\xbb\xbf>a\nACGT\n")) == [("a", "ACGT")]
    assert read(write(b"\xef\xbb\xbfid,sequence\na,ACGT\n", "in.csv")) == [("a", "ACGT")]


def test_comments_are_no_sequence(write):
    assert read(write("; lab file\n>a\n;note GATTACA\nACGT\n")) == [("a", "ACGT")]
    assert read(write("# made by hand\n\n#A3M#\n>a\nACGT\n")) == [("a", "ACGT")]


def test_layout_noise(write, capsys):
    notes = Notes()
    path = write("\n>a d\nAC\n\nGT\n\n> b\nGG T\n>\nAA\n")
    assert read(path, notes=notes) == [("a", "ACGT"), ("b", "GGT"), ("record_3", "AA")]
    assert notes["generated_ids"] == 1
    assert capsys.readouterr().err == f"{path}: line 9: no id, named record_3\n"


def test_line_numbers_are_those_of_the_header(write):
    path = write("\n;c\n>a\nAC\n;c\n\n  >b\nA\n")
    assert [record.line for record in read_records(path)] == [3, 7]


def test_empty_records_are_skipped_and_named(write, capsys):
    notes = Notes()
    assert read(write(">a\n>b\nACGT\n>c"), notes=notes) == [("b", "ACGT")]
    assert notes == {"empty": 2}
    assert "record 'a', line 1: no sequence" in (said := capsys.readouterr().err)
    assert "record 'c', line 4: no sequence" in said


def test_only_the_first_warnings_are_said(write, capsys):
    notes = Notes()
    read(write(">a\nA\n" + "".join(f">e{i}\n" for i in range(50))), notes=notes)
    assert notes["empty"] == 50
    assert len(capsys.readouterr().err.splitlines()) == 4


BAD = {
    "empty file": (b"", "in.fa: no records in it"),
    "only empty": (b">a\n>b\n", "in.fa: all 2 records are empty"),
    "headerless": (b"ACGTACGT\n", "in.fa: not FASTA: line 1 is 'ACGTACGT'"),
    "fastq": (b"\n@r1\nACGT\n+\nIIII\n", "in.fa: not FASTA: line 2 is '@r1'"),
    "genbank": (b"        1 acgtac 6\n", "in.fa: not FASTA: line 1 is '1 acgtac 6'"),
    "digits": (b">a\n;x\nAC\n\n   61 acgtac\n", "in.fa: record 'a', line 5, column 4: digit '6'"),
    "glued": (b">a\nACGT>b2\nAC\n", "in.fa: record 'a', line 2: '>' inside the sequence"),
    "duplicate": (b">x 1\nAAAA\n>x 2\nCCCC\n", "in.fa: record 'x', line 3: the same id as line 1;"),
    "old mac": (b">a\rACGT\r", "in.fa: line 1: lines end in CR only"),
    "latin-1 id": (b">caf\xe9\nACGT\n", "in.fa: line 1: the id is not UTF-8 text"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_bad_fasta(write, content, message):
    with pytest.raises(UserError) as error:
        read(write(content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_duplicate_ids_in_two_files(write):
    paths = [write(">x\nA\n", "1.fa"), write("\n>x\nC\n", "2.fa")]
    with pytest.raises(UserError, match=r"2.fa: record 'x', line 2: the same id as line 1 of .*1.fa"):
        list(read_files(paths))


def test_renaming_never_meets_another_id(write):
    notes = Notes()
    path = write(">x\nA\n>x_2\nC\n>x\nG\n>x\nT\n>x_3\nA\n")
    records = read_files([path], duplicate_ids="rename", notes=notes)
    assert [record.id for record in records] == ["x", "x_2", "x_3", "x_4", "x_3_2"]
    assert notes["renamed_ids"] == 3


def test_generated_ids_count_over_all_files(write):
    paths = [write(">\nA\n>\n>b\nC\n", "1.fa"), write("sequence\nG\n", "2.csv")]
    assert [record.id for record in read_files(paths)] == ["record_1", "b", "record_4"]


@pytest.mark.parametrize("name", ["x.fa.gz", "x.fasta.zst", "x.fna.bz2", "x.faa.xz", "x.fa"])
def test_compressed(tmp_path, name):
    with xopen(tmp_path / name, "wb") as file:
        file.write(b">a\nACGT\n")
    assert read(tmp_path / name) == [("a", "ACGT")]


@pytest.mark.parametrize("name", ["x.fa.bgz", "x.fa.gz", "no_extension"])
def test_blocked_gzip(tmp_path, name):
    with bgzf.open(tmp_path / name, "wb") as file:
        file.write(b">a\n" + b"ACGT" * 50_000)
    assert read(tmp_path / name) == [("a", "ACGT" * 50_000)]


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(UserError, match=r"none.fa: no such file$"):
        read(tmp_path / "none.fa")
    with xopen(tmp_path / "whole.gz", "wb") as file:
        file.write(os.urandom(50_000))
    whole = (tmp_path / "whole.gz").read_bytes()
    for name, content in {
        "cut.fa.gz": whole[:20_000],
        "text.fa.gz": b">a\nACGT\n",
        "odd.fa.zst": b"x",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: "):
            read(tmp_path / name)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_tables(write):
    text = 'label,sequence,name,note\nyes,ACGT,a,"x, y"\n\nno, GG ,b,"two\nlines"\nno,T,c,\n'
    options = {"id_column": "name", "keep": ["note", "label"]}
    for content, name in [(text, "in.csv"), (text.replace(",", "\t").replace("x\t", "x,"), "in.tsv")]:
        records = list(read_records(write(content, name), **options))
        assert [(r.id, r.sequence, r.line) for r in records] == [
            ("a", "ACGT", 2),
            ("b", "GG", 4),
            ("c", "T", 6),
        ]
        assert [r.columns for r in records] == [
            {"note": "x, y", "label": "yes"},
            {"note": "two\nlines", "label": "no"},
            {"note": "", "label": "no"},
        ]


def test_kind_of_text_files_is_told_by_content(write):
    assert read(write("id\tsequence\na\tAC\n", "in.txt")) == [("a", "AC")]
    assert read(write("sequence,id\nAC,NA\n", "in.txt")) == [("NA", "AC")]
    assert read(write("\n>a,b\nAC\n", "in.txt")) == [("a,b", "AC")]


BAD_TABLES = {
    "no column": (b"id,seq\na,AC\n", "no column 'sequence'; the columns are 'id', 'seq'"),
    "twice": (b"sequence,sequence\nA,C\n", "more than one column 'sequence'"),
    "ragged": (b"id,sequence\na,AC\nb,AC,1\n", "line 3: 3 cells under 2 columns"),
    "open quote": (b'id,sequence\na,AC\nb,"AC\nc,GG\n', "line 3: unexpected end of data"),
    "not utf-8": (b"id,sequence\na\xe9,AC\n", "not UTF-8 text"),
    "no rows": (b"id,sequence\n", "no records in it"),
    "no bytes": (b"", "no records in it"),
}


@pytest.mark.parametrize(("content", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_tables(write, content, message):
    with pytest.raises(UserError) as error:
        read(write(content, "in.csv"))
    assert message in str(error.value)


def test_missing_columns(write):
    with pytest.raises(UserError, match="no column 'name'"):
        read(write("sequence\nA\n", "in.csv"), id_column="name")
    with pytest.raises(UserError, match="FASTA has no column 'label'"):
        read(write(">a\nA\n"), keep=["label"])


def test_load_sequences_loses_nothing(write):
    paths = [write(">b\nacgu\n>a\nRN\n", "1.fa"), write("sequence\nTT\n", "2.csv")]
    assert load_sequences(paths, "dna") == [("b", "ACGT"), ("a", "NN"), ("record_3", "TT")]
    for content, message in {
        ">a\nA\n>b\n": "record 'b', line 3: no sequence",
        ">a\nA\n>b\nA-C\n": "record 'b', line 3: letter '-' at position 2",
    }.items():
        with pytest.raises(UserError, match=message):
            load_sequences([write(content)], "dna")
    with pytest.raises(UserError, match="record 'a', line 1: no residues"):
        load_sequences([write(">a\n*\n")], "protein")


def test_a3m_is_known_by_name():
    assert is_a3m(Path("x.a3m"))
    assert is_a3m(Path("x.1.A3M.gz"))
    assert not is_a3m(Path("a3m.fa"))


names = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=8)
letters = st.text("ACGTNacgtn*-", min_size=1, max_size=60)


@given(st.dictionaries(names, letters, min_size=1, max_size=6), st.data())
def test_odd_layout_reads_back(tmp_path_factory, records, data):
    choose = lambda *options: data.draw(st.sampled_from(options))  # noqa: E731
    end = choose("\n", "\r\n")
    lines = [choose("", ";comment 1", "# made up", "  ")]
    for name, sequence in records.items():
        lines += [choose(">", "> ", " >\t") + name + choose("", " described > 1", "\t2")]
        width = data.draw(st.integers(1, 70))
        for i in range(0, len(sequence), width):
            lines += [
                *choose([], [""], [";x 1"], [" ; >x"]),
                choose("", "  ", "\t") + sequence[i : i + width] + choose("", " "),
            ]
    text = choose("", "\ufeff") + end.join(lines) + choose("", end, end * 3)
    path = tmp_path_factory.mktemp("layout") / "odd.fa"
    path.write_bytes(text.encode())
    assert read(path) == list(records.items())


@given(st.dictionaries(names, letters, min_size=1, max_size=6), st.integers(1, 70))
def test_biopython_agrees_on_plain_files(tmp_path_factory, records, width):
    text = "".join(
        f">{name} text\n" + "".join(s[i : i + width] + "\n" for i in range(0, len(s), width))
        for name, s in records.items()
    )
    path = tmp_path_factory.mktemp("plain") / "plain.fa"
    path.write_text(text, encoding="utf-8")
    assert read(path) == [(title.split()[0], s) for title, s in SimpleFastaParser(io.StringIO(text))]


def test_biopython_agrees_on_a_proteome():
    path = DATA / "proteins" / "ecoli_k12_proteome.faa.gz"
    if not path.exists():
        pytest.skip(f"no {path}; set STRANDLM_DATA")
    with xopen(path) as file:
        assert read(path) == [(title.split()[0], s) for title, s in SimpleFastaParser(file)]
