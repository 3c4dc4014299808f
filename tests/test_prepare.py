"""The corpus that prepare writes: what is in it, what is counted, and that equal inputs give equal bytes."""

from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Value, load_from_disk

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.prepare import run
from pipeline.sequences.alphabets import reverse_complement

WHOLE = {"validation": 0, "test": 0}


@pytest.fixture
def prepare(tmp_path):
    def prepare(content, name="in.fa", output="corpus", **settings):
        path = tmp_path / name
        path.write_text(content)
        return run(PrepareConfig(output=tmp_path / output, input=[path], **settings))

    return prepare


def rows(result, split="train"):
    table = load_from_disk(str(result.folder))[split]
    return [tuple(row.values()) for row in table]


def random_fasta(records, length, seed=0):
    rng = np.random.default_rng(seed)
    return "".join(f">r{i}\n{''.join(rng.choice(list('ACGT'), length))}\n" for i in range(records))


def test_soft_masked_record(prepare):
    result = prepare(">m\nACGTacgtNNNNnnnnACGT\n", **WHOLE)
    assert rows(result) == [("m", 0, "ACGTACGTNNNNNNNNACGT")]
    counts = result.manifest["counts"]
    assert counts["changed"] == {"lower_case_folded": 8}
    assert counts["soft_masked_fraction"] == 0.4
    assert counts["read"] == {"records": 1, "letters": 20}
    assert counts["splits"] == {"train": {"rows": 1, "letters": 20}}


def test_unknown_bases(prepare, capsys):
    result = prepare(f">a\nACGTRYKMACGTNNNNNNNNNNNNACGT\n>n\n{'N' * 500}\n", **WHOLE)
    assert rows(result) == [("a", 0, "ACGTNNNNACGTNNNNNNNNNNNNACGT")]
    assert result.manifest["counts"]["dropped"] == {"all_unknown": 1}
    assert result.manifest["counts"]["changed"] == {"ambiguous_to_n": 4}
    assert "record 'n', line 3: nothing but unknown letters, dropped" in capsys.readouterr().err


PROTEINS = ">p1\nMKUOBZJX*\n>p2\nMK*LV*\n>p3\nMK--LV.A\n>p4\nmkvl\n>p5\nMK?V\n"


def test_odd_proteins(prepare):
    result = prepare(PROTEINS, alphabet="protein", on_bad_record="skip", **WHOLE)
    assert rows(result) == [("p1", 0, "MKUOBZXX"), ("p4", 0, "MKVL")]
    counts = result.manifest["counts"]
    assert counts["dropped"] == {"bad_letters": 3}
    assert counts["changed"] == {"j_to_x": 1, "lower_case_folded": 4, "stops_stripped": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (">p1\nMK\n>p2\nMK*LV*\n", r"in.fa: record 'p2', line 3: letter '\*' at position 3 is a stop codon"),
        (">p3\nMK--LV.A\n", "in.fa: record 'p3', line 1: letter '-' at position 3 is a gap"),
        (">p5\nMK?1V\n", "in.fa: record 'p5', line 2, column 4: digit '1'"),
        (">p5\nMK?V\n", r"in.fa: record 'p5', line 1: letter '\?' at position 3 is not a protein letter"),
        ("", "in.fa: no records in it"),
        (">x 1\nAAAA\n>x 2\nCCCC\n", "record 'x', line 3: the same id as line 1"),
        (">a\nXXX\n>b\n", "in.fa: no usable record; dropped: 1 empty, 1 all unknown"),
    ],
)
def test_bad_input_leaves_nothing_behind(prepare, tmp_path, content, message):
    with pytest.raises(UserError, match=message) as error:
        prepare(content, alphabet="protein")
    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_blocks(prepare):
    sequence = "ACGTACGTAA" + "N" * 10 + "CCCCCTTTTT" + "GGG"
    result = prepare(f">c\n{sequence}\n>d\nAC\n", block=10, min_length=3, **WHOLE)
    assert rows(result) == [("c", 0, "ACGTACGTAA"), ("c", 20, "CCCCCTTTTT"), ("c", 30, "GGG")]
    assert result.manifest["counts"]["dropped"] == {"too_short": 1, "all_unknown": 1}
    assert result.manifest["counts"]["kept"] == {"rows": 3, "letters": 23}


def test_small_spool_batches_change_nothing(prepare, monkeypatch):
    fasta = random_fasta(30, 100)
    whole = prepare(fasta, block=7)
    monkeypatch.setattr("pipeline.prepare.SPOOL_ROWS", 4)
    monkeypatch.setattr("pipeline.prepare.SPOOL_LETTERS", 20)
    pieces = prepare(fasta, block=7, output="pieces")
    for split in ("train", "validation", "test"):
        assert rows(whole, split) == rows(pieces, split)


def test_every_letter_is_in_one_split(prepare):
    fasta = random_fasta(1, 1003)
    result = prepare(fasta, block=10, validation=0.2, test=0.2, deduplicate=False)
    pieces = {
        start: piece for split in ("train", "validation", "test") for _, start, piece in rows(result, split)
    }
    assert "".join(pieces[start] for start in sorted(pieces)) == fasta.split()[1]
    assert result.manifest["counts"]["kept"] == {"rows": 101, "letters": 1003}


def test_equal_inputs_give_equal_bytes(tmp_path):
    contents = []
    for place, name in (("one", "a.fa"), ("two", "b c.txt")):
        (tmp_path / place).mkdir()
        path = tmp_path / place / name
        path.write_text(random_fasta(50, 40))
        result = run(PrepareConfig(output=tmp_path / place / "out", input=[path], validation=0.2, test=0.2))
        contents.append((result.manifest["content"], result.manifest["counts"]))
        names = {path.name for path in result.folder.rglob("*")}
        assert not [name for name in names if name.startswith(".")]
    assert contents[0] == contents[1]


def test_layout_of_the_file_does_not_matter(prepare):
    plain = prepare(">a\nACGT\n>b\nGGCC\n", **WHOLE)
    odd = prepare("\ufeff> a x\r\nAC\r\n\r\nGT\r\n>b\r\nGG CC", output="odd", **WHOLE)
    assert plain.manifest["content"] == odd.manifest["content"]


def test_up_to_date_unless_something_changed(prepare):
    assert not prepare(">a\nACGT\n", **WHOLE).up_to_date
    assert prepare(">a\nACGT\n", **WHOLE).up_to_date
    assert not prepare(">a\nACGA\n", **WHOLE).up_to_date


def test_order_of_classes_is_part_of_the_result(tmp_path):
    for name, letters in (("yes", "AC"), ("no", "GG")):
        (tmp_path / name).write_text(f">{name}\n{letters}\n")
    for names in (["yes", "no"], ["no", "yes"]):
        classes = {name: tmp_path / name for name in names}
        result = run(PrepareConfig(output=tmp_path / "out", classes=classes, **WHOLE))
        table = load_from_disk(str(result.folder))["train"]
        assert not result.up_to_date
        assert table.features["label"] == ClassLabel(names=names)
        assert {row["id"]: names[row["label"]] for row in table} == {"yes": "yes", "no": "no"}


def test_duplicates_and_conflicts(prepare):
    table = "sequence,label\nAAAC,x\nAAAC,x\nCCCG,x\ncccg,y\nCCCG,y\nGGGT,y\n"
    result = prepare(table, "in.csv", label_column="label", **WHOLE)
    assert rows(result) == [("record_1", 0, "AAAC", 0), ("record_6", 0, "GGGT", 1)]
    counts = result.manifest["counts"]
    assert counts["dropped"] == {"duplicates": 1, "conflicting_labels": 3}
    assert counts["splits"]["train"] == {"rows": 2, "letters": 8, "labels": {"x": 1, "y": 1}}
    everything = prepare(table, "in.csv", "all", label_column="label", deduplicate=False, **WHOLE)
    assert len(rows(everything)) == 6


def test_copies_and_other_strands_share_a_split(prepare):
    lines = random_fasta(60, 30).split()[1::2]
    strands = [*lines, *lines, *map(reverse_complement, lines)]
    fasta = "".join(f">r{i}\n{sequence}\n" for i, sequence in enumerate(strands))
    result = prepare(fasta, deduplicate=False, validation=0.3, test=0.3)
    seen = [
        {min(s, reverse_complement(s)) for _, _, s in rows(result, name)}
        for name in ("train", "validation", "test")
    ]
    assert sum(map(len, seen)) == 60 == len(set().union(*seen))


def test_given_splits_keep_the_held_out_copy(prepare, capsys):
    table = (
        "id,sequence,part\na,AAAC,train\nb,AAAC,test\nc,GTTT,train\nd,CCCC,validation\n"
        "e,CCCC,train\nf,ACCA,train\ng,ACCA,train\n"
    )
    result = prepare(table, "in.csv", split_column="part", validation=1)
    assert rows(result, "test") == [("b", 0, "AAAC")]
    assert rows(result, "validation") == [("d", 0, "CCCC")]
    assert [row[0] for row in rows(result)] == ["c", "f"]
    assert result.manifest["counts"]["sequences_in_several_splits"] == 1
    assert "1 sequences or their other strands are in several splits" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"record 'a', line 2: 'dev' in column 'part'; use train"):
        prepare("id,sequence,part\na,AAAC,dev\n", "in.csv", split_column="part")


def test_kept_columns_have_types(prepare):
    table = "id\tsequence\tfold\tscore\tcode\tnote\tnone\nb\tAC\t1\t0.5\t007\tx\t\na\tAG\t-2\t\t08\t\t\n"
    columns = ["fold", "score", "code", "note", "none"]
    result = prepare(table, "in.tsv", keep_columns=columns, **WHOLE)
    dataset = load_from_disk(str(result.folder))["train"]
    kinds = ["int64", "float64", "string", "string", "string"]
    assert dataset.features == dict(
        zip(
            ["id", "start", "sequence", *columns],
            map(Value, ["string", "int64", "string", *kinds]),
            strict=True,
        )
    )
    assert rows(result) == [("b", 0, "AC", 1, 0.5, "007", "x", ""), ("a", 0, "AG", -2, None, "08", "", "")]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("b a b", ["a", "b"]),
        ("10 9 10", ["9", "10"]),
        ("0 2 5", ["0", "2", "5"]),
        ("1 x 10", ["1", "10", "x"]),
    ],
)
def test_label_order(prepare, labels, names):
    cells = [
        f"{label},{sequence}" for label, sequence in zip(labels.split(), ["AC", "AG", "AT"], strict=True)
    ]
    result = prepare("y,sequence\n" + "\n".join(cells), "in.csv", label_column="y", **WHOLE)
    assert load_from_disk(str(result.folder))["train"].features["label"] == ClassLabel(names=names)
    assert [names[row[3]] for row in rows(result)] == labels.split()


def test_missing_label(prepare):
    with pytest.raises(UserError, match="record 'b', line 3: no label in column 'y'"):
        prepare("id,y,sequence\na,1,AC\nb,,AG\n", "in.csv", label_column="y")


def test_alignment(prepare):
    a3m = "#A3M\n>q\nMK-L\n>h\nMKabL-\n>g\n----\n"
    settings = {"alphabet": "protein", "aligned": True, **WHOLE}
    result = prepare(a3m, "in.a3m", **settings)
    assert rows(result) == [("q", 0, "MK-L"), ("h", 0, "MKL-")]
    assert result.manifest["counts"]["changed"] == {"insertions_removed": 2}
    assert result.manifest["counts"]["dropped"] == {"all_unknown": 1}
    with pytest.raises(UserError, match=r"in.fa: record 'h', line 4: 6 columns where the first record has 4"):
        prepare(a3m, output="fasta", **settings)


def test_case_that_gives_labels_away(tmp_path, capsys):
    promoters, others = (random_fasta(20, 81, seed).split()[1::2] for seed in (0, 1))
    (tmp_path / "p.fa").write_text(
        "".join(f">p{i}\n{s[:60].lower()}{s[60:61]}{s[61:].lower()}\n" for i, s in enumerate(promoters))
    )
    (tmp_path / "n.fa").write_text("".join(f">n{i}\n{s}\n" for i, s in enumerate(others)))
    classes = {"promoter": tmp_path / "p.fa", "other": tmp_path / "n.fa"}
    result = run(PrepareConfig(output=tmp_path / "out", classes=classes, **WHOLE))
    assert result.manifest["counts"]["case_separates_labels"] is True
    assert "letter case alone tells the classes apart" in capsys.readouterr().err
    assert all(row[2].isupper() for row in rows(result))


def test_renamed_ids(prepare):
    result = prepare(">seq 0\nACCA\n>seq 1\nGGTT\n", duplicate_ids="rename", **WHOLE)
    assert [row[0] for row in rows(result)] == ["seq", "seq_2"]
    assert result.manifest["counts"]["renamed_ids"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give sequence files either as input or as classes"),
        ({"input": ["a"], "classes": {"x": "b"}}, "give sequence files either as input or as classes"),
        ({"classes": {"x": "b"}, "label_column": "y"}, "classes are FASTA files"),
        ({"classes": {"x": "b", "y": "b"}}, "one file is given for two classes"),
        ({"input": ["a"], "aligned": True, "block": 5}, "cannot be cut into blocks"),
        ({"input": ["a"], "keep_columns": ["start"]}, "'start' is a column of every corpus"),
        ({"input": ["a"], "validation": 0.5, "test": 0.5}, "leave nothing for training"),
        ({"input": ["none.fa"]}, "none.fa: no such file"),
    ],
)
def test_contradictory_settings(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        run(PrepareConfig(output=Path(tmp_path) / "out", **settings))
