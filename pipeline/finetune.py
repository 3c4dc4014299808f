"""The stage that turns a language model into a sequence classifier, and says what pretraining gave."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import FinetuneConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.corpus import check_alphabet, classes, load_corpus

if TYPE_CHECKING:
    from pipeline.tokens.kmers import Codec
    from pipeline.training.evaluation import Evaluation

WORK = "trainer"
CLUSTER = "cluster"  # column that prepare writes


# -- what is refused


def _check(config: FinetuneConfig, splits) -> None:
    """Refuse a corpus that lacks a split or a column that is asked for."""
    if "train" not in splits or not {"validation", "test"} & set(splits):
        raise UserError(
            f"data: {config.data} has only {', '.join(splits)}; prepare it with train, and test or validation"
        )
    known = splits["train"].column_names
    for key in ("group_column", "reference_column", "cluster_column"):
        column = getattr(config, key)
        if column and column not in known:
            raise UserError(
                f"{key}: {column!r} is no column of {config.data}; its columns: {', '.join(known)}"
            )
    if config.reference_column:
        values = splits[_scored(splits)][config.reference_column]
        if not all(isinstance(value, int | float) for value in values):
            raise UserError(
                f"reference_column: {config.reference_column!r} of {config.data} is not a number in every row"
            )


def _check_classes(config: FinetuneConfig, splits, names: list[str]) -> None:
    """Refuse classes that cannot be learnt, and a choice by what is undefined."""
    found = {name: set(split["label"]) for name, split in splits.items()}
    unseen = [name for i, name in enumerate(names) if i not in found["train"]]
    if unseen or len(names) < 2:
        what = f"no row of class {unseen[0]!r}" if unseen else f"no class but {names[0]!r}"
        raise UserError(
            f"data: {config.data} has {what} in its train split; prepare it with rows of both kinds"
        )
    if config.best_by != "loss" and len(found.get("validation", ())) < len(names):
        raise UserError(
            f"best_by: {config.best_by} needs validation rows of every class, which {config.data} lacks; "
            "pass --best-by loss, or prepare it with a larger validation split"
        )


def _scored(splits) -> str:
    """Return the split that the figures are of."""
    return "test" if "test" in splits else "validation"


# -- training and what the trained networks say


@dataclass(frozen=True)
class _Trained:
    """A classifier, its probabilities (N, C) of validation and scored rows, and its temperature."""

    model: Any
    scores: dict[str, np.ndarray]
    temperature: float


def _train(
    config: FinetuneConfig, evaluation: "Evaluation", splits, codec: "Codec", folder: Path, pretrained: bool
) -> _Trained:
    """Return a trained network, calibrated on validation rows."""
    from pipeline.training.classifier import calibrate, check_lengths, softmax
    from pipeline.training.metrics import temperature
    from pipeline.training.tuning import fit, new_model

    say("from the checkpoint" if pretrained else "control: the same network from random weights")
    model = new_model(config, evaluation.names, codec, pretrained)
    for split in splits.values():
        records = list(zip(split["id"], split["sequence"], strict=True))
        check_lengths(records, codec, model.config.max_position_embeddings)
    fit(config, model, codec, splits, folder)
    divisor = 1.0
    if "validation" in splits:
        logits_NC = _logits(config, model, codec, splits["validation"])
        divisor = temperature(logits_NC, evaluation.labels["validation"])
        calibrate(model, divisor)
    logits = {split: _logits(config, model, codec, splits[split]) for split in evaluation.labels}
    return _Trained(model, {split: softmax(logits_NC) for split, logits_NC in logits.items()}, divisor)


def _logits(config: FinetuneConfig, model, codec: "Codec", rows) -> np.ndarray:
    from pipeline.training.classifier import class_logits

    logits_NC = class_logits(model, codec, list(rows["sequence"]), 256).astype(float)
    if not np.isfinite(logits_NC).all():
        raise UserError(
            f"learning_rate: {config.learning_rate}: training diverged, the scores are no numbers; "
            "pass a smaller --learning-rate"
        )
    return logits_NC


def _decide(config: FinetuneConfig, ours: _Trained, evaluation: "Evaluation") -> bool:
    """Write into the model's config how it calls classes; return whether it calls but one of them.

    Raises:
        UserError: it does, and ``allow_collapse`` is false.
    """
    from pipeline.training.classifier import called
    from pipeline.training.metrics import one_class

    decision = {"temperature": ours.temperature, "positive": evaluation.names[evaluation.positive]}
    if len(evaluation.names) == 2:
        decision["threshold"] = evaluation.threshold(ours.scores)
    ours.model.config.decision = decision
    for split, labels_N in evaluation.labels.items():
        scores_NC = ours.scores[split]
        called_N = called(ours.model, scores_NC)
        only = one_class(labels_N, scores_NC, called_N, config.seed)
        if only is not None:
            what = f"the classifier calls every {split} sequence {evaluation.names[only]!r}"
            if len(np.unique(called_N)) > 1:
                what += " at a threshold of 0.5, and is no better than chance at the one it has"
            if not config.allow_collapse:
                raise UserError(
                    f"training collapsed: {what}; pass another --learning-rate, more --epochs, or "
                    "--allow-collapse true to keep it"
                )
            say(f"warning: training collapsed: {what}")
            return True
    return False


def _rivals(config: FinetuneConfig, evaluation: "Evaluation", splits, codec: "Codec", folder: Path):
    """Return each control's probabilities (N, C) by split, and why others are left out."""
    from pipeline.training.classifier import softmax
    from pipeline.training.controls import Rows, control_logits, why_not

    found, left_out = {}, {}
    if config.untrained_control:
        found["untrained"] = _train(config, evaluation, splits, codec, folder, pretrained=False).scores
    rows = {
        name: Rows([codec.codes(s) for s in splits[name]["sequence"]], np.array(splits[name]["label"]))
        for name in ("train", *evaluation.labels)
    }
    for name in config.controls:
        if reason := why_not(name, codec, rows):
            left_out[name] = reason
            say(f"control {name} is left out: {reason}")
            continue
        say(f"control: {name}")
        logits = control_logits(name, codec, rows, config.seed)
        found[name] = {split: softmax(logits_NC.astype(float)) for split, logits_NC in logits.items()}
    return found, left_out


# -- the stage


def _write_scores(path: Path, test, names: list[str], scores: dict[str, np.ndarray], groups) -> None:
    import pandas as pd

    columns = {
        "id": list(test["id"]),
        "label": [names[label] for label in test["label"]],
        "group": groups,
        "reference": scores.get("optimum"),
        "score": scores["value"],
    }
    columns |= {f"score_{name}": score for name, score in scores.items() if name not in ("value", "optimum")}
    table = pd.DataFrame({name: values for name, values in columns.items() if values is not None})
    table.to_csv(path, sep="\t", index=False, float_format="%.6g")


def _evaluation(config: FinetuneConfig, splits, names: list[str], positive: int) -> "Evaluation":
    """Return what classifiers are judged by."""
    from pipeline.training.evaluation import Evaluation

    scored = _scored(splits)
    labels = {name: np.array(splits[name]["label"]) for name in ("validation", scored) if name in splits}
    column = config.cluster_column or CLUSTER
    known = column in splits[scored].column_names
    cluster_N = np.array([str(value) for value in splits[scored][column]]) if known else None
    return Evaluation(labels, scored, names, positive, cluster_N, config.seed)


def _train_all(config: FinetuneConfig, evaluation: "Evaluation", splits, codec: "Codec", folder: Path):
    """Return the trained classifier and the object for metrics.json; write scores.tsv into ``folder``."""
    from pipeline.training.evaluation import in_lines

    ours = _train(config, evaluation, splits, codec, folder / WORK, pretrained=True)
    collapsed = _decide(config, ours, evaluation)
    rivals, left_out = _rivals(config, evaluation, splits, codec, folder / WORK)
    metrics = {
        **evaluation.figures(ours.scores, ours.temperature, rivals),
        **_score(config, evaluation, splits[evaluation.scored], {"value": ours.scores, **rivals}, folder),
        "majority": evaluation.majority(np.array(splits["train"]["label"])),
        "controls_left_out": left_out,
        "collapsed": collapsed,
    }
    for line in in_lines(metrics, evaluation.scored):
        say(line)
    return ours.model, metrics


def _score(config: FinetuneConfig, evaluation: "Evaluation", rows, probabilities, folder: Path):
    """Write scores.tsv; return the areas of the network, of its control and of the best score."""
    from pipeline.training.evaluation import areas

    scores = {name: by[evaluation.scored][:, evaluation.positive] for name, by in probabilities.items()}
    if config.reference_column:
        scores["optimum"] = np.array(rows[config.reference_column])
    groups = list(rows[config.group_column]) if config.group_column else None
    _write_scores(folder / "scores.tsv", rows, evaluation.names, scores, groups)
    columns = {name: scores[name] for name in ("value", "untrained", "optimum") if name in scores}
    return areas(evaluation.is_positive, columns, None if groups is None else np.array(groups))


def _build(config: FinetuneConfig, workspace: Workspace, splits, names: list[str], positive: int) -> None:
    import transformers

    from pipeline.tokens.kmers import codec_of
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
    from pipeline.training.classifier import check_checkpoint

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    check_checkpoint(config.checkpoint, "pretrain")
    codec = codec_of(config.checkpoint)
    check_alphabet(config.data, codec.alphabet, config.checkpoint)
    evaluation = _evaluation(config, splits, names, positive)
    model, metrics = _train_all(config, evaluation, splits, codec, workspace.path)
    if evaluation.scored == "validation":
        say(
            "warning: there is no test split; these rows also chose the epoch, the temperature and the "
            "threshold, so the figures flatter"
        )

    model.save_pretrained(workspace.path)
    save_tokenizer(load_tokenizer(config.checkpoint), workspace.path)
    workspace.counts[evaluation.scored] = {"rows": len(splits[evaluation.scored])}
    workspace.write_json("metrics.json", {f"{names[positive]}_auroc": metrics})


def run(config: FinetuneConfig) -> Result:
    """Train the classifier and its controls; write the checkpoint, scores.tsv and metrics.json.

    The logits of the checkpoint are calibrated: their last layer is divided by a temperature chosen on
    validation. Its config says under ``decision`` which threshold calls the positive class.
    """
    splits = load_corpus(config.data)
    _check(config, splits)
    names, positive = classes(splits["train"], config.data, config.positive)
    _check_classes(config, splits, names)
    return produce(
        "finetune",
        config,
        {"checkpoint": config.checkpoint, "data": config.data},
        lambda workspace: _build(config, workspace, splits, names, positive),
    )


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="finetune")
