import numpy as np
import pyarrow as pa
import pytest
from datasets import Features, Value, load_from_disk

import pipeline.prepare
from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.sequences.corpus import check_alphabet, classes, load_corpus, save_splits, window_facts


def test_rows_of_a_table_on_disk_are_written_in_the_order_given(tmp_path):
    table = pa.table({"id": ["a", "b", "c", "d"], "n": [1, 2, 3, 4]})
    features = Features({"id": Value("string"), "n": Value("int64")})
    rows = {"train": np.array([3, 0]), "test": np.array([2]), "validation": np.array([], int)}
    for name in ("one", "two"):
        save_splits(tmp_path / name, dict.fromkeys(rows, table), features, b"content", rows)
    written = load_from_disk(str(tmp_path / "one"))
    assert {name: split["id"][:] for name, split in written.items()} == {"train": ["d", "a"], "test": ["c"]}
    for path in (tmp_path / "one").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
    save_splits(tmp_path / "whole", {"train": table}, features, b"content")
    assert load_from_disk(str(tmp_path / "whole"))["train"]["n"][:] == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.fa").write_text(">a\nACGT\n>b\nGGCC\n>c\nTTAG\n")
    config = PrepareConfig(output=folder / "corpus", input=[folder / "a.fa"], validation=0.3, test=0.3)
    return pipeline.prepare.run(config).folder


def test_the_splits_are_those_that_were_written(rule_folder):
    splits = load_corpus(rule_folder / "corpus")
    assert {name: len(rows) for name, rows in splits.items()} == {
        "train": 600,
        "validation": 80,
        "test": 120,
    }
    assert {"id", "start", "sequence", "label", "kind", "match"} <= set(splits["train"].column_names)


def test_what_is_no_corpus_is_refused_by_the_name_of_its_key(rule_folder, tmp_path):
    tokens = rule_folder / "tokens"
    with pytest.raises(
        UserError, match=rf"^corpus: {tokens} was written by tokenize, not by prepare; pass a corpus$"
    ):
        load_corpus(tokens, "corpus")
    with pytest.raises(UserError, match="no such folder; has the stage that writes it been run"):
        load_corpus(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no manifest.json of ours in it, so it is not the finished result"):
        load_corpus(tmp_path)


def test_classes_have_an_order_and_a_positive(rule_folder):
    rows = load_corpus(rule_folder / "corpus")["train"]
    names = ["background", "promoter"]
    assert classes(rows, rule_folder, None) == (names, 1)
    assert classes(rows, rule_folder, "background") == (names, 0)
    with pytest.raises(
        UserError, match=r"^positive: 'enhancer' is no class of .*; its classes: background, promoter$"
    ):
        classes(rows, rule_folder, "enhancer")


def test_a_corpus_without_labels_has_no_classes(unlabelled):
    with pytest.raises(UserError, match=r"has no labels; prepare it with --classes or --label-column$"):
        classes(load_corpus(unlabelled)["train"], unlabelled, None)


def test_a_class_may_not_be_called_like_a_column_of_scores(tmp_path):
    (tmp_path / "a.fa").write_text(">a\nACGT\n")
    (tmp_path / "b.fa").write_text(">b\nGGCC\n>c\nTTAG\n")
    files = {"label": tmp_path / "a.fa", "other": tmp_path / "b.fa"}
    config = PrepareConfig(output=tmp_path / "corpus", classes=files, validation=0, test=0)
    corpus = pipeline.prepare.run(config).folder
    with pytest.raises(UserError, match="'label' is a column of every table of scores; rename the class"):
        classes(load_corpus(corpus)["train"], corpus, None)


def test_a_model_of_another_alphabet_is_refused(unlabelled, tmp_path):
    check_alphabet(unlabelled, "dna", tmp_path)
    with pytest.raises(UserError, match=rf"holds dna sequences, but {tmp_path} reads protein; pass another"):
        check_alphabet(unlabelled, "protein", tmp_path)


ANCHORED = {"anchor": "start", "upstream": 4, "downstream": 2}


@pytest.mark.parametrize(
    ("files", "settings", "facts"),
    [
        (["p.bed"], ANCHORED, (7, 4)),
        (["p.bed"], ANCHORED | {"anchor": "end", "upstream": 0}, (3, 0)),
        (["p.bed"], {"upstream": 4, "downstream": 2}, (None, None)),  # intervals differ in length
        (["p.bed"], ANCHORED | {"block": 7, "buffer": 0}, (7, 4)),
        (["p.bed"], ANCHORED | {"block": 4, "buffer": 0}, (None, None)),
        (["p.bed"], ANCHORED | {"upstream": 5, "block": 4, "buffer": 0}, (4, None)),  # halves of windows
        (["one.bed"], {"upstream": 4, "downstream": 2}, (7, None)),
        (["p.bed", "seven.fa"], ANCHORED, (7, None)),
        (["p.bed", "eight.fa"], ANCHORED, (None, None)),
        (["seven.fa"], {}, (7, None)),
        (["eight.fa", "seven.fa"], {}, (None, None)),
    ],
)
def test_facts_of_windows(tmp_path, files, settings, facts):
    """Of intervals of 1 to 3 bases on both strands, with rows in every split."""
    rng = np.random.default_rng(0)
    letters = "".join(rng.choice(list("ACGT"), 1000))
    lines = [f"c\t{start}\t{start + 1 + start % 3}\tp{start}\t.\t" for start in range(20, 980, 23)]
    texts = {
        "g.fa": f">c\n{letters}\n",
        "p.bed": "".join(f"{line}{'+-'[i % 2]}\n" for i, line in enumerate(lines)),
        "one.bed": "c\t10\t11\nc\t20\t21\nc\t30\t31\n",
        "seven.fa": ">a\nACGTACG\n",
        "eight.fa": ">b\nACGTACGT\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    genome = {"genome": tmp_path / "g.fa"} if files[0].endswith("bed") else {}
    inputs = {"input": [tmp_path / name for name in files], **genome}
    config = PrepareConfig(output=tmp_path / "corpus", validation=0.2, test=0.2, **inputs, **settings)
    assert window_facts(pipeline.prepare.run(config).folder) == facts
