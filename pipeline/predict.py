"""The stage that scores sequences with a classifier, or scans a genome with it for start sites."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.artifacts import Result, Workspace, produce, read_manifest
from pipeline.config import PredictConfig
from pipeline.errors import UserError
from pipeline.log import say, track
from pipeline.settings.sections import ScanConfig

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.tokens.windows import Reading

CHUNK = 4096
OF_INPUT = ("sequence_column", "id_column", "long_sequences", "overlap")


# -- sequences


def _probabilities(model, codec, readings: "Sequence[Reading]", batch_size: int) -> np.ndarray:
    """Return the class probabilities (N, C) of records: means over their windows, NaN where there is none."""
    from pipeline.training.classifier import softmax, window_logits

    counts_N = np.array([len(reading.windows) for reading in readings])
    windows = [window for reading in readings for window in reading.windows]
    sums_NC = np.zeros((len(readings), model.config.num_labels))
    owner_W = np.repeat(np.arange(len(readings)), counts_N)
    np.add.at(sums_NC, owner_W, softmax(window_logits(model, codec, windows, batch_size)))
    return np.where(counts_N[:, None], sums_NC / np.maximum(counts_N, 1)[:, None], np.nan)


def _table(
    readings: "Sequence[Reading]",
    probabilities_NC: np.ndarray,
    names: list[str],
    calls: list[str],
    notes: bool,
) -> "pd.DataFrame":
    import pandas as pd

    table = pd.DataFrame(probabilities_NC, columns=pd.Index(names))
    table.insert(0, "id", [reading.name for reading in readings])
    table["label"] = [call if r.windows else "" for r, call in zip(readings, calls, strict=True)]
    if notes:
        table["note"] = [reading.note for reading in readings]
    return table


def _score_records(config: PredictConfig) -> Result:
    """Write scores.tsv."""

    def build(workspace: Workspace) -> None:
        import pandas as pd

        from pipeline.training.classifier import (
            called,
            class_names,
            enough_memory,
            load_classifier,
            load_records,
        )

        model, codec = load_classifier(config.checkpoint)
        records, context = load_records(config, model, codec)
        names = class_names(model)
        tables = []
        chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]
        with enough_memory(config.batch_size):
            for chunk in track(chunks, len(chunks), "predicting"):
                readings = [context.read(*record) for record in chunk]
                probabilities_NC = _probabilities(model, codec, readings, config.batch_size)
                calls = [names[i] for i in called(model, probabilities_NC)]
                notes = config.long_sequences != "error"
                tables.append(_table(readings, probabilities_NC, names, calls, notes))
        workspace.counts |= context.counts(len(records))
        scores = pd.concat(tables)
        scores.to_csv(workspace.path / "scores.tsv", sep="\t", index=False, float_format="%.6g")
        labels = scores["label"].tolist()
        workspace.counts["labels"] = {name: labels.count(name) for name in names}
        workspace.counts["scored"] = scored = sum(workspace.counts["labels"].values())
        say(f"{scored} sequences scored{context.summary()}: {config.output / 'scores.tsv'}")

    inputs = {"checkpoint": config.checkpoint, **{f"input{i}": path for i, path in enumerate(config.input)}}
    return produce("predict", config, inputs, build)


# -- a genome


def _inputs(config: PredictConfig) -> dict[str, Path]:
    """Return the files that a scan reads, by their keys."""
    scan = config.scan
    named = {"checkpoint": config.checkpoint, "genome": config.genome}
    named |= {f"scan.{key}": getattr(scan, key) for key in ("regions", "starts", "genes")}
    return {name: path for name, path in named.items() if path is not None}


def _scan_genome(config: PredictConfig) -> Result:
    """Scan; with several processes the first one owns the folder, and all score their share of windows."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    from pipeline.sequences.annotation import read_annotation
    from pipeline.sequences.calls import Axis
    from pipeline.sequences.records import Notes
    from pipeline.training.genome_scan import open_scan
    from pipeline.training.site_calls import finish

    state, files = PartialState(cpu=not torch.cuda.is_available()), _inputs(config)

    def build(workspace: Workspace) -> None:
        notes = Notes()
        with open_scan(config, state.device, notes) as scan:
            scan.survey(workspace.counts)
            annotation = read_annotation(config.scan, scan.genome.path, Axis(scan.genome.lengths))
            work = scan.scores_folder(workspace.path, files)
            broadcast_object_list([str(work)])
            scan.score(work, state.process_index, state.num_processes)
            state.wait_for_everyone()
            finish(scan, work, annotation, workspace)
            shutil.rmtree(work)
        workspace.counts |= +notes

    if state.is_main_process:
        result = produce("predict", config, files, build, resumable=True)
        if result.up_to_date:
            broadcast_object_list([None])
        state.wait_for_everyone()
        return result
    work = broadcast_object_list([None])[0]
    if work is not None:
        with open_scan(config, state.device, Notes()) as scan:
            scan.score(Path(work), state.process_index, state.num_processes)
        state.wait_for_everyone()
    state.wait_for_everyone()
    return Result(config.output, read_manifest(config.output), up_to_date=work is None)


# -- the stage


def _check(config: PredictConfig) -> None:
    """Refuse settings that contradict each other, and those that would not be heeded.

    A setting equal to its default counts as left out: a run hands every setting to its stages.
    """
    from pipeline.sequences.intervals import interval_format

    if bool(config.input) == bool(config.genome):
        what = "input and genome" if config.input else "nothing"
        raise UserError(f"predict: {what} given; give either --input or --genome")
    default = PredictConfig(output=config.output, checkpoint=config.checkpoint)
    scan = config.scan
    if config.input:
        unheeded = [
            f"scan.{k}" for k in ScanConfig.model_fields if getattr(scan, k) != getattr(default.scan, k)
        ]
    else:
        unheeded = [key for key in OF_INPUT if getattr(config, key) != getattr(default, key)]
    if unheeded:
        other = "genome" if config.input else "input"
        raise UserError(f"predict: {unheeded[0]} is for --{other}; leave it out")
    if scan.threshold is not None and scan.false_calls_per_kb != default.scan.false_calls_per_kb:
        raise UserError("predict: scan.threshold and scan.false_calls_per_kb both choose the calls; drop one")
    if scan.feature and not scan.starts:
        raise UserError("predict: scan.feature is for scan.starts; give these, or drop it")
    typed = scan.starts and interval_format(scan.starts) in ("gff3", "gtf")
    if typed and not scan.feature:
        raise UserError(
            f"scan.starts: {scan.starts} has features of several types; say which: --scan.feature"
        )
    if scan.feature and not typed:
        raise UserError("predict: scan.feature is for scan.starts in GFF or GTF; leave it out")


def run(config: PredictConfig) -> Result:
    """Score sequences, or scan a genome.

    Of sequences scores.tsv has id, one probability for each class, and the class called, in input order. That
    is the likeliest class; of two, it goes by the threshold that finetune chose on validation rows.
    Unless records longer than the model's context are errors, a column ``note`` says what became of them.
    Those skipped have no probabilities and no label; those read in windows have the mean of their windows'
    probabilities, in which all windows weigh the same.

    Of a genome both strands of windows at a stride are scored, each by itself: ``plus`` and ``minus`` (or
    ``both``, if strandless), as bedGraph and bigWig, hold the probability of the positive class at the start
    site of each window. Windows that hold other letters than ACGT have none and are counted. The local maxima
    above a threshold are in calls.bed and calls.tsv, ``false_calls_per_kb`` there being those in a
    shuffled sample that score at least as much. With start sites or genes, metrics.json says how calls agree
    with them, beside calls of AT content, calls on the other strand, and calls moved about between genes.
    A scan that was stopped goes on where it was.
    """
    _check(config)
    return _scan_genome(config) if config.genome else _score_records(config)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="predict")
