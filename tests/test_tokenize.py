"""Token folders: every letter of the corpus, and the tokenizer that says what became of it."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from datasets import List, Value, load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.encode
import pipeline.prepare
from pipeline.config import LettersConfig, PrepareConfig, TokenizeConfig
from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec, codec_of
from pipeline.tokens.store import load_tokens
from pipeline.tokens.vocabulary import load_tokenizer

WHOLE = {"validation": 0, "test": 0}


@pytest.fixture
def tokenize(tmp_path):
    """Prepare and tokenize a text; return the corpus, the token folder and the rows of their train splits."""

    def build(content, tokenizer, name="in.fa", **changes):
        path = tmp_path / name
        path.write_text(content)
        corpus, tokens = tmp_path / "corpus", tmp_path / f"tokens-{tokenizer}"
        pipeline.prepare.run(PrepareConfig(output=corpus, input=[path], **WHOLE, **changes))
        pipeline.encode.run(TokenizeConfig(output=tokens, corpus=corpus, tokenizer=tokenizer))
        return corpus, tokens, *(load_from_disk(str(folder))["train"] for folder in (corpus, tokens))

    return build


@pytest.mark.parametrize(("limit", "value"), [("ROWS", 7), ("LETTERS", 1), ("LETTERS", 100)])
def test_rows_are_the_same_however_many_are_read_at_once(token_folder, tmp_path, monkeypatch, limit, value):
    monkeypatch.setattr(pipeline.encode, limit, value)
    corpus = token_folder.parent / "corpus"
    config = TokenizeConfig(output=tmp_path / "tokens", corpus=corpus, tokenizer="dna-1mer")
    result = pipeline.encode.run(config)
    ours, theirs = (load_from_disk(str(folder)) for folder in (result.folder, token_folder))
    for name, rows in ours.items():
        assert rows[:] == theirs[name][:]
    counts = result.manifest["counts"]
    assert {name: of["records"] for name, of in counts.items()} == {n: len(r) for n, r in theirs.items()}


@pytest.mark.parametrize("name", ["dna-1mer", "dna-3mer-overlap", "dna-6mer", "codons", "dna-bpe"])
def test_tracks_are_those_of_each_row_alone(token_folder, tmp_path, tokenizer_folder, name):
    corpus = token_folder.parent / "corpus"
    folder = pipeline.encode.run(TokenizeConfig(output=tmp_path / "t", corpus=corpus, tokenizer=name)).folder
    codec = codec_of(tokenizer_folder(name))
    for split, rows in load_from_disk(str(folder)).items():
        sequences = list(load_from_disk(str(corpus))[split]["sequence"])
        assert list(rows["input_ids"]) == [codec.track(codec.codes(text)).tolist() for text in sequences]
        written = [codec.text(codec.codes_of_track(np.array(track))) for track in rows["input_ids"]]
        assert written == sequences


@settings(deadline=None)
@given(st.lists(st.text("ACGTacgtNn", min_size=1, max_size=30), min_size=1, max_size=6), st.integers(0, 2))
def test_soft_masked_runs_are_the_lower_case_ones(tokenizer_folder, texts, first):
    codec = KmerCodec.of(tokenizer_folder("dna-3mer-overlap"))
    rows = pa.array(["GG", "ac", *texts])[first:]
    columns = pipeline.encode._encode(rows, codec, soft_mask=True)
    runs = [[m.span() for m in re.finditer("[a-z]+", text)] for text in rows.to_pylist()]
    assert columns["soft_mask"].to_pylist() == [[place for run in of for place in run] for of in runs]
    tracks = [codec.track(codec.codes(text.upper())).tolist() for text in rows.to_pylist()]
    assert columns["input_ids"].to_pylist() == tracks


def test_soft_mask_in_the_token_folder(tokenize):
    fasta = ">a\nACGT\n>b\naaNgGGt\n>c\ncc\n"
    _, folder, corpus, tokens = tokenize(fasta, "dna-3mer-overlap", letters=LettersConfig(case="soft-mask"))
    assert tokens.features["soft_mask"] == List(Value("int32"))
    assert tokens["soft_mask"][:] == [[], [0, 2, 3, 4, 6, 7], [0, 2]]
    split, codec = load_tokens(folder)
    for row, text in enumerate(corpus["sequence"]):
        assert split["train"].soft_letters(row, 0, len(text)).tolist() == [c.islower() for c in text]
        assert codec.text(codec.codes_of_track(split["train"].row(row))) == text.upper()


def test_other_columns_come_along(tokenize):
    table = "id,sequence,kind,score,y\na,ACGT,x,1,p\nb,GGC-C,y,2,q\n"
    changes = {"keep_columns": ["kind", "score"], "label_column": "y", "letters": {"gaps": "remove"}}
    *_, corpus, tokens = tokenize(table, "dna-6mer", "in.csv", **changes)
    assert tokens.column_names == ["id", "start", "input_ids", "label", "kind", "score", "gaps"]
    for name in ("id", "start", "label", "kind", "score", "gaps"):
        assert tokens[name][:] == corpus[name][:]
        assert tokens.features[name] == corpus.features[name]


@pytest.mark.parametrize(
    ("name", "kind"), [("dna-1mer", "uint8"), ("dna-6mer", "uint16"), ("dna-bpe", "uint8")]
)
def test_a_base_takes_two_bytes_at_most(tokenize, name, kind):
    tokens = tokenize(">a\nACGT\n", name)[3]
    assert tokens.features["input_ids"] == List(Value(kind))


def test_the_tokenizer_beside_follows_the_policy_of_the_corpus(tokenize, token_folder, tokenizer_folder):
    for path in tokenizer_folder("dna-1mer").iterdir():
        assert (token_folder / "tokenizer" / path.name).read_bytes() == path.read_bytes()
    assert load_tokens(token_folder)[1] == KmerCodec("dna", 1, False)
    folder = tokenize(">a\nACGT\n", "dna-1mer", letters={"uracil": "error"})[1] / "tokenizer"
    assert json.loads((folder / "tokenizer_config.json").read_text())["letters"]["uracil"] == "error"
    tokenizer = load_tokenizer(folder)
    assert tokenizer.tokenize("ACR") == ["A", "C", "N"]
    assert tokenizer("U", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]


def test_a_policy_that_replaces_the_tokenizers_is_said(tokenize, capsys, tmp_path):
    tokenize(">a\nACGT\n", "dna-1mer", letters={"uracil": "error", "case": "soft-mask"})
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("letters: ")]
    assert said == [
        "letters: the tokenizer follows the corpus's policy instead of its own: "
        "case soft-mask (was fold), uracil error (was t)"
    ]
    tokenize(">a\nACGTA\n", "dna-6mer")
    assert "policy" not in capsys.readouterr().err.replace(str(tmp_path), "")


def test_another_alphabet_is_refused(tokenize):
    with pytest.raises(UserError, match=r"protein reads protein, but .* holds dna sequences; choose another"):
        tokenize(">a\nACGT\n", "protein")


def test_a_missing_corpus_is_told_in_a_line(tmp_path):
    config = TokenizeConfig(output=tmp_path / "t", corpus=tmp_path / "nowhere", tokenizer="dna-1mer")
    with pytest.raises(UserError, match=r"nowhere: no such file or folder$"):
        pipeline.encode.run(config)
