"""Ids, empty and bad records over several files, and sequences loaded whole."""

from pathlib import Path

import pytest
from xopen import xopen

from pipeline.config import LettersConfig
from pipeline.errors import UserError
from pipeline.sequences.readers import Notes, load_sequences, read_files


def test_empty_records_are_skipped_and_named(write, read, capsys):
    notes = Notes()
    assert read(write(">a\n>b\nACGT\n>c"), notes=notes) == [("b", "ACGT")]
    assert notes == {"empty": 2}
    assert "record 'a', line 1: no sequence" in (said := capsys.readouterr().err)
    assert "record 'c', line 4: no sequence" in said


def test_only_the_first_warnings_are_said(write, read, capsys):
    notes = Notes()
    read(write(">a\nA\n" + "".join(f">e{i}\n" for i in range(50))), notes=notes)
    assert notes["empty"] == 50
    assert len(capsys.readouterr().err.splitlines()) == 4


BAD = {
    "empty file": (b"", "in.fa: no records in it"),
    "only empty": (b">a\n>b\n", "in.fa: all 2 records are empty"),
    "duplicate": (b">x 1\nAAAA\n>x 2\nCCCC\n", "in.fa: record 'x', line 3: the same id as line 1;"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_unusable_files(write, read, content, message):
    with pytest.raises(UserError) as error:
        read(write(content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["g.gff", "g.gff3.gz", "x.bed", "x.NarrowPeak", "x.gtf", "x.vcf"])
def test_intervals_are_no_sequences(tmp_path, name):
    with xopen(tmp_path / name, "w") as file:
        file.write("##gff-version 3\nchr1\t0\t5\n")
    with pytest.raises(UserError, match=rf"{name}: holds intervals, .* need --genome, .* prepare") as error:
        load_sequences([tmp_path / name], "dna")
    assert "\n" not in str(error.value)


def test_every_file_needs_a_usable_record(write):
    paths = [write(">a\nA\n", "1.fa"), write("id,sequence\nb,A A\nc,\n", "2.csv")]
    with pytest.raises(UserError, match=r"2.csv: all 2 records are empty or bad; nothing to read"):
        list(read_files(paths, on_bad="skip"))


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


def test_ids_that_are_taken(write):
    path, seen = write(">a\nA\n>b\nC\n"), {"b": (Path("x.bed"), 7), "b_2": (Path("x.bed"), 8)}
    with pytest.raises(UserError, match=r"in.fa: record 'b', line 3: the same id as line 7 of x.bed"):
        list(read_files([path], seen=seen))
    assert [r.id for r in read_files([path], seen=seen, duplicate_ids="rename")] == ["a", "b_3"]


def test_a_list_is_a_table_of_one_column(write, read):
    """Only where no header is expected, and neither the extension nor the first letter says FASTA."""
    columns = {"header": False, "sequence_column": "column_1"}
    assert read(write("AC\nGG\n", "in.txt"), **columns) == [("record_1", "AC"), ("record_2", "GG")]
    assert read(write(">a\nGG\n", "in.txt"), **columns) == [("a", "GG")]
    for name, options in (("in.txt", {}), ("in.fa", columns)):
        with pytest.raises(UserError, match="not FASTA: line 1 is 'AC'"):
            read(write("AC\nGG\n", name), **options)


def test_load_sequences_loses_nothing(write):
    paths = [write(">b\nacgu\n>a\nRN\n", "1.fa"), write("sequence\nTT\n", "2.csv")]
    assert load_sequences(paths, "dna") == [("b", "ACGT"), ("a", "NN"), ("record_3", "TT")]
    for content, message in {
        ">a\nA\n>b\n": "record 'b', line 3: no sequence",
        ">a\nA\n>b\nA-C\n": "record 'b', line 3: letter '-' at position 2",
        ">a\nAC[MASK]GT\n": r"record 'a', line 1: letter '\[' at position 3",
        ">a\nAC<mask\n": r"record 'a', line 1: letter '<' at position 3",
    }.items():
        with pytest.raises(UserError, match=message):
            load_sequences([write(content)], "dna")
    with pytest.raises(UserError, match="record 'a', line 1: no residues"):
        load_sequences([write(">a\n*\n")], "protein")


def test_load_sequences_follows_the_policy_but_moves_no_coordinates(write):
    policy = LettersConfig(case="soft-mask", xle="l", stops="split", gaps="remove")
    assert load_sequences([write(">a\nMkJ*\n")], "protein", policy) == [("a", "MKL")]
    with pytest.raises(UserError, match=r"letter '\*' at position 3 is a stop"):
        load_sequences([write(">a\nMK*J\n")], "protein", policy)
    with pytest.raises(UserError, match="letter '-' at position 3 is a gap"):
        load_sequences([write(">a\nMK-J\n")], "protein", policy)
    with pytest.raises(UserError, match="letter 'r' at position 2 is refused"):
        load_sequences([write(">a\nAr\n")], "dna", LettersConfig(ambiguous="error"))


def test_tables_under_other_column_names(write):
    path = write("name,dna\nx,ACG\n", "in.csv")
    assert load_sequences([path], "dna", sequence_column="dna", id_column="name") == [("x", "ACG")]
