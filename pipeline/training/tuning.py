"""A classifier made of a checkpoint, and trained with transformers' Trainer."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from pipeline.config import FinetuneConfig
from pipeline.log import say
from pipeline.model import StrandForSequenceClassification
from pipeline.tokens.kmers import Codec
from pipeline.training.classifier import encode, pad, softmax
from pipeline.training.initialise import fresh
from pipeline.training.metrics import among_all, measure


def new_model(config: FinetuneConfig, names: list[str], codec: Codec, pretrained: bool):
    """Return a classifier with the checkpoint's encoder, or with the same network from random weights."""
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    settings = {**labels, "classifier_pooling": config.pooling}
    if not pretrained:
        shape = AutoConfig.from_pretrained(config.checkpoint.absolute(), **settings)
        return fresh(StrandForSequenceClassification, shape, codec, config.seed)
    torch.manual_seed(config.seed)
    return AutoModelForSequenceClassification.from_pretrained(
        config.checkpoint.absolute(),
        dtype=torch.float32,
        # A classifier of other classes keeps its encoder and gets a new last layer.
        ignore_mismatched_sizes=True,
        **settings,
    )


def fit(config: FinetuneConfig, model, codec: Codec, splits, folder: Path):
    """Train with transformers' Trainer; return the model as it was when it validated best."""

    def rows(name: str) -> list[dict[str, Any]]:
        pairs = zip(splits[name]["sequence"], splits[name]["label"], strict=True)
        return [{"ids": encode(sequence, codec), "label": label} for sequence, label in pairs]

    def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        labels = torch.tensor([example["label"] for example in examples])
        return {**pad([example["ids"] for example in examples], codec), "labels": labels}

    model.get_input_embeddings().weight.requires_grad_(not config.freeze_embeddings)
    train = rows("train")
    validate = "validation" in splits
    steps = config.epochs * -(-len(train) // config.batch_size)
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=256,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        warmup_steps=round(config.warmup * steps),
        lr_scheduler_type="cosine",
        eval_strategy="epoch" if validate else "no",
        save_strategy="epoch" if validate else "no",
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=validate,
        metric_for_best_model=f"eval_{config.best_by}",
        greater_is_better=config.best_by != "loss",
        optim="adamw_torch_fused",
        seed=config.seed,
        data_seed=config.seed,
        use_cpu=not (torch.cuda.is_available() or torch.backends.mps.is_available()),
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train,  # type: ignore[arg-type]  a list of rows is a data set
        eval_dataset=rows("validation") if validate else None,  # type: ignore[arg-type]
        data_collator=collate,
        compute_metrics=_validate,
        callbacks=[_Lines()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    shutil.rmtree(folder, ignore_errors=True)
    return model.eval()


def _validate(prediction) -> dict[str, float]:
    """Return MCC and AUROC of validation rows (of more than two classes: over all of them)."""
    judged = among_all(prediction.label_ids, softmax(prediction.predictions.astype(float)))
    found = measure(judged, np.ones((1, len(judged.labels))))
    return {name: float(found[name][0]) for name in ("mcc", "auroc")}


class _Lines(TrainerCallback):
    """Say how training goes, once for each epoch."""

    def on_evaluate(self, args, state, control, metrics: dict[str, float], **_):
        epoch = f"epoch {state.epoch:g} of {args.num_train_epochs:g}"
        mcc = "" if np.isnan(metrics["eval_mcc"]) else f", MCC {metrics['eval_mcc']:.3f}"
        say(f"{epoch}: validation loss {metrics['eval_loss']:.4f}{mcc}")
