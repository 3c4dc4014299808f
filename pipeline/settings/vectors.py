"""The schemas of the stages about vectors: embed makes them, probe asks what they know."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings.sections import Positive, StageConfig


class EmbedConfig(StageConfig):
    """Vectors of sequences: one for each record, or one for each letter."""

    checkpoint: Path
    """any strand checkpoint"""
    input: list[Path]
    """FASTA, CSV, TSV or other sequence files, of any size"""
    sequence_column: str = "sequence"
    id_column: str = "id"
    pooling: Literal["mean", "cls", "per_letter"] = "mean"
    """one vector for each record, the mean over its letters or that of the first token; or one for each base
    or residue"""
    layers: Annotated[list[int], Field(min_length=1)] = [-1]
    """hidden layers: 0 is the embedding, -1 the last; each is a column of its own"""
    format: Literal["parquet", "safetensors"] = "parquet"
    """files that the vectors are in"""
    dtype: Literal["float32", "float16"] = "float32"
    """numbers that the vectors are made of"""
    shard_records: Positive = 4096
    """records in a file, at most (fewer where they would be more than 128 MiB or four million letters);
    what was stopped goes on after the last whole file"""
    precision: Literal["no", "bf16"] = "no"
    """bf16: compute in half precision, faster on GPUs and on CPUs that have units for it"""
    long_sequences: Literal["error", "skip", "truncate", "window"] = "error"
    """longer than the model's context: stop, give no vector, use the beginning, or stitch windows together"""
    overlap: Annotated[int, Field(ge=0)] = 64
    """letters that consecutive windows share, at least"""
    batch_size: Positive = 8
    """windows of the model's context read at once (or as many tokens in shorter ones)"""


class ProbeConfig(StageConfig):
    """What vectors know of a label: linear probes, beside k-mers and an untrained model's vectors."""

    vectors: Path
    """folder written by embed, with a vector for each record"""
    table: Path
    """CSV, TSV or Parquet file with the target of each record; others of its rows are counted"""
    target: str
    """column of the table: classes or numbers"""
    id_column: str = "id"
    """column of the table with the ids of the records"""
    task: Literal["auto", "classification", "regression"] = "auto"
    """auto: regression where all targets are numbers and not all of these whole, else classification"""
    layer: int | None = None
    """layer whose vectors are probed (default: the only one)"""
    untrained: Path | None = None
    """vectors of the same records by a model from random weights, as a control"""
    input: list[Path] = []
    """sequences of the records, for the k-mers (default: the files that the vectors were made of)"""
    cluster_column: str | None = None
    """column of the table: records that share a value are in one fold, and resampled together for intervals
    of classes (default: equal sequences)"""
    folds: Annotated[int, Field(ge=2)] = 5
    """parts of which each is the test part once; the penalty is chosen by as many within the others"""
