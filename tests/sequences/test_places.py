"""Places and spans against definitions base by base."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.sequences.places import Place, Places, read_places, strata, without
from pipeline.sequences.records import Notes

PLACE = st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(1, 6), st.sampled_from("+-")).map(
    lambda p: Place(p[0], p[1], p[1] + p[2], p[3])
)


def bases(place):
    return {(place.chromosome, base) for base in range(place.start, place.end)}


def stratum(window, features):
    """The definition in words, on sets of bases."""
    own = [f for f in features if f.strand == window.strand]
    other = [f for f in features if f.strand != window.strand]
    if any(bases(window) <= bases(f) for f in own):
        return "coding"
    if any(bases(window) & bases(f) for f in own):
        return "edge"
    if any(bases(window) <= bases(f) for f in other):
        return "antisense"
    return "edge" if any(bases(window) & bases(f) for f in other) else "intergenic"


@given(st.lists(PLACE, max_size=6), st.lists(PLACE, max_size=4))
@settings(max_examples=100, deadline=None)
def test_strata_are_those_of_the_definition(windows, features):
    found = strata(Places.of(windows), Places.of(features))
    assert found.tolist() == [stratum(window, features) for window in windows]


def test_intervals_of_files(tmp_path):
    (tmp_path / "g.fa").write_text(">a\nACGTACGTAC\n")
    (tmp_path / "f.bed").write_text("a\t2\t6\tone\t0\t-\na\t0\t3\n")
    lines = ("gene\t3\t6\t.\t-", "exon\t3\t4\t.\t-", "gene\t9\t12\t.\t+")
    (tmp_path / "f.gff").write_text("".join(f"a\t.\t{line}\t.\tID=x\n" for line in lines))
    bed = read_places(tmp_path / "f.bed", tmp_path / "g.fa", feature="gene")
    assert bed.start.tolist() == [2, 0]
    assert bed.starts().start.tolist() == [5, 0]
    gff = read_places(tmp_path / "f.gff", tmp_path / "g.fa", feature="gene", circular=["a"])
    assert list(zip(gff.start.tolist(), gff.end.tolist(), gff.strand, strict=True)) == [
        (2, 6, "-"),
        (8, 12, "+"),
    ]


def test_intervals_have_no_names(tmp_path, capsys):
    """What other readers rename is not renamed, nor said to be."""
    (tmp_path / "g.fa").write_text(">a\nACGTACGTAC\n")
    (tmp_path / "f.bed").write_text("a\t2\t6\tone\na\t0\t3\tone\na\t2\t6\tone\n")
    notes = Notes()
    found = read_places(tmp_path / "f.bed", tmp_path / "g.fa", notes=notes)
    assert found.start.tolist() == [2, 0, 2]
    assert not +notes
    assert capsys.readouterr().err == ""


def test_what_cannot_be_used_is_told_with_the_way_out_that_there_is(tmp_path):
    genome, path = tmp_path / "g.fa", tmp_path / "f.bed"
    genome.write_text(">a\nACGTACGTAC\n")
    path.write_text("a\t2\t6\na\t9\t11\n")
    text = "f.bed: line 2: the interval ends at 11, but 'a' has 10 bases; correct it, or leave .* out"
    for on_bad, hint in ((None, ""), ("error", r" \(--on-bad-record skip\)")):
        with pytest.raises(UserError, match=text + hint + "$"):
            read_places(path, genome, on_bad=on_bad)
    notes = Notes()
    assert len(read_places(path, genome, on_bad="skip", notes=notes)) == 1
    assert +notes == {"bad_records": 1}
    with pytest.raises(UserError, match=r"v.vcf: variants are no features; give a BED, GFF or GTF file"):
        read_places(tmp_path / "v.vcf", genome)


GROUPS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=6)


@given(GROUPS, GROUPS)
def test_subtraction_is_that_of_sets(whole, taken):
    def bases(pairs):
        return {base for start, end in pairs for base in range(start, end)}

    first, second = ([(a, a + n) for a, n in group] for group in (whole, taken))
    columns = (np.array(pairs, np.int64).reshape(-1, 2).T for pairs in (first, second))
    left = list(zip(*(column.tolist() for column in without(*map(tuple, columns))), strict=True))
    assert bases(left) == bases(first) - bases(second)
    assert sum(end - start for start, end in left) == len(bases(left))
    assert left == sorted(left)
    assert all(start < end for start, end in left)
