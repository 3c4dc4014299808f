"""A classifier made of a checkpoint, and trained with transformers' Trainer.

Shapes: N rows, C classes.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from pipeline.artifacts import read_manifest
from pipeline.config import FinetuneConfig, MaskingConfig
from pipeline.errors import UserError
from pipeline.keyed import integers, keys, words
from pipeline.log import say
from pipeline.model import StrandForSequenceClassification, StrandForTokenClassification
from pipeline.model.attention_strand import fastest_attention
from pipeline.sequences.alphabets import reverse_complement
from pipeline.tokens.kmers import Codec, TokenBatch
from pipeline.tokens.masking import mask_batch
from pipeline.training.classifier import enough_memory, pad, softmax
from pipeline.training.initialise import fresh
from pipeline.training.metrics import among_all, measure
from pipeline.training.tasks import PROBLEMS, stack
from pipeline.training.weights import load_weights

ENCODER = "model."  # what the names of the encoder's parameters begin with; all others are the head's
EPOCHS, STEPS = 4, 500
STRANDS, MASKS = range(2)  # what is drawn


def new_model(config: FinetuneConfig, names: list[str], codec: Codec, pretrained: bool):
    """Return a classifier with the checkpoint's encoder, or with the same network from random weights.

    ``names`` are the classes; of other tasks what the logits are of (``pipeline.training.tasks``).
    """
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    settings: dict[str, Any] = {**labels, "classifier_pooling": config.pooling}
    settings["problem_type"] = PROBLEMS.get(config.task)
    letters = config.task == "letters"
    if config.dropout is not None:
        settings["hidden_dropout"] = config.dropout
    if config.pooling == "attention":
        settings["framing_token_ids"] = [codec.special("cls"), codec.special("eos")]
    if not pretrained:
        shape = AutoConfig.from_pretrained(config.checkpoint.absolute(), **settings)
        kind = StrandForTokenClassification if letters else StrandForSequenceClassification
        return fresh(kind, shape, codec, config.seed)
    torch.manual_seed(config.seed)
    auto = AutoModelForTokenClassification if letters else AutoModelForSequenceClassification
    # A classifier of other classes keeps its encoder and gets a new last layer.
    settings |= {"dtype": torch.float32, "ignore_mismatched_sizes": True}
    return load_weights(auto, config.checkpoint, **settings)[0]


def fit(config: FinetuneConfig, model, codec: Codec, splits, folder: Path):
    """Train with transformers' Trainer; return the model as it was when it validated best.

    Similar lengths are together in a batch. Without a validation split the last weights are returned.

    Args:
        config: settings of the stage.
        model: what ``new_model`` returned; it is changed in place.
        codec: codec of its tokenizer.
        splits: rows with columns ``sequence`` and ``label``, as train and, if there is one, as validation.
        folder: where the Trainer works; it is deleted in the end.

    Raises:
        UserError: a setting does not go with the rows, or with another one.
    """
    _check(config, codec, splits)
    train = Rows(splits["train"], codec, config.seed, config.hide, config.reverse_complement)
    validation = Rows(splits["validation"], codec) if "validation" in splits else None
    with _adapted(config, model):
        trainer = Trainer(
            model=model,
            args=_arguments(config, train, validation, folder),
            train_dataset=train,
            eval_dataset=validation,
            data_collator=lambda rows: _collate(rows, codec),
            compute_metrics=_validate if config.task == "classes" else None,
            compute_loss_func=_loss(config, train.labels),
            optimizers=(_optimizer(config, model), None),
            callbacks=_callbacks(config),
        )
        trainer.remove_callback(PrinterCallback)
        with enough_memory(config.batch_size):
            trainer.train()
    shutil.rmtree(folder, ignore_errors=True)
    return model.eval()


def _check(config: FinetuneConfig, codec: Codec, splits) -> None:
    """Refuse what the rows, or other settings, do not allow."""
    if config.patience and "validation" not in splits:
        raise UserError(
            f"patience: {config.data} has no validation split that could get better; prepare it with one, "
            "or pass --patience 0"
        )
    if config.dropout and config.adapt == "head":
        raise UserError("dropout: a frozen encoder drops nothing; leave it out, or pass --adapt full or lora")
    if not config.reverse_complement:
        return
    if codec.alphabet != "dna":
        raise UserError("reverse_complement: proteins have no other strand; pass --reverse-complement false")
    if not read_manifest(config.data)["config"]["strandless"]:
        raise UserError(
            f"reverse_complement: the labels of {config.data} may be those of one strand; prepare it with "
            "--strandless true if they are of both, or pass --reverse-complement false"
        )


# -- rows


class Rows(Dataset):
    """Labelled sequences as framed ids, encoded once; what is shown of them may differ from epoch to epoch.

    Args:
        rows: with columns ``sequence`` and ``label``.
        codec: codec of the tokenizer.
        seed: of what is drawn; every draw is a function of it, the epoch and the row.
        hide: share of the letters that are masked, in runs as in pretraining; others are for each epoch.
        both_strands: show each row as its reverse complement in half of the epochs, by chance.
    """

    def __init__(self, rows, codec: Codec, seed: int = 0, hide: float = 0.0, both_strands: bool = False):
        texts = list(rows["sequence"])
        strands = [texts, [reverse_complement(text) for text in texts]] if both_strands else [texts]
        self.strands = [codec.batch([codec.codes(text) for text in strand]) for strand in strands]
        self.labels, self.codec, self.seed = list(rows["label"]), codec, seed
        self.masking = MaskingConfig(fraction=hide, replace=0, keep=0) if hide else None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose what is shown in an epoch; the Trainer says when one begins."""
        row_N = np.arange(len(self))
        self.strand_N = integers(words(keys(STRANDS, self.seed, epoch, row_N), 0), len(self.strands))
        self.shown = [self._masked(strand, keys(MASKS, self.seed, epoch, row_N)) for strand in self.strands]

    def _masked(self, strand: TokenBatch, key_N: np.ndarray) -> list[np.ndarray]:
        ids = strand.ids if self.masking is None else mask_batch(strand, self.codec, self.masking, key_N).ids
        return np.split(ids, strand.offsets[1:-1])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": self.shown[self.strand_N[row]][row], "label": self.labels[row]}

    def vary(self) -> bool:
        """Whether some are longer than others."""
        return len({length for strand in self.strands for length in np.diff(strand.offsets).tolist()}) > 1


def _collate(rows: Sequence[dict[str, Any]], codec: Codec) -> dict[str, torch.Tensor]:
    labels = stack([row["label"] for row in rows])
    return {**pad([row["input_ids"] for row in rows], codec), "labels": labels}


# -- how training goes


def _epochs(config: FinetuneConfig, per_epoch: int) -> float:
    """Return how often rows are read that make so many steps: small sets need more than a few epochs.

    Mosbach et al. 2021, arXiv:2006.04884.
    """
    return config.epochs or max(EPOCHS, -(-STEPS // per_epoch))


def _arguments(
    config: FinetuneConfig, train: Rows, validation: Rows | None, folder: Path
) -> TrainingArguments:
    per_epoch = -(-len(train) // config.batch_size)
    epochs = _epochs(config, per_epoch)
    when = "no" if validation is None else "epoch"
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=256,
        train_sampling_strategy="group_by_length" if train.vary() else "random",
        learning_rate=config.learning_rate,
        warmup_steps=round(config.warmup * epochs * per_epoch),
        lr_scheduler_type="cosine",
        # A frozen encoder has no backward pass, and would be given one.
        activation_checkpointing=config.gradient_checkpointing and config.adapt != "head",
        eval_strategy=when,
        save_strategy=when,
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=validation is not None,
        metric_for_best_model=f"eval_{config.best_by}",
        greater_is_better=config.best_by != "loss",
        seed=config.seed,
        data_seed=config.seed,
        use_cpu=not (torch.cuda.is_available() or torch.backends.mps.is_available()),
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )


def _optimizer(config: FinetuneConfig, model) -> torch.optim.Optimizer:
    """Return AdamW, its rates by depth (Clark et al. 2020, arXiv:2003.10555); only matrices of layers decay.

    The head and the last norm have the full rate, the top layer ``layer_decay`` times that, and so on down to
    the token table.
    """
    groups: dict[tuple[int, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and not name.startswith(f"{ENCODER}embedding")
            key = _depth(name, model.config.num_hidden_layers), decays
            groups.setdefault(key, []).append(parameter)
    settings = [
        {
            "params": parameters,
            "lr": config.learning_rate * config.layer_decay**depth,
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (depth, decays), parameters in groups.items()
    ]
    return torch.optim.AdamW(settings, lr=config.learning_rate, fused=True)


def _depth(name: str, layers: int) -> int:
    """Return how far down a parameter is: 0 for the head, 1 for the top layer, layers + 1 for tokens."""
    if name.startswith(f"{ENCODER}embedding"):
        return layers + 1
    parts = name.split(".")
    return layers - int(parts[2]) if name.startswith(f"{ENCODER}layers.") else 0


def _loss(config: FinetuneConfig, labels: Sequence[int]):
    """Return the cross-entropy in which every class has the same weight in all rows together, or None."""
    if config.class_weights == "none":
        return None
    counts_C = torch.bincount(torch.tensor(labels)).float()
    weight_C = len(labels) / (len(counts_C) * counts_C)
    said = ", ".join(f"{weight:.3g}" for weight in weight_C.tolist())
    say(f"weights of the classes in the loss: {said}")

    def weighted(outputs, labels_B, **_) -> torch.Tensor:
        logits_BC = outputs.logits
        return torch.nn.functional.cross_entropy(logits_BC, labels_B, weight_C.to(logits_BC))

    return weighted


def _callbacks(config: FinetuneConfig) -> list[TrainerCallback]:
    lines: list[TrainerCallback] = [_Lines()]
    return [*lines, EarlyStoppingCallback(config.patience)] if config.patience else lines


def _validate(prediction) -> dict[str, float]:
    """Return MCC and AUROC of validation rows (of more than two classes: over all of them)."""
    judged = among_all(prediction.label_ids, softmax(prediction.predictions.astype(float)))
    found = measure(judged, np.ones((1, len(judged.labels))))
    return {name: float(found[name][0]) for name in ("mcc", "auroc")}


class _Lines(TrainerCallback):
    """Say how training goes, once for each epoch."""

    def on_evaluate(self, args, state, control, metrics: dict[str, float], **_):
        epoch = f"epoch {state.epoch:g} of {args.num_train_epochs:g}"
        value = metrics.get("eval_mcc", np.nan)
        mcc = "" if np.isnan(value) else f", MCC {value:.3f}"
        say(f"{epoch}: validation loss {metrics['eval_loss']:.4f}{mcc}")

    def on_train_end(self, args, state, control, **_):
        if state.global_step < state.max_steps:
            say(f"epoch {state.epoch:g} is the last: validation got no better (patience)")


# -- what is trained


@contextmanager
def _adapted(config: FinetuneConfig, model) -> Iterator[None]:
    """Leave those parameters trainable that are to be trained; in the end it is an ordinary network again."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(config.adapt == "full" or not name.startswith(ENCODER))
    if config.adapt == "full":
        model.get_input_embeddings().weight.requires_grad_(not config.freeze_embeddings)
    usual = model.config._attn_implementation
    if not model.config.attention_dropout:
        model.set_attn_implementation(fastest_attention(model.device, model.dtype, training=True))
    with _low_rank(config, model), _still(config, model):
        yield
    model.set_attn_implementation(usual)


@contextmanager
def _low_rank(config: FinetuneConfig, model) -> Iterator[None]:
    """Add low-rank updates to the layers' matrices (Hu et al. 2022, arXiv:2106.09685); merge them after."""
    if config.adapt != "lora":
        yield
        return
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel

    head = [parameter for name, parameter in model.named_parameters() if not name.startswith(ENCODER)]
    modules = model.model.layers.named_modules(prefix=f"{ENCODER}layers")
    settings = LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,  # type: ignore[arg-type]  a real number serves as well
        lora_dropout=config.lora.dropout,
        target_modules=[name for name, module in modules if isinstance(module, torch.nn.Linear)],
    )
    tuner = LoraModel(model, settings, "default")
    for parameter in head:
        parameter.requires_grad_(True)
    yield
    tuner.merge_and_unload()


@contextmanager
def _still(config: FinetuneConfig, model) -> Iterator[None]:
    """Keep a frozen encoder in evaluation mode; the Trainer puts all into training mode at every step."""
    if config.adapt != "head":
        yield
        return
    hook = model.model.register_forward_pre_hook(lambda encoder, _: encoder.eval() and None)
    yield
    hook.remove()
