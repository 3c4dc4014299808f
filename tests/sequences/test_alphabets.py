"""The letter rules, against values written by hand and Biopython's complement."""

from collections import Counter

import pytest
from Bio.Seq import reverse_complement as biopython_reverse_complement
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.sequences.alphabets import (
    BadSequenceError,
    case_separates,
    clean,
    is_unknown,
    reverse_complement,
)

IUPAC = "ACGTRYSWKMBDHVN"


def test_soft_masked_dna_is_folded_and_counted():
    assert clean("ACGTacgtNNNNnnnnACGT", "dna") == ("ACGTACGTNNNNNNNNACGT", {"lower_case_folded": 8})


def test_ambiguity_codes_become_n():
    sequence, changed = clean("ACGTRYKMACGTNNNNNNNNNNNNACGT", "dna")
    assert sequence == "ACGTNNNNACGTNNNNNNNNNNNNACGT"
    assert changed == {"ambiguous_to_n": 4}
    assert clean("RYSWKMBDHVryswkmbdhv", "dna") == ("N" * 20, {"ambiguous_to_n": 20, "lower_case_folded": 10})


def test_rna_becomes_dna():
    assert clean("ACGUuT", "dna") == ("ACGTTT", {"u_to_t": 2, "lower_case_folded": 1})


@pytest.mark.parametrize(
    ("letter", "why"),
    [("-", "a gap"), (".", "a gap"), ("*", "a stop"), ("E", "not a DNA"), ("é", "not a DNA")],
)
def test_other_letters_are_bad_dna(letter, why):
    with pytest.raises(BadSequenceError, match=f"letter '[{letter}]' at position 4 is {why}"):
        clean(f"acg{letter}{letter}", "dna", aligned=True)


PROTEINS = {
    "MKUOBZJX*": ("MKUOBZXX", {"j_to_x": 1, "stops_stripped": 1}),
    "mkvl": ("MKVL", {"lower_case_folded": 4}),
    "ACDEFGHIKLMNPQRSTVWYBZXUO": ("ACDEFGHIKLMNPQRSTVWYBZXUO", {}),
    "*": ("", {"stops_stripped": 1}),
}


@pytest.mark.parametrize(("sequence", "expected"), PROTEINS.items(), ids=PROTEINS)
def test_proteins(sequence, expected):
    assert clean(sequence, "protein") == expected


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ("MK*LV*", r"letter '\*' at position 3 is a stop codon before the end"),
        ("MK**", r"letter '\*' at position 3 is a stop"),
        ("MK--LV.A", "letter '-' at position 3 is a gap, which only aligned"),
        ("MK?1V", r"letter '\?' at position 3 is not a protein letter"),
        ("MK1V", "letter '1' at position 3 is not a protein letter"),
        ("AACC GG", "letter ' ' at position 5"),
        ("AC[MASK]", r"letter '\[' at position 3"),
    ],
)
def test_bad_proteins(sequence, message):
    with pytest.raises(BadSequenceError, match=message):
        clean(sequence, "protein")


def test_gaps_of_alignments():
    assert clean("MK--LV.a", "protein", aligned=True) == (
        "MK--LV-A",
        {"dots_to_gaps": 1, "lower_case_folded": 1},
    )
    assert clean("MKabc--.LVj*", "protein", aligned=True, insertions=True) == (
        "MK--LV",
        {"insertions_removed": 5, "stops_stripped": 1},
    )


@given(st.text(IUPAC + IUPAC.lower() + "Uu"))
def test_dna_letter_by_letter(sequence):
    changed = Counter()
    expected = ""
    for letter in sequence:
        changed["lower_case_folded"] += letter.islower()
        changed["u_to_t"] += letter in "Uu"
        changed["ambiguous_to_n"] += letter.upper() in "RYSWKMBDHV"
        expected += {"U": "T"}.get(letter.upper(), letter.upper() if letter.upper() in "ACGTN" + "U" else "N")
    assert clean(sequence, "dna") == (expected, +changed)


def test_nothing_but_unknown_letters():
    assert is_unknown("N" * 500, "dna")
    assert is_unknown("--XX-", "protein")
    assert not is_unknown("NNA", "dna")
    assert not is_unknown("N", "protein")  # asparagine


def test_reverse_complement_keeps_codes_and_case():
    assert reverse_complement("ACGTRYKMSWBDHVNacg") == "cgtNBDHVWSKMRYACGT"
    assert reverse_complement("ACGU") == "ACGT"
    with pytest.raises(UserError, match="letter 'E' at position 2 has no complement"):
        reverse_complement("MEK")


@given(st.text(IUPAC + IUPAC.lower()))
def test_reverse_complement_against_biopython(sequence):
    assert reverse_complement(sequence) == biopython_reverse_complement(sequence)
    assert reverse_complement(reverse_complement(sequence)) == sequence


def test_case_that_gives_the_class_away():
    assert case_separates([0] * 20 + [1] * 20, [0.98] * 20 + [0.0] * 20)
    assert case_separates([0] * 20 + [1] * 20, [0.98] * 19 + [0.0] * 21)
    assert not case_separates([0, 1] * 20, [0.0, 0.0, 0.5, 0.5] * 10)
    assert not case_separates([0, 1], [0.0, 0.0])
    assert not case_separates([0, 0], [0.0, 1.0])
