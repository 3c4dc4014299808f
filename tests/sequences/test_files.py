"""Which files are read: compressed, in folders, by globs; and what they are taken for."""

import os

import pytest
from Bio import bgzf
from xopen import xopen

from pipeline.errors import UserError
from pipeline.sequences.files import extension, find_files, is_a3m
from pipeline.sequences.readers import Notes


@pytest.mark.parametrize("name", ["x.fa.gz", "x.fasta.zst", "x.fna.bz2", "x.faa.xz", "x.fa"])
def test_compressed(tmp_path, read, name):
    with xopen(tmp_path / name, "wb") as file:
        file.write(b">a\nACGT\n")
    assert read(tmp_path / name) == [("a", "ACGT")]
    (tmp_path / name).rename(tmp_path / "told by content")
    assert read(tmp_path / "told by content") == [("a", "ACGT")]


@pytest.mark.parametrize("name", ["x.fa.gz", "x.fa.zst", "x.fa.bz2", "x.fa.xz"])
def test_files_put_together_after_compression(tmp_path, read, name):
    parts = []
    for text in (b">a\nAC", b"GT\n>b\n", b"GG\n"):
        with xopen(tmp_path / name, "wb") as file:
            file.write(text)
        parts.append((tmp_path / name).read_bytes())
    (tmp_path / name).write_bytes(b"".join(parts))
    assert read(tmp_path / name) == [("a", "ACGT"), ("b", "GG")]


@pytest.mark.parametrize("name", ["x.fa.bgz", "x.fa.bgzf", "x.fa.gz", "no_extension"])
def test_blocked_gzip(tmp_path, read, name):
    with bgzf.open(tmp_path / name, "wb") as file:
        file.write(b">a\n" + b"ACGT" * 50_000)
    assert read(tmp_path / name) == [("a", "ACGT" * 50_000)]


def test_damaged_and_missing_files(tmp_path, read):
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


def test_a_folder_gives_its_sequence_files_and_names_the_others(write, tmp_path, read, capsys):
    write(">b\nC\n", "2.fa")
    write("id,sequence\na,A\n", "1.csv")
    readme = write("see the paper", "README.txt")
    (tmp_path / "inside.fa").mkdir()
    notes = Notes()
    assert read(tmp_path, notes=notes) == [("a", "A"), ("b", "C")]
    assert notes == {"files_not_read": 2}
    said = capsys.readouterr().err
    assert f"{readme}: unknown extension '.txt', not read" in said
    assert "inside.fa: a folder, not read" in said


def test_a_glob_gives_its_files_in_order(write, tmp_path, read):
    write(">b\nC\n", "chr2.fa")
    write(">a\nA\n", "chr1.fa")
    write(">c\nA\n", "other.fa")
    assert read(tmp_path / "chr*.fa") == [("a", "A"), ("b", "C")]
    assert read(write(">d\nG\n", "[1]*.fa")) == [("d", "G")]  # a file of that very name


def test_nothing_to_read_is_an_error(write, tmp_path, read):
    with pytest.raises(UserError, match=r"x\*.fa: matches no file"):
        read(tmp_path / "x*.fa")
    write("text", "README.md")
    with pytest.raises(UserError, match="no file with a known extension in this folder"):
        read(tmp_path)


def test_other_extensions_can_be_asked_for(write, tmp_path):
    bed = write("chr1\t2\t6\n", "x.bed.gz")
    write(">a\nA\n", "x.fa")
    assert find_files([tmp_path], Notes(), {".bed"}) == [bed]


def test_kind_of_text_files_is_told_by_content(write, read):
    assert read(write("id\tsequence\na\tAC\n", "in.txt")) == [("a", "AC")]
    assert read(write("sequence,id\nAC,NA\n", "in.txt")) == [("NA", "AC")]
    assert read(write("\n>a,b\nAC\n", "in.txt")) == [("a,b", "AC")]
    assert read(write("@r\nAC\n+\nII\n", "in.txt")) == [("r", "AC")]


def test_extensions(tmp_path):
    assert is_a3m(tmp_path / "x.a3m")
    assert is_a3m(tmp_path / "x.1.A3M.gz")
    assert not is_a3m(tmp_path / "a3m.fa")
    assert extension(tmp_path / "x.tar.FQ.bgz") == ".fq"
    assert extension(tmp_path / "x") == ""
