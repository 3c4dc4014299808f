import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import load_from_disk
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, average_precision_score, matthews_corrcoef, roc_auc_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction

import pipeline.finetune
import pipeline.model  # teaches the Auto classes
import pipeline.prepare
from pipeline.artifacts import read_manifest
from pipeline.config import FinetuneConfig, PrepareConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement
from pipeline.tokens.kmers import codec_of
from pipeline.training import folds, tuning
from pipeline.training.classifier import softmax
from pipeline.training.controls import Rows, control_logits
from pipeline.training.metrics import (
    against_rest,
    among_all,
    best_threshold,
    bootstrap,
    calibration_error,
    temperature,
)
from pipeline.training.runs import Runs

TABLE = "model.embeddings.weight"
QUICK = {"epochs": 1, "controls": [], "shuffled_negatives": False}
CONTROLS = ["untrained", "gc", "kmers", "positions", "pwm"]


@pytest.fixture
def finetune(finetune_settings, tmp_path):
    """Fine-tune into a folder of this name, with other settings than those that work best."""

    def run(name="classifier", **changes):
        return pipeline.finetune.run(
            FinetuneConfig(output=tmp_path / name, **finetune_settings | QUICK | changes)
        )

    return run


@pytest.fixture
def corpus(rule_folder, tmp_path):
    """A corpus of those rows of the table that ``keep`` wants, split as its column says."""

    def make(keep, label="class", strandless=False, **columns):
        rows = pd.read_csv(rule_folder / "rule.tsv", sep="\t", keep_default_na=False).assign(**columns)
        rows[keep(rows)].to_csv(tmp_path / "rows.tsv", sep="\t", index=False)
        config = PrepareConfig(
            output=tmp_path / "corpus",
            input=[tmp_path / "rows.tsv"],
            label_column=label,
            split_column="split",
            keep_columns=["kind", "match", "number"],
            strandless=strandless,
        )
        return pipeline.prepare.run(config).folder

    return make


@pytest.fixture(scope="module")
def scores(classifier_folder):
    return pd.read_csv(classifier_folder / "scores.tsv", sep="\t", keep_default_na=False)


@pytest.fixture(scope="module")
def test_rows(rule_folder):
    return load_from_disk(str(rule_folder / "corpus"))["test"].to_pandas()


# -- what it learns, and what it says of it


def test_it_learns_an_easy_rule(classifier_folder):
    metrics = json.loads((classifier_folder / "metrics.json").read_text())["promoter_auroc"]
    assert metrics["value"] > 0.95
    assert metrics["positive"] == "promoter"
    assert (metrics["n_positive"], metrics["n_negative"]) == (60, 60)


def test_each_test_record_is_scored_once_under_its_id(scores, test_rows):
    controls = [f"score_{name}" for name in CONTROLS]
    assert list(scores) == ["id", "label", "group", "reference", "score", *controls]
    assert scores["id"].is_unique
    joined = test_rows.merge(scores, on="id", suffixes=("", "_written"))
    assert len(joined) == len(test_rows) == len(scores)
    assert (joined["label_written"] == np.array(["background", "promoter"])[joined["label"]]).all()
    assert (joined["group"] == joined["kind"]).all()
    assert (joined["reference"] == joined["match"]).all()


def test_figures_are_those_of_scikit_learn(classifier_folder, scores):
    metrics = json.loads((classifier_folder / "metrics.json").read_text())["promoter_auroc"]
    positive, called = scores["label"] == "promoter", scores["score"] > 0.5
    columns = {"value": "score", "untrained": "score_untrained", "optimum": "reference"}
    for name, column in columns.items():
        assert metrics[name] == pytest.approx(roc_auc_score(positive, scores[column]), abs=1e-3), name
    assert metrics["auprc"] == pytest.approx(average_precision_score(positive, scores["score"]), abs=1e-3)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(positive, called))
    assert metrics["mcc"] == pytest.approx(matthews_corrcoef(positive, called))
    assert set(metrics["by_group"]) == {"early", "late"}
    for group, figures in metrics["by_group"].items():
        part = scores[positive | (scores["group"] == group)]
        for name, column in columns.items():
            expected = roc_auc_score(part["label"] == "promoter", part[column])
            assert figures[name] == pytest.approx(expected, abs=1e-3), (group, name)
        assert figures["n"] == (scores["group"] == group).sum()


def judged(positive, score, threshold):
    return against_rest(positive.astype(int), np.stack([1 - score, score], 1), 1, threshold)


def test_every_control_is_measured_at_a_threshold_of_its_own(classifier_folder, scores):
    metrics = json.loads((classifier_folder / "metrics.json").read_text())["promoter_auroc"]
    positive, found = (scores["label"] == "promoter").to_numpy(), metrics["controls"]
    assert set(found) == set(CONTROLS)
    ours = bootstrap(judged(positive, scores["score"], metrics["at_threshold"]["threshold"]), None, 0)
    assert len({figures["threshold"] for figures in [metrics["at_threshold"], *found.values()]}) > 3
    for name, figures in found.items():
        control = bootstrap(judged(positive, scores[f"score_{name}"], figures["threshold"]), None, 0)
        for measure in ("mcc", "auroc", "brier"):
            assert figures[measure] == pytest.approx(control.point[measure], abs=2e-3), (name, measure)
        for measure, difference in ours.minus(control).items():
            written = figures["ours_minus_it"][measure]
            assert written["difference"] == pytest.approx(difference["difference"], abs=2e-3)
            assert written["interval"] == pytest.approx(difference["interval"], abs=5e-3)
    assert found["gc"]["mcc"] < found["kmers"]["mcc"] < found["positions"]["mcc"]
    assert found["untrained"]["auroc"] == pytest.approx(metrics["untrained"])


def test_figures_have_intervals_and_the_majority_beside_them(classifier_folder, scores):
    metrics = json.loads((classifier_folder / "metrics.json").read_text())["promoter_auroc"]
    positive, chosen = (scores["label"] == "promoter").to_numpy(), metrics["at_threshold"]
    for figures, threshold in ((metrics | {"auroc": metrics["value"]}, 0.5), (chosen, chosen["threshold"])):
        expected = bootstrap(judged(positive, scores["score"], threshold), None, 0).summary()
        for name, interval in expected["intervals"].items():
            assert figures["intervals"][name] == pytest.approx(interval, abs=5e-3), name
            assert figures[name] == pytest.approx(expected[name], abs=2e-3), name
    assert metrics["majority"] == {"class": "background", "accuracy": 0.5}
    assert metrics["collapsed"] is False
    assert metrics["controls_left_out"] == {}


def logits_of(folder, corpus, split):
    """The logits of a corpus's rows by tokenizer and Auto class, and their labels."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = load_from_disk(str(corpus))[split]
    with torch.no_grad():
        logits = model(**tokenizer(list(rows["sequence"]), padding=True, return_tensors="pt")).logits
    return logits.numpy().astype(float), np.array(rows["label"])


def test_threshold_and_temperature_are_those_of_validation(classifier_folder, rule_folder):
    """The logits that the checkpoint gives are the calibrated ones."""
    metrics = json.loads((classifier_folder / "metrics.json").read_text())["promoter_auroc"]
    decision = json.loads((classifier_folder / "config.json").read_text())["decision"]
    divisor = metrics["calibration"]["temperature"]
    threshold = metrics["at_threshold"]["threshold"]
    found = {"positive": "promoter", "temperature": divisor, "threshold": threshold}
    assert decision == found | {"window": 40, "strandless": False}
    assert abs(divisor - 1) > 0.01
    logits, labels = logits_of(classifier_folder, rule_folder / "corpus", "validation")
    assert temperature(logits * divisor, labels) == pytest.approx(divisor, rel=1e-3)
    assert best_threshold(labels == 1, softmax(logits)[:, 1]) == pytest.approx(threshold, abs=1e-5)
    logits, labels = logits_of(classifier_folder, rule_folder / "corpus", "test")
    for name, factor in (("expected_error", 1), ("expected_error_before", divisor)):
        expected = calibration_error(labels, softmax(logits * factor))
        assert metrics["calibration"][name] == pytest.approx(expected, abs=1e-5), name


def test_reloaded_logits_are_those_it_was_judged_by(finetune, rule_folder, monkeypatch):
    seen, logits = [], Runs._logits
    monkeypatch.setattr(Runs, "_logits", lambda *a: seen.append(logits(*a)) or seen[-1])
    result = finetune()
    reloaded, _ = logits_of(result.folder, rule_folder / "corpus", "test")
    assert reloaded == pytest.approx(seen[-1], abs=1e-6)


def test_scores_are_the_checkpoints_own(classifier_folder, scores, test_rows):
    """One sequence at a time, by the public road: tokenizer and Auto class."""
    tokenizer = AutoTokenizer.from_pretrained(classifier_folder)
    model = AutoModelForSequenceClassification.from_pretrained(classifier_folder).eval()
    assert model.config.id2label == {0: "background", 1: "promoter"}
    assert model.config.label2id == {"background": 0, "promoter": 1}
    with torch.no_grad():
        logits = [model(**tokenizer(s, return_tensors="pt")).logits[0] for s in test_rows["sequence"][:20]]
    expected = torch.stack(logits).softmax(1)[:, 1].numpy()
    assert scores["score"][:20].to_numpy() == pytest.approx(expected, abs=1e-5)


def test_the_folder_is_a_checkpoint_and_nothing_else(classifier_folder):
    files = {str(path.relative_to(classifier_folder)) for path in classifier_folder.rglob("*")}
    code = {f"{part}_strand.py" for part in ("attention", "configuration", "contacts", "modeling")}
    tokenizer = {"tokenizer_config.json", "tokenizer.json"}
    ours = {"manifest.json", "metrics.json", "scores.tsv", "figures", "README.md"}
    figures = {f"figures/{name}.svg" for name in ("roc", "precision_recall", "reliability", "measures")}
    assert files == {"config.json", "model.safetensors"} | code | tokenizer | ours | figures
    counts = read_manifest(classifier_folder)["counts"]
    assert counts == {"test": {"rows": 120}}


def test_the_control_has_the_same_shape_and_no_pretraining(finetune, monkeypatch):
    """Its weights before training are those of a fresh network; the classifier's are the checkpoint's."""
    seen = []
    fit = tuning.fit

    def spy(config, model, *rest):
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return fit(config, model, *rest)

    monkeypatch.setattr(tuning, "fit", spy)
    result = finetune(untrained_control=True, epochs=0.1)
    ours, control = seen
    weights = load_file(result.manifest["config"]["checkpoint"] + "/model.safetensors")
    for name, value in ours.items():
        assert control[name].shape == value.shape
        assert name.startswith("classifier.") or torch.equal(value, weights[name]), name
    assert not torch.equal(control[TABLE], weights[TABLE])
    assert 0 <= result.metrics()["promoter_auroc"]["untrained"] <= 1


# -- settings


def test_two_runs_give_the_same_bytes(finetune):
    one, two, other = finetune("one"), finetune("two"), finetune("three", seed=5)
    assert one.manifest["content"] == two.manifest["content"]
    assert one.manifest["content"] != other.manifest["content"]
    assert not one.up_to_date
    assert finetune("one").up_to_date


@pytest.mark.parametrize("freeze", [False, True])
def test_the_token_table_is_left_alone_if_asked(finetune, rule_folder, freeze):
    result = finetune(freeze_embeddings=freeze, epochs=0.2)
    before, after = (load_file(path / "model.safetensors") for path in (rule_folder / "lm", result.folder))
    assert torch.equal(before[TABLE], after[TABLE]) == freeze
    name = "model.layers.0.attention.qkv.weight"
    assert not torch.equal(before[name], after[name])


def test_the_best_epoch_by_validation_loss_is_kept(finetune, corpus, capsys):
    """Two pairs of classes that nothing tells apart: after a while the rows are learnt by heart."""
    data = corpus(lambda rows: (rows["split"] != "train") | (rows.index < 128), label="number")
    result = finetune(data=data, positive="2", pooling="mean", epochs=20, learning_rate=0.02)
    losses = [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", capsys.readouterr().err)]
    assert len(losses) == 20
    assert losses[-1] > min(losses) + 0.01, "the last epoch is the best: nothing is tested"
    tokenizer = AutoTokenizer.from_pretrained(result.folder)
    model = AutoModelForSequenceClassification.from_pretrained(result.folder).eval()
    assert model.config.classifier_pooling == "mean"
    rows = load_from_disk(str(data))["validation"]
    batch = tokenizer(list(rows["sequence"]), padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits * model.config.decision["temperature"]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(rows["label"]))
    assert float(loss) == pytest.approx(min(losses), abs=2e-4)
    assert result.metrics()["2_auroc"]["value"] > 0.7


@pytest.mark.parametrize("best", [0, 1])
def test_the_best_epoch_by_mcc_may_be_kept(finetune, monkeypatch, capsys, rule_folder, best):
    """Whatever the loss says, which falls from epoch to epoch."""
    mccs = iter([0.9 if epoch == best else 0.1 for epoch in range(3)])
    monkeypatch.setattr(tuning, "_validate", lambda _: {"mcc": next(mccs), "auroc": 0.5})
    result = finetune(best_by="mcc", epochs=3)
    losses = [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", capsys.readouterr().err)]
    logits, labels = logits_of(result.folder, rule_folder / "corpus", "validation")
    decision = json.loads((result.folder / "config.json").read_text())["decision"]
    kept = torch.nn.functional.cross_entropy(
        *map(torch.from_numpy, (logits * decision["temperature"], labels))
    )
    assert float(kept) == pytest.approx(losses[best], abs=2e-4)
    assert losses[0] > losses[1] + 1e-3 > losses[2] + 2e-3


def test_epochs_are_measured_by_mcc_and_auroc():
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 2, 50), rng.normal(size=(50, 2))
    found = tuning._validate(EvalPrediction(logits.astype(np.float32), labels))
    assert found["mcc"] == pytest.approx(matthews_corrcoef(labels, logits.argmax(1)))
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))


def test_rows_of_a_cluster_are_resampled_together(finetune, monkeypatch):
    """By the column that is named, or the one that prepare writes where it splits by cluster."""
    result = finetune("named", cluster_column="number")
    table = pd.read_csv(result.folder / "scores.tsv", sep="\t")
    rows = judged((table["label"] == "promoter").to_numpy(), table["score"], 0.5)
    numbers = np.array([int(name[1:]) % 4 for name in table["id"]])
    expected, alone = (bootstrap(rows, c, 0).summary()["intervals"]["brier"] for c in (numbers, None))
    found = result.metrics()["promoter_auroc"]["intervals"]["brier"]
    assert found == pytest.approx(expected, abs=1e-4)
    assert found != pytest.approx(alone, abs=1e-3)
    monkeypatch.setattr(folds, "CLUSTER", "number")
    known = finetune("known").metrics()["promoter_auroc"]["intervals"]["brier"]
    assert known == pytest.approx(expected, abs=1e-4)


def test_controls_that_need_one_length_are_left_out(finetune, corpus, capsys):
    data = corpus(
        lambda rows: rows["id"] != "", sequence=lambda rows: rows["sequence"].str[:39] + rows["id"].map(tail)
    )
    metrics = finetune(data=data, controls=["gc", "pwm"]).metrics()["promoter_auroc"]
    why = "sequences are of 39 to 42 letters, not of one length"
    assert metrics["controls_left_out"] == {"pwm": why}
    assert f"control pwm is left out: {why}" in capsys.readouterr().err
    assert set(metrics["controls"]) == {"gc"}


def test_controls_of_strandless_labels_learn_from_both_strands(finetune, corpus, tokenizer_folder):
    data = corpus(lambda rows: rows["id"] != "", strandless=True)
    result = finetune(data=data, controls=["positions"], reverse_complement=True)
    found = pd.read_csv(result.folder / "scores.tsv", sep="\t")["score_positions"].to_numpy()
    splits, codec, rows = load_from_disk(str(data)), codec_of(tokenizer_folder("dna-3mer-overlap")), {}
    for name in ("train", "validation", "test"):
        texts, label_N = list(splits[name]["sequence"]), np.array(splits[name]["label"])
        if name == "train":
            texts, label_N = texts + list(map(reverse_complement, texts)), np.tile(label_N, 2)
        rows[name] = Rows([codec.codes(text) for text in texts], label_N)
    logits = control_logits("positions", codec, rows, 0)["test"]
    assert found == pytest.approx(softmax(logits)[:, 1], abs=1e-6)


def test_another_class_may_be_the_positive_one(finetune, capsys):
    promoter, background = finetune("one"), finetune("two", positive="background")
    tables = [pd.read_csv(r.folder / "scores.tsv", sep="\t") for r in (promoter, background)]
    assert (tables[0]["score"] + tables[1]["score"]).to_numpy() == pytest.approx(1, abs=1e-5)
    metrics = background.metrics()["background_auroc"]
    assert metrics["positive"] == "background"
    assert "--positive names another" not in capsys.readouterr().err
    finetune("one", positive=None)
    assert "positive: promoter, the last of background, promoter; --positive" in capsys.readouterr().err
    assert metrics["value"] == pytest.approx(promoter.metrics()["promoter_auroc"]["value"], abs=1e-3)


def test_groups_may_be_numbers_or_empty_and_classes_many(finetune, corpus):
    data = corpus(lambda rows: rows["number"] != 0, label="number", match=([1] * 5 + [""] * 3) * 100)
    result = finetune(data=data, positive="2", group_column="match")
    assert set(result.metrics()["2_auroc"]["by_group"]) == {"1", "(empty)"}
    result = finetune("again", data=data, positive="2", group_column="number")
    metrics = result.metrics()["2_auroc"]
    assert set(metrics["by_group"]) == {"1", "3"}
    assert metrics["value"] > 0.8
    config = json.loads((result.folder / "config.json").read_text())
    assert config["id2label"] == {"0": "1", "1": "2", "2": "3"}
    assert set(config["decision"]) == {"positive", "temperature", "window", "strandless"}
    logits, labels = logits_of(result.folder, data, "test")
    expected = bootstrap(among_all(labels, softmax(logits)), None, 0).summary()
    for name in ("mcc", "f1", "auroc", "accuracy"):
        assert metrics["macro"][name] == pytest.approx(expected[name], abs=1e-5), name
        assert metrics["macro"]["intervals"][name] == pytest.approx(expected["intervals"][name], abs=1e-4)
    assert metrics["macro"]["accuracy"] == accuracy_score(labels, logits.argmax(1))
    assert {"group"} < set(pd.read_csv(result.folder / "scores.tsv", sep="\t"))


def test_a_classifier_may_be_trained_on_for_other_classes(finetune, corpus, classifier_folder):
    data = corpus(lambda rows: rows["number"] != 0, label="number")
    result = finetune(data=data, positive="2", checkpoint=classifier_folder)
    assert load_file(result.folder / "model.safetensors")["classifier.weight"].shape == (3, 32)


def test_without_validation_the_last_epoch_is_kept(finetune, corpus, capsys):
    result = finetune(data=corpus(lambda rows: rows["split"] != "validation"), epochs=4)
    assert "validation" not in capsys.readouterr().err
    assert result.metrics()["promoter_auroc"]["value"] > 0.9
    assert not {"runs", "trainer"} & {path.name for path in result.folder.rglob("*")}


def test_without_a_test_split_the_figures_are_marked(finetune, corpus, capsys):
    result = finetune(data=corpus(lambda rows: rows["split"] != "test"))
    said = capsys.readouterr().err
    assert "promoter on the validation split: " in said
    assert "warning: there is no test split; these rows also chose the epoch" in said
    assert result.manifest["counts"] == {"validation": {"rows": 80}}
    assert len(pd.read_csv(result.folder / "scores.tsv", sep="\t")) == 80


def test_a_class_that_is_not_among_the_scored_rows_has_no_area(finetune, corpus, capsys):
    data = corpus(lambda rows: (rows["split"] != "test") | (rows["class"] == "background"))
    metrics = finetune(data=data, epochs=3).metrics()["promoter_auroc"]
    assert metrics["value"] is None
    assert (metrics["n_positive"], metrics["n_negative"]) == (0, 60)
    assert all(metrics[name] is None for name in ("mcc", "f1", "sensitivity", "auprc"))
    assert metrics["intervals"]["auroc"] is None
    assert 0 <= metrics["specificity"] <= 1
    said = capsys.readouterr().err
    assert "promoter on the test split: at threshold" in said
    assert "MCC n/a, AUROC n/a, accuracy" in said


# -- collapse


@pytest.fixture
def ends_in(monkeypatch):
    """Let training end in scores that are all above a half for promoters, and else noise of this size."""

    def flatten(noise):
        def fit(config, model, *_):
            with torch.no_grad():
                model.classifier.weight.mul_(noise)
                model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))

        monkeypatch.setattr(tuning, "fit", fit)

    return flatten


def test_training_that_ends_in_one_class_is_an_error(finetune, ends_in, tmp_path):
    ends_in(0.0)
    message = r"^training collapsed: the classifier calls every validation sequence 'promoter'; pass another"
    with pytest.raises(UserError, match=message) as error:
        finetune()
    assert "\n" not in str(error.value)
    assert "--allow-collapse true" in str(error.value)
    assert not list(tmp_path.glob("*classifier*"))


def test_one_class_but_for_a_threshold_in_the_noise_is_collapse_too(finetune, ends_in, tmp_path):
    ends_in(1e-3)
    message = r"sequence 'promoter' at a threshold of 0.5, and is no better than chance at the one it has;"
    with pytest.raises(UserError, match=message):
        finetune()
    assert not list(tmp_path.glob("*classifier*"))


def test_collapse_may_be_allowed_and_goes_on_record(finetune, ends_in, capsys):
    ends_in(0.0)
    result = finetune(allow_collapse=True)
    said = capsys.readouterr().err
    assert "warning: training collapsed: the classifier calls every validation sequence 'promoter'" in said
    metrics = result.metrics()["promoter_auroc"]
    assert metrics["collapsed"] is True
    assert (metrics["mcc"], metrics["value"], metrics["accuracy"]) == (0, 0.5, 0.5)


def test_training_that_diverges_says_so(finetune, tmp_path):
    message = r"^learning_rate: 1e\+30: training diverged, the scores are no numbers; pass a smaller"
    with pytest.raises(UserError, match=message):
        finetune(learning_rate=1e30, allow_collapse=True)
    assert not list(tmp_path.glob("*classifier*"))


# -- mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checkpoint": "corpus"},
            r"checkpoint: .*: no config.json, so no checkpoint; pass pretrain's folder",
        ),
        ({"checkpoint": "nowhere"}, "nowhere: no such file or folder"),
        ({"data": "nowhere"}, "nowhere: no such folder; has the stage that writes it been run?"),
        ({"data": "tokens"}, "data: .*tokens was written by tokenize, not by prepare; pass a corpus"),
        ({"positive": "enhancer"}, "positive: 'enhancer' is no class of .*: background, promoter"),
        ({"group_column": "species"}, "group_column: 'species' is no column of .*; its columns: id, "),
        ({"reference_column": "best"}, "reference_column: 'best' is no column of .*; its columns: id, "),
        ({"cluster_column": "best"}, r"cluster_column: 'best' is no column of .*; its columns: id, "),
        ({"reference_column": "kind"}, "reference_column: 'kind' of .* is not a number in every row"),
    ],
)
def test_mistakes_are_told_in_a_line(finetune, rule_folder, tmp_path, changes, message):
    for key in {"checkpoint", "data"} & set(changes):
        changes = {key: rule_folder / changes[key]}
    with pytest.raises(UserError, match=message) as error:
        finetune(**changes)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("*classifier*"))


@pytest.mark.parametrize("cell", ["", "nan"])
def test_references_that_are_no_numbers_are_refused_before_training(finetune, corpus, tmp_path, cell):
    """The last row is of the test split."""
    data = corpus(lambda rows: rows["split"] != "", number=["1"] * 799 + [cell])
    with pytest.raises(UserError, match=r"reference_column: 'number' of .*corpus is not a number in every"):
        finetune(data=data, reference_column="number")
    assert not list(tmp_path.glob("*classifier*"))


def test_memory_that_does_not_suffice_is_told_in_a_line(finetune, monkeypatch):
    def full(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(tuning.Trainer, "train", full)
    with pytest.raises(UserError, match=r"^batch_size: \d+: out of memory; pass a smaller --batch-size$"):
        finetune()


def test_a_corpus_must_have_rows_to_learn_from_and_to_score(finetune, corpus):
    with pytest.raises(UserError, match=r"has only train; prepare it with train, and test or validation$"):
        finetune(data=corpus(lambda rows: rows["split"] == "train"))


def test_a_corpus_without_train_is_refused(finetune, corpus):
    with pytest.raises(UserError, match="has only validation, test; prepare it with train"):
        finetune(data=corpus(lambda rows: rows["split"] != "train"))


def test_a_class_that_train_lacks_is_named(finetune, corpus):
    data = corpus(lambda rows: (rows["split"] != "train") | (rows["class"] == "background"))
    with pytest.raises(
        UserError, match=r"data: .* has no row of class 'promoter' in its train split; prepare"
    ):
        finetune(data=data)


def test_one_class_is_nothing_to_tell_apart(finetune, corpus):
    with pytest.raises(UserError, match=r"data: .* has no class but 'promoter' in its train split; prepare"):
        finetune(data=corpus(lambda rows: rows["class"] == "promoter"))


def test_a_choice_by_what_validation_leaves_undefined_is_refused(finetune, corpus):
    data = corpus(lambda rows: (rows["split"] != "validation") | (rows["class"] == "background"))
    with pytest.raises(
        UserError, match=r"^best_by: mcc needs validation rows of every class, which .* lacks; "
    ):
        finetune(data=data, best_by="mcc")


def test_a_model_of_another_alphabet_is_refused(finetune, rule_folder, tmp_path, tokenizer_folder):
    shutil.copytree(rule_folder / "lm", tmp_path / "lm")
    shutil.copy(tokenizer_folder("protein") / "tokenizer_config.json", tmp_path / "lm")
    with pytest.raises(UserError, match=r"data: .* holds dna sequences, but .*lm reads protein"):
        finetune(checkpoint=tmp_path / "lm")


def test_a_sequence_that_does_not_fit_is_named(finetune, corpus):
    """Test rows, too: nothing is cut."""
    data = corpus(
        lambda rows: rows["id"] != "", sequence=lambda rows: rows["sequence"] + rows["id"].map(tail)
    )
    with pytest.raises(UserError, match=r"record 's790': 43 letters are 41 tokens, more than the model's 40"):
        finetune(data=data)


def tail(name):
    return "ACG" if name == "s790" else ""
