"""What has gone wrong, as small inputs of the real stages: too little text, too short text, few rows."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pipeline.encode
import pipeline.prepare
import pipeline.pretrain
from pipeline.config import (
    MaskingConfig,
    ModelConfig,
    OptimizerConfig,
    PrepareConfig,
    PretrainConfig,
    TokenizeConfig,
)
from pipeline.errors import UserError
from pipeline.tokens.bits import HiddenText, hidden_text, score
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import load_tokens
from pipeline.training.objective import MaskedObjective
from pipeline.training.plan import Window

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")


def proteins(folder, lengths, **settings):
    """Prepare and tokenize random proteins of these lengths."""
    rng = np.random.default_rng(3)
    records = ["".join(rng.choice(RESIDUES, length)) for length in lengths]
    (folder / "p.fa").write_text("".join(f">p{i}\n{letters}\n" for i, letters in enumerate(records)))
    given = {"alphabet": "protein", "validation": 0, "test": 0, "deduplicate": False} | settings
    pipeline.prepare.run(PrepareConfig(output=folder / "corpus", input=[folder / "p.fa"], **given))
    coded = TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer="protein")
    return pipeline.encode.run(coded).folder


def trained(tokens, **settings):
    """Pretrain a tiny network; return its folder and the losses on record."""
    given = {"window": 60, "log_every": 1, "evaluate_every": 50, "checkpoint_every": 50, "count_model": False}
    given |= {"model": ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)}
    given |= {"optimizer": OptimizerConfig(warmup=1)}
    config = PretrainConfig(data=[tokens], output=tokens.parent / "model", **given | settings)
    result = pipeline.pretrain.run(config)
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    return result, [line["loss"] for line in lines if "loss" in line]


def test_records_of_a_few_residues_always_have_a_target(tmp_path):
    """15 % of 2 residues is none in three of four draws, and a mean over no targets is no number."""
    tokens = proteins(tmp_path, np.random.default_rng(0).integers(2, 6, 100))
    result, losses = trained(tokens, steps=50, tokens_per_step=1)
    assert len(losses) == 50
    assert all(math.isfinite(loss) and loss > 0 for loss in losses)
    assert result.manifest["counts"]["skipped_steps"] == 0
    splits, codec = load_tokens(tokens)
    objective = MaskedObjective(splits["train"], codec, MaskingConfig(), 0)
    for record, length in enumerate(splits["train"].lengths.tolist()):
        assert len(objective.batch([Window(0, record, 0, length, False)]).positions) >= 1


def test_records_that_are_too_short_are_counted(tmp_path):
    lengths = [2, 3, 4, 5, 6, 7]
    proteins(tmp_path, lengths, min_length=5)
    counts = json.loads((tmp_path / "corpus" / "manifest.json").read_text())["counts"]
    assert counts["dropped"] == {"too_short": {"rows": 3, "letters": 2 + 3 + 4}}


@pytest.mark.parametrize("budget", [8, 1000])
def test_fewer_records_than_a_step_holds_are_read_again_and_learnt_from(tmp_path, budget):
    tokens = proteins(tmp_path, [20, 30, 40])
    result, losses = trained(tokens, steps=3, tokens_per_step=500, micro_batch_tokens=budget)
    start, end = (load_file(path / "model.safetensors") for path in (first(tokens), result.folder))
    assert all(not torch.equal(start[name], end[name]) for name in start)
    assert len(losses) == 3
    assert len(set(losses)) == 3
    assert "value" not in json.loads((result.folder / "metrics.json").read_text())


def first(tokens):
    """Return the folder of the same run after its first step."""
    folder = tokens.parent / "start"
    folder.mkdir(exist_ok=True)
    config = json.loads((tokens.parent / "model" / "manifest.json").read_text())["config"]
    config |= {"output": folder / "model", "steps": 1, "data": [tokens]}
    return pipeline.pretrain.run(PretrainConfig(**config)).folder


def test_no_records_at_all_are_no_training(tmp_path):
    with pytest.raises(UserError, match="no usable record; dropped: 2 too short"):
        proteins(tmp_path, [3, 4], min_length=10)


@pytest.mark.parametrize("windows", [1, 8, 17])
def test_a_validation_score_does_not_depend_on_the_batch(tmp_path, tiny_model, windows):
    """The mean over 17 rows of mixed length is that over their hidden letters, however they are batched."""
    splits, _ = load_tokens(proteins(tmp_path, range(5, 90, 5)))
    codec = KmerCodec("protein", 1, False)
    text = hidden_text(splits["train"], codec, 90, 10_000)
    assert len(text.windows) == 17
    model = tiny_model(vocab_size=33, pad_token_id=codec.special("pad"))
    alone = [score(model, codec, hidden_one(text, i)).main for i in range(17)]
    together = score(model, codec, text, budget=windows * 87).main
    bits = np.concatenate([each.bits for each in alone])
    np.testing.assert_allclose(together.bits, bits, atol=1e-5)
    assert together.per_letter == pytest.approx(bits.mean(), abs=1e-6)
    means = np.mean([each.per_letter for each in alone])
    assert abs(means - bits.mean()) > 1e-3, "this text could not tell the two means apart"


def hidden_one(text, window):
    """Return one window of hidden text."""
    part = slice(window, window + 1)
    return HiddenText(text.run, text.windows[part], text.starts[part], text.records[part])
