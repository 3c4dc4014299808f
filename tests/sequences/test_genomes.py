"""Genomes: the search against a look at every base, letters against what the file says."""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.sequences.genomes
from pipeline.config import LettersConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.genomes import GenomeInMemory, locate, open_genome
from pipeline.sequences.places import Place, Places
from pipeline.sequences.records import Notes

GENOME = {"a": b"ACGTNNacgttgcaAC", "b": b"GGCATAGG", "c": b"AC"}


def all_places(sequence, circular=()):
    """Look at every base of every record, on both strands; joined ends are read once more."""
    found = []
    for name, letters in GENOME.items():
        text = letters.decode().upper()
        more = text[: len(sequence) - 1] if name in circular and len(sequence) <= len(text) else ""
        for start in range(len(text + more) - len(sequence) + 1):
            piece = (text + more)[start : start + len(sequence)]
            end = start + len(sequence)
            found += [Place(name, start, end, "+")] * (piece == sequence)
            found += [Place(name, start, end, "-")] * (reverse_complement(piece) == sequence)
    return sorted(found)


@given(st.lists(st.text("ACGT", min_size=1, max_size=5), min_size=1, max_size=5), st.sampled_from(["", "ab"]))
@settings(max_examples=80, deadline=None)
def test_sequences_are_found_wherever_they_are(sequences, circular):
    found = locate(GenomeInMemory(GENOME.items(), list(circular)), sequences)
    assert [sorted(places) for places in found] == [all_places(text, circular) for text in sequences]


def test_long_sequences_are_compared_to_their_end():
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(list("ACGT"), 3000))
    wanted = [text[100:200], reverse_complement(text[150:240]), text[100:180] + "A" * 20, text[100:135]]
    found = locate(GenomeInMemory([("x", text.lower().encode())]), wanted)
    assert found[:2] == [[Place("x", 100, 200, "+")], [Place("x", 150, 240, "-")]]
    assert found[2] == []
    assert found[3] == [Place("x", 100, 135, "+")]


def test_blocks_of_the_search_hide_nothing(monkeypatch):
    sequences = ["ACG", "GCA", "AAC", "GGC"]
    whole = locate(GenomeInMemory(GENOME.items(), ["*"]), sequences)
    monkeypatch.setattr(pipeline.sequences.genomes, "BLOCK", 3)
    assert locate(GenomeInMemory(GENOME.items(), ["*"]), sequences) == whole


def test_spans_end_with_their_record_or_go_on_behind_its_origin():
    places = Places.of([Place("a", 14, 18, "+"), Place("b", 1, 3, "-")])
    straight, joined = GenomeInMemory(GENOME.items()), GenomeInMemory(GENOME.items(), ["a", "b"])
    pairs = lambda spans: sorted(zip(*(column.tolist() for column in spans), strict=True))  # noqa: E731
    assert pairs(straight.spans(places)) == [(14, 16), (18, 20)]
    assert pairs(joined.spans(places)) == [(0, 2), (14, 16), (18, 20)]
    assert pairs(joined.spans(places, wider=2)) == [(0, 4), (12, 16), (17, 22), (24, 25)]
    unrolled = joined.unrolled(places)
    assert sorted(zip(unrolled.chromosome, unrolled.start, unrolled.end, unrolled.strand, strict=True)) == [
        ("a", 0, 2, "+"),
        ("a", 14, 16, "+"),
        ("b", 1, 3, "-"),
    ]


def test_letters_and_what_is_unknown():
    genome = GenomeInMemory(GENOME.items())
    assert genome.fetch(Place("a", 5, 9, "+")) == "NACG"
    assert genome.fetch(Place("a", 6, 10, "-")) == "ACGT"
    assert genome.place(18, 20, "-") == Place("b", 1, 3, "-")
    assert list(zip(*(column.tolist() for column in genome.unknown()), strict=True)) == [
        (4, 6),
        (16, 17),
        (25, 26),
    ]
    assert genome.gc_share() == pytest.approx(13 / 24)


@pytest.mark.parametrize(
    ("letters", "masked"), [("ACGT", False), ("acgt", False), ("ACgt", True), ("ACGTn", False)]
)
def test_one_case_is_no_mask(letters, masked):
    assert GenomeInMemory([("x", letters.encode())]).masked is masked


def test_circular_records_are_there(tmp_path):
    (tmp_path / "g.fa").write_text(">a\nACGT\n")
    with pytest.raises(UserError, match=r"g.fa: no record 'x' to be circular; the records are 'a'"):
        GenomeInMemory.read(tmp_path / "g.fa", ["x"])


# -- on disk


@contextmanager
def indexed(path, text, **letters):
    path.write_text(text)
    with open_genome(path, LettersConfig(**letters), Notes()) as genome:
        yield genome


TEXT = ">one of two\nACGTacgu\nRNAC\n>two\nGG\n"


def test_any_part_is_read_as_the_tokenizer_reads_it(tmp_path):
    with indexed(tmp_path / "g.fa", TEXT) as genome:
        assert genome.lengths == {"one": 12, "two": 2}
        clean = "ACGTACGTNNAC"
        for start in range(12):
            for end in range(start, 24):
                assert genome.fetch("one", start, end).decode() == (clean + clean)[start:end]
        assert genome.raw("one", 2, 10) == b"GTacguRN"
        assert genome.raw("two", 1, 1) == b""


@pytest.mark.parametrize("piece", [1, 5, 1 << 22])
def test_all_changes_are_counted_once(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(pipeline.sequences.genomes, "PIECE", piece)
    with indexed(tmp_path / "g.fa", TEXT) as genome:
        assert genome.survey() == {"lower_case_folded": 4, "u_to_t": 1, "ambiguous_to_n": 1}


def test_what_is_no_letter_is_told_by_its_place_in_the_record(tmp_path):
    message = r"g.fa: record 'one': letter 'X' at position 7 is not a DNA letter; correct or remove it"
    with indexed(tmp_path / "g.fa", ">one\nACGTACXT\n") as genome:
        for read in (genome.survey, lambda: genome.fetch("one", 5, 8)):
            with pytest.raises(UserError, match=message):
                read()
        assert genome.fetch("one", 0, 6) == b"ACGTAC"
    with (
        indexed(tmp_path / "g.fa", TEXT, ambiguous="error") as genome,
        pytest.raises(UserError, match=r"record 'one': .*'R' at position 9"),
    ):
        genome.fetch("one", 8, 9)
