"""Records longer than the model's context, through the stages that read sequences."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import pipeline.embed
import pipeline.predict
from pipeline.cli import main
from pipeline.config import EmbedConfig, LettersConfig, PredictConfig
from pipeline.errors import UserError
from pipeline.model import StrandForSequenceClassification, StrandModel
from pipeline.tokens.vocabulary import build_tokenizer, load_tokenizer, save_tokenizer

CONTEXT = 20
STAGES = {"predict": (pipeline.predict.run, PredictConfig), "embed": (pipeline.embed.run, EmbedConfig)}


@pytest.fixture
def checkpoint(tiny_model, tmp_path):
    """Factory of checkpoints with a context of 20 tokens: a classifier, which has vectors, too."""

    def build(alphabet: Any = "dna", k=3, overlapping=True, context=CONTEXT, **facts):
        folder = tmp_path / "checkpoint"
        tokenizer = build_tokenizer(alphabet, k, overlapping, context, **facts)
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": context, "num_labels": 3}
        tiny_model(StrandForSequenceClassification, **sizes).save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        return folder

    return build


@pytest.fixture
def stage(tmp_path):
    """Run a stage on records; return the table that it writes, and the result."""

    def run(name, folder, records, output="output", **settings):
        fasta = tmp_path / "records.fa"
        fasta.write_text("".join(f">{i}\n{s}\n" for i, s in records))
        function, schema = STAGES[name]
        result = function(schema(output=tmp_path / output, checkpoint=folder, input=[fasta], **settings))
        if name == "embed":
            files = sorted(result.folder.glob("vectors-*.parquet"))
            return pd.concat([pq.read_table(path).to_pandas() for path in files], ignore_index=True), result
        return pd.read_csv(result.folder / "scores.tsv", sep="\t", keep_default_na=False), result

    return run


def letters(length, seed, alphabet="ACGT"):
    return "".join(np.random.default_rng(seed).choice(list(alphabet), length))


def probabilities(folder, text):
    """Return the class probabilities (C,) of a text alone, by the Hugging Face road."""
    model = StrandForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**load_tokenizer(folder)(text, return_tensors="pt")).logits[0].softmax(0).numpy()


def states(folder, text):
    """Return the vectors (T, D) of a text's tokens, by the Hugging Face road."""
    model = StrandModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**load_tokenizer(folder)(text, return_tensors="pt")).last_hidden_state[0, 1:-1].numpy()


RECORDS = [
    ("short", letters(9, 1)),
    ("long", letters(50, 2)),
    ("fits", letters(20, 3)),
    ("more", letters(21, 4)),
]
# 18 tokens are 20 letters, of which 6 are shared; the last window ends with the record
WINDOWS = {"short": [0], "long": [0, 14, 28, 30], "fits": [0], "more": [0, 1]}


@pytest.mark.parametrize("batch_size", [1, 64])
def test_predict_averages_over_windows(stage, checkpoint, batch_size):
    folder = checkpoint()
    table, result = stage(
        "predict", folder, RECORDS, long_sequences="window", overlap=6, batch_size=batch_size
    )
    assert list(table["id"]) == [name for name, _ in RECORDS]
    for row, (name, sequence) in zip(table.to_numpy(), RECORDS, strict=True):
        windows = [probabilities(folder, sequence[i : i + 20]) for i in WINDOWS[name]]
        assert row[1:4].astype(float) == pytest.approx(np.mean(windows, 0), abs=1e-5)
        assert row[4] == f"LABEL_{np.mean(windows, 0).argmax()}"
    assert list(table["note"]) == [
        "", "windowed: 50 letters in 4 windows", "", "windowed: 21 letters in 2 windows",
    ]  # fmt: skip
    counts = result.manifest["counts"]
    assert (counts["read"], counts["scored"], counts["windowed"]) == (4, 4, 2)


def test_tokens_of_several_letters_are_cut_between_tokens(stage, checkpoint):
    """18 tokens are 108 letters; ten or more shared ones are two tokens; the last 4 letters are tokens."""
    folder, sequence = checkpoint(k=6, overlapping=False), letters(250, 5)
    table, _ = stage("predict", folder, [("a", sequence)], long_sequences="window", overlap=10)
    windows = [probabilities(folder, sequence[i:j]) for i, j in ((0, 108), (96, 204), (162, 250))]
    assert table.iloc[0, 1:4].to_numpy(float) == pytest.approx(np.mean(windows, 0), abs=1e-5)


@pytest.mark.parametrize("long_sequences", ["skip", "truncate", "window"])
@pytest.mark.parametrize("name", list(STAGES))
def test_what_fits_is_what_it_was(stage, checkpoint, name, long_sequences):
    """Exactly, alone and beside longer records."""
    folder, fitting = checkpoint(), [RECORDS[0], RECORDS[2]]
    usual, _ = stage(name, folder, fitting, "usual")
    alone, _ = stage(name, folder, fitting, "alone", long_sequences=long_sequences, overlap=6)
    beside, _ = stage(name, folder, RECORDS, "beside", long_sequences=long_sequences, overlap=6)
    together = beside[beside["id"].isin(usual["id"])].reset_index(drop=True)[list(usual)].astype(usual.dtypes)
    if name == "embed":
        usual, alone, together = (np.stack(each["layer_-1"]) for each in (usual, alone, together))
        assert np.array_equal(alone, usual)
        assert together == pytest.approx(usual, abs=1e-5)
        return
    pd.testing.assert_frame_equal(alone[list(usual)], usual, check_exact=True)
    pd.testing.assert_frame_equal(together, usual, rtol=0, atol=1e-5)


def test_the_beginning_alone_is_read(stage, checkpoint):
    folder, (_, sequence) = checkpoint(), RECORDS[1]
    table, result = stage("predict", folder, RECORDS, long_sequences="truncate")
    assert table.iloc[1, 1:4].to_numpy(float) == pytest.approx(probabilities(folder, sequence[:20]), abs=1e-5)
    assert list(table["note"])[:2] == ["", "truncated: the first 20 of 50 letters"]
    assert result.manifest["counts"]["truncated"] == 2
    table, result = stage("embed", folder, RECORDS, "vectors", long_sequences="truncate")
    assert table["note"][1] == "truncated: the first 20 of 50 letters"
    alone, _ = stage("embed", folder, [("a", sequence[:20])], "alone")
    assert table["layer_-1"][1] == pytest.approx(alone["layer_-1"][0], abs=1e-5)
    assert result.manifest["counts"] == {"read": 4, "truncated": 2, "vectors": 4, "shards": 1}


def test_skipped_records_keep_their_row_of_scores(stage, checkpoint, capsys, monkeypatch):
    monkeypatch.setattr(pipeline.predict, "CHUNK", 1)
    folder = checkpoint()
    table, result = stage("predict", folder, RECORDS, long_sequences="skip")
    assert list(table["id"]) == [name for name, _ in RECORDS]
    assert table.iloc[1].tolist() == ["long", "", "", "", "", "skipped: only 20 of 50 letters fit"]
    assert list(table["label"] == "") == [False, True, False, True]
    counts = result.manifest["counts"]
    assert (counts["read"], counts["scored"], counts["skipped"]) == (4, 2, 2)
    assert sum(counts["labels"].values()) == 2
    table, result = stage("embed", folder, RECORDS, "vectors", long_sequences="skip", shard_records=1)
    assert list(table["id"]) == [name for name, _ in RECORDS]
    assert list(table["layer_-1"].isna()) == [False, True, False, True]
    assert result.manifest["counts"] == {"read": 4, "skipped": 2, "vectors": 2, "shards": 4}
    assert capsys.readouterr().err.count("record 'more': skipped: only 20 of 21 letters fit") == 2


@pytest.mark.parametrize("name", list(STAGES))
def test_a_longer_record_is_an_error_unless_told_otherwise(stage, checkpoint, tmp_path, name):
    """One line, nothing half-written; shorter records are read in the same process."""
    folder = checkpoint()
    with pytest.raises(UserError) as error:
        stage(name, folder, RECORDS)
    assert str(error.value) == (
        "record 'long': 50 letters are 48 tokens, more than the model's 18 (the first 20 letters fit); pass "
        "--long-sequences skip, truncate or window"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "records.fa"]
    assert len(stage(name, folder, RECORDS[:1])[0]) == 1
    with pytest.raises(UserError, match=r"^every record \(1\) is longer than the model's context, "):
        stage(name, folder, RECORDS[1:2], "skipped", long_sequences="skip")
    assert not (tmp_path / "skipped").exists()
    with pytest.raises(UserError, match=r"^overlap: 64: windows may have as few as 18 letters; give fewer$"):
        stage(name, folder, RECORDS, "windowed", long_sequences="window")


@pytest.mark.parametrize("how", ["skip", "truncate", "window"])
def test_proteins_around_the_limit_and_far_beyond(stage, checkpoint, how):
    """62 residues fit into 64 tokens."""
    folder = checkpoint("protein", 1, False, context=64)
    lengths = [5, 61, 62, 63, 64, 30_000, 7]
    records = [(f"p{n}", letters(n, n, "ACDEFGHIKLMNPQRSTVWY")) for n in lengths]
    settings = {"long_sequences": how, "overlap": 16}
    scores, result = stage("predict", folder, records, **settings)
    assert list(scores["id"]) == [name for name, _ in records]
    assert [bool(note) for note in scores["note"]] == [False, False, False, True, True, True, False]
    (counts,) = (
        result.manifest["counts"].get(key) for key in result.manifest["counts"] if key.startswith(how)
    )
    assert counts == 3
    table, _ = stage("embed", folder, records, "vectors", pooling="per_letter", **settings)
    expected = {
        "skip": lambda n: n if n <= 62 else 0,
        "truncate": lambda n: min(n, 62),
        "window": lambda n: n,
    }
    assert list(table["id"]) == [name for name, _ in records]
    sizes = [0 if vectors is None else len(vectors) for vectors in table["layer_-1"]]
    assert sizes == [expected[how](n) for n in lengths]
    last = np.stack(table["layer_-1"].iloc[-1])
    assert last == pytest.approx(states(folder, records[-1][1]), abs=1e-5)


def test_letters_are_read_as_the_checkpoints_tokenizer_reads_them(stage, checkpoint):
    """R is N by default; the stages refuse it where the tokenizer does."""
    folder, records = checkpoint(), [("a", "ACGTRACGT")]
    table, _ = stage("predict", folder, records)
    assert table.iloc[0, 1:4].to_numpy(float) == pytest.approx(probabilities(folder, "ACGTNACGT"), abs=1e-5)
    strict = checkpoint(letters=LettersConfig(ambiguous="error"))
    for name, settings in (("predict", {"on_bad_record": "error"}), ("embed", {})):
        with pytest.raises(UserError, match="record 'a', line 1: letter 'R' at position 5"):
            stage(name, strict, records, name, **settings)


@pytest.mark.parametrize("name", list(STAGES))
def test_too_little_memory_is_told_in_a_line(checkpoint, tmp_path, capsys, monkeypatch, name):
    def exhaust(*_, **__):
        return torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(StrandModel, "forward", exhaust)
    (tmp_path / "records.fa").write_text(">a\nACGT\n")
    folder, output = str(checkpoint()), tmp_path / "output"
    with pytest.raises(SystemExit) as end:
        main([name, "--checkpoint", folder, "--input", str(tmp_path / "records.fa"), "--output", str(output)])
    assert end.value.code == 2
    size = STAGES[name][1].model_fields["batch_size"].default
    line = f"error: batch_size: {size}: out of memory; pass a smaller --batch-size\n"
    assert capsys.readouterr().err.endswith(line)
    assert not output.exists()


def test_the_command_line_takes_the_way_out(checkpoint, tmp_path):
    fasta, output = tmp_path / "records.fa", tmp_path / "output"
    fasta.write_text("".join(f">{i}\n{s}\n" for i, s in RECORDS))
    paths = ["--checkpoint", str(checkpoint()), "--input", str(fasta), "--output", str(output)]
    main(["predict", *paths, "--long-sequences", "window", "--overlap", "6"])
    assert json.loads((output / "manifest.json").read_text())["counts"]["windowed"] == 2
