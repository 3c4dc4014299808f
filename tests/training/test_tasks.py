"""Targets of each task: how they are read, shown to a network, and judged."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import Ridge
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    matthews_corrcoef,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from pipeline.config import FinetuneConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import reverse_complement
from pipeline.tokens.kmers import codec_of
from pipeline.training import tasks

RNG = np.random.default_rng(0)
SPLITS = {"train": 40, "validation": 10, "test": 20}


def config_of(task, targets, **changes):
    return FinetuneConfig(output="o", checkpoint="c", data="d", task=task, targets=targets, **changes)


@pytest.fixture(scope="module")
def codec(tokenizer_folder):
    return codec_of(tokenizer_folder("dna-3mer-overlap"))


@pytest.fixture
def splits():
    """Rows of 12 letters: ``a``, ``b`` are numbers, ``x``, ``y`` are 0 or 1, ``s`` classes of letters."""
    rng, found = np.random.default_rng(1), {}
    for name, size in SPLITS.items():
        texts = ["".join(rng.choice(list("ACGT"), 12)) for _ in range(size)]
        a = [100 + 10 * text.count("A") for text in texts]
        columns = {"a": a, "b": rng.normal(size=size).tolist()}
        columns |= {"x": [int(text[0] in "AC") for text in texts], "y": [i % 2 for i in range(size)]}
        columns["s"] = ["".join("h" if letter in "AC" else "e" for letter in text) for text in texts]
        found[name] = {"id": [f"{name}{i}" for i in range(size)], "sequence": texts, **columns}
    return found


def make(task, targets, splits, codec, **changes):
    rows = {name: Dataset.from_dict(columns) for name, columns in splits.items()}
    return tasks.task_of(config_of(task, targets, **changes), codec, rows)


# -- what is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "classes", "targets": ["a"]}, "targets: task classes"),
        ({"task": "values", "targets": []}, "targets: task values needs"),
        ({"task": "values", "targets": ["a", "a"]}, "each once"),
        ({"task": "letters", "targets": ["s", "t"]}, "one column, not 2"),
        ({"task": "letters", "targets": ["s"], "pooling": "mean"}, "pooling"),
        ({"task": "letters", "targets": ["s"], "reverse_complement": True}, "reverse_complement"),
        ({"task": "values", "targets": ["a"], "folds": 3}, "folds: is not for task values"),
        ({"task": "labels", "targets": ["x"], "seeds": 2}, "seeds: is not for task labels"),
        ({"task": "labels", "targets": ["x"], "best_by": "mcc"}, "best_by"),
        ({"task": "labels", "targets": ["x"], "class_weights": "balanced"}, "class_weights"),
        ({"task": "values", "targets": ["a"], "cluster_column": "cluster"}, "cluster_column"),
    ],
)
def test_settings_that_do_not_go_with_the_task_are_refused(settings, words):
    with pytest.raises(UserError) as error:
        tasks.check_settings(config_of(**settings))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "target", "split", "cells", "words"),
    [
        ("values", "a", "test", {3: None}, "record 'test3' of test: a is empty"),
        ("values", "a", "train", {0: "1.5", 7: "much"}, "record 'train7' of train: a 'much' is not a number"),
        (
            "values",
            "a",
            "validation",
            {2: "inf"},
            "record 'validation2' of validation: a 'inf' is not a number",
        ),
        ("labels", "x", "train", {5: 2}, "record 'train5' of train: x is 2, not 0 or 1"),
        ("letters", "s", "train", {4: "hhh"}, "record 'train4' of train: s has 3 letters, its sequence 12"),
        ("letters", "s", "test", {4: None}, "record 'test4' of test: s is empty"),
        ("letters", "s", "test", {1: "hhhhqhhhhhhh"}, "record 'test1' of test: class 'q' of letter 5"),
    ],
)
def test_a_bad_target_is_named_with_its_record(splits, codec, task, target, split, cells, words):
    for row, cell in cells.items():
        splits[split][target][row] = cell
    if any(isinstance(cell, str) for cell in cells.values()):
        splits[split][target] = [None if cell is None else str(cell) for cell in splits[split][target]]
    with pytest.raises(UserError) as error:
        make(task, [target], splits, codec)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_columns_that_teach_nothing_are_refused(splits, codec, tokenizer_folder):
    with pytest.raises(UserError, match="'z' is no column of d"):
        make("values", ["z"], splits, codec)
    splits["test"]["a"] = [1.0] * SPLITS["test"]
    with pytest.raises(UserError, match="a is 1 in every row of test"):
        make("values", ["a"], splits, codec)
    splits["train"]["x"] = [0] * SPLITS["train"]
    with pytest.raises(UserError, match="x is 0 in every row of train"):
        make("labels", ["y", "x"], splits, codec)
    splits["train"]["s"] = ["h" * 12] * SPLITS["train"]
    with pytest.raises(UserError, match="s has one class, 'h'"):
        make("letters", ["s"], splits, codec)
    splits["train"]["s"] = [float(i) for i in range(SPLITS["train"])]
    with pytest.raises(UserError, match=r"s was read as the number 0\.0; write classes as letters"):
        make("letters", ["s"], splits, codec)
    with pytest.raises(UserError, match="letters needs a token for each letter"):
        make("letters", ["s"], splits, codec_of(tokenizer_folder("dna-6mer")))


# -- what the network is shown


def test_values_are_learnt_on_one_scale_and_given_in_their_units(splits, codec):
    task = make("values", ["a", "b"], splits, codec)
    truth = np.array([splits["train"][name] for name in "ab"]).T
    learnt = np.stack(task.learnt("train"))
    assert learnt == pytest.approx((truth - truth.mean(0)) / truth.std(0), abs=1e-5)
    assert np.stack(task.learnt("test")).mean() != pytest.approx(0, abs=1e-4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = SimpleNamespace(decision=None)
            self.classifier = torch.nn.Linear(3, 2)

    states, model = torch.randn(5, 3), Model()
    scaled = model.classifier(states).detach().numpy()
    task.finish(model)
    given = model.classifier(states).detach().numpy()
    assert given == pytest.approx(scaled * truth.std(0) + truth.mean(0), rel=1e-5)
    assert not hasattr(model.config, "decision")


def test_values_that_hardly_vary_are_all_the_same(splits, codec):
    task = make("values", ["a", "b"], splits, codec)
    noise = np.random.default_rng(0).normal(size=(20, 2))
    assert task.same(100 + 1e-6 * noise) == "every test sequence is told the same"
    assert task.same(np.stack([np.full(20, 100.0), 0.1 * noise[:, 1]], 1)) is None


def test_labels_are_all_the_same_if_none_is_called_or_ranked_better_than_by_chance(splits, codec):
    task = make("labels", ["x", "y"], splits, codec)
    truth = np.array([splits["test"][name] for name in "xy"]).T
    noise = 0.2 * np.random.default_rng(0).random((20, 2))
    assert task.same(noise) == "every test sequence is told the same"
    assert task.same(noise + np.array([0, 0.6])) == "every test sequence is told the same"
    assert task.same(noise + 0.2 * truth) is None, "a label that is never called, but ranked well"
    assert task.same(np.where(noise > 0.1, 0.9, 0.1)) is None, "calls that are wrong are not all the same"


@pytest.mark.parametrize("name", ["dna-3mer-overlap", "dna-1mer"])
def test_a_token_has_the_class_of_its_first_letter(splits, tokenizer_folder, name):
    codec = codec_of(tokenizer_folder(name))
    splits["train"]["sequence"][0] = "ACNGTACGTACN"
    task = make("letters", ["s"], splits, codec)
    assert task.names == ["e", "h"]
    for i, text in enumerate(splits["train"]["sequence"][:3]):
        starts = codec.tokens(codec.codes(text)).starts
        expected = [-100, *("eh".index(splits["train"]["s"][i][start]) for start in starts), -100]
        assert task.learnt("train")[i].tolist() == expected
    last = 2 if name == "dna-3mer-overlap" else 0
    assert task.counts() == {"rows": 20, "letters": 240, "letters_not_called": 20 * last}


def test_labels_of_a_batch_are_stacked():
    assert tasks.stack([1, 0]).tolist() == [1, 0]
    numbers = tasks.stack([np.array([1.5, 0], np.float32)] * 3)
    assert (numbers.dtype, numbers.shape) == (torch.float32, (3, 2))
    letters = tasks.stack([np.array([-100, 1, -100]), np.array([-100, 1, 0, 2, -100])])
    assert letters.tolist() == [[-100, 1, -100, -100, -100], [-100, 1, 0, 2, -100]]


# -- measures, beside scikit-learn's and scipy's


def test_measures_of_values(splits, codec):
    task = make("values", ["a", "b"], splits, codec)
    truth = np.array([splits["test"][name] for name in "ab"]).T
    said = {"ours": truth + RNG.normal(size=truth.shape), "gc": np.full_like(truth, 3)}
    found = task.judge(said)
    assert len(found) == 8
    for t, name in enumerate("ab"):
        ours = said["ours"][:, t]
        expected = {
            "spearman": spearmanr(ours, truth[:, t])[0],
            "pearson": pearsonr(ours, truth[:, t])[0],
            "r2": r2_score(truth[:, t], ours),
            "rmse": root_mean_squared_error(truth[:, t], ours),
        }
        for measure, value in expected.items():
            metric = found[f"{measure}:{name}"]
            assert metric["value"] == pytest.approx(value, rel=1e-9)
            assert metric["low"] < value < metric["high"]
            assert metric["n"] == 20
        assert found[f"spearman:{name}"]["controls"]["gc"]["value"] is None
        assert found[f"rmse:{name}"]["controls"]["gc"]["value"] == pytest.approx(
            root_mean_squared_error(truth[:, t], said["gc"][:, t])
        )
    assert any("Spearman of a" in line and "gc n/a" in line for line in tasks.in_lines(found))


def test_the_interval_of_a_correlation_is_that_of_theory(codec, splits):
    """Fisher's transform: arctanh r has the standard error 1 / sqrt(n - 3) for normal pairs."""
    rng = np.random.default_rng(3)
    a = rng.normal(size=400)
    splits["test"] = {"id": [str(i) for i in range(400)], "sequence": ["ACGTACGTACGT"] * 400, "a": a.tolist()}
    said = a + rng.normal(size=400)
    found = make("values", ["a"], splits, codec).judge({"ours": said[:, None]})["pearson:a"]
    middle, error = np.arctanh(found["value"]), 397**-0.5
    assert found["low"] == pytest.approx(np.tanh(middle - 1.96 * error), abs=0.015)
    assert found["high"] == pytest.approx(np.tanh(middle + 1.96 * error), abs=0.015)


def test_ridge_is_that_of_scikit_learn_and_finds_a_rule_of_composition(splits, codec):
    task = make("values", ["a", "b"], splits, codec, controls=["gc", "kmers", "positions", "pwm"])
    said = dict(tasks.simple_controls(task))
    assert list(said) == ["gc", "kmers", "positions"]
    judged = task.judge({"ours": said["kmers"], **said})["r2:a"]
    assert judged["value"] > 0.99 > 0.6 > judged["controls"]["gc"]["value"]
    ones = {
        name: np.array([np.eye(4)[["ACGT".index(c) for c in s]].ravel() for s in splits[name]["sequence"]])
        for name in SPLITS
    }
    truth = {name: np.array([splits[name][t] for t in "ab"]).T for name in SPLITS}
    mean, sd = truth["train"].mean(0), truth["train"].std(0)
    tried = []
    for alpha in (1, 10, 100):
        ridge = Ridge(alpha=alpha).fit(ones["train"], (truth["train"] - mean) / sd)
        error = ((ridge.predict(ones["validation"]) - (truth["validation"] - mean) / sd) ** 2).mean()
        tried.append((error, ridge.predict(ones["test"]) * sd + mean))
    assert said["positions"] == pytest.approx(min(tried, key=lambda each: each[0])[1], abs=1e-6)


@pytest.mark.parametrize(("task", "targets"), [("values", ["a", "b"]), ("labels", ["x", "y"])])
def test_controls_of_strandless_labels_learn_from_both_strands(splits, codec, task, targets):
    """As if the other strands of training rows, with the same targets, had been rows, too."""

    def learn(**changes):
        made = make(task, targets, splits, codec, controls=["positions", "kmers"], **changes)
        return dict(tasks.simple_controls(made))

    found, alone = learn(reverse_complement=True), learn()
    turned = [reverse_complement(text) for text in splits["train"]["sequence"]]
    splits["train"] = {name: 2 * column for name, column in splits["train"].items()}
    splits["train"]["sequence"][SPLITS["train"] :] = turned
    expected = learn()
    for name in expected:
        assert found[name] == pytest.approx(expected[name], abs=1e-9)
        assert found[name] != pytest.approx(alone[name], abs=1e-3)


def test_measures_of_labels(splits, codec):
    splits["test"]["one"] = [1] * SPLITS["test"]
    for name in ("train", "validation"):
        splits[name]["one"] = splits[name]["y"]
    task = make("labels", ["x", "one", "y"], splits, codec, controls=["positions"])
    said = {"ours": RNG.random((20, 3)), **dict(tasks.simple_controls(task))}
    found = task.judge(said)
    assert set(found) == {f"{m}{t}" for m in ("auroc", "auprc", "mcc") for t in ("", ":x", ":y")}
    values = {"auroc": roc_auc_score, "auprc": average_precision_score}
    values["mcc"] = lambda truth, score: matthews_corrcoef(truth, score > 0.5)
    for measure, of in values.items():
        each = [of(np.array(splits["test"][name]), said["ours"][:, t]) for t, name in ((0, "x"), (2, "y"))]
        assert [found[f"{measure}:{name}"]["value"] for name in "xy"] == pytest.approx(each)
        assert found[measure]["value"] == pytest.approx(np.mean(each))
        assert found[measure]["low"] < np.mean(each) < found[measure]["high"]
        assert found[measure]["labels"] == 2
    assert found["auroc:x"]["controls"]["positions"]["value"] == 1


@pytest.mark.parametrize("classes", ["eh", "ehc"])
def test_measures_of_letters(splits, codec, classes):
    for columns in splits.values():
        columns["s"] = ["".join(RNG.choice(list(classes), 12)) for _ in columns["id"]]
    task = make("letters", ["s"], splits, codec)
    truth = task.truth["test"]
    said = [np.where(RNG.random(12) < 0.6, each, RNG.integers(len(classes), size=12)) for each in truth]
    for each in said:
        each[-2:] = -1
    found = task.judge({"ours": said})
    true, called = (np.concatenate([each[:-2] for each in pair]) for pair in (truth, said))
    expected = {
        "accuracy": accuracy_score(true, called),
        "mcc": matthews_corrcoef(true, called),
        "f1": f1_score(true, called, average="macro"),
    }
    for measure, value in expected.items():
        assert found[measure]["value"] == pytest.approx(value)
        assert (found[measure]["n"], found[measure]["sequences"]) == (200, 20)
        assert found[measure]["low"] < value < found[measure]["high"]
    columns = dict(task.columns({"ours": said}))
    assert columns["truth_s"] == splits["test"]["s"]
    assert [text[-2:] for text in columns["predicted_s"]] == ["--"] * 20
    assert [text[:-2] for text in columns["predicted_s"]] == [
        "".join(task.names[c] for c in each[:-2]) for each in said
    ]


def test_intervals_over_letters_draw_sequences(splits, codec):
    """Where letters of a sequence are all right or all wrong, the interval is that of 20 sequences."""
    task = make("letters", ["s"], splits, codec)
    said = [each if i % 2 else 1 - each for i, each in enumerate(task.truth["test"])]
    found = task.judge({"ours": said})["accuracy"]
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * (0.25 / 20) ** 0.5, abs=0.06)
    clustered = {name: columns | {"cluster": columns["y"]} for name, columns in splits.items()}
    found = make("letters", ["s"], clustered, codec).judge({"ours": said})["accuracy"]
    assert (found["low"], found["high"]) == (0, 1)


def test_what_says_one_thing_of_all_is_seen(splits, codec):
    values = make("values", ["a"], splits, codec)
    assert values.same(np.full((20, 1), 3.0)) == "every test sequence is told the same"
    assert values.same(RNG.random((20, 1))) is None
    letters = make("letters", ["s"], splits, codec)
    assert letters.same([np.array([1] * 10 + [-1] * 2)] * 20) == "every letter of test is called 'h'"
    assert letters.same(letters.truth["test"]) is None
