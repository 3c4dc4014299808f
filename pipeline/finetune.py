"""The stage that turns a language model into a sequence classifier, and says what pretraining gave."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, key_of, produce, read_manifest
from pipeline.config import FinetuneConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.report.card import CARD, write_card
from pipeline.sequences.corpus import check_alphabet, classes, load_corpus, window_facts

if TYPE_CHECKING:
    from pipeline.tokens.kmers import Codec
    from pipeline.training.evaluation import Evaluation, Predicted
    from pipeline.training.folds import Division
    from pipeline.training.runs import Done, Runs
    from pipeline.training.tasks import Labels, Letters, Values

WORK, OLD = "runs", "runs.old"
EMPTY = "(empty)"  # group of rows without one


# -- what is refused


def _check(config: FinetuneConfig, splits) -> None:
    """Refuse a corpus that lacks a split or a column that is asked for."""
    if not config.folds and ("train" not in splits or not {"validation", "test"} & set(splits)):
        raise UserError(
            f"data: {config.data} has only {', '.join(splits)}; prepare it with train, and test or validation"
        )
    known = next(iter(splits.values())).column_names
    for key in ("group_column", "reference_column", "cluster_column"):
        column = getattr(config, key)
        if column and column not in known:
            raise UserError(
                f"{key}: {column!r} is no column of {config.data}; its columns: {', '.join(known)}"
            )


def _check_rows(config: FinetuneConfig, division: "Division", names: list[str]) -> None:
    """Refuse classes that some run could not learn, a choice by what is undefined, and a bad reference."""
    for fold in division.folds:
        _check_classes(config, division.of(fold), names, fold)
    if config.reference_column:
        values = division.rows[config.reference_column]
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            raise UserError(
                f"reference_column: {config.reference_column!r} of {config.data} is not a number in every row"
            )


def _check_classes(config: FinetuneConfig, splits, names: list[str], fold: int | None) -> None:
    found = {name: set(split["label"][:]) for name, split in splits.items()}
    unseen = [name for i, name in enumerate(names) if i not in found["train"]]
    if unseen or len(names) < 2:
        what = f"no row of class {unseen[0]!r}" if unseen else f"no class but {names[0]!r}"
        if fold and unseen:
            raise UserError(
                f"folds: {config.folds}: with fold {fold} held out {config.data} has {what} to train on; "
                "pass fewer --folds, or another --fold-by"
            )
        raise UserError(
            f"data: {config.data} has {what} in its train split; prepare it with rows of both kinds"
        )
    if config.best_by != "loss" and len(found.get("validation", ())) < len(names):
        lacks = f"{config.data} lacks" + (f" for fold {fold}" if fold else "")
        raise UserError(
            f"best_by: {config.best_by} needs validation rows of every class, which {lacks}; "
            "pass --best-by loss, or prepare it with a larger validation split"
        )


def _facts(config: FinetuneConfig, division: "Division") -> dict[str, Any]:
    """Return what the classifier's config says of its rows.

    That is the bases of its windows, those before the start site, and whether labels are of both strands.

    Raises:
        UserError: the start site does not lie in every one of them.
    """
    lengths = {len(text) for text in division.learnt["sequence"][:]}
    start = window_facts(config.data)[1] if config.start_site is None else config.start_site
    if start is not None and start >= min(lengths):
        raise UserError(
            f"start_site: {start}: not in a window of {min(lengths)} bases; pass a smaller one, from 0"
        )
    facts: dict[str, Any] = {"strandless": read_manifest(config.data)["config"]["strandless"]}
    facts |= {"window": min(lengths)} if len(lengths) == 1 else {}
    return facts if start is None else facts | {"offset": start}


# -- what is judged


def _division(config: FinetuneConfig, splits) -> "Division":
    from pipeline.training.folds import divide

    return divide(splits, config.data, config.folds, config.fold_by, config.seed, config.cluster_column)


def _evaluation(
    config: FinetuneConfig, division: "Division", names: list[str], positive: int
) -> "Evaluation":
    """Return what classifiers are judged by."""
    from pipeline.training.evaluation import Evaluation
    from pipeline.training.folds import clusters_of

    rows = division.rows
    cluster_N = clusters_of(rows, config.cluster_column)
    return Evaluation(np.array(rows["label"][:]), names, positive, cluster_N, config.seed, division.numbers)


def _metrics(runs: "Runs", done: "list[Done]", said: "dict[str, Predicted]") -> dict[str, Any]:
    """Return the object for metrics.json."""
    from pipeline.training.runs import best

    config, division, evaluation = runs.config, runs.division, runs.evaluation
    metrics = {
        **evaluation.figures(said["ours"], {name: each for name, each in said.items() if name != "ours"}),
        **_areas(config, evaluation, division.rows, said),
        "majority": evaluation.majority(np.array(division.learnt["label"][:])),
        "controls_left_out": {name: why for each in done for name, why in each.left_out.items()},
        "collapsed": any(each.collapsed for each in done),
    }
    if runs.others:
        metrics["other_negatives"] = {name: _others(runs, done, said, name) for name in runs.others}
    if len(done) > 1:
        kept = best(done, config.best_by)
        metrics["seeds"] = sorted({each.run.seed for each in done})
        metrics["checkpoint"] = {"seed": kept.run.seed, "validation": kept.validation}
    if config.folds:
        metrics |= {"folds": config.folds, "fold_by": config.fold_by}
        metrics["checkpoint"]["fold"] = kept.run.fold
    return metrics


def _areas(config: FinetuneConfig, evaluation: "Evaluation", rows, said: "dict[str, Predicted]"):
    """Return the areas of the network, of its control and of the best score, also by group."""
    from pipeline.training.evaluation import areas

    named = {"value": "ours", "untrained": "untrained"}
    columns = {
        name: [scores_NC[:, evaluation.positive] for scores_NC in said[which].scores]
        for name, which in named.items()
        if which in said
    }
    if config.reference_column:
        columns["optimum"] = [np.array(rows[config.reference_column])]
    group_N = None
    if config.group_column:
        group_N = np.array([EMPTY if value in (None, "") else value for value in rows[config.group_column]])
    return areas(evaluation.is_positive, columns, group_N, evaluation.parts)


def _others(runs: "Runs", done: "list[Done]", said: "dict[str, Predicted]", name: str) -> dict[str, Any]:
    """Return how ours and the controls tell the scored positives from other negatives."""
    cluster_M, found = runs.others[name].clusters, {}
    for which, scored in said.items():
        others = runs.predicted(done, which, name)
        if others is not None:
            found[which] = runs.evaluation.against(scored, others, cluster_M, runs.others[name].folds)
    return {"n": len(cluster_M), **found.pop("ours"), "controls": found}


# -- what is written


def _scores(runs: "Runs", said: "dict[str, Predicted]") -> Iterator[tuple[str, Any]]:
    """Yield the columns of scores.tsv: where there are several seeds, a score is the mean over them."""
    config, evaluation, rows = runs.config, runs.evaluation, runs.division.rows
    yield "id", list(rows["id"])
    if runs.division.numbers is not None:
        yield "fold", runs.division.numbers
    yield "label", [evaluation.names[label] for label in evaluation.labels]
    for name, column in (("group", config.group_column), ("reference", config.reference_column)):
        if column:
            yield name, list(rows[column])
    for which, predicted in said.items():
        score_SN = [scores_NC[:, evaluation.positive] for scores_NC in predicted.scores]
        column = "score" if which == "ours" else f"score_{which}"
        yield column, np.mean(score_SN, 0)
        if len(score_SN) > 1:
            yield from ((f"{column}_seed_{config.seed + s}", score_N) for s, score_N in enumerate(score_SN))


def _run_rows(runs: "Runs", done: "list[Done]", said: "dict[str, Predicted]") -> Iterator[dict[str, Any]]:
    """Yield the rows of runs.tsv: what each classifier of each run measures on what it was scored on."""
    from pipeline.training.metrics import measure

    fold_N, evaluation = runs.division.numbers, runs.evaluation
    for each in done:
        place_N = np.ones(len(evaluation.labels), bool) if fold_N is None else fold_N == each.run.fold
        for which in said:
            if which in each.answers:
                answers = each.answers[which]
                judged = evaluation.judged(
                    evaluation.labels[place_N], answers.scores[runs.division.scored], answers.threshold
                )
                measured = measure(judged, np.ones((1, len(judged.labels))))
                row: dict[str, Any] = {"seed": each.run.seed, "classifier": which, "rows": int(place_N.sum())}
                row |= {} if each.run.fold is None else {"fold": each.run.fold}
                row |= {"threshold": answers.threshold} if len(evaluation.names) == 2 else {}
                yield row | {name: value_R[0] for name, value_R in measured.items()}


def _write_table(path: Path, columns: Any) -> None:
    import pandas as pd

    pd.DataFrame(columns).to_csv(path, sep="\t", index=False, float_format="%.6g")


def _write(runs: "Runs", done: "list[Done]", workspace: Workspace) -> None:
    """Write scores.tsv, runs.tsv, metrics.json and the figures; say what they say."""
    from pipeline.report.classifier_figures import draw_classifier
    from pipeline.training.evaluation import in_lines

    evaluation, config = runs.evaluation, runs.config
    names = ("ours", "untrained", *config.controls)
    said = {name: each for name in names if (each := runs.predicted(done, name)) is not None}
    metrics = _metrics(runs, done, said)
    for line in in_lines(metrics, _what(runs)):
        say(line)
    key = f"{evaluation.names[evaluation.positive]}_auroc"
    workspace.write_json("metrics.json", {key: metrics})
    _write_table(workspace.path / "scores.tsv", dict(_scores(runs, said)))
    if len(done) > 1:
        _write_table(workspace.path / "runs.tsv", list(_run_rows(runs, done, said)))
    (workspace.path / "figures").mkdir(exist_ok=True)
    areas = {name: [s[:, evaluation.positive] for s in each.scores] for name, each in said.items()}
    for name, picture in draw_classifier(evaluation.is_positive, areas, metrics).items():
        (workspace.path / "figures" / f"{name}.svg").write_bytes(picture.content)


def _what(runs: "Runs") -> str:
    """Return in words what the figures are of."""
    if runs.division.numbers is None:
        return f"the {runs.division.scored} split"
    return f"the test rows of {len(runs.division.folds)} folds together"


def _keep(runs: "Runs", done: "list[Done]", workspace: Workspace) -> None:
    """Write the classifier that validated best, and say which it is."""
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
    from pipeline.training.runs import MODEL, best, place_of

    run = best(done, runs.config.best_by).run
    shutil.copytree(place_of(workspace.path / WORK, run) / MODEL, workspace.path, dirs_exist_ok=True)
    save_tokenizer(load_tokenizer(runs.config.checkpoint), workspace.path)
    if len(done) > 1:
        without = "" if run.fold is None else f", trained without fold {run.fold}"
        how = f"the best of {len(done)} by validation {runs.config.best_by}"
        if done[0].validation is None:
            how = f"the first of {len(done)}: there are no validation rows to choose by"
        say(f"the classifier that is kept is that of seed {run.seed}{without}: {how}")


def _codec(config: FinetuneConfig) -> "Codec":
    """Return the codec of the checkpoint's tokenizer; what transformers would print is ours to say."""
    import transformers

    from pipeline.tokens.kmers import codec_of
    from pipeline.training.classifier import check_checkpoint

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    check_checkpoint(config.checkpoint, "pretrain")
    codec = codec_of(config.checkpoint)
    check_alphabet(config.data, codec.alphabet, config.checkpoint)
    return codec


def _build(
    config: FinetuneConfig, workspace: Workspace, division: "Division", names: list[str], positive: int
) -> None:
    from pipeline.training.folds import in_words, shared_by_folds
    from pipeline.training.runs import Runs
    from pipeline.training.unseen import other_negatives

    codec = _codec(config)
    workspace.claim(key_of("finetune", config, workspace.inputs, besides=["allow_collapse"]))
    shutil.rmtree(workspace.path / OLD, ignore_errors=True)
    if division.numbers is not None:
        shared = shared_by_folds(division, codec.alphabet)
        workspace.counts["shared_by_folds"] = shared
        for line in in_words(division, names, shared):
            say(line)
    evaluation = _evaluation(config, division, names, positive)
    others = other_negatives(config, division, evaluation, codec)
    if counted := {name: each.counts for name, each in others.items() if each.counts}:
        workspace.counts["other_negatives"] = counted
    runs = Runs(config, division, evaluation, others, codec, _facts(config, division))
    done = runs.train(workspace.path / WORK)
    _write(runs, done, workspace)
    if division.scored == "validation":
        say(
            "warning: there is no test split; these rows also chose the epoch, the temperature and the "
            "threshold, so the figures flatter"
        )
    _keep(runs, done, workspace)
    workspace.counts[division.scored] = {"rows": len(division.rows)}
    if division.numbers is not None:
        workspace.counts["folds"] = division.counts(names)
    write_card(workspace, "finetune", config)
    (workspace.path / WORK).rename(workspace.path / OLD)
    shutil.rmtree(workspace.path / OLD)


# -- tasks other than classes


def _build_task(config: FinetuneConfig, workspace: Workspace, splits) -> None:
    """Train for values, labels or letters; write the checkpoint, scores.tsv and metrics.json."""
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
    from pipeline.training.runs import accept_collapse
    from pipeline.training.tasks import in_lines, simple_controls, task_of

    task = task_of(config, _codec(config), splits)
    model = _train_task(config, task, workspace, pretrained=True)
    said: dict[str, Any] = {"ours": task.predict(model)}
    if what := task.same(said["ours"]):
        accept_collapse(config, what)
    model.save_pretrained(workspace.path)
    save_tokenizer(load_tokenizer(config.checkpoint), workspace.path)
    if config.untrained_control:
        said["untrained"] = task.predict(_train_task(config, task, workspace, pretrained=False))
    said |= dict(simple_controls(task))
    metrics = task.judge(said)
    for line in in_lines(metrics):
        say(f"the {task.scored} split: {line}")
    workspace.write_json("metrics.json", metrics)
    ids = list(splits[task.scored]["id"])
    _write_table(workspace.path / "scores.tsv", {"id": ids, **dict(task.columns(said))})
    workspace.counts[task.scored] = task.counts()
    if task.scored == "validation":
        say("warning: there is no test split; these rows also chose the epoch, so the figures flatter")
    write_card(workspace, "finetune", config)


def _train_task(
    config: FinetuneConfig, task: "Values | Labels | Letters", workspace: Workspace, pretrained: bool
):
    """Return a network that learnt the task, from the checkpoint or from random weights."""
    from pipeline.training.classifier import check_lengths
    from pipeline.training.tuning import fit, new_model

    say("from the checkpoint" if pretrained else "control: the same network from random weights")
    model = new_model(config, task.names, task.codec, pretrained)
    for split in task.used:
        check_lengths(task.records(split), task.codec, model.config.max_position_embeddings)
    fit(config, model, task.codec, task.shown(), workspace.path / WORK)
    task.finish(model)
    return model


def run(config: FinetuneConfig) -> Result:
    """Train the classifier and its controls; write the checkpoint, scores.tsv, metrics.json and figures/.

    The logits of the checkpoint are calibrated: their last layer is divided by a temperature chosen on
    validation. Its config says under ``decision`` which threshold calls the positive class, how long the
    windows are that it was trained on, and where in them start sites are, as far as that is known.

    With several seeds or folds runs.tsv has the measures of each training; the figures are those of all rows
    together, each scored by networks that were not trained on it, and means over the seeds. Such a stage goes
    on after the last complete training where it was stopped.

    Tasks other than classes are learnt on the corpus's splits with one seed. There scores.tsv has truth and
    prediction of each target beside what controls say: values in the units of their columns, probabilities of
    labels, classes of letters as text. Every measure in metrics.json has its interval and its controls.
    """
    from pipeline.training.tasks import check_settings

    check_settings(config)
    splits = load_corpus(config.data)
    _check(config, splits)
    inputs = {"checkpoint": config.checkpoint, "data": config.data}
    if config.task != "classes":
        return produce(
            "finetune",
            config,
            inputs,
            lambda workspace: _build_task(config, workspace, splits),
            volatile=(CARD,),
        )
    names, positive = classes(next(iter(splits.values())), config.data, config.positive)
    if config.positive is None:
        say(f"positive: {names[positive]}, the last of {', '.join(names)}; --positive names another class")
    division = _division(config, splits)
    _check_rows(config, division, names)
    inputs |= {f"other_negatives {name}": path for name, path in config.other_negatives.items()}
    return produce(
        "finetune",
        config,
        inputs,
        lambda workspace: _build(config, workspace, division, names, positive),
        resumable=config.seeds > 1 or config.folds > 0,
        volatile=(CARD,),
    )


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="finetune")
