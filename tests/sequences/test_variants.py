"""Variants and substitutions by hand."""

import gzip

import pandas as pd
import pytest

from pipeline.config import LettersConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.genomes import open_genome
from pipeline.sequences.records import Notes
from pipeline.sequences.variants import (
    Alleles,
    Substitution,
    UnscorableError,
    Variant,
    _common,
    alleles_of,
    check_names,
    parse_substitutions,
    read_rows,
    read_variants,
)

GENOME = ">chr1\nAACCGGTTACGTNNacgtac\n>chrX\nTTTTRGGGG\n"
HEAD = "##fileformat=VCFv4.5\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def vcf(*rows):
    """Return a VCF file's text; a row is chromosome, position, id, reference, alternative."""
    return HEAD + "".join("\t".join([*row.split(), ".", ".", "."]) + "\n" for row in rows)


@pytest.fixture
def genome(write):
    with open_genome(write(GENOME, "g.fa"), LettersConfig(), Notes()) as genome:
        yield genome


def test_every_allele_is_a_variant_of_its_own(write):
    path = write(vcf("chr1 3 rs1 C T,G", "chr1 5 . GG G"))
    path = path.rename(path.with_suffix(".vcf"))
    assert read_variants(path) == [
        Variant(3, "chr1", 3, "rs1", "C", "T"),
        Variant(3, "chr1", 3, "rs1", "C", "G"),
        Variant(4, "chr1", 5, "", "GG", "G"),
    ]
    packed = path.with_suffix(".vcf.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_variants(packed) == read_variants(path)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("chr1 3 . C *", "the allele '*' is a deletion that another line describes"),
        ("chr1 3 . C <DEL>", "the allele '<DEL>' is symbolic; only alleles written as bases are scored"),
        ("chr1 3 . C C[chr2:5[", "the allele 'C[chr2:5[' is symbolic"),
        ("chr1 3 . C .", "no alternative allele"),
        ("chr1 3 . C N", "the allele 'N' holds letters other than A, C, G and T"),
        ("chr1 3 . C c", "both alleles are the same"),
        ("chr1 three . C T", "'three' is not a whole number"),
        ("chr1 0 . C T", "the position 0 is before the first base"),
        ("chr1 3 . <X> T", "the reference allele is '<X>', which are no bases"),
    ],
)
def test_alleles_without_letters_have_a_fault(write, row, fault):
    good, bad, other = read_variants(write(vcf("chr1 3 . C T", row, "chr1 3 . C G"), "a.vcf"))
    assert not good.fault
    assert not other.fault
    assert fault in bad.fault
    cells = row.split()
    assert (bad.line, bad.chromosome, bad.reference, bad.alternative) == (4, cells[0], cells[3], cells[4])


def test_a_line_with_too_few_columns_has_a_fault(write):
    [bad] = read_variants(write(HEAD + "chr1\t3\n", "a.vcf"))
    assert bad == Variant(3, "chr1", 3, fault="2 columns; VCF has 8 or more, separated by tabs")


@pytest.mark.parametrize(
    ("row", "alleles"),
    [
        ("chr1 3 . C T", Alleles("AA", "C", "T", "CGGT")),
        ("chr1 1 . A T", Alleles("", "A", "T", "ACCG")),
        ("chr1 20 . c a", Alleles("CGTA", "C", "A", "")),
        ("chr1 4 . CGG CAG", Alleles("AACC", "G", "A", "GTTA")),
        ("chr1 4 . CG C", Alleles("AACC", "G", "", "GTTA")),
        ("chr1 4 . C CTT", Alleles("AACC", "", "TT", "GGTT")),
        ("chr1 4 . CGGT ATGA", Alleles("AAC", "CGGT", "ATGA", "TACG")),
        ("chr1 12 . T A", Alleles("TACG", "T", "A", "NNAC")),
        ("chrX 6 . G C", Alleles("TTTN", "G", "C", "GGG")),
    ],
)
def test_alleles_lie_between_what_is_around_them(genome, write, row, alleles):
    """What they have in common is taken off, lower case is folded, IUPAC codes are N."""
    [variant] = read_variants(write(vcf(row), "a.vcf"))
    assert alleles_of(variant, genome, 4) == alleles


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (
            "chr1 3 . A T",
            "the reference allele is 'A', but the genome has 'C' from base 3 of 'chr1' on; is it",
        ),
        ("chr1 13 . N T", "the reference allele 'N' holds letters other than A, C, G and T"),
        ("chr1 20 . CA T", "the reference allele ends at 21, but 'chr1' has 20"),
        ("1 3 . C T", "g.fa has no record '1'; write 'chr1' for '1'"),
        ("chr7 3 . C T", "g.fa has no record 'chr7'; give the genome that"),
    ],
)
def test_variants_of_another_genome_are_refused(genome, write, row, fault):
    [variant] = read_variants(write(vcf(row), "a.vcf"))
    with pytest.raises(UnscorableError) as error:
        alleles_of(variant, genome, 4)
    assert fault in str(error.value)


def test_names_are_compared_before_anything_is_scored(genome, write):
    path = write(vcf("1 3 . C T", "X 6 . G C"), "a.vcf")
    with pytest.raises(UserError, match="are none of") as error:
        check_names(read_variants(path), path, genome)
    told = "'1', 'X', are none of {g}, which has 'chr1', 'chrX'; write 'chr1' for '1', 'chrX' for 'X'"
    assert told.format(g=genome.path) in str(error.value)
    check_names(read_variants(write(vcf("1 3 . C T", "chrX 6 . G C"), "b.vcf")), path, genome)


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [("C", "T", (0, 0)), ("CG", "C", (1, 0)), ("AA", "A", (0, 1)), ("TAGGACA", "TACA", (1, 3))],
)
def test_what_alleles_have_in_common_is_counted_once(first, second, common):
    assert _common(first, second) == common
    assert _common(second, first) == common


# -- windows


WORDS = Alleles("AACCGGTT", "AG", "C", "TTACGTAA")


@pytest.mark.parametrize(
    ("size", "before", "pair"),
    [
        (6, 2, ("TTAGTT", "TTCTTA")),
        (6, 4, ("GGTTAG", "GGTTCT")),
        (4, 0, ("AGTT", "CTTA")),
        (30, 8, ("AACCGGTTAGTTACGTAA", "AACCGGTTCTTACGTAA")),
    ],
)
def test_windows_of_both_alleles_are_equally_long(size, before, pair):
    assert WORDS.windows(size, before) == pair


def test_alleles_that_do_not_fit_are_refused():
    with pytest.raises(UnscorableError, match="an allele of 2 bases does not fit into a window of 5"):
        WORDS.windows(5, 4)


@pytest.mark.parametrize(
    ("left", "right", "size", "before"),
    [(20, 20, 9, 4), (20, 20, 10, 4), (2, 20, 9, 2), (20, 2, 9, 6), (3, 2, 9, 3), (0, 0, 9, 0)],
)
def test_the_change_is_in_the_middle_unless_the_record_ends(left, right, size, before):
    alleles = Alleles("A" * left, "C", "G", "T" * right)
    assert alleles.middle(size) == before
    assert len(alleles.windows(size, before)[0]) == min(size, left + 1 + right)


@pytest.mark.parametrize(("length", "before"), [(5, 4), (6, 3), (8, 1), (9, 0), (10, 0)])
def test_long_insertions_are_moved_until_they_fit(length, before):
    alleles = Alleles("A" * 20, "C", "C" * length, "T" * 20)
    assert alleles.middle(9) == before
    if length > 9:
        with pytest.raises(UnscorableError, match="an allele of 10 bases does not fit into a window of 9"):
            alleles.windows(9, before)
    else:
        assert alleles.windows(9, before)[1] == "A" * before + "C" * length + "T" * (9 - before - length)


@pytest.mark.parametrize("new", ["", "C", "CCC"])
def test_near_the_end_both_windows_are_whole(new):
    alleles = Alleles("A" * 20, "GG", new, "T" * 3)
    pair = alleles.windows(10, alleles.middle(10))
    assert [len(text) for text in pair] == [10, 10]


def test_placed_windows_are_whole_and_along_the_strand():
    """Slid over the record by hand: windows of 5 that hold all of both alleles."""
    record, other = "AACCGGTTAGTTACGTAA", "AACCGGTTCTTACGTAA"
    forward = list(WORDS.placed(5, range(5), "+"))
    assert [(each.offset, each.old, each.new) for each in forward] == [
        (o, record[8 - o : 13 - o], other[8 - o : 13 - o]) for o in range(4)
    ]
    backward = list(WORDS.placed(5, [0, 3], "-"))
    back, back_other = reverse_complement(record), reverse_complement(other)
    assert [(each.strand, each.old, each.new) for each in backward] == [
        ("-", back[8 - o : 13 - o], back_other[8 - o : 13 - o]) for o in (0, 3)
    ]


def test_windows_that_leave_the_record_are_left_out():
    alleles = Alleles("AC", "G", "T", "GGG")
    assert [each.offset for each in alleles.placed(5, range(5), "+")] == [1, 2]
    assert [each.offset for each in alleles.placed(5, range(5), "-")] == [2, 3]


# -- substitutions


def test_substitutions_are_read_by_place():
    assert parse_substitutions("A2G", "MAL") == [Substitution("A", 1, "G")]
    assert parse_substitutions("L3P:m1v", "MAL") == [Substitution("M", 0, "V"), Substitution("L", 2, "P")]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("A2", "'A2' is no substitution; write A24G, or A24G:L30P"),
        ("", "'' is no substitution"),
        ("p.Ala2Gly", "is no substitution"),
        ("A2*", "is no substitution"),
        ("A0G", "'A0G': the protein has residues 1 to 4"),
        ("A5G", "'A5G': the protein has residues 1 to 4"),
        ("A1G", "'A1G': residue 1 of the protein is M, not A"),
        ("A2B", "'A2B': B is none of the 20 residues"),
        ("X4G", "'X4G': X is none of the 20 residues"),
        ("A2G:A2V", "'A2G:A2V' names a place twice"),
    ],
)
def test_what_is_no_substitution_is_refused(text, fault):
    with pytest.raises(UnscorableError) as error:
        parse_substitutions(text, "MALX")
    assert fault in str(error.value)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_tables_of_any_kind_are_read(tmp_path, name):
    table = pd.DataFrame({"other": ["x", "y"], "mutant": ["A2G", " L3P"], "score": [1.5, None]})
    path = tmp_path / name
    if name.endswith("parquet"):
        table.to_parquet(path)
    else:
        table.to_csv(path, sep="\t" if "tsv" in name else ",", index=False)
    rows = read_rows(path, ["mutant", "score"], "substitutions")
    first = 1 if name.endswith("parquet") else 2
    assert [line for line, _ in rows] == [first, first + 1]
    assert [row["mutant"] for _, row in rows] == ["A2G", "L3P"]
    assert rows[0][1]["score"] == "1.5"
    assert rows[1][1]["score"] in ("", "nan")


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("t.csv", "a,b\n1,2\n", "t.csv: no column 'mutant'; the columns are 'a', 'b'"),
        ("t.csv", "mutant,mutant\n1,2\n", "t.csv: more than one column 'mutant'"),
        ("t.csv", "mutant,b\n1\n", "t.csv: line 2: 1 cells under 2 columns"),
        ("t.csv", "mutant\n", "t.csv: no rows in it"),
        ("t.csv", "", "t.csv: no rows in it"),
        ("t.xlsx", "", "t.xlsx: not a table by its name; give a .csv, .tsv or .parquet file"),
        ("t.parquet", "no", "t.parquet: cannot be read as Parquet"),
    ],
)
def test_bad_tables_are_told_in_a_line(write, name, text, fault):
    with pytest.raises(UserError) as error:
        read_rows(write(text, name), ["mutant"], "substitutions")
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "text"), [("a.txt", vcf("chr1 3 . C T")), ("a.vcf", HEAD)])
def test_files_without_variants_are_refused(write, name, text):
    with pytest.raises(
        UserError, match=r"variants: .*a\.\w+: (not a VCF file by its name|no variants in it)"
    ):
        read_variants(write(text, name))
