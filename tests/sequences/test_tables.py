"""CSV, TSV and Parquet: the same rows read the same; blanks in sequences are k-mers or errors."""

import io
import os
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xopen import xopen

from pipeline.errors import UserError
from pipeline.sequences.readers import Notes, read_files

DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def test_csv_and_tsv(write):
    text = 'label,sequence,name,note\nyes,ACGT,a,"x, y"\n\nno, GG ,b,"two\nlines"\nno,T,c,\n'
    options = {"id_column": "name", "keep": ["note", "label"]}
    for content, name in [(text, "in.csv"), (text.replace(",", "\t").replace("x\t", "x,"), "in.tsv")]:
        records = list(read_files([write(content, name)], **options))
        assert [(r.id, r.sequence, r.line) for r in records] == [
            ("a", b"ACGT", 2),
            ("b", b"GG", 4),
            ("c", b"T", 6),
        ]
        assert [r.columns for r in records] == [
            {"note": "x, y", "label": "yes"},
            {"note": "two\nlines", "label": "no"},
            {"note": "", "label": "no"},
        ]


def test_byte_order_mark(write, read):
    assert read(write(b"\xef\xbb\xbfid,sequence\na,ACGT\n", "in.csv")) == [("a", "ACGT")]


def parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, row_group_size=2)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["in.parquet", "in.pq", "in.bin", "in.parquet.gz"])
def test_parquet(tmp_path, name):
    table = pd.DataFrame(
        {
            "name": ["a", "b", None, "d"],
            "seq": ["ACGT", " gg ", "T", "A"],
            "label": [1, 0, 1, 0],
            "kind": pd.Categorical(["x", "y", None, "x"]),
        }
    )
    with xopen(tmp_path / name, "wb") as file:
        file.write(parquet(table))
    records = read_files([tmp_path / name], sequence_column="seq", id_column="name", keep=["kind", "label"])
    assert [(r.id, r.sequence, r.line, r.columns) for r in records] == [
        ("a", b"ACGT", 1, {"kind": "x", "label": "1"}),
        ("b", b"gg", 2, {"kind": "y", "label": "0"}),
        ("record_3", b"T", 3, {"kind": "", "label": "1"}),
        ("d", b"A", 4, {"kind": "x", "label": "0"}),
    ]


def test_bad_parquet(write, read):
    whole = parquet(pd.DataFrame({"id": ["a"], "seq": ["ACGT"]}))
    with pytest.raises(UserError, match="no column 'sequence'; the columns are 'id', 'seq'"):
        read(write(whole, "in.parquet"))
    for content in (whole[:-20], b"id,sequence\n", b""):
        with pytest.raises(UserError, match=r"in.parquet: cannot be read as Parquet: [^\n]+$"):
            read(write(content, "in.parquet"))


BAD = {
    "no column": (b"id,dna\na,AC\n", "no column 'sequence'; the columns are 'id', 'dna'"),
    "twice": (b"sequence,sequence\nA,C\n", "more than one column 'sequence'"),
    "ragged": (b"id,sequence\na,AC\nb,AC,1\n", "line 3: 3 cells under 2 columns"),
    "open quote": (b'id,sequence\na,AC\nb,"AC\nc,GG\n', "line 3: unexpected end of data"),
    "not utf-8": (b"id,sequence\na\xe9,AC\n", "not UTF-8 text"),
    "no rows": (b"id,sequence\n", "no records in it"),
    "no bytes": (b"", "no records in it"),
    "blank": (b"id,sequence\na,ACG TAC\n", "record 'a', line 2: a blank at position 4 of column 'sequence'"),
    "1-mers": (b"sequence\nA C G\n", "line 2: a blank at position 2 of column 'sequence'"),
    "not overlapping": (b"sequence\nACG TTT\n", "line 2: a blank at position 4"),
    "short last word": (b"sequence\nACG CGT GT\n", "line 2: a blank at position 4"),
    "usual name": (
        b"id,Seq\na,AC\n",
        "no column 'sequence'; the columns are 'id', 'Seq'; pass --sequence-column Seq",
    ),
    "two usual names": (b"text,seq\na,AC\n", "the columns are 'text', 'seq'"),
    "no header": (
        b"1,acgtnACGTNacgtnACGTN\n0,AC\n",
        "no column 'sequence'; the columns are '1', 'acgtnACGTNacgtnACGTN'; line 1 looks like data, not like "
        "names; give it a header line (prepare can do without: --header false --sequence-column column_2)",
    ),
    "no header, k-mers": (f"{'ACG ' * 7},1\n".encode(), "--sequence-column column_1)"),
    "long names": (b"1," + b"x" * 99 + b"\n", f"the columns are '1', '{'x' * 40}...'"),
    "special": (b"sequence\n[CLS] ACG [SEP]\n", "line 2: a blank at position 6"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_bad_tables(write, read, content, message):
    with pytest.raises(UserError) as error:
        read(write(content, "in.csv"))
    assert message in str(error.value)
    assert ("pass --sequence-column" in str(error.value)) == ("pass --sequence-column" in message)
    assert "\n" not in str(error.value)


def test_columns_without_a_header_are_numbered(write):
    path = write("no,ACGT,a\n\nyes,GG,b\nno,T\n", "in.csv")
    options = {"header": False, "sequence_column": "column_2", "id_column": "column_3", "keep": ["column_1"]}
    records = list(read_files([path], on_bad="skip", notes=(notes := Notes()), **options))
    assert [(r.id, r.sequence, r.line, r.columns) for r in records] == [
        ("a", b"ACGT", 1, {"column_1": "no"}),
        ("b", b"GG", 3, {"column_1": "yes"}),
    ]
    assert notes == {"bad_records": 1}
    message = r"the columns are 'column_1', 'column_2'; pass --sequence-column column_2$"
    with pytest.raises(UserError, match=message):
        list(read_files([write("1,ACGTNACGTNACGTNACGTNAC\n", "in.csv")], header=False))
    with pytest.raises(UserError, match="no records in it"):
        list(read_files([write("", "in.csv")], header=False))


def test_bad_rows_are_skipped_and_counted(write, read, capsys):
    notes = Notes()
    path = write("id,sequence\na,AC\nb,AC,1\nc,A C\nd,GG\n", "in.csv")
    assert read(path, on_bad="skip", notes=notes) == [("a", "AC"), ("d", "GG")]
    assert notes == {"bad_records": 2}
    assert "line 3: 3 cells under 2 columns, skipped" in (said := capsys.readouterr().err)
    assert "record 'c', line 4: a blank at position 2" in said


def test_missing_columns(write, read):
    with pytest.raises(UserError, match="no column 'name'"):
        read(write("sequence\nA\n", "in.csv"), id_column="name")
    with pytest.raises(UserError, match="FASTA has no column 'label'"):
        read(write(">a\nA\n"), keep=["label"])


@given(st.text("ACGTN", min_size=3, max_size=40), st.integers(2, 8))
def test_overlapping_kmers_are_joined(tmp_path_factory, read, sequence, k):
    words = " ".join(sequence[i : i + k] for i in range(max(len(sequence) - k + 1, 1)))
    path = tmp_path_factory.mktemp("kmers") / "in.tsv"
    path.write_text(f"sequence\tlabel\n{words}\t1\n")
    notes = Notes()
    assert read(path, notes=notes) == [("record_1", sequence)]
    assert notes["kmers_joined"] == (len(sequence) > k)


def test_rows_of_dnabert():
    path = DATA / "promoters" / "dnabert_sample" / "prom-core_6mer_dev.tsv.gz"
    if not path.exists():
        pytest.skip(f"no {path}; set STRANDLM_DATA")
    notes = Notes()
    records = list(read_files([path], keep=["label"], notes=notes))
    assert len(records) == notes["kmers_joined"] == 1000
    with xopen(path) as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    for record, (words, label) in zip(records, rows, strict=True):
        letters = record.sequence.decode()
        assert " ".join(letters[i : i + 6] for i in range(len(letters) - 5)) == words.strip()
        assert record.columns == {"label": label}
