import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from scipy.stats import bootstrap

import pipeline.compare
from pipeline.cli import main
from pipeline.compare import difference
from pipeline.config import CompareConfig, MaskingConfig, ModelConfig, OptimizerConfig, PretrainConfig
from pipeline.errors import UserError

METRIC = "bits_per_hidden_base"


def window_rows(bits, letters, hidden, baseline=None, data_set="tokens"):
    columns = {"data_set": data_set, "hidden": hidden, "letters": letters, "value": bits, "untrained": bits}
    return pd.DataFrame(columns | {"baseline": baseline, "random": bits})


@pytest.fixture
def finished(tmp_path):
    """Factory of folders that look like those of pretrain."""

    def write(
        name, windows=None, metrics=None, stage="pretrain", data="content", size=9, curves=(), **config
    ):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        settings = PretrainConfig(output=folder, data=config.pop("paths", ["tokens"]), **config)
        manifest = {"stage": stage, "key": name, "content": name, "inputs": {"data": data}}
        manifest |= {"config": settings.model_dump(mode="json"), "versions": {"torch": "2.13"}}
        manifest |= {"counts": {"parameters": size, "weights_of_step": 20}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        if windows is not None and metrics is None:
            total, letters = windows["value"].sum(), int(windows["letters"].sum())
            metrics = {METRIC: {"value": total / letters, "hidden_letters": letters, "comparable": True}}
        (folder / "metrics.json").write_text(json.dumps(metrics or {}))
        if curves:
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curves))
        if windows is not None:
            windows.to_csv(folder / "windows.tsv", sep="\t", index=False)
        return folder

    return write


def compare(folder, *runs, **settings):
    result = pipeline.compare.run(CompareConfig(output=folder / "compared", runs=runs, **settings))
    return result, json.loads((result.folder / "compare.json").read_text())


def texts(number=40, seed=0):
    """Letters hidden in windows, their names, and what they cost whatever the model."""
    rng = np.random.default_rng(seed)
    letters = 6 * rng.integers(1, 9, number)
    return letters, [f"{seed}-{i}" for i in range(number)], 2 * letters + rng.normal(0, 3, number)


# -- paired differences


def test_a_paired_difference_is_that_of_the_means_with_its_bootstrap_interval():
    letters, _, bits = texts(60)
    excess = np.random.default_rng(1).normal(0.02, 0.1, 60) * letters
    found = difference(excess, letters, seed=3)
    assert found["difference"] == pytest.approx(((bits + excess).sum() - bits.sum()) / letters.sum())
    assert (found["letters"], found["windows"]) == (letters.sum(), 60)
    expected = bootstrap(
        (excess, letters),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="percentile",
        random_state=0,
    )
    width = expected.confidence_interval.high - expected.confidence_interval.low
    assert found["low"] == pytest.approx(expected.confidence_interval.low, abs=0.05 * width)
    assert found["high"] == pytest.approx(expected.confidence_interval.high, abs=0.05 * width)
    assert difference(excess, letters, seed=3) == found


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng, held = np.random.default_rng(0), 0
    for seed in range(200):
        letters = 6 * rng.integers(1, 9, 80)
        found = difference(letters * rng.normal(0.1, 0.3, 80), letters, seed)
        held += found["low"] < 0.1 < found["high"]
    assert 0.9 < held / 200 < 0.99


def test_pairing_removes_what_both_models_find_hard(finished, tmp_path, capsys):
    letters, hidden, bits = texts()
    a = finished("a", window_rows(bits - 0.01 * letters, letters, hidden, baseline=bits + 0.1 * letters))
    b = finished("b", window_rows(bits, letters, hidden), paths=["elsewhere"])
    result, content = compare(tmp_path, a, b)
    counting, pair = content["differences"]
    assert (pair["run"], pair["minus"], pair["data_set"]) == ("a", "b", "tokens")
    assert [pair[key] for key in ("difference", "low", "high")] == pytest.approx([-0.01] * 3, abs=1e-9)
    assert (counting["run"], counting["minus"]) == ("a", "its count model")
    assert counting["difference"] == pytest.approx(-0.11)
    table = pd.read_csv(result.folder / "differences.tsv", sep="\t")
    assert table["difference"].tolist() == [counting["difference"], pair["difference"]]
    said = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert ["a", "-", "b", "tokens", "-0.0100", "-0.0100", "to", "-0.0100", f"{letters.sum():,}"] in said


def other_letters(windows):
    return windows.assign(letters=windows["letters"] + 6)


def other_text(windows):
    return windows.assign(hidden=[*windows["hidden"][:-1], "other"])


@pytest.mark.parametrize("change", [other_letters, other_text])
def test_runs_with_other_hidden_text_are_not_paired_and_that_is_said(finished, tmp_path, capsys, change):
    letters, hidden, bits = texts()
    windows = window_rows(bits, letters, hidden)
    _, content = compare(tmp_path, finished("a", windows), finished("b", change(windows)))
    assert content["differences"] == []
    assert "a and b are not paired: their test texts differ, or the windows" in capsys.readouterr().err


def test_runs_without_windows_or_of_other_questions_are_not_paired(finished, tmp_path, capsys):
    letters, hidden, bits = texts()
    windows = window_rows(bits, letters, hidden, baseline=bits)
    unlike = {METRIC: {"value": 2.0, "hidden_letters": 9, "comparable": False}}
    a, b = finished("a", windows), finished("b", windows, unlike, data="other")
    _, content = compare(tmp_path, a, b, finished("c"))
    assert [pair["minus"] for pair in content["differences"]] == ["its count model"]
    said = capsys.readouterr().err
    assert "a and b are not paired: the tokenizer of b cannot hide runs of 6 bases alone" in said
    assert "a and c are not paired: c has no scores of single windows" in said
    _, content = compare(tmp_path / "same", b, finished("d", windows, unlike, data="other"))
    assert [pair["minus"] for pair in content["differences"]] == ["d"]


def test_data_sets_are_paired_by_their_text_and_not_by_their_names(finished, tmp_path):
    (letters, hidden, bits), (more, other, costs) = texts(), texts(30, seed=1)
    first = window_rows(bits, letters, hidden, data_set="NA")
    second = window_rows(costs, more, other, data_set="yeast")
    both = pd.concat([second, first.assign(value=bits + letters)])
    alone = finished("alone", first.assign(data_set="e_coli"))
    _, content = compare(tmp_path, finished("both", both), alone)
    (pair,) = content["differences"]
    assert (pair["data_set"], pair["difference"]) == ("NA", pytest.approx(1))


# -- settings, curves, tables


def test_settings_that_differ_are_listed_and_no_others(finished, tmp_path, capsys):
    a = finished("a", optimizer=OptimizerConfig(learning_rate=0.1), paths=["x"])
    b = finished("b", optimizer=OptimizerConfig(learning_rate=0.2), paths=["y"], steps=7, trackers=["aim"])
    result, content = compare(tmp_path, a, b)
    assert content["settings"] == {"optimizer.learning_rate": ["0.1", "0.2"], "steps": ["1000", "7"]}
    table = (result.folder / "settings.tsv").read_text()
    assert table == "setting\ta\tb\noptimizer.learning_rate\t0.1\t0.2\nsteps\t1000\t7\n"
    said = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert ["optimizer.learning_rate", "0.1", "0.2"] in said
    c = finished("c", data="other", paths=["z"], optimizer=OptimizerConfig(learning_rate=0.1))
    assert compare(tmp_path / "2", a, c)[1]["settings"] == {"data": ['["x"]', '["z"]']}
    d = finished("d", paths=["x"], optimizer=OptimizerConfig(learning_rate=0.1))
    assert compare(tmp_path / "3", a, d)[1]["settings"] == {}
    assert "no settings differ" in capsys.readouterr().err


def test_the_shape_of_a_run_that_goes_on_is_its_networks(finished, tmp_path):
    a = finished("a", model=ModelConfig(hidden_size=64))
    b = finished("b", start_from=a)
    (b / "config.json").write_text(json.dumps({"hidden_size": 64, "num_hidden_layers": 7, "vocab_size": 9}))
    settings = compare(tmp_path, a, b)[1]["settings"]
    assert settings == {"model.num_hidden_layers": ["4", "7"]}


def test_runs_have_a_row_each(finished, tmp_path, capsys):
    score = {"value": 1.95, "standard_error": 0.002, "baseline": 1.96, "hidden_letters": 1234}
    a = finished("a", metrics={METRIC: score}, size=3_000_000)
    _, content = compare(tmp_path, a, finished("b"))
    assert content["runs"][0]["value"] == 1.95
    assert content["runs"][1]["metric"] is None
    header, first, second = capsys.readouterr().err.splitlines()[1:4]
    for name, value in (("parameters", "3,000,000"), ("bits", "1.9500"), ("count model", "1.9600")):
        end = header.index(name) + len(name)
        assert first[:end].endswith(value)
    assert second.split() == ["b", "9", "20"]


def test_curves_are_drawn_over_the_letters_seen(finished, tmp_path):
    lines = [{"step": step, "loss": 5 / (step + 1), "learning_rate": 0.1} for step in (10, 20)]
    lines += [{"step": 20, f"validation_{METRIC}": 1.9}, {"step": 21, "skipped": 1, "problem": "nan"}]
    runs = [finished(name, curves=lines, tokens_per_step=100 * i) for i, name in enumerate("ab", 1)]
    read = [pipeline.compare._read(folder, folder.name).curves for folder in runs]
    assert read[0] == {"loss": [(1000, 5 / 11), (2000, 5 / 21)], f"validation_{METRIC}": [(2000, 1.9)]}
    assert read[1]["loss"][1] == (4000, 5 / 21)
    result, _ = compare(tmp_path, *runs)
    height, width, _ = imread(result.folder / "curves.png").shape
    assert width > 2.5 * height > 1000
    content = (result.folder / "curves.svg").read_bytes()
    assert result.manifest["counts"] == {"runs": 2, "paired": 0}
    again, _ = compare(tmp_path / "again", *runs)
    assert (again.folder / "curves.svg").read_bytes() == content
    assert again.manifest["content"] == result.manifest["content"]


# -- the command


def test_the_command_compares_runs_of_pretrain(token_folder, tmp_path, capsys):
    import pipeline.pretrain

    for seed in (1, 2):
        config = PretrainConfig(
            output=tmp_path / f"run{seed}",
            data=[token_folder],
            seed=seed,
            model=ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2),
            masking=MaskingConfig(fraction=0.2),
            steps=2,
            window=40,
            tokens_per_step=300,
        )
        pipeline.pretrain.run(config)
    capsys.readouterr()
    main(["compare", "--runs", *(str(tmp_path / f"run{i}") for i in (1, 2)), "--output", str(tmp_path / "c")])
    said = capsys.readouterr().err
    content = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert content["settings"] == {"seed": ["1", "2"]}
    first, second = (run["value"] for run in content["runs"])
    pair = content["differences"][-1]
    assert (pair["run"], pair["minus"]) == ("run1", "run2")
    assert pair["difference"] == pytest.approx(first - second, abs=1e-7)
    assert pair["low"] <= pair["difference"] <= pair["high"]
    assert "run1 - run2" in said


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a"], "runs: 1 given; name two or more folders written by pretrain"),
        ([], "runs: 0 given"),
        (["a", "a"], "runs: .*a is given twice; name each run once"),
        (["a", "missing"], "missing: no such folder"),
        (["a", "empty"], "empty: no manifest.json of ours in it"),
        (["a", "corpus"], "runs: .*corpus was written by prepare; pass folders of pretrain"),
    ],
)
def test_folders_that_are_no_runs_are_refused_in_a_line(finished, tmp_path, names, problem):
    finished("a")
    finished("corpus", stage="prepare")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=problem) as error:
        compare(tmp_path, *(tmp_path / name for name in names))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "compared").exists()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("metrics.json", "{", "metrics.json: not JSON: .*; copy it once more, or run again what wrote it$"),
        ("metrics.json", None, "metrics.json: no such file; copy it"),
        ("metrics.jsonl", '{"step": 1, "loss": 2}\n{"step":', "metrics.jsonl: line 2: not JSON: "),
    ],
)
def test_a_run_with_a_damaged_file_is_refused_in_a_line(finished, tmp_path, name, text, problem):
    finished("a")
    finished("b")
    path = tmp_path / "b" / name
    path.unlink(missing_ok=True) if text is None else path.write_text(text)
    with pytest.raises(UserError, match=problem) as error:
        compare(tmp_path, tmp_path / "a", tmp_path / "b")
    assert str(error.value).startswith(str(path))
    assert not (tmp_path / "compared").exists()


def test_runs_with_one_name_are_called_by_their_paths(finished, tmp_path):
    runs = finished("x/lm"), finished("y/lm")
    _, content = compare(tmp_path, *runs)
    assert [run["run"] for run in content["runs"]] == [str(folder) for folder in runs]
