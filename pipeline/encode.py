"""The stage that turns a corpus into tokens (the command is ``strandlm tokenize``)."""

import shutil
from pathlib import Path

from pipeline.artifacts import Result, Workspace, produce, read_manifest
from pipeline.config import TokenizeConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.corpus import load_corpus
from pipeline.tokens.vocabulary import find_tokenizer

ROWS = 1000


def _encode(dataset, codec):
    """Return the rows of a split with their tracks instead of their sequences."""
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset, Features, List, Value

    kind = np.dtype(codec.dtype).name
    tables = []
    for batch in dataset.select_columns(["id", "start", "sequence"]).iter(ROWS):
        tracks = [codec.track(codec.codes(sequence)) for sequence in batch["sequence"]]
        offsets = np.concatenate(([0], np.cumsum([len(track) for track in tracks]))).astype(np.int32)
        rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(tracks)))
        tables.append(
            pa.table({"id": batch["id"], "start": pa.array(batch["start"], pa.int64()), "input_ids": rows})
        )
    features = Features({"id": Value("string"), "start": Value("int64"), "input_ids": List(Value(kind))})
    return Dataset(pa.concat_tables(tables).cast(features.arrow_schema), fingerprint="tokens")


def run(config: TokenizeConfig) -> Result:
    """Write the token folder: the Arrow splits and ``tokenizer/``."""
    tokenizer = find_tokenizer(config.tokenizer)

    def build(workspace: Workspace) -> None:
        from datasets import DatasetDict, disable_progress_bars

        from pipeline.tokens.kmers import KmerCodec

        disable_progress_bars()
        corpus = load_corpus(config.corpus, "corpus")
        alphabet = read_manifest(config.corpus)["config"]["alphabet"]
        codec = KmerCodec.of(tokenizer)
        if codec.alphabet != alphabet:
            raise UserError(
                f"tokenizer: {config.tokenizer} reads {codec.alphabet}, but {config.corpus} holds "
                f"{alphabet} sequences; choose another tokenizer"
            )
        splits = DatasetDict({name: _encode(dataset, codec) for name, dataset in corpus.items()})
        splits.save_to_disk(str(workspace.path))
        shutil.copytree(tokenizer, workspace.path / "tokenizer")
        for name, dataset in splits.items():
            letters = sum(len(chunk.values) for chunk in dataset.data.column("input_ids").chunks)
            workspace.counts[str(name)] = {"records": len(dataset), "letters": letters}
            say(f"{name}: {len(dataset)} records, {letters} letters")

    inputs = {"corpus": config.corpus, "tokenizer": Path(tokenizer)}
    return produce("tokenize", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="tokenize")
