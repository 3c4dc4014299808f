"""Sequences as batches for a classifier, and a classifier's scores, by the same road in every stage."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec


def encode(sequence: str, codec: KmerCodec) -> np.ndarray:
    """Return the ids (T,) of a cleaned sequence, framed by special tokens."""
    ids = codec.tokens(codec.codes(sequence)).ids
    return np.concatenate(([codec.special("cls")], ids, [codec.special("eos")]))


def pad(pieces: Sequence[np.ndarray], codec: KmerCodec) -> dict[str, torch.Tensor]:
    """Return ``input_ids`` and ``attention_mask`` (B, L) of encoded sequences."""
    width = max(len(piece) for piece in pieces)
    ids = np.full((len(pieces), width), codec.special("pad"), np.int64)
    for row, piece in enumerate(pieces):
        ids[row, : len(piece)] = piece
    input_ids = torch.from_numpy(ids)
    return {"input_ids": input_ids, "attention_mask": (input_ids != codec.special("pad")).long()}


def by_length(pieces: Sequence[np.ndarray], size: int) -> list[list[int]]:
    """Return batches of indices, similar lengths together, so that little is padded."""
    order = np.argsort([len(piece) for piece in pieces], kind="stable").tolist()
    return [order[i : i + size] for i in range(0, len(order), size)]


def check_lengths(sequences: Sequence[tuple[str, str]], codec: KmerCodec, longest: int) -> None:
    """Refuse (id, sequence) pairs that do not fit into the model's context, instead of cutting them.

    Raises:
        UserError: names the first such record, its length, and how much fits.
    """
    for name, sequence in sequences:
        if len(sequence) + 2 > longest and (tokens := len(encode(sequence, codec)) - 2) > longest - 2:
            room = longest - 2
            letters = room + codec.k - 1 if codec.stride == 1 else room * codec.k
            raise UserError(
                f"record {name!r}: {len(sequence)} letters are {tokens} tokens, more than the model's {room} "
                f"(up to {letters} letters); cut it into windows"
            )


@torch.no_grad()
def class_logits(model, codec: KmerCodec, sequences: Sequence[str], batch_size: int) -> np.ndarray:
    """Return the logits (N, C) of cleaned sequences, in their order."""
    model.eval()
    device = next(model.parameters()).device
    pieces = [encode(sequence, codec) for sequence in sequences]
    logits = np.empty((len(pieces), model.config.num_labels), np.float32)
    for batch in by_length(pieces, batch_size):
        inputs = {name: value.to(device) for name, value in pad([pieces[i] for i in batch], codec).items()}
        logits[batch] = model(**inputs).logits.float().cpu().numpy()
    return logits


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the class probabilities (N, C)."""
    exponential = np.exp(logits - logits.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


def class_names(model) -> list[str]:
    """Return the names of a classifier's classes, in the order of its logits."""
    return [model.config.id2label[i] for i in range(model.config.num_labels)]


def check_checkpoint(folder: Path, stage: str) -> None:
    """Refuse a folder that holds no strand model.

    Raises:
        UserError: names the folder and ``stage``, whose folder is wanted.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"checkpoint: {folder}: no config.json, so no checkpoint; pass {stage}'s folder")
    kind = json.loads(path.read_text()).get("model_type")
    if kind != "strand":
        raise UserError(f"checkpoint: {folder}: a {kind} model; pass one of the strand architecture")


def load_classifier(checkpoint: Path):
    """Return a sequence classifier and its codec.

    Raises:
        UserError: the checkpoint holds no trained classifier.
    """
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    import pipeline.model  # noqa: F401  registers our classes

    check_checkpoint(checkpoint, "finetune")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, report = AutoModelForSequenceClassification.from_pretrained(
        checkpoint.absolute(), output_loading_info=True, dtype=torch.float32
    )
    if report["missing_keys"]:
        raise UserError(f"checkpoint: {checkpoint} holds no trained classifier; run strandlm finetune on it")
    return model.eval(), KmerCodec.of(checkpoint)
