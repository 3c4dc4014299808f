"""Sequences as batches for a classifier, and a classifier's scores, by the same road in every stage."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.config import LettersConfig, PredictConfig, ScoreConfig
from pipeline.errors import UserError
from pipeline.sequences.records import Faults
from pipeline.tokens.kmers import Codec, codec_of, read_facts
from pipeline.tokens.windows import Context

TASKS = {"regression": "values", "multi_label_classification": "labels"}  # by transformers' names
SAYS = {"values": "values", "labels": "several labels", "letters": "a class for each letter"}
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


def frame(ids: np.ndarray, codec: Codec) -> np.ndarray:
    """Return the ids (T,) of tokens between special tokens."""
    return np.concatenate(([codec.special("cls")], ids, [codec.special("eos")]))


def encode(sequence: str, codec: Codec) -> np.ndarray:
    """Return the ids (T,) of a cleaned sequence, framed by special tokens."""
    return frame(codec.tokens(codec.codes(sequence)).ids, codec)


def encode_all(sequences: Sequence[str], codec: Codec) -> list[np.ndarray]:
    """Return the ids (T,) of each of many cleaned sequences, framed; faster than one after the other."""
    batch = codec.batch([codec.codes(sequence) for sequence in sequences])
    return np.split(batch.ids, batch.offsets[1:-1])


def pad(pieces: Sequence[np.ndarray], codec: Codec) -> dict[str, torch.Tensor]:
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


def check_lengths(sequences: Sequence[tuple[str, str]], codec: Codec, longest: int) -> None:
    """Refuse (id, sequence) pairs that do not fit into the model's context, instead of cutting them.

    Raises:
        UserError: names the first such record, its length, and how much of it fits.
    """
    Context(codec, longest - 2).check(sequences, "cut it into windows")


@torch.no_grad()
def outputs_of(
    model, codec: Codec, windows: Sequence[np.ndarray], batch_size: int, **settings: Any
) -> Iterator[tuple[list[int], Any]]:
    """Yield batches of windows, as places in ``windows``, each with what the model says of it.

    Args:
        model: any network of ours.
        codec: codec of its tokenizer.
        windows: ids (T,) of tokens, without specials.
        batch_size: windows read at once, similar lengths together.
        **settings: passed to the model.
    """
    model.eval()
    device = next(model.parameters()).device
    for batch in by_length(windows, batch_size):
        inputs = pad([frame(windows[i], codec) for i in batch], codec)
        yield batch, model(**{name: value.to(device) for name, value in inputs.items()}, **settings)


def window_logits(model, codec: Codec, windows: Sequence[np.ndarray], batch_size: int) -> np.ndarray:
    """Return the logits (N, C) of windows, each the ids (T,) of tokens without specials, in their order."""
    logits = np.empty((len(windows), model.config.num_labels), np.float32)
    for batch, outputs in outputs_of(model, codec, windows, batch_size):
        logits[batch] = outputs.logits.float().cpu().numpy()
    return logits


def class_logits(model, codec: Codec, sequences: Sequence[str], batch_size: int) -> np.ndarray:
    """Return the logits (N, C) of cleaned sequences that fit into the model's context, in their order."""
    windows = [framed[1:-1] for framed in encode_all(sequences, codec)]
    return window_logits(model, codec, windows, batch_size)


@contextmanager
def enough_memory(batch_size: int) -> Iterator[None]:
    """Tell in a line that memory did not suffice for a batch.

    Raises:
        UserError: it did not; names the setting that helps.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        raise UserError(f"batch_size: {batch_size}: out of memory; pass a smaller --batch-size") from None


def check_finite(logits: np.ndarray, learning_rate: float) -> np.ndarray:
    """Return the logits of a trained network if all are numbers.

    Raises:
        UserError: they are not, since training diverged at that rate.
    """
    if not np.isfinite(logits).all():
        raise UserError(
            f"learning_rate: {learning_rate}: training diverged, the scores are no numbers; "
            "pass a smaller --learning-rate"
        )
    return logits


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the class probabilities (N, C)."""
    exponential = np.exp(logits - logits.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


def calibrate(model, temperature: float) -> None:
    """Divide a classifier's logits by ``temperature``, in the weights of its last layer."""
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.div_(temperature)


def decision_of(model) -> dict[str, Any]:
    """Return what finetune wrote into a classifier's config of how it was trained and calls; else nothing."""
    return getattr(model.config, "decision", None) or {}


def check_strandless(model, checkpoint: Path, setting: str) -> None:
    """Refuse to average over strands what a classifier says whose labels are of one.

    Raises:
        UserError: it was fine-tuned on such labels; ``setting`` is what asked for it.
    """
    if decision_of(model).get("strandless") is False:
        raise UserError(
            f"{setting}: {checkpoint} learnt labels of one strand (its corpus was not prepared with "
            "--strandless true), so strands are scored each by itself; leave it out"
        )


def positive_class(model) -> str:
    """Return the class that finetune named positive, or else the last."""
    return decision_of(model).get("positive", class_names(model)[-1])


def called(model, probabilities_NC: np.ndarray) -> np.ndarray:
    """Return the class (N,) that a classifier calls for sequences.

    It is the likeliest one; or, of two classes, the positive one where its probability is above the threshold
    that finetune wrote into the config, under ``decision``.
    """
    decision = decision_of(model)
    if "threshold" not in decision or probabilities_NC.shape[1] != 2:
        return probabilities_NC.argmax(1)
    positive = model.config.label2id[decision["positive"]]
    return np.where(probabilities_NC[:, positive] > decision["threshold"], positive, 1 - positive)


def class_names(model) -> list[str]:
    """Return the names of a classifier's classes, in the order of its logits."""
    return [model.config.id2label[i] for i in range(model.config.num_labels)]


def check_checkpoint(folder: Path, stage: str) -> None:
    """Refuse a folder that holds no strand model.

    Raises:
        UserError: names the folder and ``stage``, whose folder is wanted; or the checkpoint is one of another
            version, or of no shape that there can be.
    """
    from pipeline.training.weights import STRAND, read_config

    read_config(folder, stage, STRAND)


def load_records(
    config: PredictConfig | ScoreConfig, model, codec: Codec, faults: Faults
) -> tuple[list[tuple[str, str, str]], Context]:
    """Return every input, as `noted_sequences` gives it, and the context that a checkpoint reads them in.

    Letters are read as the checkpoint's tokenizer reads them.

    Raises:
        UserError: a file cannot be read, a record cannot and ``faults`` stop the run, or one is too long and
            ``long_sequences`` says nothing else.
    """
    from pipeline.sequences.readers import noted_sequences

    size = model.config.max_position_embeddings - 2
    context = Context(codec, size, config.long_sequences, config.overlap)
    letters = LettersConfig(**read_facts(config.checkpoint).get("letters", {}))
    named = {key: getattr(config, key) for key in ("sequence_column", "id_column", "duplicate_ids")}
    records = noted_sequences(config.input, codec.alphabet, letters, faults, **named)
    context.check([(name, sequence) for name, sequence, fault in records if not fault])
    return records, context


def load_model(kind: Any, checkpoint: Path, stage: str, lacks: str, **changed: Any):
    """Return a network in evaluation mode, in float32.

    Args:
        kind: the Auto class that loads it.
        checkpoint: its folder.
        stage: the stage whose folder is wanted.
        lacks: what is said of a checkpoint without a trained head of that kind.
        **changed: ``config``, instead of the checkpoint's own.

    Raises:
        UserError: the folder holds no strand model, or one without that head, or its files do not go
            together, or a weight is not finite.
    """
    from pipeline.training.weights import STRAND, load_weights

    model, missing = load_weights(kind, checkpoint, stage, STRAND, dtype=torch.float32, **changed)
    if missing:
        raise UserError(f"checkpoint: {checkpoint} {lacks}")
    return model.eval()


def task_of_checkpoint(config) -> str:
    """Return what a fine-tuned network was trained for, by its config: classes, values, labels or letters."""
    if any(name.endswith("ForTokenClassification") for name in config.architectures or ()):
        return "letters"
    return TASKS.get(config.problem_type, "classes")


def load_finetuned(checkpoint: Path):
    """Return a fine-tuned network, its codec, and its task.

    Raises:
        UserError: the checkpoint holds no trained head.
    """
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    from pipeline.model import StrandConfig

    check_checkpoint(checkpoint, "finetune")
    task = task_of_checkpoint(StrandConfig.from_pretrained(checkpoint.absolute()))
    kind = AutoModelForTokenClassification if task == "letters" else AutoModelForSequenceClassification
    lacks = "holds no trained classifier; run strandlm finetune on it"
    return load_model(kind, checkpoint, "finetune", lacks), codec_of(checkpoint), task


def load_classifier(checkpoint: Path):
    """Return a sequence classifier and its codec.

    Raises:
        UserError: the checkpoint holds no trained classifier, or one that says something else than classes.
    """
    model, codec, task = load_finetuned(checkpoint)
    if task != "classes":
        raise UserError(
            f"checkpoint: {checkpoint} gives {SAYS[task]}, not one class for a sequence; pass a classifier "
            "that finetune wrote for task classes"
        )
    return model, codec
