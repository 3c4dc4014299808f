import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import load_from_disk
from transformers import AutoModel, AutoTokenizer

import pipeline.predict
from pipeline.config import PredictConfig
from pipeline.errors import UserError
from pipeline.model import StrandForSequenceClassification
from pipeline.tokens.vocabulary import load_tokenizer

COLUMNS = ["id", "background", "promoter", "label", "note"]


@pytest.fixture(scope="module")
def sequences(rule_folder):
    """Sequences of the test split, some cut, so that batches are padded; ids are in no order."""
    rows = load_from_disk(str(rule_folder / "corpus"))["test"]
    rng = np.random.default_rng(0)
    ends = rng.choice([40, 40, 33, 12, 2], len(rows))
    pairs = [(i, s[:e]) for i, s, e in zip(rows["id"], rows["sequence"], ends, strict=True)]
    return [pairs[i] for i in rng.permutation(len(pairs))]


@pytest.fixture
def predict(classifier_folder, tmp_path):
    """Write records into a FASTA file, predict them, and return the table."""

    def run(records, name="scores", **changes):
        fasta = tmp_path / f"{name}.fa"
        fasta.write_text("".join(f">{i}\n{s}\n" for i, s in records))
        settings = {"checkpoint": classifier_folder, "input": [fasta]}
        result = pipeline.predict.run(PredictConfig(output=tmp_path / name, **settings | changes))
        return pd.read_csv(result.folder / "scores.tsv", sep="\t", keep_default_na=False), result

    return run


def test_every_record_has_a_row_in_input_order(predict, sequences, classifier_folder):
    table, result = predict(sequences)
    assert list(table) == COLUMNS
    assert list(table["id"]) == [name for name, _ in sequences]
    tokenizer = load_tokenizer(classifier_folder)
    model = StrandForSequenceClassification.from_pretrained(classifier_folder).eval()
    with torch.no_grad():
        logits = [model(**tokenizer(s, return_tensors="pt")).logits[0] for _, s in sequences]
    expected = torch.stack(logits).softmax(1).numpy()
    assert (table["note"] == "").all()
    assert table[COLUMNS[1:3]].to_numpy() == pytest.approx(expected, abs=1e-5)
    above = expected[:, 1] > model.config.decision["threshold"]
    assert list(table["label"]) == [COLUMNS[1 + i] for i in above.astype(int)]
    labels = {name: int((table["label"] == name).sum()) for name in COLUMNS[1:3]}
    assert min(labels.values()) > 10
    assert result.manifest["counts"] == {"read": 120, "scored": 120, "labels": labels}


def test_they_are_the_scores_that_finetune_wrote(predict, rule_folder, classifier_folder):
    rows = load_from_disk(str(rule_folder / "corpus"))["test"]
    table, _ = predict(list(zip(rows["id"], rows["sequence"], strict=True)))
    written = pd.read_csv(classifier_folder / "scores.tsv", sep="\t")
    assert list(table["id"]) == list(written["id"])
    assert table["promoter"].to_numpy() == pytest.approx(written["score"].to_numpy(), abs=1e-5)


def test_two_classes_are_called_by_the_threshold_that_finetune_chose(
    predict, sequences, classifier_folder, tmp_path
):
    table, _ = predict(sequences)
    for positive, other in (("promoter", "background"), ("background", "promoter")):
        highest = np.sort(table[positive])[-30:]
        threshold = float(highest[:-1][np.diff(highest).argmax()] + np.diff(highest).max() / 2)
        copy = shutil.copytree(classifier_folder, tmp_path / positive)
        config = json.loads((copy / "config.json").read_text())
        config["decision"] |= {"positive": positive, "threshold": threshold}
        (copy / "config.json").write_text(json.dumps(config))
        called = predict(sequences, f"{positive} scores", checkpoint=copy)[0]["label"]
        assert (called == np.where(table[positive] > threshold, positive, other)).all()
        assert (called != table["label"]).any(), "the threshold changes nothing: nothing is tested"


@pytest.mark.parametrize("size", [1, 7, 500])
def test_neighbours_do_not_matter(predict, sequences, size, monkeypatch):
    """Nor does the batch, nor how many are read at once."""
    table, _ = predict(sequences, "usual")
    monkeypatch.setattr(pipeline.predict, "CHUNK", 50)
    other, _ = predict(sequences[::-1], "other", batch_size=size)
    joined = table.merge(other, on="id")
    assert len(joined) == len(sequences)
    assert list(other["id"]) == [name for name, _ in sequences[::-1]]
    assert joined["promoter_x"].to_numpy() == pytest.approx(joined["promoter_y"].to_numpy(), abs=1e-5)


def test_case_and_u_do_not_matter_and_are_counted(predict, sequences):
    table, result = predict(sequences, "upper")
    lower, changed = predict([(i, s.lower().replace("t", "u")) for i, s in sequences], "lower")
    assert table.equals(lower)
    counts, text = changed.manifest["counts"], "".join(s for _, s in sequences)
    assert (counts["lower_case_folded"], counts["u_to_t"]) == (len(text), text.count("T"))
    assert "u_to_t" not in result.manifest["counts"]


def test_a_record_that_cannot_be_read_has_a_row_that_says_why(predict, capfd):
    table, result = predict([("a", "ACGT"), ("b", "AC!T"), ("c", ""), ("d", "ACGG")])
    alone, _ = predict([("a", "ACGT"), ("d", "ACGG")], "alone")
    assert list(table["id"]) == ["a", "b", "c", "d"]
    assert list(table["note"]) == ["", "letter '!' at position 3 is not a DNA letter", "no sequence", ""]
    assert (table.iloc[1:3, 1:4] == "").all(None)
    promoter = alone["promoter"].to_numpy(float)
    assert table["promoter"][[0, 3]].to_numpy(float) == pytest.approx(promoter, abs=1e-6)
    assert list(table["label"][[0, 3]]) == list(alone["label"])
    counts = result.manifest["counts"]
    assert (counts["read"], counts["scored"], counts["failed"]) == (4, 2, 2)
    assert sum(counts["labels"].values()) == 2
    assert "2 sequences scored, 2 failed (column note): " in capfd.readouterr().err


def test_equal_ids_may_be_renamed(predict):
    table, result = predict([("a", "ACGT"), ("a", "ACGG")], duplicate_ids="rename")
    assert list(table["id"]) == ["a", "a_2"]
    assert result.manifest["counts"]["renamed_ids"] == 1


def test_tables_are_read_by_their_columns(predict, sequences, tmp_path):
    table, _ = predict(sequences)
    path = tmp_path / "t.csv"
    pd.DataFrame(sequences, columns=["gene", "dna"]).assign(score=1).to_csv(path, index=False)
    other, _ = predict([], "t", input=[path], id_column="gene", sequence_column="dna")
    assert other.equals(table)


def test_several_files_are_read_one_after_the_other(predict, sequences, tmp_path):
    for name, part in (("b.fa", sequences[:5]), ("a.fa", sequences[5:9])):
        (tmp_path / name).write_text("".join(f">{i}\n{s}\n" for i, s in part))
    table, _ = predict([], input=[tmp_path / "b.fa", tmp_path / "a.fa"])
    assert list(table["id"]) == [name for name, _ in sequences[:9]]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [("a", "ACGT"), ("b", "A" * 43)],
            r"^record 'b': 43 letters are 41 tokens, more than the model's 40 \(the first 42 letters fit\); "
            r"pass --long-sequences skip, truncate or window$",
        ),
        ([("a", "ACGT"), ("a", "ACG")], r"scores.fa: record 'a', line 3: the same id as line 1; give every"),
        ([("a", "ACGT"), ("b", "")], r"scores.fa: record 'b', line 3: no sequence; correct it, or pass"),
        (
            [("a", "ACGT"), ("b", "ACXT")],
            r"record 'b', line 3: letter 'X' at position 3 is not a DNA letter; correct it, or pass --on-bad",
        ),
    ],
)
def test_what_cannot_be_scored_may_be_an_error(predict, tmp_path, records, message):
    """One line, and no folder with half of the scores."""
    with pytest.raises(UserError, match=message) as error:
        predict(records, on_bad_record="error")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "scores").exists()


@pytest.mark.parametrize("name", ["lm", "classifier"])
def test_the_tokenizer_of_a_checkpoint_knows_its_context(rule_folder, classifier_folder, name):
    """It truncates without being told the length, to what the model reads (specials included)."""
    tokenizer = AutoTokenizer.from_pretrained(rule_folder / name)
    model = AutoModel.from_pretrained(rule_folder / name)
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 42
    inputs = tokenizer("ACGT" * 5000, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, 42)
    assert model(**inputs).last_hidden_state.shape == (1, 42, 32)


def test_a_file_must_be_there_and_hold_something(predict, tmp_path):
    with pytest.raises(UserError, match=r"none of 2 sequences can be scored; the first: letter '!' at"):
        predict([("a", "AC!"), ("b", "")])
    assert not (tmp_path / "scores").exists()
    with pytest.raises(UserError, match=r"scores.fa: no records in it; nothing to read"):
        predict([])
    with pytest.raises(UserError, match=r"missing.fa: no such file"):
        predict([], input=[tmp_path / "missing.fa"])


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("lm", "lm holds no trained classifier; run strandlm finetune on it"),
        ("corpus", "corpus: no config.json, so no checkpoint; pass finetune's folder"),
        ("nowhere", "nowhere: no such file or folder"),
    ],
)
def test_other_checkpoints_are_refused(predict, rule_folder, checkpoint, message):
    with pytest.raises(UserError, match=message):
        predict([("a", "ACGT")], checkpoint=rule_folder / checkpoint)
