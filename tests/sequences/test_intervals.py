"""Windows of genomes against hand-cut ones, a base-by-base definition, and Biopython on E. coli."""

import os
import re
from pathlib import Path

import pytest
from Bio import SeqIO, bgzf
from Bio.Seq import Seq
from Bio.SeqFeature import SimpleLocation
from Bio.SeqRecord import SeqRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from xopen import xopen

import pipeline.sequences.intervals
from pipeline.errors import UserError
from pipeline.sequences.intervals import interval_format, read_intervals
from pipeline.sequences.records import Notes

DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
GENOME = ">chr1 test\nAACCGGTTACGT\n>chr2\nacgtnnACGT\n"
PAIR = dict(zip("ACGTNacgtn", "TGCANtgcan", strict=True))


@pytest.fixture
def write(tmp_path):
    def write(content: bytes | str, name: str = "in.bed") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def windows(write):
    """Sequences of the windows of one file of intervals; other results by ``what``."""

    def windows(content, name="in.bed", genome=GENOME, what="sequence", **options):
        paths = [write(content, name)]
        return [getattr(record, what) for record in read_intervals(paths, write(genome, "g.fa"), **options)]

    return windows


def gff(*lines, attributes="ID=x"):
    return "".join(f"{line} {attributes}\n".replace(" ", "\t") for line in lines)


def test_bed_is_0_based_and_half_open(windows):
    assert windows("chr1\t2\t6\nchr1\t0\t12\nchr2\t0\t5\n") == [b"CCGG", b"AACCGGTTACGT", b"acgtn"]
    assert windows("chr1 2 6\n") == [b"CCGG"]


def test_gff_and_gtf_are_1_based_with_the_end(windows):
    lines = gff("chr1 . gene 3 6 . + .", "chr1 . gene 1 12 . - .")
    assert windows(lines, "in.gff3") == windows(lines, "in.gtf") == [b"CCGG", b"ACGTAACCGGTT"]


VCF = "##fileformat=VCFv4.5\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def variant(*cells):
    return "\t".join([*map(str, cells), ".", ".", "."]) + "\n"


def test_vcf_is_1_based_and_its_reference_is_that_of_the_genome(windows):
    lines = VCF + variant("chr1", 3, ".", "C", "T") + variant("chr2", 9, "rs1", "gt", "g,a")
    assert windows(lines, "in.vcf") == [b"C", b"GT"]
    assert windows(lines, "in.vcf", anchor="start", upstream=2, downstream=1) == [b"AACC", b"ACGT"]
    assert windows(lines, "in.vcf", what="id") == ["chr1:2-3(+)", "rs1"]
    kept = windows(lines, "in.vcf", what="columns", keep=["ref", "alt"])
    assert [(row["ref"], row["alt"]) for row in kept] == [("C", "T"), ("gt", "g,a")]


def test_a_variant_of_another_genome_is_refused(windows):
    lines, notes = VCF + variant("chr1", 4, ".", "C", "T") + variant("chr1", 4, ".", "G", "T"), Notes()
    with pytest.raises(
        UserError, match=r"line 4: the reference allele is 'G', but the .* has 'C' from base 4"
    ):
        windows(lines, "in.vcf")
    assert windows(lines, "in.vcf", on_bad="skip", notes=notes) == [b"C"]
    assert notes == {"reference_mismatch": 1}


def test_reverse_complement_keeps_case_and_codes(windows):
    genome = ">chr1\nACGTRYKMSWBDHVNacg\n"
    assert windows("chr1\t0\t18\tx\t0\t-\n", genome=genome) == [b"cgtNBDHVWSKMRYACGT"]
    assert windows("chr1\t0\t18\tx\t0\t.\n", genome=genome) == [b"ACGTRYKMSWBDHVNacg"]


def test_line_ends_byte_order_mark_and_header_lines(windows):
    bed = "track name=x\nbrowser position chr1:1-2\n#c\n\nchr1\t2\t6\tname\nchr1\t1\t2"
    unix = windows(bed, what="id")
    assert windows(b"\xef\xbb\xbf" + bed.replace("\n", "\r\n").encode(), what="id") == unix
    assert unix == ["name", "chr1:1-2(+)"]
    assert windows(bed, what="line") == [5, 6]
    genome = b"\xef\xbb\xbf" + GENOME.replace("\n", "\r\n").encode()
    assert windows(b"\xef\xbb\xbfchr1\t2\t6\n", genome=genome) == [b"CCGG"]


def test_fasta_ends_a_gff_file(windows):
    for end in ("##FASTA\n;letters\n", ""):
        lines = "##gff-version 3\n" + gff("chr1 . gene 3 6 . + .") + end + ">chr1\nACGT\tA\n"
        assert windows(lines, "in.gff") == [b"CCGG"]


# start, end, strand, anchor -> index of the anchor base, by hand
ANCHORS = [
    (2, 7, "+", "start", 2),
    (2, 7, "+", "end", 6),
    (2, 7, "+", "center", 4),
    (2, 7, "-", "start", 6),
    (2, 7, "-", "end", 2),
    (2, 7, "-", "center", 4),
    (2, 6, "+", "center", 4),
    (2, 6, "-", "center", 3),
    (5, 6, "-", "center", 5),
]


@pytest.mark.parametrize(("start", "end", "strand", "anchor", "base"), ANCHORS)
def test_anchors(windows, start, end, strand, anchor, base):
    line = f"chr1\t{start}\t{end}\tx\t0\t{strand}\n"
    (found,) = windows(line, anchor=anchor, upstream=2, downstream=1, what="columns")
    left, right = (2, 1) if strand == "+" else (1, 2)
    place = {"window_start": str(base - left), "window_end": str(base + right + 1)}
    assert found == {"chromosome": "chr1", "strand": strand} | place


def test_windows_run_along_the_strand(windows):
    lines = "chr1\t4\t7\ta\t0\t+\nchr1\t4\t7\tb\t0\t-\n"
    assert windows(lines) == [b"GGT", b"ACC"]
    assert windows(lines, upstream=3, downstream=1) == [b"ACCGGTT", b"CGTAACCG"[1:]]
    assert windows(lines, anchor="start", upstream=3, downstream=1) == [b"ACCGG", b"GTAAC"]


def test_upstream_60_downstream_20_has_the_start_at_60(windows):
    genome = f">c\n{'A' * 100}G{'A' * 50}T{'A' * 100}\n"
    lines = gff("c . gene 101 130 . + .", "c . gene 130 152 . - .", "c . CDS 101 130 . + .")
    options = {"feature": "gene", "anchor": "start", "upstream": 60, "downstream": 20}
    forward, reverse = windows(lines, "in.gff", genome, **options)
    assert forward == b"A" * 60 + b"G" + b"A" * 20
    assert reverse == b"T" * 60 + b"A" + b"T" * 20


def test_narrowpeak_centers_on_the_summit(windows):
    line = "chr1\t2\t8\tp\t9\t-\t1.5\t2.5\t-1\t{}\n"
    assert windows(line.format(1), "in.narrowPeak", anchor="center") == [b"G"]  # base 3 is C
    assert windows(line.format(5), "in.narrowPeak", anchor="center", upstream=1) == [b"TA"]
    assert windows(line.format(-1), "in.narrowPeak", anchor="center") == [b"C"]  # base 4 is G
    assert windows(line.format(1), "in.narrowPeak", what="columns", keep=["signalValue", "peak"]) == [
        {"signalValue": "1.5", "peak": "1", "chromosome": "chr1", "window_start": "2", "window_end": "8"}
        | {"strand": "-"}
    ]
    with pytest.raises(UserError, match="line 1: the summit, 6 after the start, is not in the interval"):
        windows(line.format(6), "in.narrowPeak")


def test_windows_cross_the_origin_of_circular_records_only(windows):
    lines = "chr1\t1\t2\ta\t0\t+\nchr1\t11\t12\tb\t0\t-\n"
    options = {"anchor": "start", "upstream": 3, "downstream": 2}
    for circular in (["chr1"], ["*"]):
        assert windows(lines, circular=circular, **options) == [b"GTAACC", b"GTTACG"]
    places = windows(lines, circular=["chr1"], what="columns", **options)
    assert [(place["window_start"], place["window_end"]) for place in places] == [("10", "16"), ("9", "15")]
    with pytest.raises(
        UserError, match=r"line 1: the window -2 to 4 leaves 'chr1', which has 12 bases and is"
    ):
        windows(lines, circular=["chr2"], **options)
    with pytest.raises(UserError, match="no record 'chr3' to be circular; the records are 'chr1', 'chr2'"):
        windows(lines, circular=["chr3"], **options)


def test_a_circular_window_does_not_meet_itself(windows):
    line = "chr1\t6\t7\n"
    assert windows(line, circular=["*"], upstream=6, downstream=5) == [b"AACCGGTTACGT"]
    assert windows(line, circular=["*"], upstream=0, downstream=11) == [b"TTACGTAACCGG"]
    with pytest.raises(UserError, match="may not meet itself"):
        windows(line, circular=["*"], upstream=6, downstream=6)


def test_features_cross_the_origin_as_gff3_has_it(windows):
    lines = gff("chr1 . gene 11 14 . - .")
    assert windows(lines, "in.gff3", circular=["chr1"]) == [b"TTAC"]
    assert windows(lines, "in.gff3", circular=["chr1"], anchor="start", downstream=1) == [b"TT"]
    with pytest.raises(UserError, match="line 1: the interval ends at 14, but 'chr1' has 12 bases"):
        windows(lines, "in.gff3")
    for wrong in ("chr1 . gene 13 14 . - .", "chr1 . gene 2 14 . - ."):
        with pytest.raises(UserError, match="line 1: the "):
            windows(gff(wrong), "in.gff3", circular=["chr1"], anchor="start")


def test_windows_outside_are_skipped_and_counted(windows, capsys):
    notes = Notes()
    lines = "chr1\t1\t2\nchr1\t5\t6\nchr1\t11\t12\nchr1\t9\t13\n"
    options = {"upstream": 2, "downstream": 2, "on_bad": "skip", "notes": notes}
    assert windows(lines, **options) == [b"CCGGT"[1:] + b"TA"[:1]]
    assert notes == {"outside_genome": 2, "bad_records": 1}
    said = capsys.readouterr().err
    assert "in.bed: line 1: the window -1 to 4 leaves 'chr1'" in said
    assert "in.bed: line 4: the interval ends at 13, but 'chr1' has 12 bases; skipped" in said


@pytest.mark.parametrize("names", [("1", "chr1"), ("chrM", "MT"), ("chr01", "1"), ("NC_1", "NC_1.3")])
def test_no_chromosome_in_common_is_always_an_error(windows, names):
    ours, theirs = names
    message = (
        rf"in.bed: 2 of 2 intervals are on chromosomes that .*g.fa does not have: {ours!r}; "
        f"it has {theirs!r}, 'x'; write {theirs!r} for {ours!r}$"
    )
    for on_bad in ("error", "skip"):
        with pytest.raises(UserError, match=message):
            windows(f"{ours} 0 4\n{ours} 2 4\n", genome=f">{theirs}\nACGT\n>x\nA\n", on_bad=on_bad)
    with pytest.raises(UserError, match=r"give the genome that the intervals were made for$"):
        windows("Y 0 4\n", genome=f">{theirs}\nACGT\n")


def test_some_chromosomes_are_unknown(windows, capsys):
    lines, notes = "chr1 0 4\n2 0 4\n3 0 4\n2 1 4\n", Notes()
    message = r"3 of 4 intervals .*: '2', '3'; it has 'chr1', 'chr2'; write 'chr2' for '2', or leave"
    with pytest.raises(UserError, match=message):
        windows(lines)
    assert windows(lines, on_bad="skip", notes=notes) == [b"AACC"]
    assert notes == {"unknown_chromosome": 3}
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_names_are_compared_before_any_window_is_cut(write):
    with pytest.raises(UserError, match="1 of 2 intervals"):
        next(iter(read_intervals([write("chr1 0 4\nchrX 0 4\n")], write(GENOME, "g.fa"))))


BAD_BED = {
    "chr1\t0": "2 columns; bed has 3 to 12",
    "chr1 0 4 a 0 + 0 0 0 1 4 0 x": "13 columns; bed has 3 to 12",
    "chrom\tstart\tend": "'start' is not a whole number",
    "chr1\t1e1\t4": "'1e1' is not a whole number",
    "chr1\t1_0\t14": "'1_0' is not a whole number",
    "chr1\t0\t4.0": "'4.0' is not a whole number",
    "chr1\t0\t": "'' is not a whole number",
    "chr1\t-1\t4": "the start -1 is before the first base, which is 0",
    "chr1\t4\t4": "no base from 4 to 4; the start comes first",
    "chr1\t5\t4": "no base from 5 to 4; the start comes first",
    "chr1\t0\t13": "the interval ends at 13, but 'chr1' has 12 bases",
    "chr1\t12\t13": "the interval ends at 13, but 'chr1' has 12 bases",
    "chr1\t0\t4\tx\t0\tplus": "the strand is 'plus', not",
}
BAD_GFF = {
    "chr1\t.\tgene\t1\t4\t.\t+\t.": "8 columns; GFF and GTF have 9, separated by tabs",
    gff("chr1 . gene 0 4 . + ."): "the start 0 is before the first base, which is 1",
    gff("chr1 . gene 5 4 . + ."): "no base from 5 to 4",
    gff("chr1 . gene 1 13 . + ."): "the interval ends at 13",
}


BAD_VCF = {
    "chr1\t3\t.\tC\tT": "5 columns; VCF has 8 or more",
    variant("chr1", 0, ".", "C", "T"): "the position 0 is before the first base, which is 1",
    variant("chr1", 3, ".", "<DEL>", "T"): "the reference allele is '<DEL>', which are no bases",
    variant("chr1", 12, ".", "TT", "T"): "the interval ends at 13, but 'chr1' has 12 bases",
}
GOOD = {
    "in.bed": "chr1\t0\t4\n",
    "in.gff": gff("chr1 . gene 1 4 . + ."),
    "in.vcf": variant("chr1", 1, ".", "AACC", "A"),
}
BAD = {"in.bed": BAD_BED, "in.gff": BAD_GFF, "in.vcf": BAD_VCF}


@pytest.mark.parametrize(
    ("name", "bad", "message"), [(name, *case) for name, cases in BAD.items() for case in cases.items()]
)
def test_bad_lines(windows, name, bad, message):
    good = GOOD[name]
    lines, notes = f"#c\n{good}{bad.strip(chr(10))}\n{good}", Notes()
    with pytest.raises(UserError, match=f"{name}: line 3: {re.escape(message)}") as error:
        windows(lines, name)
    assert "\n" not in str(error.value)
    assert windows(lines, name, on_bad="skip", notes=notes) == [b"AACC", b"AACC"]
    assert notes["bad_records"] == 1


def test_letters_without_complement(windows):
    lines, genome, notes = "c 0 4 x 0 -\nc 4 8 y 0 -\n", ">c\nAC*TACGT\n", Notes()
    with pytest.raises(UserError, match=r"in.bed: line 1: .*'\*'"):
        windows(lines, genome=genome)
    assert windows(lines, genome=genome, on_bad="skip", notes=notes) == [b"ACGT"]
    assert notes == {"bad_letters": 1}


CDS = gff("chr1 . CDS 1 4 . + .")
FAULTS = {
    "nothing": ("in.bed", "#c\n", {}, "in.bed: no usable interval in it"),
    "only bad": ("in.bed", "chr1 4 4\n", {"on_bad": "skip"}, "in.bed: no usable interval in it"),
    "only outside": ("in.bed", "chr1 0 9\n", {"on_bad": "skip", "upstream": 1}, "in.bed: no usable interval"),
    "extension": ("in.txt", "chr1 0 4\n", {}, "in.txt: not an interval file by its name; they end in .bed,"),
    "feature": ("in.bed", "chr1 0 4\n", {"feature": "gene"}, "in.bed: bed has no types of features"),
    "not a type": ("in.gff", CDS, {"feature": "gene"}, "of type 'gene'; the types are 'CDS'"),
    "bed field": ("in.bed", "chr1 0 4 x 7\n", {"keep": ["p"]}, "'p' to keep; the fields are 'name', 'score'"),
    "gff field": ("in.gff", CDS, {"keep": ["p"]}, "no field 'p' to keep; the fields are 'ID', 'source'"),
    "reserved": ("in.bed", "chr1 0 4\n", {"keep": ["chromosome"]}, "'chromosome' is kept of every interval"),
    "not text": ("in.bed", b"chr1 0 4\nchr\xe91 0 4\n", {}, "in.bed: line 2: not UTF-8 text"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_files_and_settings(windows, case):
    name, content, options, message = FAULTS[case]
    with pytest.raises(UserError, match=re.escape(message)) as error:
        windows(content, name, **options)
    assert "\n" not in str(error.value)


def test_missing_files_are_named(write, tmp_path):
    with pytest.raises(UserError, match=r"none\.bed: no such file"):
        list(read_intervals([tmp_path / "none.bed"], write(GENOME, "g.fa")))
    with pytest.raises(UserError, match=r"none\.fa"):
        list(read_intervals([write("chr1 0 4\n")], tmp_path / "none.fa"))


def test_ids_are_names_or_places(windows, capsys):
    notes = Notes()
    lines = "chr1 0 4 a 0 +\nchr1 1 5 b 0 -\nchr1 0 4 b 0 +\nchr1 2 6 .\nchr1 0 4 b 0 +\nchr1 2 6 .\n"
    assert windows(lines, what="id", downstream=1, notes=notes) == [
        "a", "chr1:0-5(-)", "chr1:0-5(+)", "chr1:2-7(+)", "chr1:0-5(+)_2", "chr1:2-7(+)_2"
    ]  # fmt: skip
    assert notes == {"renamed_ids": 4}
    assert "in.bed: line 2: id 'b' is not unique, renamed chr1:0-5(-)" in capsys.readouterr().err
    assert windows("chr1 0 4\nchr1 1 2 chr1:0-4(+)\n", what="id") == ["chr1:0-4(+)_2", "chr1:0-4(+)"]


def test_ids_are_unique_across_files(write):
    paths = [
        write("chr1 0 4 a\n", "one.bed"),
        write("chr1 1 4 a\n", "two.bed"),
        write("chr1 5 6 c\n", "3.bed"),
    ]
    records = list(read_intervals(paths, write(GENOME, "g.fa")))
    assert [record.id for record in records] == ["chr1:0-4(+)", "chr1:1-4(+)", "c"]
    assert [record.path for record in records] == paths
    notes = Notes()
    assert len(list(read_intervals([paths[0].parent], paths[0].parent / "g.fa", notes=notes))) == 3
    assert notes == {"renamed_ids": 2, "files_not_read": 1}


ATTRIBUTES = {
    "ID=g%3B1;Name=lacZ;Note=a%20b": ("g;1", "lacZ", "a b"),
    " Name=lacZ ;Note=x,y; ": ("lacZ", "lacZ", "x,y"),
    'gene_id "g;1"; transcript_id "t"; Note "a b";': ("g;1", "", "a b"),
    'transcript_id "t"; Note 5; Note "b c"; Name ""': ("t", "", "5,b c"),
    ".": ("chr1:0-4(+)", "", ""),
}


@pytest.mark.parametrize("text", ATTRIBUTES)
def test_attributes_name_the_interval_and_are_kept(windows, text):
    other = "chr1\t.\tCDS\t1\t2\t.\t-\t0\tNote=x;Name=y\n"
    lines = f"chr1\tRefSeq\tgene\t1\t4\t7\t+\t.\t{text}\n{other}"
    name, called, note = ATTRIBUTES[text]
    assert windows(lines, "in.gff", what="id")[0] == name
    kept = windows(lines, "in.gff", what="columns", keep=["Name", "Note", "type", "score", "source"])[0]
    assert list(kept.items())[:5] == [
        ("Name", called), ("Note", note), ("type", "gene"), ("score", "7"), ("source", "RefSeq")
    ]  # fmt: skip


def test_gtf_ids_are_those_of_the_type(windows):
    text = 'gene_id "g"; transcript_id "t"; exon_id "e"'
    types = ("gene", "transcript", "exon")
    lines = "".join(f"chr1\t.\t{kind}\t1\t4\t.\t+\t.\t{text}\n" for kind in types)
    assert windows(lines, "in.gtf", what="id") == ["g", "t", "e"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bgz", ".zst", ".xz"])
def test_compressed_files_leave_nothing_behind(tmp_path, monkeypatch, suffix):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    paths = tmp_path / f"g.fa{suffix}", tmp_path / f"i.bed{suffix}"
    for path, content in zip(paths, (GENOME, "chr2\t1\t8\tx\t0\t-\n"), strict=True):
        with bgzf.BgzfWriter(path) if suffix == ".bgz" else xopen(path, "w") as file:
            file.write(content)
    before = sorted(tmp_path.iterdir())
    records = read_intervals(paths[1:], paths[0])
    assert next(records).sequence == b"GTnnacg"
    assert list(scratch.iterdir())
    assert list(records) == list(scratch.iterdir()) == []
    assert sorted(tmp_path.iterdir()) == before


def test_layout_of_the_genome_does_not_matter(windows, monkeypatch):
    lines = "chr1 3 9\nchr1 0 12\nchr2 8 10 x 0 -\n"
    expected = windows(lines)
    monkeypatch.setattr(pipeline.sequences.intervals, "PIECE", 3)
    untidy = "\n>chr1 x\nAAC\n\nCGGTT\n;note ACGT\nACG T\n> chr2\nac\ngtnn\r\nACGT"
    assert windows(lines, genome=untidy) == expected == [b"CGGTTA", b"AACCGGTTACGT", b"AC"]


@pytest.mark.parametrize("kind", ["genbank", "embl"])
def test_annotated_genomes(write, tmp_path, kind):
    record = SeqRecord(Seq("AACCGGTTACGT"), id="chr1", annotations={"molecule_type": "DNA"})
    SeqIO.write(record, tmp_path / f"g.{kind}", kind)
    paths = [write("chr1\t10\t14\tx\t0\t-\n")]
    (found,) = read_intervals(paths, tmp_path / f"g.{kind}", circular=["chr1"])
    assert found.sequence.upper() == b"TTAC"


def test_what_was_met_in_the_genome_is_counted(windows):
    notes = Notes()
    assert windows("chr1 0 4\n", genome=">e\n" + GENOME, notes=notes) == [b"AACC"]
    assert notes == {"genome_empty": 1}


def test_formats_by_extension():
    names = {"a.bed": "bed", "a.v2.BED.gz": "bed", "a.narrowPeak.bgz": "narrowpeak", "a.gff.zst": "gff3"}
    names |= {
        "a.gff3": "gff3",
        "a.vcf.gz": "vcf",
        "a.gtf.xz": "gtf",
        "a.fa": None,
        "a.bed.csv": None,
        "bed": None,
        "a.gz": None,
    }
    names |= {"a.vcf.gz": "vcf"}
    assert {name: interval_format(Path(name)) for name in names} == names


def slow_window(genome, start, end, strand, anchor, upstream, downstream, circular):
    """Walk along the strand base by base; None if the walk leaves a linear genome or meets itself."""
    walk = list(range(start, end)) if strand != "-" else list(range(end - 1, start - 1, -1))
    step = 1 if strand != "-" else -1
    if anchor:
        walk = [walk[{"start": 0, "end": -1, "center": len(walk) // 2}[anchor]]]
    walk = [walk[0] - step * i for i in range(upstream, 0, -1)] + walk
    walk += [walk[-1] + step * i for i in range(1, downstream + 1)]
    if circular:
        walk = [base % len(genome) for base in walk]
    if len(set(walk)) < len(walk) or not all(0 <= base < len(genome) for base in walk):
        return None
    return "".join(genome[base] if step == 1 else PAIR[genome[base]] for base in walk)


@st.composite
def cases(draw):
    """A genome, whether it is circular, intervals of it (which may then cross the origin), and a window."""
    genome, circular = draw(st.text(alphabet="ACGTNacgtn", min_size=1, max_size=20)), draw(st.booleans())
    intervals = []
    for strand in draw(st.lists(st.sampled_from("+-."), min_size=1, max_size=5)):
        start = draw(st.integers(0, len(genome) - 1))
        last = start + len(genome) if circular else len(genome)
        intervals.append((start, draw(st.integers(start + 1, last)), strand))
    flanks = {name: draw(st.integers(0, 12)) for name in ("upstream", "downstream")}
    anchor = {"anchor": draw(st.sampled_from([None, "start", "end", "center"]))}
    return genome, circular, intervals, anchor | flanks


@given(case=cases(), width=st.integers(1, 9), gff3=st.booleans())
@settings(max_examples=80, deadline=None)
def test_windows_are_what_a_walk_along_the_strand_meets(tmp_path_factory, case, width, gff3):
    genome, circular, intervals, options = case
    folder = tmp_path_factory.getbasetemp()
    fasta, path = folder / "walk.fa", folder / f"walk.{'gff' if gff3 else 'bed'}"
    lines = [genome[i : i + width] for i in range(0, len(genome), width)]
    fasta.write_text(">a\nACGTAC\n>c\n" + "\n".join(lines) + "\n>z\nGG\n")
    line = "c\t.\tgene\t{1}\t{2}\t.\t{3}\t.\t.\n" if gff3 else "c\t{0}\t{2}\t.\t0\t{3}\n"
    path.write_text("a\t.\tx\t3\t4\t.\t+\t.\t.\n" if gff3 else "a\t2\t4\n")
    options |= {"on_bad": "skip", "notes": Notes(), "circular": ["c", "a"] if circular else []}
    with path.open("a") as file:
        file.writelines(line.format(start, start + 1, end, strand) for start, end, strand in intervals)
    try:
        found = {
            r.line: r for r in read_intervals([path], fasta, **options) if r.columns["chromosome"] == "c"
        }
    except UserError:
        found = {}
    walk = [options[name] for name in ("anchor", "upstream", "downstream")]
    expected = [slow_window(genome, *interval, *walk, circular) for interval in intervals]
    assert [
        found[i].sequence.decode() if i in found else None for i in range(2, len(intervals) + 2)
    ] == expected
    assert len({record.id for record in found.values()}) == len(found)
    for record in found.values():
        start, end = (int(record.columns[name]) for name in ("window_start", "window_end"))
        assert 0 <= start < len(genome)
        letters = (genome * 2)[start:end]
        reverse = record.columns["strand"] == "-"
        assert record.sequence.decode() == ("".join(map(PAIR.get, letters[::-1])) if reverse else letters)


@pytest.fixture(scope="module")
def ecoli():
    paths = [DATA / "genomes" / f"ecoli_k12_mg1655.{kind}.gz" for kind in ("fna", "gff")]
    if not all(path.exists() for path in paths):
        pytest.skip(f"no {paths[0]}; set STRANDLM_DATA")
    with xopen(paths[0]) as file:
        return *paths, next(SeqIO.parse(file, "fasta")).seq


def test_gene_starts_of_ecoli(ecoli):
    fasta, gff_path, genome = ecoli
    options = {"feature": "gene", "anchor": "start", "upstream": 60, "downstream": 20, "keep": ["gene"]}
    records = list(read_intervals([gff_path], fasta, **options))
    with xopen(gff_path) as file:
        genes = [cells for cells in (line.split("\t") for line in file) if cells[2:3] == ["gene"]]
    assert len(records) == len(genes) == 4494
    assert [record.id for record in records[:2]] == ["gene-b0001", "gene-b0002"]
    assert records[0].columns["gene"] == "thrL"
    assert {cells[6] for cells in genes[::7]} == {"+", "-"}
    for record, (_, _, _, first, last, _, strand, *_) in list(zip(records, genes, strict=True))[::7]:
        start, end = int(first) - 1, int(last)
        span = (start - 60, start + 21) if strand == "+" else (end - 21, end + 60)
        location = SimpleLocation(*span, strand=1 if strand == "+" else -1)
        assert record.sequence.decode() == str(location.extract(genome))
