"""The network of a run: options, and starting from a checkpoint."""

import pytest
import torch
from transformers import AutoModelForMaskedLM

from pipeline.config import ModelConfig, PretrainConfig
from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec
from pipeline.training.network import make_config, make_model, outline, untrained

PROTEIN = KmerCodec("protein", 1, False)
ESM2 = {
    "hidden_size": 320,
    "num_hidden_layers": 6,
    "num_attention_heads": 20,
    "intermediate_size": 1280,
    "norm": "layernorm",
    "activation": "gelu",
    "use_bias": True,
    "token_dropout": True,
    "lm_head": "dense",
}


def config_of(window=40, start_from=None, **shape):
    return PretrainConfig(
        output="o", data="d", window=window, start_from=start_from, model=ModelConfig(**shape)
    )


def small(**changes):
    return {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_placement": "post", "positions": "sinusoidal"},
        {"norm": "layernorm", "norm_bias": "layers", "qk_norm": True, "qk_norm_over": "model"},
        {"sliding_window": 4, "global_every": 2, "residual_scale": 0.5},
        {"token_dropout": True, "lm_head": "dense", "tie_word_embeddings": False, "use_bias": True},
    ],
)
def test_every_option_reaches_the_network(changes):
    network = make_config(config_of(**small(**changes)), PROTEIN, 0)
    assert {key: getattr(network, key) for key in changes} == changes
    post = changes.get("norm_placement") == "post"
    assert (network.embedding_norm, network.final_norm) == (post, not post)
    model = untrained(network, PROTEIN, 0)
    assert torch.isfinite(model(torch.arange(30)[None]).logits).all()


def test_esm2s_shape_has_its_number_of_parameters():
    """EsmForMaskedLM makes a position table and a contact head that its loss does not use."""
    from transformers import EsmConfig, EsmForMaskedLM

    shape = {key: ESM2[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    theirs = EsmConfig(
        vocab_size=33, pad_token_id=1, intermediate_size=1280, position_embedding_type="rotary", **shape
    )
    with torch.device("meta"):
        reference = EsmForMaskedLM(theirs)
    head = sum(p.numel() for p in reference.esm.contact_head.parameters())
    tables = sum(p.numel() for name, p in reference.named_parameters() if "position_embeddings" in name)
    expected = sum(p.numel() for p in reference.parameters()) - head - tables
    ours = outline(make_config(config_of(**ESM2), PROTEIN, 0))
    assert sum(p.numel() for p in ours.parameters()) == expected


def test_a_shape_that_cannot_be_is_refused_in_words():
    message = r"^model: .*hidden_size=30 is not divisible by num_attention_heads=4"
    with pytest.raises(UserError, match=message) as caught:
        make_config(config_of(hidden_size=30), PROTEIN, 0)
    assert "\n" not in str(caught.value)


# -- starting from a checkpoint


@pytest.fixture
def earlier(rule_folder):
    """A checkpoint, its codec and its weights."""
    folder = rule_folder / "lm"
    return folder, KmerCodec.of(folder), AutoModelForMaskedLM.from_pretrained(folder).state_dict()


def test_weights_and_shape_are_the_checkpoints(earlier):
    folder, codec, weights = earlier
    config = config_of(start_from=folder)
    model = make_model(config, make_config(config, codec, 0), codec)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model.dtype == torch.float32


def test_the_context_grows_with_the_base_of_the_angles(earlier):
    folder, codec, weights = earlier
    config = config_of(window=5000, start_from=folder, rope_theta=500_000)
    model = make_model(config, make_config(config, codec, 0), codec)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    head_size = model.config.hidden_size // model.config.num_attention_heads
    angles = 500_000 ** -(torch.arange(0, head_size, 2) / head_size)
    torch.testing.assert_close(model.model.rotary.inv_freq, angles)
    assert model.config.max_position_embeddings == codec.most_tokens(5000) + 2


def test_another_shape_or_tokenizer_is_refused(earlier):
    folder, codec, _ = earlier
    with pytest.raises(UserError, match=r"^model.hidden_size: 48, but start_from has \d+; leave the key out"):
        make_config(config_of(start_from=folder, hidden_size=48), codec, 0)
    with pytest.raises(UserError, match=r"^start_from: .*lm was trained with another tokenizer"):
        make_config(config_of(start_from=folder), PROTEIN, 0)
