"""The letter rules, against values written by hand, slow definitions and Biopython's complement."""

from collections import Counter

import pytest
from Bio.Seq import reverse_complement as biopython_reverse_complement
from Bio.Seq import reverse_complement_rna
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import LettersConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import (
    BadSequenceError,
    Piece,
    case_separates,
    clean,
    count_unknown,
    folding,
    reverse_complement,
    without_case,
)

IUPAC = "ACGTRYSWKMBDHVN"
PROTEIN = "ACDEFGHIKLMNPQRSTVWYBZXUO"
SOFT_MASK = LettersConfig(case="soft-mask")


def cleaned(sequence, alphabet, letters=None, **options):
    result = clean(sequence.encode(), alphabet, letters or LettersConfig(), **options)
    return result.sequence.decode(), result.changed


def test_soft_masked_dna_is_folded_and_counted():
    assert cleaned("ACGTacgtNNNNnnnnACGT", "dna") == ("ACGTACGTNNNNNNNNACGT", {"lower_case_folded": 8})


def test_soft_mask_keeps_the_case_and_changes_letters_within_it():
    assert cleaned("ACGTacgtNnuURr", "dna", SOFT_MASK) == (
        "ACGTacgtNntTNn",
        {"soft_masked": 7, "u_to_t": 2, "ambiguous_to_n": 2},
    )
    assert cleaned("acgt", "dna", SOFT_MASK) == ("acgt", {"soft_masked": 4})
    assert cleaned("mKj", "protein", SOFT_MASK) == ("mKx", {"soft_masked": 2, "j_to_x": 1})


def test_ambiguity_codes_become_n():
    assert cleaned("ACGTRYKMACGTNNNNNNNNNNNNACGT", "dna") == (
        "ACGTNNNNACGTNNNNNNNNNNNNACGT",
        {"ambiguous_to_n": 4},
    )
    assert cleaned("RYSWKMBDHVryswkmbdhv", "dna") == (
        "N" * 20,
        {"ambiguous_to_n": 20, "lower_case_folded": 10},
    )


def test_rna_becomes_dna():
    assert cleaned("ACGUuT", "dna") == ("ACGTTT", {"u_to_t": 2, "lower_case_folded": 1})


@pytest.mark.parametrize(
    ("settings", "alphabet", "sequence", "way_out"),
    [
        ({"uracil": "error"}, "dna", "acgU", "uracil; --letters.uracil t makes it T"),
        ({"ambiguous": "error"}, "dna", "acgr", "ambiguous; --letters.ambiguous n makes it N"),
        ({"ambiguous": "error"}, "dna", "acgV", "ambiguous; --letters.ambiguous n makes it N"),
        ({"xle": "error"}, "protein", "MKVj", "xle; --letters.xle x makes it X"),
    ],
)
def test_letters_refused_by_the_policy(settings, alphabet, sequence, way_out):
    message = f"letter '{sequence[3]}' at position 4 is refused by letters.{way_out}"
    with pytest.raises(BadSequenceError, match=message):
        cleaned(sequence, alphabet, LettersConfig(**settings))
    cleaned(sequence[:3] + "N", alphabet, LettersConfig(**settings))


@pytest.mark.parametrize(
    ("letter", "why"),
    [("-", "a gap"), (".", "a gap"), ("*", "a stop"), ("E", "not a DNA"), ("é", "not a DNA")],
)
def test_other_letters_are_bad_dna(letter, why):
    with pytest.raises(BadSequenceError, match=f"letter '[{letter}]' at position 4 is {why}"):
        cleaned(f"acg{letter}{letter}", "dna", aligned=True)


PROTEINS = {
    "MKUOBZJX*": ("MKUOBZXX", {"j_to_x": 1, "stops_stripped": 1}),
    "mkvl": ("MKVL", {"lower_case_folded": 4}),
    PROTEIN: (PROTEIN, {}),
    "*": ("", {"stops_stripped": 1}),
}


@pytest.mark.parametrize(("sequence", "expected"), PROTEINS.items(), ids=PROTEINS)
def test_proteins(sequence, expected):
    assert cleaned(sequence, "protein") == expected


def test_rare_residues_and_xle_by_choice():
    assert cleaned("MKUOBZJX*", "protein", LettersConfig(xle="l", rare="x")) == (
        "MKXXXXLX",
        {"j_to_l": 1, "rare_to_x": 4, "stops_stripped": 1},
    )
    assert cleaned("jb", "protein", LettersConfig(rare="x")) == (
        "XX",
        {"j_to_x": 1, "rare_to_x": 1, "lower_case_folded": 2},
    )


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
        ("AC<mask>", r"letter '<' at position 3"),
        ("AC\0", r"letter '\\x00' at position 3"),
    ],
)
def test_bad_proteins(sequence, message):
    with pytest.raises(BadSequenceError, match=message):
        cleaned(sequence, "protein")


def test_positions_in_a_part_of_a_record():
    with pytest.raises(BadSequenceError, match=r"letter '\?' at position 103 is"):
        cleaned("AC?", "dna", start=100)
    with pytest.raises(BadSequenceError, match=r"letter '\*' at position 3 is a stop"):
        cleaned("MK*", "protein", last=False)
    assert clean(b"A--C", "dna", LettersConfig(gaps="remove"), start=7).pieces == [Piece(7, b"AC", [(1, 2)])]


def test_inner_stops_cut_proteins():
    letters = LettersConfig(stops="split")
    result = clean(b"MK*Lj**v*", "protein", letters)
    assert result.pieces == [Piece(0, b"MK"), Piece(3, b"LX"), Piece(7, b"V")]
    assert result.changed == {"stops_cut": 3, "stops_stripped": 1, "j_to_x": 1, "lower_case_folded": 2}
    open_end = clean(b"MK*", "protein", letters, last=False)
    assert open_end.pieces == [Piece(0, b"MK")]
    assert open_end.changed == {"stops_cut": 1}
    assert clean(b"**", "protein", letters).pieces == [Piece(0, b"")]
    with pytest.raises(BadSequenceError, match="a stop"):
        clean(b"AC*", "dna", letters)
    with pytest.raises(BadSequenceError, match="a stop"):
        clean(b"M*K", "protein", letters, aligned=True)


def test_gaps_are_removed_and_remembered():
    result = clean(b"--MK-.LV-", "protein", LettersConfig(gaps="remove"))
    assert result.pieces == [Piece(0, b"MKLV", [(0, 2), (2, 2), (4, 1)])]
    assert result.changed == {"gaps_removed": 5}
    assert cleaned("AC-GT", "dna", LettersConfig(gaps="remove")) == ("ACGT", {"gaps_removed": 1})


@given(st.text("AcN*-.", max_size=40))
def test_pieces_keep_the_coordinates(sequence):
    """Every letter of every piece is found in the input again, at the place that start and gaps tell."""
    policy = LettersConfig(case="soft-mask", stops="split", gaps="remove")
    seen = []
    for piece in clean(sequence.encode(), "protein", policy).pieces:
        for i, letter in enumerate(piece.sequence.decode()):
            place = piece.start + i + sum(removed for at, removed in piece.gaps if at <= i)
            assert sequence[place] == letter
            seen.append(place)
    assert seen == [i for i, letter in enumerate(sequence) if letter not in "*-."]


def test_gaps_of_alignments():
    assert cleaned("MK--LV.a", "protein", aligned=True) == (
        "MK--LV-A",
        {"dots_to_gaps": 1, "lower_case_folded": 1},
    )
    assert cleaned("MK-LV", "protein", LettersConfig(gaps="remove"), aligned=True) == ("MK-LV", {})
    assert cleaned("MKabc--.LVj*", "protein", aligned=True, insertions=True) == (
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
        expected += {"U": "T"}.get(letter.upper(), letter.upper() if letter.upper() in "ACGTN" else "N")
    assert cleaned(sequence, "dna") == (expected, +changed)


policies = st.builds(
    LettersConfig,
    case=st.sampled_from(["fold", "soft-mask"]),
    uracil=st.sampled_from(["t", "error"]),
    ambiguous=st.sampled_from(["n", "error"]),
    xle=st.sampled_from(["x", "l", "error"]),
    rare=st.sampled_from(["keep", "x"]),
)


@given(policies, st.sampled_from(["dna", "protein"]), st.integers(0, 255))
def test_files_do_what_the_folding_says(policy, alphabet, code):
    letter = chr(code)
    becomes = folding(alphabet, policy)
    if letter in becomes:
        expected = becomes[letter]
        soft = policy.case == "soft-mask" and letter.islower()
        assert cleaned(letter, alphabet, policy)[0] == (expected.lower() if soft else expected)
    elif (letter, alphabet) != ("*", "protein"):
        with pytest.raises(BadSequenceError):
            cleaned(letter, alphabet, policy)


def test_folding_written_out():
    same = {letter: letter for letter in "ACGTN"}
    strict = folding("dna", LettersConfig(uracil="error", ambiguous="error"))
    assert strict == same | {letter.lower(): letter for letter in "ACGTN"}
    assert set(folding("dna")) == set(IUPAC + "U" + IUPAC.lower() + "u")
    assert folding("dna")["u"] == "T"
    assert folding("dna")["k"] == "N"
    assert set(folding("protein")) == set(PROTEIN + "J" + PROTEIN.lower() + "j")
    assert folding("protein", LettersConfig(xle="l"))["j"] == "L"


def test_letters_without_case_are_told_apart_as_before():
    assert without_case(b"acgtnACGTN") == b"ACGTNACGTN"
    kept = PROTEIN.encode() + b"-*."
    assert len(set(without_case(kept))) == len(set(kept))
    assert without_case(kept.lower()) == without_case(kept)


def test_unknown_letters_are_counted():
    assert count_unknown(b"ANnNa", "dna") == 3
    assert count_unknown(b"NX-xA", "protein") == 3


def test_reverse_complement_keeps_codes_and_case():
    assert reverse_complement("ACGTRYKMSWBDHVNacg") == "cgtNBDHVWSKMRYACGT"
    assert reverse_complement(b"ACGTRYKMSWBDHVNacg") == b"cgtNBDHVWSKMRYACGT"
    assert reverse_complement("AaCGU") == "ACGuU"
    for sequence, message in {
        "MEK": "'E' at position 2 has no complement in DNA",
        "AUT": "'T'.*in RNA",
    }.items():
        with pytest.raises(UserError, match=message):
            reverse_complement(sequence)


@given(st.text(IUPAC + IUPAC.lower()))
def test_reverse_complement_against_biopython(sequence):
    assert reverse_complement(sequence) == biopython_reverse_complement(sequence)
    rna = "A" + sequence.replace("T", "U").replace("t", "u") + "U"
    assert reverse_complement(rna) == reverse_complement_rna(rna)
    for strand in (sequence, rna, sequence.encode()):
        assert reverse_complement(reverse_complement(strand)) == strand


def test_case_that_gives_the_class_away():
    assert case_separates([0] * 20 + [1] * 20, [0.98] * 20 + [0.0] * 20)
    assert case_separates([0] * 20 + [1] * 20, [0.98] * 19 + [0.0] * 21)
    assert not case_separates([0, 1] * 20, [0.0, 0.0, 0.5, 0.5] * 10)
    assert not case_separates([0, 1], [0.0, 0.0])
    assert not case_separates([0, 0], [0.0, 1.0])
