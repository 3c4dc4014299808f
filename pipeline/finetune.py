"""The stage that turns a language model into a sequence classifier, and says what pretraining gave."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import FinetuneConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.corpus import check_alphabet, classes, load_corpus

if TYPE_CHECKING:
    import numpy as np

    from pipeline.tokens.kmers import Codec

WORK = "trainer"


def _new_model(config: FinetuneConfig, names: list[str], codec: "Codec", pretrained: bool):
    """Return a classifier with the checkpoint's encoder, or with the same network from random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from pipeline.model import StrandForSequenceClassification
    from pipeline.training.initialise import fresh

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


def _fit(config: FinetuneConfig, model, codec: "Codec", splits, folder: Path):
    """Train with transformers' Trainer; return the model as it was when validation loss was lowest."""
    import torch
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from pipeline.training.classifier import encode, pad

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
        metric_for_best_model="eval_loss",
        greater_is_better=False,
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
        callbacks=[_progress_lines()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    shutil.rmtree(folder, ignore_errors=True)
    return model.eval()


def _progress_lines():
    from transformers import TrainerCallback

    class Lines(TrainerCallback):
        """Say how training goes, once for each epoch."""

        def on_evaluate(self, args, state, control, metrics: dict[str, float], **_):
            loss = metrics["eval_loss"]
            say(f"epoch {state.epoch:g} of {args.num_train_epochs:g}: validation loss {loss:.4f}")

    return Lines()


def _auroc(positive, score) -> float | None:
    """Return the area under the ROC curve, or None where one class is absent."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, score)) if 0 < sum(positive) < len(positive) else None


def _areas(positive: "np.ndarray", scores: dict[str, "np.ndarray"]) -> dict[str, float | None]:
    return {name: _auroc(positive, score) for name, score in scores.items()}


def _metrics(positive: "np.ndarray", scores: dict[str, "np.ndarray"], groups) -> dict[str, Any]:
    """Return the object for metrics.json: areas overall and by group, and figures at a threshold of 0.5."""
    import numpy as np
    from sklearn.metrics import accuracy_score, average_precision_score, matthews_corrcoef

    called = scores["value"] > 0.5
    if called.all() or not called.any():
        say("warning: the classifier calls every test sequence the same")
    result: dict[str, Any] = {
        **_areas(positive, scores),
        "auprc": float(average_precision_score(positive, scores["value"])) if positive.any() else None,
        "accuracy": float(accuracy_score(positive, called)),
        "mcc": float(matthews_corrcoef(positive, called)),
        "n_positive": int(positive.sum()),
        "n_negative": int((~positive).sum()),
    }
    if groups is not None:
        result["by_group"] = {}
        for group in sorted(set(np.asarray(groups)[~positive])):
            chosen = positive | (np.asarray(groups) == group)
            areas = _areas(positive[chosen], {name: score[chosen] for name, score in scores.items()})
            result["by_group"][str(group)] = {**areas, "n": int((~positive[chosen]).sum())}
    return result


def _check(config: FinetuneConfig, splits) -> None:
    """Refuse a corpus that lacks a split or a column that is asked for."""
    if "train" not in splits or not {"validation", "test"} & set(splits):
        raise UserError(
            f"data: {config.data} has only {', '.join(splits)}; prepare it with train, and test or validation"
        )
    known = splits["train"].column_names
    for key in ("group_column", "reference_column"):
        column = getattr(config, key)
        if column and column not in known:
            raise UserError(
                f"{key}: {column!r} is no column of {config.data}; its columns: {', '.join(known)}"
            )
    if config.reference_column:
        values = _scored(splits)[config.reference_column]
        if not all(isinstance(value, int | float) for value in values):
            raise UserError(
                f"reference_column: {config.reference_column!r} of {config.data} is not a number in every row"
            )


def _scored(splits):
    """Return the rows that the figures are of."""
    return splits["test" if "test" in splits else "validation"]


def _train_all(config: FinetuneConfig, splits, names: list[str], codec: "Codec", folder: Path):
    """Return the classifier, and the logits (N, C) of the scored rows by it and by its control."""
    from pipeline.training.classifier import check_lengths, class_logits

    kinds = {"value": "from the checkpoint"}
    if config.untrained_control:
        kinds["untrained"] = "control: the same network from random weights"
    models, logits = {}, {}
    for kind, text in kinds.items():
        say(text)
        models[kind] = _new_model(config, names, codec, pretrained=kind == "value")
        for split in splits.values():
            records = list(zip(split["id"], split["sequence"], strict=True))
            check_lengths(records, codec, models[kind].config.max_position_embeddings)
        _fit(config, models[kind], codec, splits, folder)
        logits[kind] = class_logits(models[kind], codec, list(_scored(splits)["sequence"]), 256)
    return models["value"], logits


def _write_scores(path: Path, test, names: list[str], scores: dict[str, "np.ndarray"], groups) -> None:
    import pandas as pd

    columns = {
        "id": list(test["id"]),
        "label": [names[label] for label in test["label"]],
        "group": groups,
        "reference": scores.get("optimum"),
        "score": scores["value"],
        "score_untrained": scores.get("untrained"),
    }
    table = pd.DataFrame({name: values for name, values in columns.items() if values is not None})
    table.to_csv(path, sep="\t", index=False, float_format="%.6g")


def _build(config: FinetuneConfig, workspace: Workspace, splits, names: list[str], positive: int) -> None:
    import numpy as np
    import transformers

    from pipeline.tokens.kmers import codec_of
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
    from pipeline.training.classifier import check_checkpoint, softmax

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    check_checkpoint(config.checkpoint, "pretrain")
    codec = codec_of(config.checkpoint)
    check_alphabet(config.data, codec.alphabet, config.checkpoint)
    model, logits = _train_all(config, splits, names, codec, workspace.path / WORK)
    test, split = _scored(splits), "test" if "test" in splits else "validation"
    scores = {kind: softmax(logits_NC)[:, positive] for kind, logits_NC in logits.items()}
    if config.reference_column:
        scores["optimum"] = np.array(test[config.reference_column])
    groups = list(test[config.group_column]) if config.group_column else None
    metrics = _metrics(np.array(test["label"]) == positive, scores, groups)
    metrics["positive"] = names[positive]
    figures = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items() if isinstance(value, float))
    say(f"{names[positive]} on the {split} split: {figures}")
    if split == "validation":
        say("warning: there is no test split; these rows also chose the epoch, so the figures flatter")

    _write_scores(workspace.path / "scores.tsv", test, names, scores, groups)
    model.save_pretrained(workspace.path)
    tokenizer = load_tokenizer(config.checkpoint)
    save_tokenizer(tokenizer, workspace.path)
    workspace.counts[split] = {"rows": len(test)}
    workspace.write_json("metrics.json", {f"{names[positive]}_auroc": metrics})


def run(config: FinetuneConfig) -> Result:
    """Train the classifier and its control; write the checkpoint, scores.tsv and metrics.json."""
    splits = load_corpus(config.data)
    _check(config, splits)
    names, positive = classes(splits["train"], config.data, config.positive)
    return produce(
        "finetune",
        config,
        {"checkpoint": config.checkpoint, "data": config.data},
        lambda workspace: _build(config, workspace, splits, names, positive),
    )


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="finetune")
