"""The stage that writes vectors of sequences."""

from typing import Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import EmbedConfig
from pipeline.errors import UserError
from pipeline.log import say, track


def _load(config: EmbedConfig):
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    import pipeline.model  # noqa: F401  registers our classes
    from pipeline.tokens.kmers import KmerCodec
    from pipeline.training.classifier import check_checkpoint

    check_checkpoint(config.checkpoint, "pretrain")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(config.checkpoint.absolute(), dtype=torch.float32).eval()
    layers = model.config.num_hidden_layers
    if not -layers - 1 <= config.layer <= layers:
        raise UserError(f"layer: {config.layer}: the model has 0 (embedding) to {layers}, or -1 (last)")
    return model, KmerCodec.of(config.checkpoint)


def _vectors(model, codec, sequences: list[str], config: EmbedConfig) -> list[np.ndarray]:
    """Return the vectors (T, D) of every sequence's own tokens, specials left out, in input order."""
    import torch

    from pipeline.training.classifier import by_length, encode, pad

    pieces = [encode(sequence, codec) for sequence in sequences]
    vectors: list[np.ndarray] = [np.empty(0)] * len(pieces)
    batches = by_length(pieces, config.batch_size)
    for batch in track(batches, len(batches), "embedding"):
        with torch.no_grad():
            outputs = model(**pad([pieces[i] for i in batch], codec), output_hidden_states=True)
        states_BLD = outputs.hidden_states[config.layer].numpy()
        for row, i in enumerate(batch):
            vectors[i] = states_BLD[row, 1 : len(pieces[i]) - 1]
    return vectors


def _table(records: list[tuple[str, str]], vectors: list[np.ndarray], codec, pooling: str) -> dict[str, Any]:
    """Return the columns to write: one row a record, or one a token with the letters that it covers."""
    if pooling == "mean":
        return {"id": [name for name, _ in records], "vector": [v.mean(0) for v in vectors]}
    table: dict[str, Any] = {"id": [], "start": [], "end": [], "vector": []}
    for (name, sequence), states in zip(records, vectors, strict=True):
        tokens = codec.tokens(codec.codes(sequence))
        table["id"] += [name] * len(states)
        table["start"] += tokens.starts.tolist()
        table["end"] += (tokens.starts + tokens.spans).tolist()
        table["vector"] += list(states)
    return table


def run(config: EmbedConfig) -> Result:
    """Write embeddings.parquet: id and vector; for every token also its letters, 0-based [start, end)."""

    def build(workspace: Workspace) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from pipeline.sequences.readers import load_sequences
        from pipeline.training.classifier import check_lengths

        model, codec = _load(config)
        records = load_sequences(config.input, codec.alphabet, config.sequence_column, config.id_column)
        check_lengths(records, codec, model.config.max_position_embeddings)
        vectors = _vectors(model, codec, [sequence for _, sequence in records], config)
        columns = _table(records, vectors, codec, config.pooling)
        columns["vector"] = pa.array(columns["vector"], pa.list_(pa.float32(), model.config.hidden_size))
        pq.write_table(pa.table(columns), workspace.path / "embeddings.parquet")
        workspace.counts |= {"read": len(records), "rows": len(columns["id"])}
        say(f"{len(records)} records, {len(columns['id'])} vectors of {model.config.hidden_size}")

    inputs = {"checkpoint": config.checkpoint, **{f"input{i}": path for i, path in enumerate(config.input)}}
    return produce("embed", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="embed")
