"""The stage that writes vectors of sequences, shard by shard."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipeline.artifacts import Result, Workspace, key_of, produce
from pipeline.config import EmbedConfig, LettersConfig
from pipeline.errors import UserError
from pipeline.log import say, track

if TYPE_CHECKING:
    from pipeline.sequences.records import Record
    from pipeline.tokens.kmers import Codec
    from pipeline.tokens.windows import Context, Reading
    from pipeline.training.shards import Index
    from pipeline.training.vectors import Encoder

SHARD_BYTES = 1 << 27
SHARD_LETTERS = 1 << 22
NOT_FINITE = {
    "float16": "numbers too large for float16; pass --dtype float32",
    "float32": "its vector is no number: the checkpoint's weights are damaged, or its training diverged",
}


def _load(config: EmbedConfig) -> "tuple[Encoder, Codec]":
    """Return what gives hidden states, and the codec of its tokenizer.

    Raises:
        UserError: the folder holds no strand model, not all of its encoder, or not those layers.
    """
    import torch
    from transformers import AutoModel

    from pipeline.tokens.kmers import codec_of
    from pipeline.training.classifier import load_model
    from pipeline.training.vectors import Encoder

    lacks = "lacks weights of its encoder; pass a folder that pretrain, finetune or convert wrote"
    model = load_model(AutoModel, config.checkpoint, "pretrain", lacks)
    if config.precision == "bf16":
        model.to(torch.bfloat16)
    _check_layers(config.layers, model.config.num_hidden_layers)
    codec = codec_of(config.checkpoint)
    budget = config.batch_size * model.config.max_position_embeddings
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Encoder(model.to(device), codec, config.layers, budget), codec


def _check_layers(layers: list[int], count: int) -> None:
    for i, layer in enumerate(layers):
        if not -count - 1 <= layer <= count:
            raise UserError(f"layers: {layer}: the model has 0 (embedding) to {count}, or -1 (last)")
        if layer in layers[:i]:
            raise UserError(f"layers: {layer}: given twice; each is a column of its own")


@dataclass(frozen=True)
class _Text:
    """The records of the input, one by one, and the context that a model reads them in.

    Letters are read as the checkpoint's tokenizer reads them.
    """

    config: EmbedConfig
    codec: "Codec"
    size: int

    @cached_property
    def letters(self) -> LettersConfig:
        """What becomes of letters."""
        from pipeline.tokens.kmers import read_facts

        return LettersConfig(**read_facts(self.config.checkpoint).get("letters", {}))

    def context(self) -> "Context":
        """Return the context, with nothing counted yet."""
        from pipeline.tokens.windows import Context

        return Context(self.codec, self.size, self.config.long_sequences, self.config.overlap)

    def __iter__(self) -> "Iterator[Record]":
        from pipeline.sequences.readers import read_files

        config = self.config
        sequence, name = config.sequence_column, config.id_column
        return read_files(config.input, sequence_column=sequence, id_column=name, empty="error")

    def clean(self, record: "Record") -> tuple[str, Counter[str]]:
        """Return the letters of a record, and how many were changed."""
        from pipeline.sequences.readers import clean_record

        cleaned = clean_record(record, self.codec.alphabet, self.letters)
        return cleaned.sequence.decode(), cleaned.changed

    def survey(self) -> tuple[int, Counter[str]]:
        """Read all records before any has a vector; return how many they are, and the letters changed.

        Raises:
            UserError: a record cannot be read, or does not fit, or all would be skipped.
        """
        context, changed, count = self.context(), Counter(), 0
        for record in self:
            sequence, own = self.clean(record)
            count, changed = count + 1, changed + own
            context.check([(record.id, sequence)])
            if self.config.long_sequences == "skip":
                context.notes["skipped"] += len(self.codec.tokens(self.codec.codes(sequence)).ids) > self.size
        context.counts(count)
        return count, changed

    def readings(self, context: "Context", done: int, count: int) -> "Iterator[Reading]":
        """Yield what is read of each record after those that are done."""
        for number, record in enumerate(track(self, count, "embedding")):
            if number >= done:
                yield context.read(record.id, self.clean(record)[0])


def _prepare(config: EmbedConfig, workspace: Workspace) -> "tuple[Encoder, _Text, int]":
    """Return what gives vectors, what is read, and how many records that are."""
    from pipeline.sequences.records import listed

    encoder, codec = _load(config)
    text = _Text(config, codec, encoder.model.config.max_position_embeddings - 2)
    count, changed = text.survey()
    workspace.counts |= {"read": count, **({"letters_changed": dict(changed)} if changed else {})}
    if changed:
        say(f"letters changed: {listed(changed)}")
    return encoder, text, count


def _shards(readings: "Iterator[Reading]", config: EmbedConfig, width: int) -> "Iterator[list[Reading]]":
    """Yield the records of each shard: a function of the input alone."""
    from pipeline.training.vectors import letters_read

    shard, vectors, letters = [], 0, 0
    each = 4 * width * len(config.layers)
    for reading in readings:
        own = letters_read(reading) if config.pooling == "per_letter" else 1
        length = len(reading.tokens.ids)
        full = (vectors + own) * each > SHARD_BYTES or letters + length > SHARD_LETTERS
        if shard and (full or len(shard) == config.shard_records):
            yield shard
            shard, vectors, letters = [], 0, 0
        shard.append(reading)
        vectors, letters = vectors + own, letters + length
    if shard:
        yield shard


def _add(index: "Index", readings: "list[Reading]", config: EmbedConfig, encoder: "Encoder") -> None:
    """Write the next shard.

    Raises:
        UserError: a number is too large for float16, or is none.
    """
    from pipeline.training.shards import Shard
    from pipeline.training.vectors import rows_of, vectors_of

    with np.errstate(over="ignore"):
        vectors_YRD = vectors_of(encoder, readings, config.pooling).astype(config.dtype)
    size_N = rows_of(readings, config.pooling)
    if not np.isfinite(vectors_YRD).all():
        row = int(np.flatnonzero(~np.isfinite(vectors_YRD).all((0, 2)))[0])
        name = readings[int(np.searchsorted(np.cumsum(size_N), row, side="right"))].name
        raise UserError(f"record {name!r}: {NOT_FINITE[config.dtype]}")
    names, notes = [r.name for r in readings], [r.note for r in readings]
    shard = Shard(
        names,
        None if config.long_sequences == "error" else notes,
        config.layers,
        vectors_YRD,
        size_N,
        config.pooling == "per_letter",
    )
    index.add(shard, dict(Counter(note.partition(":")[0] for note in notes if note)))


def _facts(config: EmbedConfig, text: _Text, width: int) -> dict:
    kept = config.model_dump(include={"pooling", "layers", "format", "dtype"})
    return {**kept, "width": width, "alphabet": text.codec.alphabet, "letters": text.letters.model_dump()}


def run(config: EmbedConfig) -> Result:
    """Write shards of vectors, vectors-000000.parquet (or safetensors) and so on, and index.json.

    Records are in the order of the input, and all are there. In Parquet a record is a row: its id, and for
    each layer a column (layer_-1) with its vector or, per letter, the list of its vectors, from its first
    letter to its last. In safetensors a layer is a tensor, of one row for each record; or per letter of one
    for each letter, ``offsets`` saying where the rows of each record begin; ids are in the metadata, as JSON.

    Records longer than the model's context, if they are no error, are skipped (null in Parquet; in
    safetensors not a number, or no rows), cut to their beginning, or read in windows. A letter's vector is
    the mean over the windows that cover it, and a record's the mean over its letters. A column ``note`` says
    so of each such record. What was stopped goes on after the last whole shard, and gives the same bytes.
    """

    def build(workspace: Workspace) -> None:
        from pipeline.training.classifier import enough_memory
        from pipeline.training.shards import Index

        encoder, text, count = _prepare(config, workspace)
        workspace.claim(key_of("embed", config, workspace.inputs))
        index, context = Index(workspace.path, _facts(config, text, encoder.width)), text.context()
        if index.records:
            say(f"going on after {index.records} of {count} records")
        with enough_memory(config.batch_size):
            readings = text.readings(context, index.records, count)
            for shard in _shards(readings, config, encoder.width):
                _add(index, shard, config, encoder)
        counts = sum((Counter(shard["counts"]) for shard in index.shards), Counter())
        vectors = sum(shard["vectors"] for shard in index.shards)
        workspace.counts |= {**counts, "vectors": vectors, "shards": len(index.shards)}
        summary = "".join(f", {number} {what}" for what, number in counts.items())
        say(f"{count} records, {vectors} vectors of {encoder.width}, {len(index.shards)} shards{summary}")

    inputs = {"checkpoint": config.checkpoint, **{f"input{i}": path for i, path in enumerate(config.input)}}
    return produce("embed", config, inputs, build, resumable=True)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="embed")
