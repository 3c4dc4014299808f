"""Labelled data as people have it: benchmark folders, tables of any make, files of classes, intervals."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from Bio.Seq import reverse_complement
from datasets import ClassLabel, Value, load_from_disk
from xopen import xopen

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.prepare import run

WHOLE = {"validation": 0, "test": 0}
BY_FILE = {"split_by": "file", "label_column": "label"}
DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[1].parent / "shared" / "data"))


def shared(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}; set STRANDLM_DATA")
    return path


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Write files under the names given, and prepare them all, or what ``input`` or ``classes`` name."""
    monkeypatch.chdir(tmp_path)

    def prepare(files, output="corpus", **settings):
        for name, text in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            with xopen(name, "w") as file:
                file.write(text)
        inputs = {} if "classes" in settings else {"input": list(files)}
        return run(PrepareConfig(output=Path(output), **(inputs | settings)))

    return prepare


def rows(result, split="train"):
    return [tuple(row.values()) for row in load_from_disk(str(result.folder))[split]]


def bases(length, seed=0):
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), length))


def kmers(letters, k=6):
    return " ".join(letters[i : i + k] for i in range(len(letters) - k + 1))


# Splits given by files


@pytest.mark.parametrize("name", ["dev.csv", "val.csv.gz", "valid.CSV", "validation.csv", "DEV.csv.bz2"])
def test_files_are_named_after_splits(prepare, name):
    """As in GUE's folders; a label seen first as 1 is still class 1."""
    files = {
        f"gue/{name}": "sequence,label\nAACC,1\nAACG,0\n",
        "gue/test.tsv": "label\tsequence\n0\tGGCA\n",
        "gue/train.csv.gz": "sequence,label\nTTCA,1\nTTGA,0\nTTAA,1\n",
    }
    result = prepare(files, input=["gue"], **BY_FILE)
    splits = ("train", "validation", "test")
    found = {split: [(row[2], row[3]) for row in rows(result, split)] for split in splits}
    assert found == {
        "train": [("TTCA", 1), ("TTGA", 0), ("TTAA", 1)],
        "validation": [("AACC", 1), ("AACG", 0)],
        "test": [("GGCA", 0)],
    }
    assert load_from_disk(str(result.folder))["train"].features["label"] == ClassLabel(names=["0", "1"])


def test_other_names_are_no_splits(prepare):
    text = "sequence,label\nAACC,1\n"
    with pytest.raises(
        UserError, match=r"^gue/all.csv.gz: 'all' names no split, .* call it train, dev"
    ) as error:
        prepare({"gue/train.csv": text, "gue/all.csv.gz": text}, input=["gue"], **BY_FILE)
    assert "\n" not in str(error.value)
    assert not Path("corpus").exists()
    with pytest.raises(UserError, match=r"^missing: no such file"):
        prepare({"train.csv": text}, input=["missing"], **BY_FILE)
    with pytest.raises(
        UserError, match="split_by: file says what is tested, and so does test_input; drop one"
    ):
        prepare({"train.csv": text, "t.csv": text}, input=["train.csv"], test_input=["t.csv"], **BY_FILE)
    with pytest.raises(UserError, match="split_column gives the splits; drop split_by"):
        prepare({"train.csv": text}, split_column="label", **BY_FILE)


def test_names_of_splits_are_part_of_the_result(prepare):
    texts = "sequence,label\nAACC,1\nAACG,0\n", "sequence,label\nGGCC,1\nGGCG,0\n"
    orders = ("a/train.csv", "b/test.csv"), ("a/test.csv", "b/train.csv")
    for order in orders:
        files = dict(zip(order, texts, strict=True))
        assert not prepare(files, **BY_FILE).up_to_date
        assert prepare(files, **BY_FILE).up_to_date
    assert [row[2] for row in rows(prepare(files, **BY_FILE), "test")] == ["AACC", "AACG"]


def test_splits_of_files_are_given_splits(prepare, capsys):
    """Copies stay where they are tested, and what the splits had in common is told."""
    one, two, three = (bases(40, seed) for seed in range(3))
    head = "sequence,label\n"
    files = {
        "train.csv": f"{head}{one},0\n{two},1\n{three},1\n",
        "dev.csv": f"{head}{two},1\n{reverse_complement(three)},1\n",
        "test.csv": f"{head}{one},0\n",
    }
    result = prepare(files, **BY_FILE)
    assert [row[2] for row in rows(result)] == [three]
    assert [row[2] for row in rows(result, "test")] == [one]
    given = json.loads((result.folder / "leakage.json").read_text())["given"]["pairs"]
    assert (given["test in train"]["exact"], given["validation in train"]["reverse_complement"]) == (1, 1)
    assert "splits as given: WARNING: 1 test rows are in train" in capsys.readouterr().err
    with pytest.raises(
        UserError, match=r"no row is left to train on: .*; give rows for train that validation"
    ):
        prepare({"train.csv": f"{head}{one},0\n", "test.csv": f"{head}{one},0\n"}, **BY_FILE)
    alone = prepare({"test.csv": f"{head}{one},0\n"}, "tests", **BY_FILE)
    assert alone.manifest["counts"]["splits"].keys() == {"test"}


def test_folders_of_classes_hold_files_of_splits(prepare):
    files = {f"{name}/{split}.fa": "" for name in ("yes", "no") for split in ("train", "test")}
    letters = dict(zip(files, ("AAC", "AAG", "CCA", "CCG"), strict=True))
    files = {path: f">{path}\n{letters[path]}\n" for path in files}
    result = prepare(files, classes={"yes": "yes", "no": "no"}, split_by="file")
    assert rows(result) == [("yes/train.fa", 0, "AAC", 0), ("no/train.fa", 0, "CCA", 1)]
    assert rows(result, "test") == [("yes/test.fa", 0, "AAG", 0), ("no/test.fa", 0, "CCG", 1)]


def test_given_splits_keep_the_held_out_copy(prepare):
    table = (
        "id,sequence,part\na,AAAC,train\nb,AAAC,test\nc,GTTT,train\nd,CCCC,validation\n"
        "e,CCCC,train\nf,ACCA,train\ng,ACCA,train\n"
    )
    result = prepare({"in.csv": table}, split_column="part")
    assert rows(result, "test") == [("b", 0, "AAAC")]
    assert rows(result, "validation") == [("d", 0, "CCCC")]
    assert [row[0] for row in rows(result)] == ["c", "f"]
    leaks = json.loads((result.folder / "leakage.json").read_text())
    assert set(leaks) == {"corpus", "given"}
    with pytest.raises(UserError, match=r"record 'a', line 2: 'dev' in column 'part'; use train"):
        prepare({"in.csv": "id,sequence,part\na,AAAC,dev\n"}, split_column="part")


def test_a_table_of_tests_alone_is_a_corpus_to_evaluate(prepare, capsys):
    table = "id,sequence,part\na,AAAC,test\nb,GTTT,test\n"
    result = prepare({"in.csv": table}, split_column="part")
    assert result.manifest["counts"]["splits"].keys() == {"test"}
    assert "can be evaluated, not trained on" in capsys.readouterr().err


# Tables


def test_rows_of_overlapping_kmers(prepare):
    """DNABERT's tables: sentence and label, train.tsv and dev.tsv."""
    letters = [bases(30, seed) for seed in range(4)]
    lines = [f"{kmers(text)}\t{i % 2}\n" for i, text in enumerate(letters)]
    head = "sentence\tlabel\n"
    files = {"d/train.tsv": head + "".join(lines[:3]), "d/dev.tsv": head + lines[3]}
    with pytest.raises(
        UserError, match=r"d/dev.tsv: no column 'sequence'; .*; pass --sequence-column sentence$"
    ):
        prepare(files, input=["d"], **BY_FILE)
    result = prepare(files, input=["d"], sequence_column="sentence", **BY_FILE)
    assert [row[2:] for row in rows(result)] == [(letters[0], 0), (letters[1], 1), (letters[2], 0)]
    assert [row[2:] for row in rows(result, "validation")] == [(letters[3], 1)]
    assert result.manifest["counts"]["kmers_joined"] == 4


def test_tables_without_a_header(prepare):
    table = f"1\t{bases(25, 0)}\tx\n0\t{bases(25, 1)}\ty\n"
    with pytest.raises(
        UserError, match=r"line 1 looks like data, .* --header false --sequence-column column_2"
    ):
        prepare({"in.tsv": table}, label_column="label")
    columns = {"sequence_column": "column_2", "label_column": "column_1", "id_column": "column_3"}
    result = prepare({"in.tsv": table}, header=False, **columns, **WHOLE)
    assert rows(result) == [("x", 0, bases(25, 0), 1), ("y", 0, bases(25, 1), 0)]
    with pytest.raises(UserError, match="no column 'column_1'; the columns are 'a', 'b'"):
        prepare({"in.csv": "a,b\nAC,1\n"}, sequence_column="column_1")


def test_lists_of_sequences(prepare):
    """DeePromoter's files: one sequence a line, nothing else."""
    classes = {"promoter": "pos.txt", "other": "neg.fa"}
    files = {"pos.txt": "ACGT\nGGTT\n", "neg.fa": ">n\nCCAA\n"}
    columns = {"header": False, "sequence_column": "column_1"}
    result = prepare(files, classes=classes, **columns, **WHOLE)
    assert rows(result) == [("record_1", 0, "ACGT", 0), ("record_2", 0, "GGTT", 0), ("n", 0, "CCAA", 1)]
    with pytest.raises(UserError, match=r"pos.txt: not FASTA: line 1 is 'ACGT'"):
        prepare(files, classes=classes)


def test_texts_of_many_digits_stay_as_they_are(prepare):
    """As integers they have no room, and as floats they would lose digits."""
    table = "id\tsequence\tstates\tlarge\na\tACGT\t1110001110001110001110\t9007199254740993\n"
    result = prepare({"in.tsv": table}, keep_columns=["states", "large"], **WHOLE)
    assert rows(result) == [("a", 0, "ACGT", "1110001110001110001110", 9007199254740993)]


def test_kept_columns_have_types(prepare):
    table = "id\tsequence\tfold\tscore\tcode\tnote\tnone\nb\tAC\t1\t0.5\t007\tx\t\na\tAG\t-2\t\t08\t\t\n"
    columns = ["fold", "score", "code", "note", "none"]
    result = prepare({"in.tsv": table}, keep_columns=columns, **WHOLE)
    dataset = load_from_disk(str(result.folder))["train"]
    kinds = ["string", "int64", "string", "int64", "float64", "string", "string", "string"]
    assert dataset.features == dict(
        zip(["id", "start", "sequence", *columns], map(Value, kinds), strict=True)
    )
    assert rows(result) == [("b", 0, "AC", 1, 0.5, "007", "x", ""), ("a", 0, "AG", -2, None, "08", "", "")]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("b a b", ["a", "b"]),
        ("1 0 1", ["0", "1"]),
        ("10 9 10", ["9", "10"]),
        ("0 2 5", ["0", "2", "5"]),
        ("1 x 10", ["1", "10", "x"]),
    ],
)
def test_label_order(prepare, labels, names):
    cells = [
        f"{label},{sequence}" for label, sequence in zip(labels.split(), ["AC", "AG", "AT"], strict=True)
    ]
    result = prepare({"in.csv": "y,sequence\n" + "\n".join(cells)}, label_column="y", **WHOLE)
    assert load_from_disk(str(result.folder))["train"].features["label"] == ClassLabel(names=names)
    assert [names[row[3]] for row in rows(result)] == labels.split()


def test_missing_label(prepare):
    with pytest.raises(UserError, match="record 'b', line 3: no label in column 'y'"):
        prepare({"in.csv": "id,y,sequence\na,1,AC\nb,,AG\n"}, label_column="y")


# Classes and folders


def test_order_of_classes_is_part_of_the_result(prepare):
    files = {"yes": ">yes\nAC\n", "no": ">no\nGG\n"}
    for names in (["yes", "no"], ["no", "yes"]):
        result = prepare(files, classes={name: name for name in names}, **WHOLE)
        table = load_from_disk(str(result.folder))["train"]
        assert not result.up_to_date
        assert table.features["label"] == ClassLabel(names=names)
        assert {row["id"]: names[row["label"]] for row in table} == {"yes": "yes", "no": "no"}


def test_case_that_gives_labels_away(prepare, capsys):
    lines = [bases(81, seed) for seed in range(40)]
    marked = [f"{s[:60].lower()}{s[60:61]}{s[61:].lower()}" for s in lines[:20]]
    files = {
        name: "".join(f">{name}{i}\n{s}\n" for i, s in enumerate(texts))
        for name, texts in (("p.fa", marked), ("n.fa", lines[20:]))
    }
    result = prepare(files, classes={"promoter": "p.fa", "other": "n.fa"}, **WHOLE)
    assert result.manifest["counts"]["case_separates_labels"] is True
    assert "letter case alone tells the classes apart" in capsys.readouterr().err
    assert all(row[2].isupper() for row in rows(result))


def test_folders_and_globs(prepare):
    files = {f"in/{name}": f">{name}\n{text}\n" for name, text in (("a.fa", "AC"), ("b.fa", "GGG"))}
    files["in/notes.txt"] = ">notes.txt\nno\n"
    for path in ("in", "in/*.fa"):
        result = prepare(files, input=[path], **WHOLE)
        assert rows(result) == [("a.fa", 0, "AC"), ("b.fa", 0, "GGG")]
    assert result.up_to_date
    classes = {"one": "in", "two": "more.fa"}
    result = prepare(files | {"more.fa": ">m\nTTT\n"}, "labelled", classes=classes, **WHOLE)
    assert [row[3] for row in rows(result)] == [0, 0, 1]


# Intervals


def test_intervals_without_a_genome(prepare):
    for name in ("g.gff", "x.bed", "x.VCF"):
        with pytest.raises(UserError, match=rf"{name}: holds intervals, .* intervals need --genome"):
            prepare({name: "1\t0\t5\n"})


def test_intervals_of_a_genome(prepare):
    files = {
        "g.fa": ">1\nAACCGGTTACGT\n>2\nTTTTTTTTTTGA\n",
        "a.bed": "1\t2\t6\tx\t5\t+\n2\t8\t12\ty\t7\t-\n",
        "b.bed": "1\t0\t6\n",
    }
    genome = {"genome": "g.fa", **WHOLE}
    result = prepare(files, input=["a.bed"], keep_columns=["score"], **genome)
    assert rows(result) == [("x", 0, "CCGG", 5, "1", 2, 6, "+"), ("y", 0, "TCAA", 7, "2", 8, 12, "-")]
    features = load_from_disk(str(result.folder))["train"].features
    assert features["chromosome"] == features["strand"] == Value("string")
    assert features["window_start"] == features["window_end"] == Value("int64")
    assert "genome" in result.manifest["inputs"]
    two = prepare(files, "two", classes={"here": "a.bed", "there": "b.bed"}, **genome)
    assert [row[2:4] for row in rows(two)] == [("CCGG", 0), ("TCAA", 0), ("AACCGG", 1)]


ANCHORED = {"genome": "g.fa", "anchor": "start", "upstream": 60, "downstream": 20, **WHOLE}


def test_promoters_and_background_around_starts_on_both_strands(prepare):
    """Windows of 81 bases with the start at base 60, by slices of the chromosome and of its other strand."""
    letters = bases(1000)
    starts = {"p": [(100, "+"), (500, "-")], "n": [(300, "-"), (800, "+")]}
    files = {f"{name}.bed": "" for name in starts} | {"g.fa": f">c\n{letters}\n"}
    for name, places in starts.items():
        lines = [
            f"c\t{place}\t{place + 50}\t{name}{place}\t.\t+\n"
            if strand == "+"
            else f"c\t{place - 49}\t{place + 1}\t{name}{place}\t.\t-\n"
            for place, strand in places
        ]
        files[f"{name}.bed"] = "".join(lines)
    other = reverse_complement(letters)
    result = prepare(files, classes={"promoter": "p.bed", "background": "n.bed"}, **ANCHORED)
    expected = []
    for label, (name, places) in enumerate(starts.items()):
        for place, strand in places:
            text, at = (letters, place) if strand == "+" else (other, 999 - place)
            start = place - 60 if strand == "+" else place - 20
            expected.append(
                (f"{name}{place}", 0, text[at - 60 : at + 21], label, "c", start, start + 81, strand)
            )
    assert rows(result) == expected


def test_intervals_beside_sequences(prepare):
    """Positives of a genome, negatives of a file: places are null where there are none, ids differ."""
    letters = bases(200)
    files = {
        "g.fa": f">c\n{letters}\n",
        "p.bed": "c\t99\t100\ta\t.\t+\nc\t120\t121\tb\t.\t+\n",
        "n.fa": f">a\n{bases(81, 5)}\n>n\n{bases(81, 6)}\n",
    }
    classes = {"background": "n.fa", "promoter": "p.bed"}
    with pytest.raises(UserError, match=r"n.fa: record 'a', line 1: the same id as line 1 of p.bed"):
        prepare(files, classes=classes, **ANCHORED)
    result = prepare(files, classes=classes, duplicate_ids="rename", **ANCHORED)
    assert rows(result) == [
        ("a", 0, letters[39:120], 1, "c", 39, 120, "+"),
        ("b", 0, letters[60:141], 1, "c", 60, 141, "+"),
        ("a_2", 0, bases(81, 5), 0, "", None, None, ""),
        ("n", 0, bases(81, 6), 0, "", None, None, ""),
    ]
    with pytest.raises(UserError, match=r"^n.fa: holds no intervals, and split_by is chromosome; "):
        prepare(files, classes=classes, split_by="chromosome", **ANCHORED)
    with pytest.raises(UserError, match=r"n.fa: not an interval file by its name; they end in .bed"):
        prepare(files, input=["n.fa"], **ANCHORED)


def test_beds_are_0_based_and_variants_1_based(prepare):
    variant = "##fileformat=VCFv4.2\nchr1\t3\t.\tC\tT\t.\t.\t.\n"
    files = {"g.fa": ">chr1\nAACCGGTTACGT\n", "in.bed": "chr1 2 6\nchr1 0 12\n", "in.vcf": variant}
    result = prepare(files, input=["in.bed", "in.vcf"], genome="g.fa", **WHOLE)
    assert [row[2:] for row in rows(result)] == [
        ("CCGG", "chr1", 2, 6, "+"),
        ("AACCGGTTACGT", "chr1", 0, 12, "+"),
        ("C", "chr1", 2, 3, "+"),
    ]
    files["in.vcf"] = variant.replace("\t3\t", "\t2\t")
    with pytest.raises(
        UserError, match=r"in.vcf: line 2: the reference allele is 'C', but the genome has 'A'"
    ):
        prepare(files, input=["in.vcf"], genome="g.fa", **WHOLE)


def test_chromosomes_of_another_naming(prepare, capsys):
    files = {"g.fa": ">chr1\nAACCGGTTACGT\n>2\nACGTTTGGCA\n", "in.bed": "1 0 10\n"}
    wanted = r"in.bed: 1 of 1 intervals .*g.fa does not have: '1'; it has 'chr1', '2'; write 'chr1' for '1'"
    for on_bad in ("error", "skip"):
        with pytest.raises(UserError, match=wanted):
            prepare(files, input=["in.bed"], genome="g.fa", on_bad_record=on_bad)
    files["in.bed"] = "1 0 10\n2 0 4\n1 2 5\n"
    result = prepare(files, input=["in.bed"], genome="g.fa", on_bad_record="skip", **WHOLE)
    assert [row[2] for row in rows(result)] == ["ACGT"]
    assert result.manifest["counts"]["dropped"] == {"unknown_chromosome": {"records": 2, "letters": 0}}
    assert "in.bed: 2 of 3 intervals" in capsys.readouterr().err


# Leakage


def test_promoters_turned_and_shifted_by_a_base(prepare, capsys):
    """Rows split at random keep strands together and tell of shifted windows; clusters keep all together."""
    texts = [bases(82, seed) for seed in range(10)]
    kinds = {"p": lambda s: s[:81], "r": lambda s: reverse_complement(s[:81]), "s": lambda s: s[1:]}
    fasta = "".join(f">{kind}{i}\n{of(s)}\n" for i, s in enumerate(texts) for kind, of in kinds.items())
    shares = {"validation": 0, "test": 0.2}
    result = prepare({"in.fa": fasta}, **shares)
    pair = result.manifest["counts"]["leakage"]["corpus"]["test in train"]
    ids = {name: {row[0] for row in rows(result, name)} for name in ("train", "test")}
    parted = {name[1:] for name in ids["test"] if {f"p{name[1:]}", f"s{name[1:]}"} & ids["train"]}
    assert (pair["exact"], pair["reverse_complement"]) == (0, 0)
    assert pair["shared_kmer"] == sum(name[1:] in parted for name in ids["test"]) > 0
    assert "share 30 letters in a row with train" in capsys.readouterr().err
    result = prepare({"in.fa": fasta}, split_by="cluster", **shares)
    assert not any(result.manifest["counts"]["leakage"]["corpus"]["test in train"].values())
    halves = {f"{split}.fa": "" for split in ("train", "test")}
    for record in fasta.split(">")[1:]:
        halves["train.fa" if record.startswith("p") else "test.fa"] += f">{record}"
    given = prepare(halves, split_by="file").manifest["counts"]["leakage"]["given"]["test in train"]
    assert (given["exact"], given["reverse_complement"], given["shared_kmer"]) == (0, 10, 20)
    assert "WARNING: the other strands of 10 test rows are in train" in capsys.readouterr().err


# Real data


def test_a_published_benchmark_is_one_command(tmp_path):
    """GUE's TATA promoters: every row of every file in its order, in the class and split that it says.

    16 test sequences are in train, one of them with the other label; 36 share 30 bases with it.
    """
    folder = shared("promoters/gue/prom/prom_core_tata")
    settings = {"input": [folder], "label_column": "label"}
    result = run(PrepareConfig(output=tmp_path / "out", split_by="file", deduplicate=False, **settings))
    for name, split in (("train", "train"), ("dev", "validation"), ("test", "test")):
        lines = gzip.decompress((folder / f"{name}.csv.gz").read_bytes()).decode().split()
        assert lines[0] == "sequence,label"
        assert [f"{row[2]},{row[3]}" for row in rows(result, split)] == lines[1:]
    pair = result.manifest["counts"]["leakage"]["given"]["test in train"]
    assert (pair["exact"], pair["conflicting_labels"], pair["shared_kmer"]) == (16, 1, 36)
    result = run(PrepareConfig(output=tmp_path / "once", split_by="file", **settings))
    assert result.manifest["counts"]["leakage"]["corpus"]["test in train"]["exact"] == 0
    result = run(PrepareConfig(output=tmp_path / "clusters", split_by="cluster", test=0.1, **settings))
    pairs = json.loads((result.folder / "leakage.json").read_text())["corpus"]["pairs"].values()
    assert [pair["exact"] + pair["reverse_complement"] + pair["shared_kmer"] for pair in pairs] == [0, 0, 0]


def test_case_gives_real_labels_away(tmp_path):
    """Logistic regression on the 3-mers of E. coli promoters: perfect with case kept, honest without."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    names = ("negative", "positive")
    classes = {name: shared(f"promoters/ecoli/regulondb93_{name}2860.fa.gz") for name in names}
    config = PrepareConfig(
        output=tmp_path / "out", classes=classes, duplicate_ids="rename", validation=0, test=0.3
    )
    result = run(config)
    assert result.manifest["counts"]["case_separates_labels"] is True
    corpus = load_from_disk(str(result.folder))
    raw = {}
    for path in classes.values():
        lines = gzip.decompress(path.read_bytes()).decode().split(">")[1:]
        texts = ["".join(record.split("\n")[1:]) for record in lines]
        raw |= {text.upper(): text for text in texts}
    scores = {}
    for kind in ("kept", "folded"):
        texts = {name: list(rows["sequence"]) for name, rows in corpus.items()}
        if kind == "kept":
            texts = {name: [raw[text] for text in of] for name, of in texts.items()}
        counter = CountVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False)
        model = LogisticRegression(max_iter=300).fit(
            counter.fit_transform(texts["train"]), corpus["train"]["label"]
        )
        found = model.predict_proba(counter.transform(texts["test"]))[:, 1]
        scores[kind] = roc_auc_score(corpus["test"]["label"], found)
    assert scores["kept"] > 0.99
    assert 0.7 < scores["folded"] < 0.95


def test_similar_real_promoters_stay_together(tmp_path):
    """986 of the 2860 promoters share 30 bases with another; no cluster of them is torn apart."""
    path = shared("promoters/ecoli/regulondb93_positive2860.fa.gz")
    settings = {"split_by": "cluster", "duplicate_ids": "rename", "deduplicate": False, "test": 0.2}
    result = run(PrepareConfig(output=tmp_path / "out", input=[path], **settings))
    clusters = {name: list(split["cluster"]) for name, split in load_from_disk(str(result.folder)).items()}
    sizes = np.unique(np.concatenate(list(clusters.values())), return_counts=True)[1]
    assert sizes.sum() == 2860
    assert sizes[sizes > 1].sum() == 986
    assert sum(len(set(of)) for of in clusters.values()) == len(sizes)
