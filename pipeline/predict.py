"""The stage that scores sequences with a fine-tuned network, or scans a genome for start sites."""

import shutil
from pathlib import Path

from pipeline.artifacts import Result, Workspace, produce, read_manifest
from pipeline.config import PredictConfig
from pipeline.errors import UserError
from pipeline.log import say, track
from pipeline.settings.sections import ScanConfig

CHUNK = 4096
OF_INPUT = ("sequence_column", "id_column", "duplicate_ids", "on_bad_record", "long_sequences", "overlap")


# -- sequences


def _score_records(config: PredictConfig) -> Result:
    """Write scores.tsv."""

    def build(workspace: Workspace) -> None:
        import pandas as pd

        from pipeline.sequences.records import Faults, Notes
        from pipeline.training.answers import KINDS
        from pipeline.training.classifier import enough_memory, load_finetuned, load_records

        model, codec, task = load_finetuned(config.checkpoint)
        faults = Faults(config.on_bad_record, Notes())
        records, context = load_records(config, model, codec, faults)
        answers = KINDS[task](model, codec, config.batch_size)
        tables, scored = [], 0
        chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]
        with enough_memory(config.batch_size):
            for chunk in track(chunks, len(chunks), "predicting"):
                readings = [context.read(*record) for record in chunk]
                columns = answers.columns(readings, [len(sequence) for _, sequence, _ in chunk])
                columns["note"] = [reading.note for reading in readings]
                tables.append(pd.DataFrame({"id": [reading.name for reading in readings], **columns}))
                scored += sum(bool(reading.windows) for reading in readings)
        scores = pd.concat(tables)
        counts = {**context.counts(len(records)), **+faults.notes}
        if not scored:
            why = scores["note"].iloc[0]
            raise UserError(f"none of {len(records)} sequences can be scored; the first: {why}")
        scores.to_csv(workspace.path / "scores.tsv", sep="\t", index=False, float_format="%.6g")
        workspace.counts |= {**counts, **answers.counts(scores), "scored": scored}
        failed = f", {faults.notes['failed']} failed (column note)" if faults.notes["failed"] else ""
        say(f"{scored} sequences scored{context.summary()}{failed}: {config.output / 'scores.tsv'}")

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
            f"scan.starts: {scan.starts}: GFF and GTF name the type of each feature; say which are starts: "
            "--scan.feature"
        )
    if scan.feature and not typed:
        raise UserError("predict: scan.feature is for scan.starts in GFF or GTF; leave it out")


def run(config: PredictConfig) -> Result:
    """Score sequences, or scan a genome.

    Of sequences scores.tsv has, in input order, id, one probability for each class, and the class called.
    That is the likeliest class; of two, it goes by the threshold that finetune chose on validation rows.
    Networks fine-tuned for other tasks give the values of their targets, the probability of each label and
    those above a half, or a text with the class of each letter.
    Column ``note`` says what became of a record that cannot be read, of which nothing is said, and of one
    that is longer than the model's context: of those skipped nothing is said; of those read in windows the
    mean over windows, which all weigh the same, or each letter's class out of the window in whose middle it
    is.

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
