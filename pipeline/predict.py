"""The stage that scores sequences with a classifier."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import PredictConfig
from pipeline.log import say, track

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.tokens.windows import Reading

CHUNK = 4096


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


def run(config: PredictConfig) -> Result:
    """Write scores.tsv: id, one probability for each class, and the class called, in input order.

    That is the likeliest class; of two, it goes by the threshold that finetune chose on validation rows.
    Unless records longer than the model's context are errors, a column ``note`` says what became of them.
    Those skipped have no probabilities and no label; those read in windows have the mean of their windows'
    probabilities, in which all windows weigh the same.
    """

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


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="predict")
