import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

import pipeline.encode
import pipeline.prepare
import pipeline.pretrain
import pipeline.training.loop
from pipeline.config import (
    MaskingConfig,
    ModelConfig,
    OptimizerConfig,
    PrepareConfig,
    PretrainConfig,
    TokenizeConfig,
)
from pipeline.errors import UserError
from pipeline.model import FactoredForMaskedLM, StrandForMaskedLM, StrandModel
from pipeline.tokens.bits import bits_per_letter, hidden_text
from pipeline.tokens.counts import CountModel
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import load_tokens
from pipeline.tokens.vocabulary import RESIDUES
from pipeline.training.network import context_tokens, make_config, untrained
from pipeline.training.scores import Scores

TIMED = ("tokens_per_second", "peak_share")


def pretrain_config(data, output, **changes):
    settings = {
        "model": ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2),
        "optimizer": OptimizerConfig(warmup=1, learning_rate=1e-2),
        "steps": 3,
        "window": 40,
        "tokens_per_step": 300,
        "evaluate_every": 2,
        "evaluation_bases": 400,
        "log_every": 1,
        "seed": 4,
    }
    return PretrainConfig(output=output, data=data, **settings | changes)


def make_model(config, codec):
    return untrained(make_config(config, codec, 0), codec, config.seed)


def tokens_of(folder, records, **settings):
    """Prepare and tokenize proteins."""
    folder.mkdir()
    (folder / "p.fa").write_text("".join(f">p{i}\n{s}\n" for i, s in enumerate(records)))
    prepared = PrepareConfig(
        output=folder / "corpus", input=[folder / "p.fa"], alphabet="protein", **settings
    )
    pipeline.prepare.run(prepared)
    tokens = TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer="protein")
    return pipeline.encode.run(tokens).folder


def random_proteins(number, lengths, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(RESIDUES), rng.choice(lengths))) for _ in range(number)]


@pytest.fixture(scope="module")
def run(token_folder, tmp_path_factory):
    """A finished run on random DNA, and its configuration."""
    config = pretrain_config(token_folder, tmp_path_factory.mktemp("run") / "checkpoint")
    return config, pipeline.pretrain.run(config)


# -- what a run leaves


def letters_at(folder, step):
    return json.loads((folder / f"checkpoints/step-{step:06d}/trainer.json").read_text())["letters"]


def test_the_scores_are_those_of_the_checkpoint_and_its_controls(run, token_folder):
    config, result = run
    scores = result.metrics()["bits_per_hidden_base"]
    splits, codec = load_tokens(token_folder)
    text = hidden_text(splits["test"], codec, config.window, config.evaluation_bases)
    model = AutoModelForMaskedLM.from_pretrained(result.folder)
    bits = bits_per_letter(model, codec, text)
    assert scores["value"] == pytest.approx(bits.mean(), abs=1e-6)
    assert scores["standard_error"] == pytest.approx(text.bits(bits).standard_error, abs=1e-6)
    assert scores["hidden_letters"] == len(bits) == len(text.truth)
    fresh = make_model(config, codec)
    assert scores["untrained"] == pytest.approx(bits_per_letter(fresh, codec, text).mean(), abs=1e-6)
    letters = "".join(codec.letters[c] for c in codec.codes_of_track(np.concatenate(splits["train"].chunks)))
    counts = np.array([letters.count(letter) + 1 for letter in "ACGT"])
    assert scores["random"] == pytest.approx(-np.log2((counts / counts.sum())[text.truth]).mean(), abs=1e-9)
    counted = CountModel(codec, 6).fit(splits["train"], codec)
    tuned = counted.tune(hidden_text(splits["validation"], codec, config.window, config.evaluation_bases))
    assert scores["baseline"] == pytest.approx(tuned.bits(text).mean(), abs=1e-9)
    assert "gap_closed" not in scores, "on random DNA there is no gap"


def test_the_log_holds_the_validation_score(run, token_folder):
    config, result = run
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    scored = {line["step"]: line for line in lines if "validation_bits_per_hidden_base" in line}
    assert set(scored) == {0, 2, 3}
    splits, codec = load_tokens(token_folder)
    text = hidden_text(splits["validation"], codec, config.window, config.evaluation_bases)
    for step, model in (
        (0, make_model(config, codec)),
        (3, AutoModelForMaskedLM.from_pretrained(result.folder)),
    ):
        expected = bits_per_letter(model, codec, text).mean()
        assert scored[step]["validation_bits_per_hidden_base"] == pytest.approx(expected, abs=1e-6)


def test_the_untrained_network_is_a_function_of_the_seed(run):
    config, _ = run
    codec = KmerCodec("dna", 1, False)
    one, again = (make_model(config, codec).state_dict() for _ in range(2))
    other = make_model(config.model_copy(update={"seed": 5}), codec).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["model.embeddings.weight"], other["model.embeddings.weight"])


def test_the_folder_opens_with_the_auto_classes(run):
    config, result = run
    shape = AutoConfig.from_pretrained(result.folder)
    assert (shape.alphabet, shape.k, shape.overlapping) == ("dna", 1, False)
    assert shape.max_position_embeddings == config.window + 2
    model, report = AutoModelForMaskedLM.from_pretrained(result.folder, output_loading_info=True)
    assert isinstance(model, StrandForMaskedLM)
    assert not report["missing_keys"] | report["unexpected_keys"]
    assert isinstance(AutoModel.from_pretrained(result.folder), StrandModel)
    tokenizer = AutoTokenizer.from_pretrained(result.folder)
    assert tokenizer.model_max_length == config.window + 2
    assert result.manifest["counts"] == {
        "parameters": sum(p.numel() for p in model.parameters()),
        "skipped_steps": 0,
        "changed_on_resume": [],
        "weights_of_step": 3,
        "letters_seen": letters_at(result.folder, 3),
    }
    newest = load_file(result.folder / "checkpoints/step-000003/model.safetensors")
    for name, value in load_file(result.folder / "model.safetensors").items():
        assert torch.equal(value, newest[name]), name


def test_a_second_call_has_nothing_to_do(run, capsys):
    config, result = run
    stamps = {path: path.stat().st_mtime_ns for path in result.folder.rglob("*")}
    again = pipeline.pretrain.run(config)
    assert again.up_to_date
    assert not result.up_to_date
    assert again.manifest == result.manifest
    assert {path: path.stat().st_mtime_ns for path in result.folder.rglob("*")} == stamps
    assert "up to date, nothing to do" in capsys.readouterr().err


def test_the_same_run_elsewhere_gives_the_same_weights(run, tmp_path):
    config, result = run
    again = pipeline.pretrain.run(config.model_copy(update={"output": tmp_path / "again"}))
    assert again.manifest["content"] == result.manifest["content"]


def test_the_masking_that_was_seen_is_said(token_folder, tmp_path, capsys):
    pipeline.pretrain.run(pretrain_config(token_folder, tmp_path / "c", steps=20, count_model=False))
    said = capsys.readouterr().err
    found = re.search(
        r"([\d.]+)% of letters hidden; of their runs ([\d.]+)% masked, ([\d.]+)% replaced, ([\d.]+)% kept",
        said,
    )
    hidden, masked, replaced, kept = map(float, found.groups())
    assert hidden == pytest.approx(15, abs=1.5)
    assert masked == pytest.approx(80, abs=6)
    assert replaced == pytest.approx(10, abs=5)
    assert masked + replaced + kept == pytest.approx(100, abs=0.2)
    scores = json.loads((tmp_path / "c" / "metrics.json").read_text())["bits_per_hidden_base"]
    assert not {"baseline", "gap_closed"} & set(scores)


@pytest.mark.parametrize(
    ("scheme", "window", "tokens"),
    [(("dna", 1, False), 40, 40), (("dna", 3, True), 40, 40), (("dna", 6, False), 40, 6 + 4)],
)
def test_the_context_has_room_for_a_window(scheme, window, tokens):
    codec = KmerCodec(*scheme)
    assert context_tokens(window, codec) == tokens + 2
    assert len(codec.tokens(codec.codes("ACGT" * (window // 4))).ids) <= tokens


def test_short_overlapping_kmers_need_no_code_for_their_tokenizer(rule_folder):
    assert AutoTokenizer.from_pretrained(rule_folder / "lm").is_fast
    assert not (rule_folder / "lm" / "tokenization_strand.py").exists()


# -- proteins, and aligned families


def test_proteins_are_scored_by_residue(tmp_path):
    tokens = tokens_of(tmp_path / "p", random_proteins(40, [20, 30]), validation=0.2, test=0.2)
    result = pipeline.pretrain.run(pretrain_config(tokens, tmp_path / "out"))
    scores = result.metrics()["bits_per_hidden_residue"]
    assert set(result.metrics()) == {"bits_per_hidden_residue"}
    assert scores["random"] == pytest.approx(np.log2(20), abs=0.15)
    assert 4 < scores["untrained"] < 5
    assert {"baseline", "gap_closed"} <= set(scores)
    assert AutoConfig.from_pretrained(result.folder).alphabet == "protein"


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Tokens of 30 rows of 20 columns, two of them gaps; no two rows are alike."""
    rows = [row[:5] + "--" + row[5:] for row in random_proteins(30, [18])]
    return tokens_of(tmp_path_factory.mktemp("family") / "p", rows, aligned=True, validation=0, test=0)


def test_an_aligned_family_gets_factored_attention(family, tmp_path):
    shape = ModelConfig(architecture="factored", hidden_size=16, num_attention_heads=2)
    result = pipeline.pretrain.run(pretrain_config(family, tmp_path / "out", model=shape))
    model = AutoModelForMaskedLM.from_pretrained(result.folder)
    assert isinstance(model, FactoredForMaskedLM)
    assert model.config.num_columns == 20
    codec = KmerCodec.of(result.folder)
    assert model.config.residue_token_ids == [codec.vocabulary[letter] for letter in RESIDUES]
    assert model.predict_contacts().shape == (20, 20)
    assert result.metrics() == {}
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_couplings_of_a_family_are_penalised_for_all_of_its_rows_together(family, tmp_path):
    """A target of 30 rows times 18 residues bears its share of the penalty, which grows with the columns."""
    shape = {"architecture": "factored", "hidden_size": 16, "num_attention_heads": 2}
    first = {}
    for decay in (0.0, 1.0, 2.0):
        model = ModelConfig(**shape, coupling_decay=decay)
        config = pretrain_config(family, tmp_path / f"{decay}", model=model, log_every=1)
        folder = pipeline.pretrain.run(config).folder
        assert AutoConfig.from_pretrained(folder).coupling_decay == pytest.approx(decay * 19 / (30 * 18))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        first[decay] = next(line["loss"] for line in lines if "loss" in line)
    assert first[1.0] > first[0.0] + 1e-4
    assert first[2.0] - first[0.0] == pytest.approx(2 * (first[1.0] - first[0.0]), rel=1e-4)


# -- mistakes


def test_rows_of_several_lengths_are_no_family(tmp_path):
    tokens = tokens_of(tmp_path / "p", random_proteins(20, [18, 25]), validation=0, test=0)
    config = pretrain_config(tokens, tmp_path / "out", model=ModelConfig(architecture="factored"))
    message = (
        r"^model.architecture: factored needs rows of one length, but .* has rows of 18 to 25; prepare an"
    )
    with pytest.raises(UserError, match=message):
        pipeline.pretrain.run(config)


def test_dna_is_no_family(token_folder, tmp_path):
    config = pretrain_config(token_folder, tmp_path / "out", model=ModelConfig(architecture="factored"))
    with pytest.raises(UserError, match=r"factored is for one protein family; the data are dna: use strand$"):
        pipeline.pretrain.run(config)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("corpus", r"corpus: written by prepare, not by tokenize; pass a token folder$"),
        ("lm", r"lm: written by pretrain, not by tokenize; pass a token folder$"),
        ("nowhere", r"nowhere: no such folder; has the stage that writes it been run\?$"),
        (".", r": no manifest.json of ours in it, so it is not the finished result of a stage$"),
    ],
)
def test_other_folders_are_refused(rule_folder, tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        pipeline.pretrain.run(pretrain_config(rule_folder / data, tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_tokens_without_a_train_split_are_refused(token_folder, tmp_path):
    shutil.copytree(token_folder, tmp_path / "t")
    (tmp_path / "t" / "dataset_dict.json").write_text('{"splits": ["validation", "test"]}')
    with pytest.raises(UserError, match=r"^data: .* has no train split; prepare it with one$"):
        pipeline.pretrain.run(pretrain_config(tmp_path / "t", tmp_path / "out"))


def test_a_soft_mask_that_nobody_kept_is_refused_before_anything_is_written(token_folder, tmp_path):
    config = pretrain_config(token_folder, tmp_path / "out", masking=MaskingConfig(soft_mask_weight=0.5))
    with pytest.raises(UserError, match=r"^masking.soft_mask_weight: .* knows of no soft mask"):
        pipeline.pretrain.run(config)
    assert not list(tmp_path.iterdir())


# -- the best weights


def best_at_step_two(monkeypatch):
    """Let validation find step 2 the best."""
    scores = iter([2.0, 1.0, 1.5])
    monkeypatch.setattr(Scores, "during", lambda *_: {"validation_bits": next(scores)})


@pytest.fixture
def best_config(token_folder, tmp_path):
    schedule = OptimizerConfig(warmup=1, learning_rate=1e-2, final=0.5)
    settings = {"optimizer": schedule, "steps": 4, "keep_checkpoints": 1, "count_model": False}
    return pretrain_config(token_folder, tmp_path / "best", **settings)


@pytest.mark.parametrize("keep_best", [True, False])
def test_the_weights_that_validated_best_are_the_result(best_config, monkeypatch, capsys, keep_best):
    best_at_step_two(monkeypatch)
    result = pipeline.pretrain.run(best_config.model_copy(update={"keep_best": keep_best}))
    step = 2 if keep_best else 4
    assert result.manifest["counts"]["weights_of_step"] == step
    assert result.manifest["counts"]["letters_seen"] == letters_at(result.folder, step) > 0
    assert f"the result is step {step} of 4; step 2 validated best (1.0000)" in capsys.readouterr().err
    ours = load_file(result.folder / "model.safetensors")
    for other in (2, 4):
        theirs = load_file(result.folder / f"checkpoints/step-{other:06d}/model.safetensors")
        assert all(torch.equal(ours[name], theirs[name]) for name in ours) == (other == step)


def test_if_the_best_checkpoint_is_lost_the_last_weights_are_the_result(best_config, monkeypatch, capsys):
    best_at_step_two(monkeypatch)
    train = pipeline.training.loop.train

    def train_and_lose(run, config):
        progress = train(run, config)
        (run.saved / "step-000002/model.safetensors").unlink()
        return progress

    monkeypatch.setattr(pipeline.training.loop, "train", train_and_lose)
    result = pipeline.pretrain.run(best_config)
    assert result.manifest["counts"]["weights_of_step"] == 4
    said = "step-000002: model.safetensors is missing or damaged; the result is step 4, not this one"
    assert said in capsys.readouterr().err


# -- more steps, other settings


def log_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMED} for line in lines]


def test_a_finished_run_is_lengthened_and_not_done_again(token_folder, tmp_path, capsys):
    schedule = OptimizerConfig(warmup=1, learning_rate=1e-2, schedule="wsd", decay=0.3)
    common = {"optimizer": schedule, "count_model": False}
    long = pipeline.pretrain.run(pretrain_config(token_folder, tmp_path / "long", steps=14, **common))
    pipeline.pretrain.run(pretrain_config(token_folder, tmp_path / "a", steps=10, **common))
    capsys.readouterr()
    config = pretrain_config(token_folder, tmp_path / "a", steps=14, **common)
    lengthened = pipeline.pretrain.run(config)
    assert "resumed from step-000007 of 14" in capsys.readouterr().err
    assert log_of(lengthened.folder) == log_of(long.folder)
    assert lengthened.manifest["content"] == long.manifest["content"]
    assert lengthened.manifest["counts"] == long.manifest["counts"]
    assert pipeline.pretrain.run(config).up_to_date
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_lengthened_cosine_is_on_record(token_folder, tmp_path):
    common = {"count_model": False, "output": tmp_path / "a", "data": token_folder}
    pipeline.pretrain.run(pretrain_config(**common))
    result = pipeline.pretrain.run(pretrain_config(**common, steps=5))
    (change,) = result.manifest["counts"]["changed_on_resume"]
    assert change.startswith("step 3: steps 3 -> 5 (the cosine schedule is drawn anew")
    assert [line["step"] for line in log_of(result.folder) if "loss" in line] == [1, 2, 3, 4, 5]


def test_unfinished_work_of_other_settings_is_neither_used_nor_lost(token_folder, tmp_path, capsys):
    config = pretrain_config(token_folder, tmp_path / "a", count_model=False)
    pipeline.pretrain.run(config)
    partial = tmp_path / ".a.partial"
    config.output.rename(partial)
    (partial / "manifest.json").unlink()
    (partial / ".stage").write_text("pretrain")
    other = config.model_copy(update={"seed": 5, "steps": 4})
    with pytest.raises(UserError, match=r"made with other settings: seed 4 -> 5, steps 3 -> 4; set them "):
        pipeline.pretrain.run(other)
    assert len(list((partial / "checkpoints").iterdir())) == 2
    (partial / "stray").write_text("of the other run")
    capsys.readouterr()
    result = pipeline.pretrain.run(other.model_copy(update={"resume": "never"}))
    assert "resumed" not in capsys.readouterr().err
    assert not (result.folder / "stray").exists()
    clean = pipeline.pretrain.run(other.model_copy(update={"output": tmp_path / "b"}))
    assert result.manifest["content"] == clean.manifest["content"]


# -- SIGTERM


def test_sigterm_makes_a_checkpoint_that_the_next_call_goes_on_from(token_folder, tmp_path, capsys):
    """The signal comes after the tenth step; what is left to do gives the uninterrupted run's log."""
    common = {"steps": 300, "checkpoint_every": 1000, "evaluate_every": 1000, "count_model": False}
    broken, whole = (pretrain_config(token_folder, tmp_path / n, **common) for n in ("broken", "whole"))
    (tmp_path / "broken.json").write_text(broken.model_dump_json(exclude_none=True))
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.pretrain", "--config", str(tmp_path / "broken.json")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(pipeline.__file__).parents[1],
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("step 10/"):
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 3, "".join(lines[-20:])
    step = int(re.search(r"^SIGTERM: checkpoint of step (\d+) of 300 written; run again", lines[-1])[1])
    assert 10 <= step < 300
    assert not broken.output.exists()
    partial = tmp_path / ".broken.partial"
    assert [path.name for path in (partial / "checkpoints").iterdir()] == [f"step-{step:06d}"]

    results = [pipeline.pretrain.run(config) for config in (broken, whole)]
    assert capsys.readouterr().err.count(f"resumed from step-{step:06d} of 300") == 1
    logs = []
    for result in results:
        numbers = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
        logs.append([{k: v for k, v in n.items() if k not in TIMED} for n in numbers])
    assert logs[0] == logs[1]
    assert results[0].manifest["content"] == results[1].manifest["content"]


def test_what_sigterm_did_before_training_it_does_after(token_folder, tmp_path):
    def ours(*_):
        pass

    before = signal.signal(signal.SIGTERM, ours)
    try:
        pipeline.pretrain.run(pretrain_config(token_folder, tmp_path / "out", steps=1, count_model=False))
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


def test_half_precision_on_a_cpu_is_float32_and_said_once(run, token_folder, tmp_path, capsys):
    _, whole = run
    result = pipeline.pretrain.run(pretrain_config(token_folder, tmp_path / "half", precision="fp16"))
    assert capsys.readouterr().err.count("training in float32 here") == 1
    weights = (result.folder / "model.safetensors").read_bytes()
    assert weights == (whole.folder / "model.safetensors").read_bytes()
