import pytest
from datasets import load_from_disk

import pipeline.encode
from pipeline.config import TokenizeConfig
from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import load_tokens


def test_rows_are_the_same_however_many_are_read_at_once(token_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline.encode, "ROWS", 7)
    corpus = token_folder.parent / "corpus"
    config = TokenizeConfig(output=tmp_path / "tokens", corpus=corpus, tokenizer="dna-1mer")
    result = pipeline.encode.run(config)
    ours, theirs = (load_from_disk(str(folder)) for folder in (result.folder, token_folder))
    for name, rows in ours.items():
        assert rows[:] == theirs[name][:]
    counts = result.manifest["counts"]
    assert {name: of["records"] for name, of in counts.items()} == {n: len(r) for n, r in theirs.items()}


@pytest.mark.parametrize("name", ["dna-1mer", "dna-3mer-overlap", "dna-6mer"])
def test_the_first_letters_of_a_track_are_the_sequence(token_folder, tmp_path, tokenizer_folder, name):
    corpus = token_folder.parent / "corpus"
    folder = pipeline.encode.run(TokenizeConfig(output=tmp_path / "t", corpus=corpus, tokenizer=name)).folder
    vocabulary = {i: token for token, i in KmerCodec.of(tokenizer_folder(name)).vocabulary.items()}
    for split, rows in load_from_disk(str(folder)).items():
        written = ["".join(vocabulary[i][0] for i in track) for track in rows["input_ids"]]
        assert written == list(load_from_disk(str(corpus))[split]["sequence"])


def test_the_tokenizer_lies_beside_the_tokens(token_folder, tokenizer_folder):
    for path in tokenizer_folder("dna-1mer").iterdir():
        assert (token_folder / "tokenizer" / path.name).read_bytes() == path.read_bytes()
    assert load_tokens(token_folder)[1] == KmerCodec("dna", 1, False)


def test_a_missing_corpus_is_told_in_a_line(tmp_path):
    config = TokenizeConfig(output=tmp_path / "t", corpus=tmp_path / "nowhere", tokenizer="dna-1mer")
    with pytest.raises(UserError, match=r"nowhere: no such file or folder$"):
        pipeline.encode.run(config)
