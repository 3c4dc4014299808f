"""The stage negatives: what its folder holds, and one line for each mistake."""

import csv
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from Bio import SeqIO
from Bio.Seq import Seq

import pipeline.negatives
from pipeline.config import NegativesConfig
from pipeline.errors import UserError

SIZE, COUNT = 40, 12
COLUMNS = ["id", "sequence", "kind", "positive", "chromosome", "window_start", "window_end", "strand", "gc"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A genome of 8000 bases, 2000 of them soft-masked, genes in it, and positives before the genes."""
    folder, rng = tmp_path_factory.mktemp("negatives"), np.random.default_rng(0)
    text = "".join(rng.choice(list("ACGT"), 8000))
    text = text[:3000] + text[3000:5000].lower() + text[5000:]
    (folder / "genome.fa").write_text(f">chr one\n{text}\n>other\n{'N' * 100}\n")
    genes = [(600 * i + 100, 600 * i + 450, "+-"[i % 2]) for i in range(COUNT)]
    rows = [f"chr\tx\tgene\t{s + 1}\t{e}\t.\t{strand}\t.\tID=g{s}\n" for s, e, strand in genes]
    (folder / "genes.gff").write_text("".join(rows) + "chr\tx\texon\t1\t7000\t.\t+\t.\tID=e\n")
    sites = [(s - SIZE, s, "+") if strand == "+" else (e, e + SIZE, "-") for s, e, strand in genes]
    bed, fasta = "", ""
    for i, (start, end, strand) in enumerate(sites):
        bed += f"chr\t{start}\t{end}\tp{i}\t0\t{strand}\n"
        letters = Seq(text[start:end].lower())
        fasta += f">p{i}\n{letters if strand == '+' else letters.reverse_complement()}\n"
    (folder / "positives.bed").write_text(bed)
    (folder / "positives.fa").write_text(fasta)
    return folder


@pytest.fixture
def make(world, tmp_path):
    """Run the stage on the positives; rows of the table and counts."""

    def make(name="out", positives="positives.fa", **changes):
        paths = ("genome", "annotation", "starts")
        changes = {k: world / v if k in paths and v else v for k, v in changes.items()}
        config = NegativesConfig(output=tmp_path / name, positives=[world / positives], **changes)
        result = pipeline.negatives.run(config)
        with (result.folder / "negatives.tsv").open() as file:
            return list(csv.DictReader(file, delimiter="\t")), result

    return make


IN_GENOME = {"genome": "genome.fa", "annotation": "genes.gff", "away": 20}


def place(row):
    return int(row["window_start"]), int(row["window_end"])


@pytest.mark.parametrize("positives", ["positives.fa", "positives.bed"])
def test_windows_of_a_genome(make, world, positives):
    rows, result = make(positives=positives, **IN_GENOME, ratio=2)
    assert list(rows[0]) == [*COLUMNS, "stratum"]
    assert {path.name for path in result.folder.iterdir()} == {
        *("negatives.fa", "negatives.tsv", "negatives.bed", "manifest.json")
    }
    assert [row["id"] for row in rows] == [f"negative_{i}" for i in range(1, 2 * COUNT + 1)]
    assert [row["positive"] for row in rows] == [f"p{i}" for i in range(COUNT) for _ in range(2)]
    genome = next(SeqIO.parse(world / "genome.fa", "fasta")).seq
    positive = {record.id: record.seq.upper() for record in SeqIO.parse(world / "positives.fa", "fasta")}
    sites = [line.split() for line in (world / "positives.bed").read_text().splitlines()]
    for row in rows:
        start, end = place(row)
        letters = genome[start:end].upper()
        assert row["sequence"] == (letters if row["strand"] == "+" else letters.reverse_complement())
        of = lambda text: (text.count("G") + text.count("C")) / SIZE  # noqa: E731
        assert abs(of(row["sequence"]) - of(positive[row["positive"]])) <= 0.02 + 1e-9
        assert float(row["gc"]) == pytest.approx(of(row["sequence"]), abs=1e-4)
        assert all(end + 19 <= int(site[1]) or start >= int(site[2]) + 19 for site in sites)
    assert sum(result.manifest["counts"]["strata"].values()) == 2 * COUNT
    counts = result.manifest["counts"]
    assert counts["gc_difference"]["within"] == 2 * COUNT
    assert counts["repeat_difference"]["not_matched"] == 0
    assert (counts["positives"], counts["negatives"]) == (COUNT, 2 * COUNT)
    if positives == "positives.fa":
        assert counts["places_in_genome"] == {"none": 0, "one": COUNT, "several": 0}
        assert counts["changed"] == {"lower_case_folded": COUNT * SIZE}


def test_the_three_files_say_the_same(make):
    rows, result = make(**IN_GENOME)
    records = list(SeqIO.parse(result.folder / "negatives.fa", "fasta"))
    assert [(record.id, str(record.seq)) for record in records] == [(r["id"], r["sequence"]) for r in rows]
    texts = ["{chromosome}:{window_start}-{window_end}({strand})".format(**row) for row in rows]
    assert [record.description.split(maxsplit=1)[1] for record in records] == texts
    bed = [line.split("\t") for line in (result.folder / "negatives.bed").read_text().splitlines()]
    assert bed == [
        [r["chromosome"], r["window_start"], r["window_end"], r["id"], "0", r["strand"]] for r in rows
    ]


@pytest.mark.parametrize("where", ["intergenic", "coding", "antisense"])
def test_windows_of_one_stratum(make, world, where):
    rows, _ = make(**IN_GENOME, where=where, gc_tolerance=0.2)
    genes = [line.split("\t") for line in (world / "genes.gff").read_text().splitlines()]
    genes = [(int(g[3]) - 1, int(g[4]), g[6]) for g in genes if g[2] == "gene"]
    for row in rows:
        start, end = place(row)
        touched = [g for g in genes if g[0] < end and start < g[1]]
        inside = [g for g in touched if g[0] <= start and end <= g[1]]
        assert row["stratum"] == where
        assert len(touched) == len(inside) == (where != "intergenic")
        assert all((g[2] == row["strand"]) == (where == "coding") for g in inside)
        first = [g[0] if g[2] == "+" else g[1] - 1 for g in genes]
        assert all(start - base >= 20 or base - (end - 1) >= 20 for base in first)


def test_starts_may_be_others_than_those_of_the_annotation(make, world):
    (world / "starts.bed").write_text("".join(f"chr\t{i}\t{i + 5}\ts\t0\t-\n" for i in range(0, 8000, 200)))
    rows, _ = make(**IN_GENOME | {"away": 60}, starts="starts.bed", gc_tolerance=1)
    for row in rows:
        start, end = place(row)
        assert all(start - base >= 60 or base - (end - 1) >= 60 for base in range(4, 8000, 200))


def test_positives_that_are_not_there_are_told(make, world, capsys):
    text = (world / "positives.fa").read_text()
    (world / "more.fa").write_text(text + f">stranger\n{'ACGTTGCA' * 5}\n")
    rows, result = make(positives="more.fa", **IN_GENOME)
    assert result.manifest["counts"]["places_in_genome"] == {"none": 1, "one": COUNT, "several": 0}
    assert result.manifest["counts"]["repeat_difference"]["not_matched"] == 1
    assert f"1 of {COUNT + 1} positives are not in the genome" in capsys.readouterr().err
    assert rows[-1]["positive"] == "stranger"


def test_a_genome_in_one_case_has_no_repeats(make, world, capsys):
    text = (world / "genome.fa").read_text().splitlines()
    (world / "upper.fa").write_text("".join(f"{t}\n" if t[0] == ">" else f"{t.upper()}\n" for t in text))
    _, result = make(**IN_GENOME | {"genome": "upper.fa"})
    assert "repeat_difference" not in result.manifest["counts"]
    assert "the genome is not soft-masked" in capsys.readouterr().err


def test_shuffles(make, world):
    rows, result = make(kind="shuffled", ratio=3)
    positive = {record.id: str(record.seq.upper()) for record in SeqIO.parse(world / "positives.fa", "fasta")}
    assert [row["positive"] for row in rows] == [f"p{i}" for i in range(COUNT) for _ in range(3)]
    for row in rows:
        given, made = positive[row["positive"]], row["sequence"]
        assert Counter(pairwise(made)) == Counter(pairwise(given))
        assert (row["kind"], row["chromosome"], row["strand"]) == ("shuffled", "", "")
    assert len({row["sequence"] for row in rows} | set(positive.values())) == 4 * COUNT
    assert list(rows[0]) == COLUMNS
    records = list(SeqIO.parse(result.folder / "negatives.fa", "fasta"))
    assert [record.description for record in records] == [f"{r['id']} {r['positive']}" for r in rows]
    assert not (result.folder / "negatives.bed").exists()
    assert result.manifest["counts"]["same_as_a_positive"] == 0


def test_partly_shuffled_keep_eight_pieces(make, world):
    rows, _ = make(kind="partly_shuffled", ratio=5, positives="positives.bed", genome="genome.fa")
    positive = {record.id: str(record.seq.upper()) for record in SeqIO.parse(world / "positives.fa", "fasta")}
    same = [
        sum(row["sequence"][i : i + 2] == positive[row["positive"]][i : i + 2] for i in range(0, SIZE, 2))
        for row in rows
    ]
    assert min(same) >= 8
    assert np.mean(same) == pytest.approx(8 + 12 / 16, abs=0.5)


@pytest.mark.parametrize("settings", [{"kind": "shuffled"}, {**IN_GENOME, "gc_tolerance": 0.1}])
def test_the_seed_alone_decides(make, world, settings):
    records = (world / "positives.fa").read_text().split(">")[1:]
    (world / "moved.fa").write_text("".join(f">{record}" for record in records[::-1]))
    (rows, first), (moved, _) = make(**settings, seed=5), make("moved", "moved.fa", **settings, seed=5)
    assert {r["positive"]: r["sequence"] for r in rows} == {r["positive"]: r["sequence"] for r in moved}
    again, other = make("again", **settings, seed=5)[1], make("other", **settings, seed=6)[1]
    assert again.manifest["content"] == first.manifest["content"] != other.manifest["content"]


def test_a_shuffle_that_has_to_be_the_same_is_told(make, world, capsys):
    (world / "poly.fa").write_text(f">a\n{'A' * 30}\n>b\n{'ACGTTGCAAC' * 3}\n")
    _, result = make(positives="poly.fa", kind="shuffled")
    assert result.manifest["counts"]["same_as_a_positive"] == 1
    assert "1 negatives are the same as a positive" in capsys.readouterr().err


def test_bad_records_are_left_out_if_asked(make, world):
    (world / "bad.fa").write_text(">a\nACGT!\n>b\nNNNN\n>c\nACGTRYACGTACGTACGTAC\n")
    with pytest.raises(UserError, match=r"bad.fa: record 'a', line 1: letter '!' at position 5"):
        make(positives="bad.fa", kind="shuffled")
    rows, result = make(positives="bad.fa", kind="shuffled", on_bad_record="skip")
    assert [row["positive"] for row in rows] == ["c"]
    assert result.manifest["counts"]["noted"] == {"positives": {"unusable": 2}}
    assert result.manifest["counts"]["changed"] == {"ambiguous_to_n": 2}


def test_equal_ids_are_numbered_if_asked(make, world):
    """Positives may all have the name of their organism."""
    texts = ["ACGTTGCAACGGATCCTTAG", "GGATCCATTTACGACGTTAA", "TTTACGACGTTAACCGGATC"]
    (world / "alike.fa").write_text("".join(f">Escherichia coli\n{text}\n" for text in texts))
    with pytest.raises(UserError, match=r"alike.fa: record 'Escherichia', line 3: the same id as line 1"):
        make(positives="alike.fa", kind="shuffled")
    rows, result = make(positives="alike.fa", kind="shuffled", duplicate_ids="rename", ratio=2)
    names = ["Escherichia", "Escherichia_2", "Escherichia_3"]
    assert [row["positive"] for row in rows] == [name for name in names for _ in range(2)]
    assert [sorted(row["sequence"]) for row in rows] == [sorted(text) for text in texts for _ in range(2)]
    assert result.manifest["counts"]["noted"] == {"positives": {"renamed_ids": 2}}


REFUSED = {
    "kind: genome need the genome; give genome": {},
    "positives that are intervals need the genome": {"positives": "positives.bed", "kind": "shuffled"},
    "where: coding needs to know the genes; give annotation": {"genome": "genome.fa", "where": "coding"},
    "away: 9: only for kind: genome; leave it out": {"kind": "shuffled", "away": 9},
    "upstream: 9: only for positives that are intervals": {"genome": "genome.fa", "upstream": 9},
    "genome: .*: only for kind: genome, or positives": {"kind": "shuffled", "genome": "genome.fa"},
    "duplicate_ids: rename: only for positives that are sequences": {
        "positives": "positives.bed",
        "genome": "genome.fa",
        "duplicate_ids": "rename",
    },
    "feature: exon: only for GFF and GTF files": {"genome": "genome.fa", "feature": "exon"},
    "no usable interval of type 'cds'; the types are": {**IN_GENOME, "feature": "cds"},
    "no record 'x' to be circular": {"genome": "genome.fa", "circular": ["x"]},
    "no window of the genome fits for record 'p[0-9]+', 40 bases": {**IN_GENOME, "away": 9000},
    "no window is left for record 'p[0-9]+', 40 bases .*; give a smaller away": {**IN_GENOME, "ratio": 30},
}


@pytest.mark.parametrize("message", REFUSED)
def test_mistakes(make, tmp_path, message):
    with pytest.raises(UserError, match=message) as error:
        make(**REFUSED[message])
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_sequences_and_intervals_are_not_mixed(world, tmp_path):
    both = [world / "positives.fa", world / "positives.bed"]
    config = NegativesConfig(output=tmp_path / "o", positives=both, genome=world / "genome.fa")
    with pytest.raises(UserError, match="sequences or intervals, not both"):
        pipeline.negatives.run(config)


def test_short_ones_are_not_partly_shuffled(make, world):
    (world / "short.fa").write_text(">a\nACGTACGTAC\n")
    with pytest.raises(UserError, match=r"record 'a', line 1: 10 bases; partly_shuffled needs 20 or more"):
        make(positives="short.fa", kind="partly_shuffled")
