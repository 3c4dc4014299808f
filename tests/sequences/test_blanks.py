"""Blanks inside sequence lines: taken out and counted, or between overlapping k-mers, which are joined."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline.sequences.fasta
from pipeline.errors import UserError
from pipeline.sequences.blanks import join_kmers
from pipeline.sequences.readers import Notes, load_sequences, read_files


def kmers(sequence, k=6):
    return " ".join(sequence[i : i + k] for i in range(len(sequence) - k + 1))


@pytest.mark.parametrize(
    ("lines", "letters", "counts"),
    [
        ("AACCGG ACCGGT CCGGTT CGGTTA", "AACCGGTTA", {"kmers_joined": 1}),
        ("AACCGG ACCGGT", "AACCGGACCGGT", {"blanks_removed": 1}),
        ("AC CG GT", "ACCGGT", {"blanks_removed": 2}),
        ("ACG CGT GTTA", "ACGCGTGTTA", {"blanks_removed": 2}),
        ("ACG CGT TTA", "ACGCGTTTA", {"blanks_removed": 2}),
        ("NNN NNN NNN NNN", "N" * 12, {"blanks_removed": 3}),
        ("AAA aaa AAA", "AAAaaaAAA", {"blanks_removed": 2}),
        (" AC\t GT  \r\n", "ACGT", {"blanks_removed": 2}),
        ("AAA AAA AAA AAC", "AAAAAC", {"kmers_joined": 1}),
        (
            "AAC ACG CGT\nGTT TTA\n;x\n\nTAA\nCCC CCC",
            "AACGTTAACCCCCC",
            {"kmers_joined": 1, "blanks_removed": 1},
        ),
        ("AAC ACG CGT\nCCGG\nAAC ACG CGT", "AACGTCCGGAACGT", {"kmers_joined": 2}),
    ],
)
def test_lines_of_fasta(write, read, lines, letters, counts):
    notes = Notes()
    assert read(write(f">a\n{lines}\n>b\nACGT\n"), notes=notes) == [("a", letters), ("b", "ACGT")]
    assert notes == counts


def test_kmers_for_a_model(write, capsys):
    path = write(">a\nAACCGG ACCGGT CCGGTT CGGTTA\n>b\nGG T\n")
    assert load_sequences([path], "dna") == [("a", "AACCGGTTA"), ("b", "GGT")]
    said = capsys.readouterr().err
    assert "record 'a', line 2: overlapping 6-mers joined" in said
    assert "record 'b', line 4: blanks inside the sequence, removed" in said


@given(st.lists(st.text("ACGT", min_size=1, max_size=200), min_size=1, max_size=4), st.integers(20, 200))
def test_the_size_of_blocks_changes_nothing(tmp_path_factory, read, sequences, block):
    path = tmp_path_factory.mktemp("blanks") / "in.fa"
    lines = [kmers(s) if len(s) > 8 else " ".join(s) for s in sequences]
    path.write_text("".join(f">r{i}\n{line}\n" for i, line in enumerate(lines)))
    expected = [
        s if len(s) > 8 and len(set(s)) > 1 else line.replace(" ", "")
        for s, line in zip(sequences, lines, strict=True)
    ]
    found = {}
    for size in (block, 1 << 20):
        notes = Notes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline.sequences.fasta, "BLOCK", size)
            found[size] = [letters for _, letters in read(path, notes=notes)], notes
    assert found[block] == found[1 << 20]
    assert found[block][0] == expected


def test_digits_between_blanks_are_refused_by_their_column(write, read):
    with pytest.raises(UserError, match="record 'a', line 2, column 6: digit '7'"):
        read(write(">a\nAC GT7\n"))


def test_crlf_and_long_lines_hold_no_blanks(write, monkeypatch):
    notes = Notes()
    path = write(b">a\r\nACGT\r\nAC\r\n>b\r\n" + b"ACGTA" * 9 + b"\r\n")
    for block in (1 << 20, *range(16, 30)):
        monkeypatch.setattr(pipeline.sequences.fasta, "BLOCK", block)
        assert [r.sequence for r in read_files([path], notes=notes)] == [b"ACGTAC", b"ACGTA" * 9]
    assert not notes


def test_blanks_in_fastq(write, read):
    notes = Notes()
    path = write("@a\nAC GT \n+\nIIII\n@b\nAA\n+\nII\n", "in.fq")
    assert read(path, notes=notes) == [("a", "ACGT"), ("b", "AA")]
    assert notes == {"blanks_removed": 1}


def test_joining_is_exact():
    assert join_kmers([b"ACG", b"CGT"]) == b"ACGT"
    assert join_kmers([b"ACG", b"CGT", b"GTT"]) == b"ACGTT"
    assert join_kmers([b"ACG", b"GTT"]) is None
    assert join_kmers([b"A", b"C"]) is None


def test_kmers_go_on_in_the_next_block(write, read, monkeypatch):
    path = write(">a\nAAC ACG CGT\nGTT\nTTA TAA\n>b\nGTT\n")
    for block in range(8, 40):
        monkeypatch.setattr(pipeline.sequences.fasta, "BLOCK", block)
        assert read(path) == [("a", "AACGTTAA"), ("b", "GTT")]
