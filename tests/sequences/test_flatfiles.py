"""GenBank and EMBL as Biopython writes and reads them; Stockholm against Biopython's alignments."""

import gzip
import io

import pytest
from Bio import AlignIO, SeqIO
from Bio.Seq import Seq
from Bio.SeqFeature import SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord

from pipeline.errors import UserError
from pipeline.sequences.readers import Notes, read_files

KINDS = {"genbank": "gbk", "embl": "embl"}


def entry(number: int, letters: str, topology: str = "linear", molecule: str = "DNA") -> SeqRecord:
    record = SeqRecord(Seq(letters), f"AB{number}.{number + 1}", f"AB{number}", "made up // for tests")
    record.annotations = {"molecule_type": molecule, "topology": topology}
    notes = {"note": ["a feature with quotes and //", "x" * 100], "translation": ["MKV" * 50]}
    record.features = [SeqFeature(SimpleLocation(0, 5, 1), "CDS", qualifiers=notes)]
    return record


def flatfile(kind: str, *records: SeqRecord) -> str:
    text = io.StringIO()
    SeqIO.write(records, text, kind)
    return text.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["known extension", "in.txt"])
def test_ids_letters_lines_and_topology(write, kind, name):
    text = flatfile(kind, entry(1, "ACGTN" * 70), entry(2, "acgtrykm" * 9, "circular"), entry(3, "ACG"))
    path = write(text, f"in.{KINDS[kind]}" if name == "known extension" else name)
    records = list(read_files([path], keep=["topology"]))
    assert [(r.id, r.sequence.decode()) for r in records] == [
        ("AB1.2", "ACGTN" * 70),
        ("AB2.3", "ACGTRYKM" * 9),
        ("AB3.4", "ACG"),
    ]
    assert [r.columns for r in records] == [{"topology": t} for t in ("linear", "circular", "linear")]
    begins = ("LOCUS", "ID ")
    assert [r.line for r in records] == [
        n for n, line in enumerate(text.splitlines(), 1) if line.startswith(begins)
    ]
    oracle = [(r.id, str(r.seq).upper()) for r in SeqIO.parse(io.StringIO(text), kind)]
    assert [(r.id, r.sequence.decode()) for r in records] == oracle
    assert [r.columns for r in read_files([path])] == [{}] * 3


def test_compressed_genpept(write, read):
    text = flatfile("genbank", entry(1, "MKVUX*", molecule="protein")).replace("\n", "\r\n")
    assert read(write(gzip.compress(text.encode()), "in.gbff.gz")) == [("AB1.2", "MKVUX*")]


def test_other_columns_are_refused(write, read):
    with pytest.raises(UserError, match="GenBank has only the column 'topology'; give a table for 'label'"):
        read(write(flatfile("genbank", entry(1, "ACG")), "in.gb"), keep=["label"])


@pytest.mark.parametrize("kind", KINDS)
def test_bad_entries_are_named_or_skipped_and_counted(write, read, capsys, kind):
    good, other = flatfile(kind, entry(1, "ACGT" * 30)), flatfile(kind, entry(2, "TTGACA"))
    short = good.replace(" acgtacgtac ", " ", 1).replace("AB1", "AB9")
    assert short != good
    line = good.count("\n") + 1
    path = write(good + short + other, f"in.{KINDS[kind]}")
    with pytest.raises(UserError, match=f"record at line {line}: Expected sequence length 120, found 110"):
        read(path)
    notes = Notes()
    assert read(path, on_bad="skip", notes=notes) == [("AB1.2", "ACGT" * 30), ("AB2.3", "TTGACA")]
    assert notes == {"bad_records": 1}
    assert f"record at line {line}" in capsys.readouterr().err


def test_incomplete_files_and_entries_without_a_sequence(write, read):
    text = flatfile("genbank", entry(1, "ACGT" * 30))
    with pytest.raises(UserError, match="record at line 1: it does not end with //"):
        read(write(text.removesuffix("//\n"), "in.gb"))
    contig = text[: text.index("ORIGIN")] + "CONTIG      join(X1.1:1..120)\n//\n"
    with pytest.raises(UserError, match="record at line 1: it has no sequence"):
        read(write(contig, "in.gb"))
    with pytest.raises(UserError, match="record at line 1: "):
        read(write("nonsense\n//\n", "in.gb"))
    with pytest.raises(UserError, match="no records in it"):
        read(write("\n", "in.gb"))


STOCKHOLM = """# STOCKHOLM 1.0
#=GF ID   made up

seq1/1-5   ACd.EF
seq2       A--.EF
#=GC SS    HHHHHH

seq1/1-5   -GHI
seq2       KGHI
#=GC SS    HHHH
//
"""


@pytest.mark.parametrize("name", ["in.sto", "in.txt"])
def test_stockholm_against_biopython(write, name):
    path = write(STOCKHOLM, name)
    records = list(read_files([path]))
    alignment = AlignIO.read(io.StringIO(STOCKHOLM), "stockholm")
    assert [r.sequence for r in records] == [b"ACd.EF-GHI", b"A--.EFKGHI"]
    undotted = [(r.id, r.sequence.decode().replace(".", "-")) for r in records]  # Biopython makes one of both
    assert undotted == [(r.id, str(r.seq)) for r in alignment]
    assert [r.line for r in records] == [4, 5]


def test_damaged_stockholm(write, read):
    for content, message in {
        STOCKHOLM.removesuffix("//\n"): "line 10: the alignment does not end with //",
        STOCKHOLM.replace("KGHI", "KGH"): "record 'seq2', line 5: 9 columns where the first row has 10",
        STOCKHOLM.replace("KGHI", "KG HI"): "line 9: not 'name letters'",
        STOCKHOLM + STOCKHOLM: "record 'seq1/1-5', line 15: the same id as line 4",
    }.items():
        with pytest.raises(UserError, match=message):
            read(write(content, "in.sto"))
