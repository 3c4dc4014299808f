"""The network of a run: of the configured shape with random weights, or a checkpoint's."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForMaskedLM

from pipeline.config import ModelConfig, PretrainConfig
from pipeline.errors import UserError, reason
from pipeline.log import say
from pipeline.model import FactoredConfig, FactoredForMaskedLM, StrandConfig, StrandForMaskedLM
from pipeline.tokens.kmers import Codec, codec_of
from pipeline.tokens.vocabulary import RESIDUES
from pipeline.training.classifier import check_checkpoint, load_model
from pipeline.training.initialise import fresh

SHAPE = {
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "norm",
    "norm_bias",
    "norm_placement",
    "activation",
    "use_bias",
    "qk_norm",
    "qk_norm_over",
    "residual_scale",
    "positions",
    "sliding_window",
    "global_every",
    "token_dropout",
    "lm_head",
    "tie_word_embeddings",
}


def context_tokens(window: int, codec: Codec) -> int:
    """Return the tokens that a window of real letters needs at most, specials included."""
    return codec.most_tokens(window) + 2


def _factored(shape: ModelConfig, codec: Codec, columns: int) -> FactoredConfig:
    return FactoredConfig(
        vocab_size=len(codec.vocabulary),
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        pad_token_id=codec.special("pad"),
        num_columns=columns,
        residue_token_ids=[codec.vocabulary[letter] for letter in RESIDUES],
    )


def _strand(shape: ModelConfig, codec: Codec) -> StrandConfig:
    """Return the configuration; with norms after each part the tokens are normed too, and the end is not."""
    return StrandConfig(
        **shape.model_dump(include=SHAPE),
        vocab_size=len(codec.vocabulary),
        pad_token_id=codec.special("pad"),
        mask_token_id=codec.special("mask"),
        intermediate_size=shape.intermediate_size or -(-shape.hidden_size * 8 // 3) // 8 * 8,
        embedding_norm=shape.norm_placement == "post",
        final_norm=shape.norm_placement == "pre",
        rope_parameters={"rope_type": "default", "rope_theta": StrandConfig.default_theta},
        alphabet=codec.alphabet,
        k=codec.k,
        overlapping=codec.overlapping,
    )


def _earlier(folder: Path, shape: ModelConfig, codec: Codec) -> StrandConfig:
    """Return the configuration of a checkpoint to start from.

    Raises:
        UserError: it has other tokens than the data, or another shape than what is configured.
    """
    check_checkpoint(folder, "pretrain")
    if codec_of(folder).vocabulary != codec.vocabulary:
        raise UserError(f"start_from: {folder} was trained with another tokenizer than that of the data")
    earlier = StrandConfig.from_pretrained(folder.absolute())
    if earlier.contact_head:
        say(f"start_from: the contact regression of {folder} is left out: other weights need another one")
        earlier.contact_head = False
    if shape.architecture != "strand":
        raise UserError(f"start_from: {folder} is no strand model; only those can be gone on from")
    for key in sorted(shape.model_fields_set & (SHAPE | {"intermediate_size"})):
        ours, theirs = getattr(shape, key), getattr(earlier, key)
        if ours != theirs:
            raise UserError(
                f"model.{key}: {ours}, but start_from has {theirs}; leave the key out, or start afresh"
            )
    return earlier


def make_config(config: PretrainConfig, codec: Codec, columns: int) -> FactoredConfig | StrandConfig:
    """Return the configuration of a run's network; ``columns`` is the length of an aligned family's rows.

    Raises:
        UserError: the shape is none that there can be, or not that of the checkpoint to start from.
    """
    shape = config.model
    try:
        if shape.architecture == "factored" and config.start_from is None:
            return _factored(shape, codec, columns)
        first = config.start_from
        strand = _strand(shape, codec) if first is None else _earlier(first, shape, codec)
    except StrictDataclassError as error:
        raise UserError(f"model: {reason(error)}") from None
    strand.max_position_embeddings = context_tokens(config.window, codec)
    if shape.rope_theta is not None:
        strand.rope_parameters = {**(strand.rope_parameters or {}), "rope_theta": shape.rope_theta}
    return strand


def untrained(network: FactoredConfig | StrandConfig, codec: Codec, seed: int):
    """Return a network with random weights that are a function of the seed."""
    kind = FactoredForMaskedLM if isinstance(network, FactoredConfig) else StrandForMaskedLM
    return fresh(kind, network, codec, seed)


def make_model(config: PretrainConfig, network: FactoredConfig | StrandConfig, codec: Codec):
    """Return the network that a run starts with."""
    if config.start_from is None:
        return untrained(network, codec, config.seed)
    lacks = "predicts no tokens; pass a folder written by pretrain"
    return load_model(AutoModelForMaskedLM, config.start_from, "pretrain", lacks, config=network)


def outline(network: FactoredConfig | StrandConfig):
    """Return a network without memory for its weights: what can be known of it before it is made."""
    kind: Any = FactoredForMaskedLM if isinstance(network, FactoredConfig) else StrandForMaskedLM
    with torch.device("meta"):
        return kind(network)
