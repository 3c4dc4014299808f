"""Several seeds and folds, other negatives, and what a classifier records of its windows."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from pydantic import ValidationError
from sklearn.metrics import average_precision_score, f1_score, matthews_corrcoef, roc_auc_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import pipeline.finetune
import pipeline.model  # teaches the Auto classes
import pipeline.prepare
from pipeline.config import FinetuneConfig, PrepareConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.corpus import load_corpus
from pipeline.training import controls, metrics, tuning
from pipeline.training.folds import Division
from pipeline.training.runs import Done, Run, best

SEEDS, FOLDS = 2, 3
TRAINED = SEEDS * FOLDS * 2  # ours and the untrained control
CONTROLS = {"untrained": SEEDS, "gc": 1, "pwm": 1, "cnn": SEEDS}
QUICK = {"epochs": 2, "controls": [], "shuffled_negatives": False}


@pytest.fixture(scope="module")
def data(rule_folder, tmp_path_factory):
    """240 rows of the rule in all three splits; three neighbours are a family."""
    folder = tmp_path_factory.mktemp("rows")
    rows = pd.read_csv(rule_folder / "rule.tsv", sep="\t", keep_default_na=False)[560:]
    columns = {
        "family": [f"f{i // 3}" for i in range(len(rows))],
        "half": [f"h{i // 20 * (i % 2)}" for i in range(len(rows))],
    }
    rows.assign(**columns).to_csv(folder / "r.tsv", sep="\t", index=False)
    kept = {"label_column": "class", "split_column": "split", "keep_columns": ["kind", "match", *columns]}
    return pipeline.prepare.run(PrepareConfig(output=folder / "c", input=[folder / "r.tsv"], **kept)).folder


@pytest.fixture(scope="module")
def settings(finetune_settings, data):
    several = {"seeds": SEEDS, "folds": FOLDS, "fold_by": "cluster", "cluster_column": "family"}
    columns = {"group_column": "kind", "reference_column": "match", "untrained_control": True}
    how = {"batch_size": 16, "epochs": 1, "controls": ["gc", "pwm", "cnn"], "allow_collapse": True}
    return finetune_settings | {"data": data, **several, **columns, **how}


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controls, "EPOCHS", 1)
        patch.setattr(metrics, "RESAMPLES", 200)
        yield


@pytest.fixture(scope="module")
def folded(settings, tmp_path_factory):
    config = FinetuneConfig(output=tmp_path_factory.mktemp("folded") / "classifier", **settings)
    return pipeline.finetune.run(config)


@pytest.fixture(scope="module")
def tables(folded):
    scores, runs = (pd.read_csv(folded.folder / f"{n}.tsv", sep="\t") for n in ("scores", "runs"))
    return scores, runs, folded.metrics()["promoter_auroc"]


@pytest.fixture
def finetune(finetune_settings, tmp_path):
    def run(name="classifier", **changes):
        return pipeline.finetune.run(
            FinetuneConfig(output=tmp_path / name, **finetune_settings | QUICK | changes)
        )

    return run


def called(scores, runs, classifier, seed, column):
    """What a classifier calls, each row at the threshold of the run that scored it."""
    part = runs[(runs["classifier"] == classifier) & (runs["seed"] == seed)].set_index("fold")
    return scores[column] > scores["fold"].map(part["threshold"])


# -- seeds and folds


def test_each_row_is_scored_once_by_fold_and_families_stay_together(tables, folded):
    scores, _, metrics = tables
    assert scores["id"].is_unique
    assert len(scores) == 240 == metrics["n_positive"] + metrics["n_negative"]
    family = (scores["id"].str[1:].astype(int) - 560) // 3
    assert (scores.groupby(family)["fold"].nunique() == 1).all()
    sizes = scores.groupby(["fold", "label"]).size()
    assert sizes.max() - sizes.min() <= 3
    assert folded.manifest["counts"]["folds"]["1"]["rows"] == (scores["fold"] == 1).sum()
    ours = [f"score_seed_{seed}" for seed in range(SEEDS)]
    fixed = ["id", "fold", "label", "group", "reference", "score", *ours]
    expected = [
        f"score_{name}{seed}"
        for name, seeds in CONTROLS.items()
        for seed in ["", *(f"_seed_{i}" for i in range(seeds) if seeds > 1)]
    ]
    assert list(scores) == fixed + expected
    assert scores["score"].to_numpy() == pytest.approx(scores[ours].mean(axis=1).to_numpy(), abs=2e-6)


def over_folds(area, positive, column, scores):
    """An area of the rows of each fold, averaged: networks of two folds need not have one scale."""
    parts = scores.groupby("fold").indices.values()
    return np.mean([area(positive.iloc[part], scores[column].iloc[part]) for part in parts])


def test_pooled_figures_are_those_of_scikit_learn_averaged_over_seeds(tables):
    scores, runs, metrics = tables
    positive, chosen = scores["label"] == "promoter", metrics["at_threshold"]
    found = {"auroc": [], "auprc": [], "mcc": [], "f1": []}
    for seed in range(SEEDS):
        column = f"score_seed_{seed}"
        calls = called(scores, runs, "ours", seed, column)
        found["auroc"].append(over_folds(roc_auc_score, positive, column, scores))
        found["auprc"].append(over_folds(average_precision_score, positive, column, scores))
        found["mcc"].append(matthews_corrcoef(positive, calls))
        found["f1"].append(f1_score(positive, calls))
    for name, values in found.items():
        assert chosen[name] == pytest.approx(np.mean(values), abs=1e-4), name
        assert chosen["sd"][name] == pytest.approx(np.std(values, ddof=1), abs=1e-4), name
    assert metrics["value"] == pytest.approx(np.mean(found["auroc"]), abs=1e-4)
    assert metrics["seeds"] == [0, 1]
    assert (metrics["folds"], metrics["fold_by"]) == (3, "cluster")
    for name in ("gc", "pwm"):
        calls, control = called(scores, runs, name, 0, f"score_{name}"), metrics["controls"][name]
        assert control["mcc"] == pytest.approx(matthews_corrcoef(positive, calls), abs=1e-4)
        expected = over_folds(roc_auc_score, positive, f"score_{name}", scores)
        assert control["auroc"] == pytest.approx(expected, abs=1e-4)
    thresholds = runs[runs["classifier"] == "ours"]["threshold"]
    assert chosen["thresholds"] == pytest.approx([thresholds.min(), thresholds.max()], rel=1e-5)


def test_every_run_has_its_row_for_each_classifier(tables):
    scores, runs, _ = tables
    assert len(runs) == FOLDS * (SEEDS + sum(CONTROLS.values()))
    for name, seeds in {"ours": SEEDS, **CONTROLS}.items():
        assert (runs["classifier"] == name).sum() == seeds * FOLDS, name
    positive = scores["label"] == "promoter"
    for row in runs[runs["classifier"] == "ours"].to_dict("records"):
        part, score = scores["fold"] == row["fold"], scores[f"score_seed_{row['seed']}"]
        assert row["rows"] == part.sum()
        assert row["auroc"] == pytest.approx(roc_auc_score(positive[part], score[part]), abs=1e-4)
        calls = score[part] > row["threshold"]
        assert row["mcc"] == pytest.approx(matthews_corrcoef(positive[part], calls), abs=1e-4)


def test_the_classifier_that_is_kept_is_the_one_that_is_named(tables, folded):
    """It gives the scores of its seed to the rows that it was not trained on."""
    scores, _, metrics = tables
    kept = metrics["checkpoint"]
    tokenizer = AutoTokenizer.from_pretrained(folded.folder)
    model = AutoModelForSequenceClassification.from_pretrained(folded.folder).eval()
    rows = pd.read_csv(folded.manifest["config"]["data"] + "/../r.tsv", sep="\t").set_index("id")
    held = scores[scores["fold"] == kept["fold"]]
    batch = tokenizer(list(rows.loc[held["id"], "sequence"]), padding=True, return_tensors="pt")
    with torch.no_grad():
        probability = model(**batch).logits.softmax(1)[:, 1].numpy()
    assert held[f"score_seed_{kept['seed']}"].to_numpy() == pytest.approx(probability, abs=1e-5)
    assert model.config.decision["window"] == 40
    assert [path.name for path in folded.folder.rglob("run*")] == ["runs.tsv"]


@pytest.mark.parametrize(("by", "expected"), [("loss", 2), ("mcc", 1), ("auroc", 3)])
def test_the_best_run_is_the_one_that_validated_best(by, expected):
    measured = [(0.5, 0.1, 0.7), (0.6, 0.9, 0.7), (0.2, 0.3, 0.7), (0.2, 0.3, 0.8)]
    runs = [
        Done(Run(i, i, None), {}, {}, dict(zip(("loss", "mcc", "auroc"), each, strict=True)), False)
        for i, each in enumerate(measured)
    ]
    assert best(runs, by).run.number == expected
    assert best([Done(Run(i, i, None), {}, {}, None, False) for i in (4, 5)], by).run.number == 4


def test_a_stage_that_was_stopped_goes_on_and_gives_the_same_bytes(
    settings, folded, tmp_path, monkeypatch, capsys
):
    """Stopped in the control of the fourth run: three are complete, and are not trained again."""
    config, fit, fits = FinetuneConfig(output=tmp_path / "classifier", **settings), tuning.fit, []

    def stop(*arguments):
        fits.append(arguments)
        if len(fits) == 8:
            raise KeyboardInterrupt
        return fit(*arguments)

    monkeypatch.setattr(tuning, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        pipeline.finetune.run(config)
    capsys.readouterr()
    result = pipeline.finetune.run(config)
    assert len(fits) == 8 + TRAINED - 6
    said = capsys.readouterr().err
    assert "3 of 6 runs were complete before" in said
    assert re.findall(r"run \d of 6: .*", said) == [f"run {3 + f} of 6: seed 1, fold {f}" for f in (1, 2, 3)]
    assert "3 folds of all 240 rows (train, validation, test together), each with" in said
    assert re.search(r"that is kept is that of seed \d, trained without fold \d: the best of 6 by", said)
    assert result.manifest["files"] == folded.manifest["files"]
    assert result.manifest["content"] == folded.manifest["content"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_unfinished_work_of_other_settings_is_not_used(finetune, monkeypatch, capsys, data):
    def stop(*_):
        raise KeyboardInterrupt

    several = {"seeds": 2, "data": data, "allow_collapse": True, "epochs": 0.1}
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.finetune, "_write", stop)
        with pytest.raises(KeyboardInterrupt):
            finetune(**several)
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.finetune, "_write", stop)
        with pytest.raises(KeyboardInterrupt):
            finetune(**several | {"learning_rate": 1e-3})
    assert "complete before" not in capsys.readouterr().err
    result = finetune(**several | {"learning_rate": 1e-3})
    assert "2 of 2 runs were complete before" in capsys.readouterr().err
    metrics = result.metrics()["promoter_auroc"]
    assert set(metrics["checkpoint"]) == {"seed", "validation"}
    assert set(pd.read_csv(result.folder / "runs.tsv", sep="\t")["seed"]) == {0, 1}


# -- other negatives


@pytest.fixture(scope="module")
def other_file(tmp_path_factory):
    """Negatives without the word; one of them is shorter than the rows of the corpus."""
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice(list("ACGT"), 40 - (i == 7))) for i in range(30)]
    path = tmp_path_factory.mktemp("others") / "others.fa"
    path.write_text("".join(f">o{i}\n{text}\n" for i, text in enumerate(texts)))
    return path, texts


def test_positives_are_set_against_other_negatives(finetune, data, other_file, tmp_path, capsys):
    path, texts = other_file
    settings = {"controls": ["gc", "pwm"], "shuffled_negatives": True, "epochs": 3, "allow_collapse": True}
    rows = load_corpus(data)["train"]["sequence"][:2]
    near = "A" * 5 + reverse_complement(rows[0])[:35]
    more = tmp_path / "more.fa"
    of_data = f">r0\n{rows[0]}\n>r1\n{reverse_complement(rows[1])}\n>near\n{near}\n"
    more.write_text(of_data + path.read_text())
    texts = [near, *texts]
    result = finetune(data=data, other_negatives={"random": more}, batch_size=8, **settings)
    counted = {"random": {"given": 33, "left_out": 2, "share_kmer": 1}}
    assert result.manifest["counts"]["other_negatives"] == counted
    metrics = result.metrics()["promoter_auroc"]
    found, threshold = metrics["other_negatives"], metrics["at_threshold"]["threshold"]
    assert set(found) == {"dinucleotide_shuffled", "partly_shuffled", "random"}
    assert {name: each["n"] for name, each in found.items()} == dict(zip(found, (60, 60, 31), strict=True))
    scores = pd.read_csv(result.folder / "scores.tsv", sep="\t")
    positive = scores["score"][scores["label"] == "promoter"]
    tokenizer = AutoTokenizer.from_pretrained(result.folder)
    model = AutoModelForSequenceClassification.from_pretrained(result.folder).eval()
    with torch.no_grad():
        negative = (
            model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.softmax(1)[:, 1].numpy()
        )
    label, score = np.repeat([1, 0], [60, 31]), np.concatenate([positive, negative])
    ours = found["random"]
    assert ours["auroc"] == pytest.approx(roc_auc_score(label, score), abs=1e-3)
    assert ours["mcc"] == pytest.approx(matthews_corrcoef(label, score > threshold), abs=1e-3)
    assert ours["false_positive_rate"] == pytest.approx((negative > threshold).mean(), abs=1e-6)
    for name in ("auroc", "mcc", "false_positive_rate"):
        low, high = ours["intervals"][name]
        assert low <= ours[name] <= high
    assert set(found["dinucleotide_shuffled"]["controls"]) == {"gc", "pwm"}
    assert set(ours["controls"]) == {"gc"}
    shuffled = found["dinucleotide_shuffled"]["controls"]["gc"]
    assert shuffled["auroc"] == 0.5, "a shuffle has the GC content of its positive"
    said = capsys.readouterr().err
    assert "control pwm cannot score random, whose lengths are others" in said
    assert "against 60 dinucleotide_shuffled: MCC " in said
    assert "random: 2 of 33 sequences are rows of the data, left out" in said
    assert "note: 1 of 31 random share 30 letters in a row with rows that are learnt" in said
    of_data = of_data[: of_data.index(">near")]
    more.write_text(of_data)
    with pytest.raises(UserError, match=r"every sequence of .*more.fa is a row of .*; give others"):
        finetune("none", data=data, other_negatives={"random": more})


def test_folds_score_the_shuffles_of_their_own_positives(tables):
    _, _, metrics = tables
    for name in ("dinucleotide_shuffled", "partly_shuffled"):
        found = metrics["other_negatives"][name]
        assert found["n"] == metrics["n_positive"]
        assert set(found["controls"]) == set(CONTROLS)
    assert metrics["other_negatives"]["dinucleotide_shuffled"]["controls"]["gc"]["auroc"] == 0.5


def test_short_positives_have_no_partly_shuffled_copies(finetune, rule_folder, tmp_path, capsys):
    rows = pd.read_csv(rule_folder / "rule.tsv", sep="\t", keep_default_na=False)[560:]
    short = rows.assign(sequence=rows["sequence"].str[15:34]).drop_duplicates("sequence")
    short.to_csv(tmp_path / "s.tsv", sep="\t", index=False)
    columns = {"label_column": "class", "split_column": "split"}
    config = PrepareConfig(output=tmp_path / "c", input=[tmp_path / "s.tsv"], **columns)
    folder = pipeline.prepare.run(config).folder
    result = finetune(data=folder, shuffled_negatives=True, allow_collapse=True, epochs=0.1)
    assert set(result.metrics()["promoter_auroc"]["other_negatives"]) == {"dinucleotide_shuffled"}
    assert re.search(
        r"partly_shuffled: (\d+) of \1 positives are left out, shorter than 20 letters",
        capsys.readouterr().err,
    )


# -- what the classifier records


def test_the_start_site_is_recorded(finetune_settings, data, tmp_path, monkeypatch):
    """As given, or as prepare knows it; and the length of the windows, if they have but one."""
    division = Division(load_corpus(data))

    def facts(division=division, **changes):
        config = FinetuneConfig(output=tmp_path, **finetune_settings | {"data": data} | changes)
        return pipeline.finetune._facts(config, division)

    strand = {"strandless": False}
    assert facts() == strand | {"window": 40}
    assert facts(start_site=20) == strand | {"window": 40, "offset": 20}
    texts = {"sequence": ["A" * 30, "A" * 31]}
    cut = Division({"train": Dataset.from_dict(texts), "test": Dataset.from_dict(texts)})
    assert facts(cut, start_site=20) == strand | {"offset": 20}
    monkeypatch.setattr(pipeline.finetune, "window_facts", lambda _: (40, 25))
    assert facts() == strand | {"window": 40, "offset": 25}
    assert facts(start_site=3) == strand | {"window": 40, "offset": 3}


# -- mistakes


@pytest.mark.parametrize("folds", [1, 2])
def test_two_folds_leave_nothing_to_train_on(finetune_settings, tmp_path, folds):
    with pytest.raises(ValidationError, match="use 3 or more, or 0 for the corpus's splits"):
        FinetuneConfig(output=tmp_path / "x", folds=folds, **finetune_settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start_site": 40}, "start_site: 40: not in a window of 40 bases"),
        ({"folds": 3, "fold_by": "cluster"}, "fold_by: cluster: .* has no column 'cluster'"),
        (
            {"folds": 3, "fold_by": "cluster", "cluster_column": "half"},
            r"folds: 3: with fold \d held out .* has no row of class 'promoter' to train on; pass fewer",
        ),
        (
            {"other_negatives": {"partly_shuffled": "others"}},
            "'partly_shuffled' is what shuffled positives are",
        ),
        ({"other_negatives": {"x": "absent"}}, "no such file"),
    ],
)
def test_mistakes_are_told_in_a_line(finetune, data, other_file, tmp_path, changes, message):
    files = {"others": other_file[0], "absent": tmp_path / "absent.fa"}
    named = {name: files[file] for name, file in changes.get("other_negatives", {}).items()}
    with pytest.raises(UserError, match=message) as error:
        finetune(data=data, **changes | ({"other_negatives": named} if named else {}))
    assert "\n" not in str(error.value)


def test_a_run_of_several_that_collapses_is_named(finetune, data, monkeypatch):
    def flatten(config, model, *_):
        with torch.no_grad():
            model.classifier.weight.mul_(0)
            model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))

    monkeypatch.setattr(tuning, "fit", flatten)
    with pytest.raises(
        UserError, match=r"^training collapsed \(seed 0, fold 1\): the classifier calls every"
    ):
        finetune(data=data, folds=3)
