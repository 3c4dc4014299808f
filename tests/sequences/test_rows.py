"""Cutting records into rows: the same rows whatever the pieces, and every letter where it was read."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import LettersConfig
from pipeline.sequences.alphabets import Piece, clean
from pipeline.sequences.rows import Cutter, Row

POLICY = LettersConfig(gaps="remove", stops="split")


def cut(text, size, piece):
    cutter, rows = Cutter(size), []
    for begin in range(0, len(text), piece):
        part, last = text[begin : begin + piece].encode(), begin + piece >= len(text)
        for stretch in clean(part, "protein", POLICY, start=begin, last=last).pieces:
            rows += cutter.add(stretch)
    return [*rows, *cutter.end()]


@settings(max_examples=200, deadline=None)
@given(st.text("AC-DE-*", min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 12))
def test_rows_do_not_depend_on_pieces(text, size, piece):
    rows = cut(text, size, 100)
    assert cut(text, size, piece) == rows
    stretches = [part.replace("-", "") for part in text.split("*")]
    expected = [part[i : i + size] for part in stretches for i in range(0, len(part), size)]
    assert [row.sequence.decode() for row in rows] == expected


@settings(max_examples=200, deadline=None)
@given(st.text("AC-DE-*", min_size=1, max_size=40), st.integers(1, 9))
def test_every_letter_is_where_it_was_read(text, size):
    for row in cut(text, size, 7):
        assert all(0 < place < len(row.sequence) for place, _ in row.gaps)
        for i, letter in enumerate(row.sequence.decode()):
            assert text[row.start + i + sum(number for place, number in row.gaps if place <= i)] == letter


def test_a_part_of_a_row():
    row = Row(10, b"ACGTAC", [(2, 3), (5, 1)])
    assert row.part(1, 5) == Row(11, b"CGTA", [(1, 3)])
    assert row.part(2, 6) == Row(15, b"GTAC", [(3, 1)])
    assert row.part(0, 6) == row


def test_a_stretch_elsewhere_begins_a_new_row():
    cutter = Cutter(4)
    assert list(cutter.add(Piece(0, b"AC"))) == []
    assert list(cutter.add(Piece(2, b"GTT"))) == [Row(0, b"ACGT")]
    assert list(cutter.add(Piece(6, b"A"))) == [Row(4, b"T")]
    assert list(cutter.end()) == [Row(6, b"A")]
    assert list(cutter.end()) == []
