"""FASTQ in both layouts, against Biopython; bad reads named by record and line."""

import io
import os

import pytest
from Bio.SeqIO.QualityIO import FastqGeneralIterator
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.sequences.readers import Notes, read_files


def test_reads_in_four_lines_or_more(write, read):
    four = "@r1 lane 1\nACGT\n+\n@+II\n\n@r2\nGG\n+r2\nII\n@\nA\n+\nI"
    assert read(write(four, "in.fastq")) == [("r1", "ACGT"), ("r2", "GG"), ("record_3", "A")]
    assert read(write(four.replace("\n", "\r\n"), "in.fq")) == read(write(four, "in.fastq"))
    assert read(write("@r1\nAC\nGT\nA\n+r1\n@I\n+I\nI\n@r2\nG\n+\n@\n", "in.fq")) == [
        ("r1", "ACGTA"),
        ("r2", "G"),
    ]


def test_lines_of_reads_and_empty_reads(write, capsys):
    path = write("\n@a\n\n+\n\n@b\nAC\nG\n+\nII\nI\n@c\nA\n+\nI\n", "in.fq")
    notes = Notes()
    assert [(record.id, record.line) for record in read_files([path], notes=notes)] == [("b", 6), ("c", 12)]
    assert notes == {"empty": 1}
    assert "record 'a', line 2: no sequence" in capsys.readouterr().err


BAD = {
    "short": (
        "@a\nA\n+\nI\n@b\nACGT\n+\nIII\n@c\nA\n+\nI\n",
        "record 'b', line 5: 3 qualities for 4 letters",
    ),
    "long": ("@a\nA\n+\nI\n@b\nAC\n+\nIII\n@c\nA\n+\nI\n", "record 'b', line 5: 3 qualities for 2 letters"),
    "no plus": ("@a\nA\n+\nI\n@b\nAC\nII\n@c\nA\n+\nI\n", "record 'b', line 5: no line with '+'"),
    "stray line": ("@a\nA\n+\nI\nACGT\n@c\nA\n+\nI\n", "line 5: 'ACGT' where a read should begin with '@'"),
    "other name": (
        "@a\nA\n+\nI\n@b\nA\n+x\nI\n@c\nA\n+\nI\n",
        "record 'b', line 5: the line with '+' names 'x'",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_bad_reads_are_named_or_skipped_and_counted(write, read, capsys, content, message):
    path = write(content, "in.fastq")
    with pytest.raises(UserError) as error:
        read(path)
    assert f"{path}: {message}" in str(error.value)
    assert "\n" not in str(error.value)
    notes = Notes()
    assert read(path, on_bad="skip", notes=notes) == [("a", "A"), ("c", "A")]
    assert notes == {"bad_records": 1}
    assert f"{path}: {message}" in (said := capsys.readouterr().err)
    assert said.endswith("skipped\n")


@pytest.mark.parametrize("content", ["@a\nACGT\n+\nII", "@a\nACGT\n+", "@a\nACGT", "@a"])
def test_a_file_that_ends_within_a_read(write, read, content):
    with pytest.raises(UserError, match="record 'a', line 1: "):
        read(write(content, "in.fastq"))
    with pytest.raises(UserError, match="all 1 records are bad"):
        read(write(content, "in.fastq"), on_bad="skip")


reads = st.lists(st.text("ACGTN", min_size=1, max_size=50), min_size=1, max_size=6)


@given(reads, st.integers(1, 60), st.randoms(use_true_random=False))
def test_biopython_agrees(tmp_path_factory, read, sequences, width, random):
    def wrap(text):
        return "".join(text[i : i + width] + "\n" for i in range(0, len(text), width))

    qualities = ["".join(random.choice("!+@I~>") for _ in sequence) for sequence in sequences]
    text = "".join(
        f"@r{i}\n{wrap(s)}+\n{wrap(q)}" for i, (s, q) in enumerate(zip(sequences, qualities, strict=True))
    )
    path = tmp_path_factory.mktemp("reads") / "in.fq"
    path.write_text(text, newline=os.linesep)
    assert read(path) == [(title, s) for title, s, _ in FastqGeneralIterator(io.StringIO(text))]
