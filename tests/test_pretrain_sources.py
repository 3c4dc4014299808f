"""What pretraining reads: several data sets in shares, and a checkpoint to start from."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMaskedLM

import pipeline.encode
import pipeline.prepare
import pipeline.pretrain
from pipeline.config import (
    MaskingConfig,
    MixtureConfig,
    ModelConfig,
    OptimizerConfig,
    PrepareConfig,
    PretrainConfig,
    TokenizeConfig,
)
from pipeline.errors import UserError
from pipeline.tokens.bits import bits_per_letter, hidden_text
from pipeline.tokens.store import joined, load_token_sets


def tokens_of(folder, records, tokenizer="dna-1mer", **settings):
    folder.mkdir(parents=True)
    (folder / "r.fa").write_text("".join(f">r{i}\n{letters}\n" for i, letters in enumerate(records)))
    prepared = PrepareConfig(
        output=folder / "corpus", input=[folder / "r.fa"], validation=0.2, test=0.2, **settings
    )
    pipeline.prepare.run(prepared)
    name = folder / f"{folder.name}-tokens"
    pipeline.encode.run(TokenizeConfig(output=name, corpus=folder / "corpus", tokenizer=tokenizer))
    return name


def random_dna(number, length, weights, seed):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("ACGT"), length, p=weights)) for _ in range(number)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Two token folders: much DNA rich in AT, little rich in GC; with soft masks only in the second."""
    folder = tmp_path_factory.mktemp("sources")
    at = tokens_of(folder / "at", random_dna(40, 100, [0.4, 0.1, 0.1, 0.4], 1))
    gc = [letters[:30].lower() + letters[30:] for letters in random_dna(10, 100, [0.1, 0.4, 0.4, 0.1], 2)]
    return at, tokens_of(folder / "gc", gc, letters={"case": "soft-mask"})


def config_of(data, output, **changes):
    settings = {
        "model": ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2),
        "optimizer": OptimizerConfig(warmup=1, learning_rate=1e-2),
        "steps": 3,
        "window": 40,
        "tokens_per_step": 400,
        "evaluation_bases": 400,
        "log_every": 1,
        "count_model": False,
    }
    return PretrainConfig(output=output, data=data, **settings | changes)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# -- several data sets


def test_joined_rows_are_the_rows_of_all(sources):
    sets, _ = load_token_sets(sources)
    assert list(sets) == ["at-tokens", "gc-tokens"]
    parts = [splits["train"] for splits in sets.values()]
    both = joined(parts)
    rows = [(part, row) for part in parts for row in range(len(part))]
    assert len(both) == len(rows)
    for number, (part, row) in enumerate(rows):
        assert np.array_equal(both.row(number), part.row(row))
        assert (both.ids[number], both.starts[number]) == (part.ids[row], part.starts[row])
    assert both.soft_mask is None, "not all parts have one"
    twice = joined([parts[1], parts[1]])
    for row in range(len(twice)):
        assert np.array_equal(twice.soft_letters(row, 0, 100), np.arange(100) < 30)


def test_each_data_set_has_its_share_and_its_scores(sources, tmp_path):
    config = config_of(list(sources), tmp_path / "out", mixture=MixtureConfig(weights=[1, 3]))
    result = pipeline.pretrain.run(config)
    assert result.manifest["counts"]["shares"] == {"at-tokens": 0.25, "gc-tokens": 0.75}
    assert set(result.manifest["inputs"]) == {"data 1", "data 2"}
    sets, codec = load_token_sets(sources)
    model = AutoModelForMaskedLM.from_pretrained(result.folder)
    last = [line for line in lines_of(result.folder) if "validation_bits_per_hidden_base" in line][-1]
    expected = {}
    for name, splits in sets.items():
        text = hidden_text(splits["validation"], codec, config.window, config.evaluation_bases)
        expected[name] = bits_per_letter(model, codec, text).mean()
        assert last[f"validation_bits_per_hidden_base:{name}"] == pytest.approx(expected[name], abs=1e-6)
        text = hidden_text(splits["test"], codec, config.window, config.evaluation_bases)
        test = result.metrics()[f"bits_per_hidden_base:{name}"]
        assert test["value"] == pytest.approx(bits_per_letter(model, codec, text).mean(), abs=1e-6)
    mean = 0.25 * expected["at-tokens"] + 0.75 * expected["gc-tokens"]
    assert last["validation_bits_per_hidden_base"] == pytest.approx(mean, abs=1e-6)


def test_sizes_are_the_shares_where_none_are_given(sources, tmp_path):
    shares = []
    for temperature in (1, 2):
        mixture = MixtureConfig(temperature=temperature)
        folder = tmp_path / str(temperature)
        result = pipeline.pretrain.run(config_of(list(sources), folder, steps=1, mixture=mixture))
        shares.append(list(result.manifest["counts"]["shares"].values()))
    sets, _ = load_token_sets(sources)
    sizes = np.array([splits["train"].lengths.sum() for splits in sets.values()], float)
    assert shares[0] == pytest.approx(sizes / sizes.sum())
    assert shares[1] == pytest.approx(sizes**0.5 / (sizes**0.5).sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mixture": MixtureConfig(weights=[1])},
            r"^mixture.weights: 1 numbers for 2 data sets; give one each$",
        ),
        (
            {"masking": MaskingConfig(soft_mask_weight=0.5)},
            r"^masking.soft_mask_weight: .*at-tokens knows of no",
        ),
    ],
)
def test_settings_that_do_not_fit_the_data_sets_are_refused(sources, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        pipeline.pretrain.run(config_of(list(sources), tmp_path / "out", **changes))
    assert not list(tmp_path.iterdir())


def test_data_sets_of_other_tokenizers_or_given_twice_are_refused(sources, tmp_path):
    other = tokens_of(tmp_path / "o", random_dna(20, 60, [0.25] * 4, 3), tokenizer="dna-3mer-overlap")
    with pytest.raises(
        UserError, match=r"^data: .*o-tokens has another tokenizer than .*at-tokens; tokenize"
    ):
        pipeline.pretrain.run(config_of([sources[0], other], tmp_path / "out"))
    with pytest.raises(UserError, match=r"^data: a folder is given twice; to read more of it, use mixture"):
        pipeline.pretrain.run(config_of([sources[0], sources[0]], tmp_path / "out"))


# -- a checkpoint to start from


def test_a_run_goes_on_from_another_runs_weights_with_a_longer_context(sources, tmp_path):
    first = pipeline.pretrain.run(config_of(sources[0], tmp_path / "first"))
    longer = {"window": 80, "model": ModelConfig(rope_theta=40_000), "start_from": first.folder}
    second = pipeline.pretrain.run(config_of(sources[0], tmp_path / "second", **longer))
    assert set(second.manifest["inputs"]) == {"data", "start_from"}
    shape = AutoConfig.from_pretrained(second.folder)
    assert (shape.max_position_embeddings, shape.rope_parameters["rope_theta"]) == (82, 40_000)
    assert shape.hidden_size == 16
    cards = [(run.folder / "README.md").read_text() for run in (first, second)]
    assert ["model.hidden_size" in text for text in cards] == [True, False], "the checkpoint's own is told"
    before, after = (load_file(run.folder / "model.safetensors") for run in (first, second))
    assert before.keys() == after.keys()
    assert not any(torch.equal(before[name], after[name]) for name in before)
    losses = [[line["loss"] for line in lines_of(run.folder) if "loss" in line] for run in (first, second)]
    assert losses[1][0] < losses[0][0] - 0.1, "it begins where the first ended"
    bits = [run.metrics()["bits_per_hidden_base"] for run in (first, second)]
    assert bits[1]["untrained"] == pytest.approx(bits[0]["untrained"], abs=0.2)
    assert bits[1]["value"] < bits[1]["untrained"] - 0.1


@pytest.mark.slow
def test_a_compiled_network_takes_the_same_steps_and_is_saved_under_clean_names(sources, tmp_path):
    runs = [
        pipeline.pretrain.run(config_of(sources[0], tmp_path / str(compiled), compile=compiled))
        for compiled in (False, True)
    ]
    losses = [[line["loss"] for line in lines_of(run.folder) if "loss" in line] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    plain, compiled = (load_file(run.folder / "model.safetensors") for run in runs)
    assert plain.keys() == compiled.keys()
    _, report = AutoModelForMaskedLM.from_pretrained(runs[1].folder, output_loading_info=True)
    assert not report["missing_keys"] | report["unexpected_keys"]


# -- the plan


def test_a_dry_run_says_the_plan_and_writes_nothing(sources, tmp_path, capsys):
    pipeline.pretrain.run(config_of(list(sources), tmp_path / "out", dry_run=True))
    said = capsys.readouterr().err
    assert "3 steps of 400 letters (420 tokens)" in said
    assert "FLOPs per token" in said
    assert "of memory for each of 1 process(es)" in said
    assert "step 1" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["wandbb", "tensorboard"])
def test_trackers_that_cannot_be_are_refused_before_anything_is_written(sources, tmp_path, name):
    with pytest.raises(UserError, match=r"^trackers: "):
        pipeline.pretrain.run(config_of(sources[0], tmp_path / "out", trackers=[name]))
    assert not list(tmp_path.iterdir())
