"""FASTA that people really have; Biopython is the oracle on well-formed files, any block size on odd ones."""

import io
import os
import tracemalloc
from pathlib import Path

import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser
from hypothesis import given
from hypothesis import strategies as st
from xopen import xopen

import pipeline.sequences.fasta
from pipeline.errors import UserError
from pipeline.sequences.alphabets import BadSequenceError, clean
from pipeline.sequences.readers import Notes, read_files

DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def test_crlf_and_no_final_newline(write, read):
    unix = read(write(b">a x\nACGT\nAC\n>b\nGG\n"))
    assert read(write(b">a x\r\nACGT\r\nAC\r\n>b\r\nGG")) == unix == [("a", "ACGTAC"), ("b", "GG")]


def test_byte_order_mark(write, read):
    assert read(write(b"\xef\xbb\xbf>a\nACGT\n")) == [("a", "ACGT")]


def test_comments_are_no_sequence(write, read):
    assert read(write("; lab file\n>a\n;note GATTACA\nACGT\n")) == [("a", "ACGT")]
    assert read(write("# made by hand\n\n#A3M#\n>a\nACGT\n")) == [("a", "ACGT")]
    assert read(write(">a\nAC\n# GT\n")) == [("a", "AC#GT")]  # which no alphabet accepts


def test_layout_noise(write, read, capsys):
    notes = Notes()
    path = write("\n>a d\nAC\n\nGT\n\n> b\nGG T\n>\nAA\n")
    assert read(path, notes=notes) == [("a", "ACGT"), ("b", "GGT"), ("record_3", "AA")]
    assert notes == {"generated_ids": 1, "blanks_removed": 1}
    blank, no_id = capsys.readouterr().err.splitlines()
    assert blank.startswith(f"{path}: record 'b', line 8: blanks inside the sequence, removed")
    assert no_id == f"{path}: line 9: no id, named record_3"


def test_line_numbers_are_those_of_the_header(write):
    path = write("\n;c\n>a\nAC\n;c\n\n  >b\nA\n\n\n>c\n\n>d\r\nA\r\n>e\nC")
    assert [record.line for record in read_files([path])] == [3, 7, 13, 15]


BAD = {
    "headerless": (b"ACGTACGT\n", "in.fa: not FASTA: line 1 is 'ACGTACGT'"),
    "fastq": (b"\n@r1\nACGT\n+\nIIII\n", "in.fa: not FASTA: line 2 is '@r1'"),
    "genbank": (b"        1 acgtac 6\n", "in.fa: not FASTA: line 1 is '1 acgtac 6'"),
    "digits": (b">a\n;x\nAC\n\n   61 acgtac\n", "in.fa: record 'a', line 5, column 4: digit '6'"),
    "glued": (b">a\nACGT>b2\nAC\n", "in.fa: record 'a', line 2: '>' inside the sequence"),
    "old mac": (b">a\rACGT\r", "in.fa: line 1: lines end in CR only"),
    "latin-1 id": (b">caf\xe9\nACGT\n", "in.fa: line 1: the id is not UTF-8 text"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_bad_fasta(write, read, content, message):
    with pytest.raises(UserError) as error:
        read(write(content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_faults_in_lines_longer_than_a_block(write, read, monkeypatch):
    monkeypatch.setattr(pipeline.sequences.fasta, "BLOCK", 16)
    with pytest.raises(UserError, match="record 'a', line 2, column 46: digit '7'"):
        read(write(">a\n" + "ACGTA" * 9 + "7\n"))
    with pytest.raises(UserError, match="record 'a', line 2: '>' inside"):
        read(write(">a\n" + "ACGTA" * 9 + ">b\n"))
    with pytest.raises(UserError, match="line 1: a header of 16 letters or more"):
        read(write(">" + "ACGTA" * 20))
    with pytest.raises(UserError, match="line 1: lines end in CR only"):
        read(write(">a\r" + "ACGTA\r" * 20))
    assert read(write(">a\nAC\n;" + "x>2" * 40 + "\nGT\n")) == [("a", "ACGT")]


def test_misplaced_characters_are_left_to_cleaning_if_bad_records_are_skipped(write, read):
    records = read(write(">a\nAC4\n>b\nGG>c\nA\n"), on_bad="skip")
    assert records == [("a", "AC4"), ("b", "GG>cA")]
    for _, letters in records:
        with pytest.raises(BadSequenceError, match="at position 3"):
            clean(letters.encode(), "protein")


def test_pieces_are_consecutive_and_say_which_is_the_last(write):
    path = write(">a\nACGTA\nCGTAC\n>b\nACG\n>c\nACGT\n>\n" + "A" * 9)
    pieces = [(r.id, r.sequence, r.start, r.last, r.line) for r in read_files([path], piece=4)]
    assert pieces == [
        ("a", b"ACGT", 0, False, 1),
        ("a", b"ACGT", 4, False, 1),
        ("a", b"AC", 8, True, 1),
        ("b", b"ACG", 0, True, 4),
        ("c", b"ACGT", 0, True, 6),
        ("record_4", b"AAAA", 0, False, 8),
        ("record_4", b"AAAA", 4, False, 8),
        ("record_4", b"A", 8, True, 8),
    ]


def test_pieces_of_a_renamed_record_share_its_name(write):
    pieces = list(read_files([write(">a\nACGTAC\n>a\nACGTA\n")], piece=3, duplicate_ids="rename"))
    assert [(r.id, r.start) for r in pieces] == [("a", 0), ("a", 3), ("a_2", 0), ("a_2", 3)]


def test_one_endless_line_is_streamed(tmp_path):
    size, piece = 48_000_000, 1 << 20
    with (tmp_path / "long.fa").open("wb") as file:
        file.write(b">chr1\n")
        for _ in range(size // 1_000_000):
            file.write(b"ACGTN" * 200_000)
    tracemalloc.start()
    letters = sum(len(record.sequence) for record in read_files([tmp_path / "long.fa"], piece=piece))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert letters == size
    assert peak < 12 * piece


names = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=8)
letters = st.text("ACGTNacgtn*-", min_size=1, max_size=300)


@given(st.dictionaries(names, letters, min_size=1, max_size=6), st.data())
def test_odd_layout_reads_back(tmp_path_factory, read, records, data):
    choose = lambda *options: data.draw(st.sampled_from(options))  # noqa: E731
    end = choose("\n", "\r\n")
    lines = [choose("", ";comment 1", "# made up", "  ")]
    for name, sequence in records.items():
        lines += [choose(">", "> ", " >\t") + name + choose("", " described > 1", "\t2")]
        width = data.draw(st.integers(1, 300))
        for i in range(0, len(sequence), width):
            lines += [
                *choose([], [""], [";x 1"], [" ; >x"], [";" + "x1>" * 60]),
                choose("", "  ", "\t") + sequence[i : i + width] + choose("", " "),
            ]
    text = choose("", "\ufeff") + end.join(lines) + choose("", end, end * 3)
    path = tmp_path_factory.mktemp("layout") / "odd.fa"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.sequences.fasta, "BLOCK", data.draw(st.integers(64, 400)))
        assert read(path) == list(records.items())
        piece = data.draw(st.integers(1, 50))
        pieces = list(read_files([path], piece=piece))
    for name, sequence in records.items():
        own = [(r.sequence.decode(), r.start, r.last) for r in pieces if r.id == name]
        starts = range(0, len(sequence), piece)
        assert own == [(sequence[i : i + piece], i, i + piece >= len(sequence)) for i in starts]


@given(st.dictionaries(names, letters, min_size=1, max_size=6), st.integers(1, 70))
def test_biopython_agrees_on_plain_files(tmp_path_factory, read, records, width):
    text = "".join(
        f">{name} text\n" + "".join(s[i : i + width] + "\n" for i in range(0, len(s), width))
        for name, s in records.items()
    )
    path = tmp_path_factory.mktemp("plain") / "plain.fa"
    path.write_text(text, encoding="utf-8")
    assert read(path) == [(title.split()[0], s) for title, s in SimpleFastaParser(io.StringIO(text))]


@pytest.mark.parametrize("name", ["proteins/ecoli_k12_proteome.faa.gz", "genomes/ecoli_k12_mg1655.fna.gz"])
def test_biopython_agrees_on_real_files(read, name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}; set STRANDLM_DATA")
    with xopen(path) as file:
        assert read(path) == [(title.split()[0], s) for title, s in SimpleFastaParser(file)]
