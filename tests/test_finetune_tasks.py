"""Fine-tuning for values, labels and letters: from a corpus to a checkpoint, its scores and its measures."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    matthews_corrcoef,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

import pipeline.finetune
import pipeline.model  # teaches the Auto classes
import pipeline.predict
import pipeline.prepare
from pipeline.artifacts import read_manifest
from pipeline.config import FinetuneConfig, PredictConfig, PrepareConfig
from pipeline.errors import UserError
from pipeline.report.collect import read_scores, read_stages
from pipeline.sequences.corpus import load_corpus
from pipeline.training.tasks import Letters

AUTO = {"letters": AutoModelForTokenClassification}
COLUMNS = ["match", "shifted", "promoter", "near", "states"]


@pytest.fixture(scope="module")
def corpus(rule_folder, tmp_path_factory):
    """The rows of ``rule_folder`` with columns for every task; ``states`` tells purines from pyrimidines."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = pd.read_csv(rule_folder / "rule.tsv", sep="\t", keep_default_na=False)
    rows["shifted"] = 500 - 3.5 * rows["match"]
    rows["promoter"] = (rows["class"] == "promoter").astype(int)
    rows["near"] = (rows["match"] > 1).astype(int)
    rows["states"] = rows["sequence"].str.translate(str.maketrans("ACGT", "RYRY"))
    rows.to_csv(folder / "rows.tsv", sep="\t", index=False)
    columns = {"split_column": "split", "keep_columns": COLUMNS}
    config = PrepareConfig(output=folder / "corpus", input=[folder / "rows.tsv"], **columns)
    return pipeline.prepare.run(config).folder


SETTINGS = {
    "values": {"targets": ["match", "shifted"], "epochs": 4, "controls": ["gc", "positions", "pwm"]},
    "labels": {"targets": ["promoter", "near"], "epochs": 4, "controls": ["kmers"]},
    "letters": {"targets": ["states"], "epochs": 1},
}


@pytest.fixture(scope="module")
def settings(rule_folder, corpus):
    return {
        "checkpoint": rule_folder / "lm",
        "data": corpus,
        "learning_rate": 5e-3,
        "batch_size": 32,
        "untrained_control": False,
    }


@pytest.fixture(scope="module")
def folders(settings, tmp_path_factory):
    """A checkpoint for each task; that for labels has a control."""
    place, found = tmp_path_factory.mktemp("tasks"), {}
    for task, own in SETTINGS.items():
        own = settings | own | {"untrained_control": task == "labels"}
        found[task] = pipeline.finetune.run(FinetuneConfig(output=place / task, task=task, **own)).folder
    return found


@pytest.fixture(scope="module")
def test_rows(corpus):
    return load_corpus(corpus)["test"].to_pandas()


def read(folder):
    scores = pd.read_csv(folder / "scores.tsv", sep="\t", keep_default_na=False)
    return scores, json.loads((folder / "metrics.json").read_text())


def outputs(folder, task, sequences):
    """What a checkpoint says by the public road: tokenizer and Auto class."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = AUTO.get(task, AutoModelForSequenceClassification)
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        logits = model.eval()(**tokenizer(list(sequences), padding=True, return_tensors="pt")).logits
    return model.config, logits.double().numpy()


def test_values_are_learnt_and_measured(folders, test_rows):
    scores, metrics = read(folders["values"])
    assert scores["id"].tolist() == test_rows["id"].tolist()
    for name in ("match", "shifted"):
        truth, said = scores[f"truth_{name}"], scores[f"predicted_{name}"]
        assert truth.tolist() == test_rows[name].tolist()
        expected = {
            "spearman": spearmanr(said, truth)[0],
            "pearson": pearsonr(said, truth)[0],
            "r2": r2_score(truth, said),
            "rmse": root_mean_squared_error(truth, said),
        }
        for measure, value in expected.items():
            metric = metrics[f"{measure}:{name}"]
            assert metric["value"] == pytest.approx(value, abs=1e-3), measure
            assert metric["low"] < metric["value"] < metric["high"]
            assert set(metric["controls"]) == {"gc", "positions"}
        for control in ("gc", "positions"):
            found = metrics[f"r2:{name}"]["controls"][control]["value"]
            assert found == pytest.approx(r2_score(truth, scores[f"{control}_{name}"]), abs=1e-3)
        assert metrics[f"r2:{name}"]["value"] > 0.8 > metrics[f"r2:{name}"]["controls"]["gc"]["value"]


def test_logits_of_values_are_in_the_units_of_the_columns(folders, test_rows):
    scores, _ = read(folders["values"])
    config, logits = outputs(folders["values"], "values", test_rows["sequence"][:20])
    assert config.problem_type == "regression"
    assert config.id2label == {0: "match", 1: "shifted"}
    assert logits == pytest.approx(scores[["predicted_match", "predicted_shifted"]][:20].to_numpy(), rel=2e-5)


def test_labels_are_learnt_and_measured(folders, test_rows):
    scores, metrics = read(folders["labels"])
    measures = {"auroc": roc_auc_score, "auprc": average_precision_score}
    measures["mcc"] = lambda truth, said: matthews_corrcoef(truth, said > 0.5)
    for measure, of in measures.items():
        for which in ("predicted", "untrained", "kmers"):
            each = []
            for name in ("promoter", "near"):
                assert scores[f"truth_{name}"].tolist() == test_rows[name].tolist()
                each.append(of(scores[f"truth_{name}"], scores[f"{which}_{name}"]))
            for key, value in zip(("promoter", "near", None), (*each, np.mean(each)), strict=True):
                metric = metrics[f"{measure}:{key}" if key else measure]
                found = metric if which == "predicted" else metric["controls"][which]
                assert found["value"] == pytest.approx(value, abs=1e-3), (measure, which, key)
    ours, kmers = (each["value"] for each in (metrics["auroc"], metrics["auroc"]["controls"]["kmers"]))
    assert ours > 0.9 > kmers
    config, logits = outputs(folders["labels"], "labels", test_rows["sequence"][:20])
    assert config.problem_type == "multi_label_classification"
    expected = 1 / (1 + np.exp(-logits))
    assert scores[["predicted_promoter", "predicted_near"]][:20].to_numpy() == pytest.approx(
        expected, abs=1e-5
    )


def test_letters_are_learnt_and_measured(folders, test_rows):
    scores, metrics = read(folders["letters"])
    assert scores["truth_states"].tolist() == test_rows["states"].tolist()
    assert set(scores["predicted_states"].str[-2:]) == {"--"}
    true, called = (list("".join(scores[f"{n}_states"].str[:-2])) for n in ("truth", "predicted"))
    expected = {
        "accuracy": accuracy_score(true, called),
        "mcc": matthews_corrcoef(true, called),
        "f1": f1_score(true, called, average="macro"),
    }
    for measure, value in expected.items():
        assert metrics[measure]["value"] == pytest.approx(value)
        assert metrics[measure]["n"] == 120 * 38
    assert metrics["accuracy"]["value"] > 0.9
    counts = read_manifest(folders["letters"])["counts"]["test"]
    assert counts == {"rows": 120, "letters": 4800, "letters_not_called": 240}
    config, logits = outputs(folders["letters"], "letters", test_rows["sequence"][:20])
    assert config.id2label == {0: "R", 1: "Y"}
    called = ["".join("RY"[c] for c in row) for row in logits[:, 1:-1].argmax(2)]
    assert called == [text[:-2] for text in scores["predicted_states"][:20]]


def test_letters_of_uneven_sequences_are_called_as_each_alone(settings, test_rows, tmp_path, capsys):
    """Without a test split the validation rows are scored, and that is said."""
    rows = test_rows.assign(split=["validation" if i % 3 == 0 else "train" for i in range(len(test_rows))])
    for column in ("sequence", "states"):
        rows[column] = [text[: 20 + i % 7] for i, text in enumerate(rows[column])]
    rows.to_csv(tmp_path / "rows.tsv", sep="\t", index=False)
    columns = {"split_column": "split", "keep_columns": ["states"]}
    corpus = PrepareConfig(output=tmp_path / "corpus", input=[tmp_path / "rows.tsv"], **columns)
    own = settings | {"data": pipeline.prepare.run(corpus).folder, "targets": ["states"], "epochs": 2}
    folder = pipeline.finetune.run(FinetuneConfig(output=tmp_path / "o", task="letters", **own)).folder
    assert "there is no test split" in capsys.readouterr().err
    scores, _ = read(folder)
    expected = load_corpus(tmp_path / "corpus")["validation"].to_pandas()
    assert scores["id"].tolist() == expected["id"].tolist()
    assert scores["truth_states"].tolist() == expected["states"].tolist()
    for text, called in zip(expected["sequence"][:10], scores["predicted_states"], strict=False):
        _, logits = outputs(folder, "letters", [text])
        assert called == "".join("RY"[c] for c in logits[0, 1:-1].argmax(1)) + "--"


def test_the_folder_is_a_checkpoint_and_nothing_else(folders):
    code = {f"{part}_strand.py" for part in ("attention", "configuration", "contacts", "modeling")}
    tokenizer = {"tokenizer_config.json", "tokenizer.json"}
    for folder in folders.values():
        files = {path.name for path in folder.iterdir()}
        ours = {"manifest.json", "metrics.json", "scores.tsv", "README.md"}
        assert files == {"config.json", "model.safetensors"} | code | tokenizer | ours


def test_same_settings_give_the_same_bytes(folders, settings, tmp_path):
    config = FinetuneConfig(output=tmp_path / "again", task="letters", **settings | SETTINGS["letters"])
    again = pipeline.finetune.run(config)
    assert again.manifest["content"] == read_manifest(folders["letters"])["content"]
    assert pipeline.finetune.run(config).up_to_date


def test_a_classifier_goes_on_to_values(folders, settings, tmp_path):
    """Its encoder is kept; its last layer and its decision are not."""
    shutil.copytree(folders["labels"], tmp_path / "classifier")
    path = tmp_path / "classifier" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decision": {"threshold": 0.3}}))
    own = {"targets": ["match"], "controls": [], "epochs": 0.05, "adapt": "head"}
    own |= {"checkpoint": tmp_path / "classifier"}
    result = pipeline.finetune.run(FinetuneConfig(output=tmp_path / "o", task="values", **settings | own))
    config = json.loads((result.folder / "config.json").read_text())
    assert config["problem_type"] == "regression"
    assert "decision" not in config
    before, after = (load_file(p / "model.safetensors") for p in (folders["labels"], result.folder))
    assert after["classifier.weight"].shape == (1, 32)
    name = "model.layers.0.attention.qkv.weight"
    assert torch.equal(before[name], after[name])


@pytest.fixture
def predict(folders, test_rows, tmp_path):
    """Predictions of a task's checkpoint on the test rows, or on other (id, sequence) rows."""

    def run(task, rows=None, **changes):
        rows = test_rows[["id", "sequence"]] if rows is None else rows
        rows.to_csv(tmp_path / f"{task}.tsv", sep="\t", index=False)
        given = {"checkpoint": folders[task], "input": [tmp_path / f"{task}.tsv"]} | changes
        folder = pipeline.predict.run(PredictConfig(output=tmp_path / f"{task}-scores", **given)).folder
        scores = pd.read_csv(
            folder / "scores.tsv", sep="\t", keep_default_na=False, na_values={"match": [""]}
        )
        assert scores["id"].tolist() == rows["id"].tolist()
        return scores, read_manifest(folder)["counts"]

    return run


@pytest.mark.parametrize("task", ["values", "labels"])
def test_predict_gives_what_finetune_scored(folders, predict, task):
    scores, counts = predict(task, batch_size=7)
    expected, _ = read(folders[task])
    for name in SETTINGS[task]["targets"]:
        np.testing.assert_allclose(scores[name], expected[f"predicted_{name}"], rtol=1e-4, atol=1e-5)
    assert counts["scored"] == len(scores)
    if task == "labels":
        above = scores[["promoter", "near"]] > 0.5
        assert counts["labels"] == above.sum().to_dict()
        texts = [",".join(above.columns[row]) for row in above.to_numpy()]
        assert scores["labels"].tolist() == texts
        assert len(set(texts)) > 1


def test_predict_calls_letters_as_finetune_did(folders, predict):
    scores, counts = predict("letters", batch_size=7)
    expected, _ = read(folders["letters"])
    assert scores["letters"].tolist() == expected["predicted_states"].tolist()
    joined = "".join(scores["letters"])
    assert counts["letters"] == {name: joined.count(name) for name in "RY-"}


def test_letters_of_a_long_record_are_called_in_the_middle_of_a_window(folders, predict):
    """The purines of a record of five windows, each letter by the window that knows most on both sides."""
    rng = np.random.default_rng(5)
    text = "".join(rng.choice(list("ACGT"), 300))
    rows = pd.DataFrame({"id": ["long"], "sequence": [text]})
    scores, _ = predict("letters", rows, long_sequences="window", overlap=20)
    config, _ = outputs(folders["letters"], "letters", ["ACGTACGT"])
    size, calls = config.max_position_embeddings - 2, scores["letters"][0]
    assert len(calls) == 300
    assert set(calls[:-2]) <= set("RY")
    _, first = outputs(folders["letters"], "letters", [text[: size + 2]])
    assert calls[: size - 10] == "".join("RY"[c] for c in first[0, 1 : size - 9].argmax(1))


def test_a_genome_needs_classes(folders, tmp_path):
    (tmp_path / "g.fa").write_text(">g\n" + "ACGT" * 50 + "\n")
    config = PredictConfig(output=tmp_path / "o", checkpoint=folders["letters"], genome=tmp_path / "g.fa")
    with pytest.raises(UserError, match="gives a class for each letter, not one class"):
        pipeline.predict.run(config)
    assert not (tmp_path / "o").exists()


def test_the_report_draws_no_classifier_of_it(folders):
    place = folders["labels"].parent
    for stage in read_stages(place, ["values", "labels", "letters"]):
        assert stage.metrics
        assert read_scores(stage) is None


def test_collapse_stops_unless_it_is_allowed(settings, tmp_path, monkeypatch, capsys):
    own = settings | {"targets": ["states"], "epochs": 0.05, "adapt": "head"}
    config = FinetuneConfig(output=tmp_path / "o", task="letters", **own)
    monkeypatch.setattr(Letters, "predict", lambda *_: [np.zeros(40, int)] * 120)
    with pytest.raises(UserError, match="training collapsed: every letter of test is called 'R'"):
        pipeline.finetune.run(config)
    assert not (tmp_path / "o").exists()
    pipeline.finetune.run(config.model_copy(update={"allow_collapse": True}))
    assert "warning: training collapsed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": ["match"]}, "targets: task classes"),
        ({"task": "values"}, "targets: task values needs"),
        ({"task": "values", "targets": ["height"]}, "'height' is no column"),
        ({"task": "values", "targets": ["states"]}, "record 's0' of train: states 'YRRYY"),
        ({"task": "letters", "targets": ["match"]}, "match has 1 letters, its sequence 40"),
        ({"task": "labels", "targets": ["match"]}, "not 0 or 1"),
        ({"task": "labels", "targets": ["near"], "folds": 3}, "folds: is not for task labels"),
        ({"task": "values", "targets": ["note"]}, "targets: 'note' is a column of every table of scores"),
    ],
)
def test_mistakes_are_one_line(settings, tmp_path, changes, words):
    with pytest.raises(UserError) as error:
        pipeline.finetune.run(FinetuneConfig(output=tmp_path / "o", **settings | changes))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "o").exists()
