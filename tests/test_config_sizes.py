"""Configurations named by size: the networks that they make, counted without making them."""

import re

import pytest
import torch
from transformers import EsmConfig, EsmForMaskedLM

from pipeline.cli import read_yaml, resolve
from pipeline.config import STAGES
from pipeline.resources import resource
from pipeline.tokens.kmers import codec_of
from pipeline.training.network import make_config, outline

PRETRAINING = {
    path.stem: path
    for path in resource("configs").glob("*.yaml")
    if "`strandlm pretrain`" in path.read_text() and "stages" not in read_yaml(path)
}


def configured(name):
    """Return the settings of a configuration, the codec of the tokens that it names, and its network's."""
    path = PRETRAINING[name]
    tokenizer = re.search(r"`strandlm tokenize --tokenizer ([a-z0-9-]+)`", path.read_text())[1]
    config = resolve(
        STAGES["pretrain"], {"data": "d", "output": "o", **read_yaml(path)}, [], name, "pretrain"
    )
    codec = codec_of(resource("tokenizers") / tokenizer)
    return config, codec, make_config(config, codec, 0)


def of_todays_layers(layers, width, inner, vocabulary, extra=0):
    """Attention, SwiGLU and two norms in each layer; a norm, the tokens, and the head's bias."""
    layer = 4 * width**2 + 3 * width * inner + 2 * width + extra
    return layers * layer + width + vocabulary * width + vocabulary


def test_protein_8m_is_esm2s_smallest_to_the_parameter():
    _, _, network = configured("protein-8m")
    shape = {"hidden_size": 320, "num_hidden_layers": 6, "num_attention_heads": 20, "intermediate_size": 1280}
    with torch.device("meta"):
        theirs = EsmForMaskedLM(EsmConfig(vocab_size=33, position_embedding_type="rotary", **shape))
    contacts = sum(p.numel() for p in theirs.esm.contact_head.parameters())
    assert (
        sum(p.numel() for p in outline(network).parameters())
        == sum(p.numel() for p in theirs.parameters()) - contacts
    )
    assert network.max_position_embeddings == 1024


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("dna-110m", of_todays_layers(12, 768, 2048, 4**6 + 4 + 1 + 5)),
        ("protein-650m", of_todays_layers(33, 1280, 3408, 33, extra=2 * 64)),  # norms of queries and keys
        ("dna-1mer-small", of_todays_layers(8, 256, 680, 10)),
    ],
)
def test_sizes_are_those_of_the_shape(name, parameters):
    _, _, network = configured(name)
    assert sum(p.numel() for p in outline(network).parameters()) == parameters


@pytest.mark.parametrize("name", sorted(PRETRAINING))
def test_what_a_configuration_has_to_say(name):
    text = PRETRAINING[name].read_text()
    for word in ("# For: ", "# Hardware: ", "# How long: ", "# Memory: ", "# Needs: data "):
        assert word in text
    config, codec, network = configured(name)
    assert network.max_position_embeddings >= codec.most_tokens(config.window) + 2
    assert config.checkpoint_every <= config.steps / 4


def test_every_size_is_there():
    tiny = {"dna-6mer-tiny", "dna-6mer-overlap-tiny", "protein-tiny"}
    assert PRETRAINING.keys() == tiny | {"dna-1mer-small", "dna-110m", "protein-8m", "protein-650m"}
