"""The stage that turns a corpus into tokens (the command is ``strandlm tokenize``)."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.artifacts import Result, Workspace, produce, read_manifest
from pipeline.config import LettersConfig, TokenizeConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.corpus import load_corpus, save_splits
from pipeline.tokens.vocabulary import find_tokenizer, retarget

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset, Features

    from pipeline.tokens.kmers import Codec

ROWS = 10_000
LETTERS = 1 << 22


def run(config: TokenizeConfig) -> Result:
    """Write the token folder: the Arrow splits and ``tokenizer/``, which follows the corpus's letters policy.

    Columns are id, start, input_ids (the track: for every letter the token that begins there; with byte pairs
    the letter itself), soft_mask (start, stop, start, stop, ... of the row's lower-case runs, if the corpus
    keeps case), and whatever else the corpus has beside its sequences.

    Raises:
        UserError: the corpus was not written by prepare, or the tokenizer is for another alphabet.
    """
    tokenizer = find_tokenizer(config.tokenizer)
    inputs = {"corpus": config.corpus, "tokenizer": Path(tokenizer)}
    return produce("tokenize", config, inputs, lambda workspace: _build(config, tokenizer, workspace))


def _build(config: TokenizeConfig, tokenizer: Path, workspace: Workspace) -> None:
    from pipeline.tokens.kmers import codec_of

    corpus = load_corpus(config.corpus, "corpus")
    manifest = read_manifest(config.corpus)
    codec = codec_of(tokenizer)
    if codec.alphabet != manifest["config"]["alphabet"]:
        raise UserError(
            f"tokenizer: {config.tokenizer} reads {codec.alphabet}, but {config.corpus} holds "
            f"{manifest['config']['alphabet']} sequences; choose another tokenizer"
        )
    letters = LettersConfig(**manifest["config"].get("letters", {}))
    _say_policy(retarget(tokenizer, workspace.path / "tokenizer", letters))
    splits, features = {}, None
    for name, dataset in corpus.items():
        features = _features(dataset.features, codec, letters.case == "soft-mask")
        path = workspace.path / f".{name}.arrow"
        splits[str(name)], counts = _write(dataset, codec, features, path)
        workspace.counts[str(name)] = counts
        say(f"{name}: {counts['records']} records, {counts['letters']} letters")
    assert features is not None
    save_splits(workspace.path, splits, features, manifest["content"].encode())
    for name in splits:
        (workspace.path / f".{name}.arrow").unlink()


def _say_policy(changed: dict[str, tuple[str, str]]) -> None:
    if changed:
        keys = ", ".join(f"{key} {new} (was {old})" for key, (old, new) in changed.items())
        say(f"letters: the tokenizer follows the corpus's policy instead of its own: {keys}")


def _features(corpus: "Features", codec: "Codec", soft_mask: bool) -> "Features":
    import numpy as np
    from datasets import Features, List, Value

    first = {"id": corpus["id"], "start": corpus["start"]}
    tracks = {"input_ids": List(Value(np.dtype(codec.dtype).name))}
    masks = {"soft_mask": List(Value("int32"))} if soft_mask else {}
    others = {name: kind for name, kind in corpus.items() if name not in (*first, "sequence")}
    return Features({**first, **tracks, **masks, **others})


def _write(dataset: "Dataset", codec: "Codec", features: "Features", path: Path):
    """Write the rows of a split, with their tracks instead of their sequences, batch by batch."""
    import pyarrow as pa

    letters, schema = 0, features.arrow_schema
    with pa.ipc.new_stream(str(path), schema) as writer:
        for rows in _pieces(dataset):
            columns = _encode(rows.column("sequence"), codec, "soft_mask" in features)
            columns |= {name: rows.column(name) for name in rows.schema.names if name != "sequence"}
            batch = pa.record_batch([columns[name] for name in schema.names], schema=schema)
            letters += len(columns["input_ids"].values)
            writer.write_batch(batch)
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    return table, {"records": len(dataset), "letters": letters}


def _pieces(dataset: "Dataset") -> Iterator["pa.RecordBatch"]:
    """Yield the rows in order, `LETTERS` letters at a time or a single row."""
    tables = cast("Iterator[pa.Table]", dataset.with_format("arrow").iter(ROWS))
    for table in tables:
        for batch in table.to_batches():
            offsets, begin = _offsets(batch.column("sequence")), 0
            while begin < len(batch):
                fitting = int(offsets.searchsorted(offsets[begin] + LETTERS, "right")) - 1
                end = max(fitting, begin + 1)
                yield batch.slice(begin, end - begin)
                begin = end


def _offsets(texts: "pa.Array") -> "np.ndarray":
    import numpy as np

    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]


def _encode(texts: "pa.Array", codec: "Codec", soft_mask: bool) -> dict[str, Any]:
    """Return the tracks of sequences and, if wanted, their soft-masked runs, as Arrow lists.

    The text of all rows is encoded at once. A k-mer that would run into the next row becomes a single letter.
    """
    import numpy as np
    import pyarrow as pa

    offsets = _offsets(texts)
    text = memoryview(texts.buffers()[2])[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    codes_L = codec.codes(bytes(text).upper() if soft_mask else bytes(text))
    track_L = np.require(codec.track(codes_L), requirements="W")
    tails = np.unique(np.maximum(offsets[1:, None] - np.arange(1, codec.k), offsets[:-1, None]))
    track_L[tails] = codec.single_ids[codes_L[tails]]
    columns = {"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(track_L))}
    return columns | ({"soft_mask": _soft_runs(text, offsets)} if soft_mask else {})


def _soft_runs(text: memoryview, offsets: "np.ndarray") -> "pa.Array":
    """Return start, stop, start, stop, ... of the lower-case runs of each row."""
    import numpy as np
    import pyarrow as pa

    lower_L = np.frombuffer(text, np.uint8) >= ord("a")
    before_L, after_L = np.roll(lower_L, 1), np.roll(lower_L, -1)
    before_L[offsets[:-1]], after_L[offsets[1:] - 1] = False, False
    starts, lasts = np.flatnonzero(lower_L & ~before_L), np.flatnonzero(lower_L & ~after_L)
    row_R = np.searchsorted(offsets, starts, "right") - 1
    runs = np.stack([starts - offsets[row_R], lasts + 1 - offsets[row_R]], axis=1).ravel()
    ends = np.searchsorted(row_R, np.arange(len(offsets)))
    return pa.ListArray.from_arrays(pa.array(2 * ends, pa.int32()), pa.array(runs, pa.int32()))


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="tokenize")
