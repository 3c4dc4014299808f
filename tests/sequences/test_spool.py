"""Rows on their way through a file: what comes back, and the digests that stand for them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.rows import Row
from pipeline.sequences.spool import Spool, digests


@settings(deadline=None)
@given(st.text("ACGTN", max_size=30), st.text("ACGTN", max_size=30))
def test_digests_are_equal_where_the_sequences_are(one, other):
    first, second = (digests(text.encode(), "dna") for text in (one, other))
    strands = {one, reverse_complement(one)}
    assert (first[0] == second[0]) == (one == other)
    assert (first[1] == second[1]) == (other in strands)
    assert digests(one.lower().encode(), "dna") == first
    assert digests(reverse_complement(one).encode(), "dna")[1] == first[1]


def test_proteins_have_one_strand():
    assert digests(b"AC", "protein")[1] == digests(b"AC", "protein")[0] != digests(b"GT", "protein")[1]


@pytest.mark.parametrize("letters", [1, 5, 100])
def test_rows_come_back(tmp_path, monkeypatch, letters):
    monkeypatch.setattr("pipeline.sequences.spool.SPOOL_LETTERS", letters)
    spool = Spool(tmp_path / "rows", "dna", ["note", "more"], gaps=True)
    for i in range(5):
        row = Row(i, b"ACgT"[: i % 4 + 1], [(1, 2)] if i == 2 else [])
        spool.put(f"r{i}", row, [f"note {i}", ""], record=i // 2, label=-1, split=i % 3)
    spool.discard(4)
    table = spool.close()
    assert table.column_names == ["id", "start", "sequence", "note", "more", "gaps"]
    assert table["sequence"].to_pylist() == ["A", "AC", "ACg", "ACgT", "A"]
    assert table["gaps"].to_pylist() == [[], [], [1, 2], [], []]
    assert table["note"].to_pylist() == [f"note {i}" for i in range(5)]
    assert spool.facts["letters"].tolist() == [1, 2, 3, 4, 1]
    assert spool.facts["record"].tolist() == [0, 0, 1, 1, 2]
    assert spool.facts["split"].tolist() == [0, 1, 2, 0, 1]
    assert spool.facts["kept"].tolist() == [True] * 4 + [False]
    assert spool.facts["exact"][0] == spool.facts["exact"][4] != spool.facts["exact"][1]
