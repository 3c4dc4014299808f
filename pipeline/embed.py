"""The stage that writes vectors of sequences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import EmbedConfig
from pipeline.errors import UserError
from pipeline.log import say, track

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.tokens.windows import Reading

CHUNK = 512


def _load(config: EmbedConfig):
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    import pipeline.model  # noqa: F401  registers our classes
    from pipeline.tokens.kmers import codec_of
    from pipeline.training.classifier import check_checkpoint

    check_checkpoint(config.checkpoint, "pretrain")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(config.checkpoint.absolute(), dtype=torch.float32).eval()
    layers = model.config.num_hidden_layers
    if not -layers - 1 <= config.layer <= layers:
        raise UserError(f"layer: {config.layer}: the model has 0 (embedding) to {layers}, or -1 (last)")
    return model, codec_of(config.checkpoint)


def _vectors(model, codec, readings: "Sequence[Reading]", config: EmbedConfig) -> list[np.ndarray]:
    """Return the vectors (T, D) of every record's own tokens, specials left out, in input order."""
    from pipeline.tokens.windows import stitch
    from pipeline.training.classifier import outputs_of

    windows = [window for reading in readings for window in reading.windows]
    states: list[np.ndarray] = [np.empty(0)] * len(windows)
    for batch, outputs in outputs_of(model, codec, windows, config.batch_size, output_hidden_states=True):
        states_BLD = outputs.hidden_states[config.layer].float().cpu().numpy()
        for row, i in enumerate(batch):
            states[i] = states_BLD[row, 1 : len(windows[i]) + 1]
    following = iter(states)
    return [stitch([next(following) for _ in reading.windows], reading.bounds) for reading in readings]


def _schema(pooling: str, width: int) -> "pa.Schema":
    import pyarrow as pa

    letters = [] if pooling == "mean" else [("start", pa.int64()), ("end", pa.int64())]
    return pa.schema([("id", pa.string()), *letters, ("vector", pa.list_(pa.float32(), width))])


def _table(readings: "Sequence[Reading]", vectors: list[np.ndarray], schema: "pa.Schema") -> "pa.Table":
    """Return the rows to write: one a record, or one a token with the letters that it covers."""
    import pyarrow as pa

    names = [reading.name for reading in readings]
    columns = {"id": names}
    if "start" in schema.names:
        starts = [reading.tokens.starts for reading in readings]
        spans = [reading.tokens.spans for reading in readings]
        columns = {
            "id": np.repeat(names, [len(part) for part in starts]),
            "start": np.concatenate(starts),
            "end": np.concatenate(starts) + np.concatenate(spans),
        }
        rows = np.concatenate(vectors)
    else:
        rows = np.stack([states_TD.mean(0) for states_TD in vectors])
    vector = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), type=schema.field("vector").type)
    return pa.table({**columns, "vector": vector}, schema)


def run(config: EmbedConfig) -> Result:
    """Write embeddings.parquet: id and vector; for every token also its letters, 0-based [start, end).

    Records longer than the model's context, if they are no error, are left out, cut to their beginning, or
    read in windows: every token then has its vector from the window in which it is farthest from an edge, and
    means are over all tokens of the record.
    """

    def build(workspace: Workspace) -> None:
        import pyarrow.parquet as pq

        from pipeline.training.classifier import enough_memory, load_records

        model, codec = _load(config)
        records, context = load_records(config, model, codec)
        schema = _schema(config.pooling, model.config.hidden_size)
        chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]
        rows = 0
        with (
            pq.ParquetWriter(workspace.path / "embeddings.parquet", schema) as file,
            enough_memory(config.batch_size),
        ):
            for chunk in track(chunks, len(chunks), "embedding"):
                readings = [reading for record in chunk if (reading := context.read(*record)).windows]
                if readings:
                    table = _table(readings, _vectors(model, codec, readings, config), schema)
                    file.write_table(table)
                    rows += len(table)
        workspace.counts |= {**context.counts(len(records)), "rows": rows}
        say(f"{len(records)} records, {rows} vectors of {model.config.hidden_size}{context.summary()}")

    inputs = {"checkpoint": config.checkpoint, **{f"input{i}": path for i, path in enumerate(config.input)}}
    return produce("embed", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="embed")
