import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import accelerate
import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

import pipeline.encode
import pipeline.prepare
import pipeline.pretrain
from pipeline.config import ModelConfig, OptimizerConfig, PrepareConfig, PretrainConfig, TokenizeConfig
from pipeline.errors import UserError
from pipeline.model import FactoredForMaskedLM, StrandForMaskedLM, StrandModel
from pipeline.pretrain import context_tokens, make_model
from pipeline.tokens.bits import bits_per_letter, hidden_text
from pipeline.tokens.counts import CountModel
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import load_tokens
from pipeline.tokens.vocabulary import RESIDUES


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
    untrained = make_model(config, codec, 0)
    assert scores["untrained"] == pytest.approx(bits_per_letter(untrained, codec, text).mean(), abs=1e-6)
    letters = "".join(codec.letters[c] for c in codec.codes_of_track(np.concatenate(splits["train"].chunks)))
    counts = np.array([letters.count(letter) + 1 for letter in "ACGT"])
    assert scores["random"] == pytest.approx(-np.log2((counts / counts.sum())[text.truth]).mean(), abs=1e-9)
    counted = CountModel(codec, 6).fit(splits["train"], codec)
    tuned = counted.tune(hidden_text(splits["validation"], codec, config.window, config.evaluation_bases))
    assert scores["baseline"] == pytest.approx(tuned.bits(text).mean(), abs=1e-9)
    closed = (scores["random"] - scores["value"]) / (scores["random"] - scores["baseline"])
    assert scores["gap_closed"] == pytest.approx(closed, abs=1e-9)


def test_the_log_holds_the_validation_score(run, token_folder):
    config, result = run
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    scored = {line["step"]: line for line in lines if "validation_bits_per_hidden_base" in line}
    assert set(scored) == {0, 2, 3}
    splits, codec = load_tokens(token_folder)
    text = hidden_text(splits["validation"], codec, config.window, config.evaluation_bases)
    for step, model in (
        (0, make_model(config, codec, 0)),
        (3, AutoModelForMaskedLM.from_pretrained(result.folder)),
    ):
        expected = bits_per_letter(model, codec, text).mean()
        assert scored[step]["validation_bits_per_hidden_base"] == pytest.approx(expected, abs=1e-6)


def test_the_untrained_network_is_a_function_of_the_seed(run):
    config, _ = run
    codec = KmerCodec("dna", 1, False)
    one, again = (make_model(config, codec, 0).state_dict() for _ in range(2))
    other = make_model(config.model_copy(update={"seed": 5}), codec, 0).state_dict()
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
    assert result.manifest["counts"] == {"parameters": sum(p.numel() for p in model.parameters())}
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


def test_an_aligned_family_gets_factored_attention(tmp_path):
    rows = [row[:5] + "--" + row[5:] for row in random_proteins(30, [18])]
    tokens = tokens_of(tmp_path / "p", rows, aligned=True, validation=0, test=0)
    shape = ModelConfig(architecture="factored", hidden_size=16, num_attention_heads=2)
    result = pipeline.pretrain.run(pretrain_config(tokens, tmp_path / "out", model=shape))
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
    with pytest.raises(UserError, match=r"factored is for one protein family, but .* holds dna; use strand$"):
        pipeline.pretrain.run(config)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("corpus", r"^data: .*corpus was not written by tokenize; pass a token folder$"),
        ("lm", r"^data: .*lm was not written by tokenize; pass a token folder$"),
        ("nowhere", r"nowhere: no such folder; has the stage that writes it been run\?$"),
        (".", r": no manifest.json of ours in it, so it is not the finished result of a stage$"),
    ],
)
def test_other_folders_are_refused(rule_folder, tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        pipeline.pretrain.run(pretrain_config(rule_folder / data, tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_tokens_without_a_train_split_are_refused(tmp_path):
    (tmp_path / "t.tsv").write_text("id\tsequence\tsplit\na\tACGTTG\ttest\nb\tGGATTA\ttest\n")
    prepared = PrepareConfig(output=tmp_path / "c", input=[tmp_path / "t.tsv"], split_column="split")
    pipeline.prepare.run(prepared)
    pipeline.encode.run(TokenizeConfig(output=tmp_path / "t", corpus=tmp_path / "c", tokenizer="dna-1mer"))
    with pytest.raises(UserError, match=r"^data: .* has no train split; prepare it with one$"):
        pipeline.pretrain.run(pretrain_config(tmp_path / "t", tmp_path / "out"))


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_divided_models_are_refused(token_folder, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(accelerate, "Accelerator", lambda **_: SimpleNamespace(distributed_type=kind))
    with pytest.raises(
        UserError, match=rf"^accelerate launch: {kind.value} divides the model among processes"
    ):
        pipeline.pretrain.run(pretrain_config(token_folder, tmp_path / "out"))


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
        logs.append([{k: v for k, v in n.items() if k != "tokens_per_second"} for n in numbers])
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
