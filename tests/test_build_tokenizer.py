import json

import numpy as np
import pytest

import pipeline.build_tokenizer
import pipeline.prepare
from pipeline.artifacts import read_manifest
from pipeline.cli import main
from pipeline.config import BuildTokenizerConfig, LettersConfig, PrepareConfig
from pipeline.errors import UserError
from pipeline.tokens.kmers import codec_of
from pipeline.tokens.vocabulary import load_tokenizer


def build(folder, **settings):
    return pipeline.build_tokenizer.run(BuildTokenizerConfig(output=folder, **settings))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    records = ["".join(rng.choice(list("ACGT"), 400)).replace("GG", "GATTACA") for _ in range(20)]
    records[0] = "N" * 50 + records[0]
    (folder / "genome.fasta").write_text("".join(f">r{i}\n{x}\n" for i, x in enumerate(records)))
    settings = {"input": [folder / "genome.fasta"], "validation": 0.2, "test": 0.2}
    return pipeline.prepare.run(PrepareConfig(output=folder / "corpus", **settings)).folder


def test_byte_pairs_are_learnt_from_the_training_split(corpus, tmp_path):
    settings = {"units": "byte-pairs", "corpus": corpus, "vocabulary_size": 40, "longest": 8, "seed": 3}
    result = build(tmp_path / "bpe", **settings)
    assert result.manifest["counts"] == {"tokens": 40}
    assert set(result.manifest["inputs"]) == {"corpus"}
    assert build(tmp_path / "bpe", **settings).up_to_date
    tokenizer = load_tokenizer(result.folder)
    config = json.loads((result.folder / "tokenizer_config.json").read_text())
    assert config["trained_on"] == {
        "files": ["genome.fasta"],
        "corpus": read_manifest(corpus)["content"],
        "bases": training_bases(corpus),
        "seed": 3,
    }
    assert max(map(len, tokenizer.get_vocab())) <= 8
    assert len(tokenizer("GATTACA" * 9)["input_ids"]) < len(tokenizer("GTTTTCC" * 9)["input_ids"])
    assert codec_of(result.folder).vocabulary == tokenizer.get_vocab()


def training_bases(corpus):
    from datasets import load_from_disk

    rows = load_from_disk(str(corpus))["train"]["sequence"]
    return sum(len(sequence) - sequence.count("N") for sequence in rows)


@pytest.mark.parametrize("k", range(1, 9))
def test_any_k_from_1_to_8(tmp_path, k):
    for overlapping in (False, True) if k < 7 else (False,):
        result = build(tmp_path / f"{overlapping}", k=k, overlapping=overlapping, max_length=99)
        assert {path.suffix for path in result.folder.iterdir()} == {".json"}
        tokenizer = load_tokenizer(result.folder)
        assert len(tokenizer) == result.manifest["counts"]["tokens"] == 10 + 4**k * (k > 1)
        assert tokenizer.model_max_length == 99
        letters = "ACGTTGCANACGTTGCATT"
        assert tokenizer.decode(tokenizer(letters)["input_ids"], skip_special_tokens=True) == letters


def test_proteins_need_no_k(tmp_path):
    for number, settings in enumerate(({}, {"k": None}, {"k": 1})):
        folder = build(tmp_path / str(number), alphabet="protein", **settings).folder
        assert load_tokenizer(folder).tokenize("MKV") == ["M", "K", "V"]
        assert codec_of(folder).k == 1


def test_dna_has_6_letters_in_a_token_unless_another_number_is_chosen(tmp_path):
    chosen, left_out = build(tmp_path / "chosen", k=6).folder, build(tmp_path / "left-out").folder
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (chosen / name).read_bytes() == (left_out / name).read_bytes()


def test_a_context_has_room_for_a_token(tmp_path, capsys):
    assert load_tokenizer(build(tmp_path / "t", k=1, max_length=3).folder).model_max_length == 3
    with pytest.raises(SystemExit):
        main(["build-tokenizer", "--output", str(tmp_path / "u"), "--max-length", "2"])
    said = capsys.readouterr().err
    assert "max_length: '2'" in said
    assert "greater than or equal to 3" in said


def test_codons_and_the_policy_for_letters(tmp_path):
    letters = LettersConfig(ambiguous="error")
    tokenizer = load_tokenizer(build(tmp_path / "codons", units="codons", k=3, letters=letters).folder)
    assert tokenizer.tokenize("augRCG") == ["ATG", "<unk>", "C", "G"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": "codons", "k": 4}, "k: 4: only for units k-mers, and units are codons; leave it out"),
        ({"units": "codons", "overlapping": True}, "overlapping: True: only for units k-mers"),
        ({"vocabulary_size": 600}, "vocabulary_size: 600: only for units byte-pairs, and units are k-mers"),
        ({"corpus": "somewhere"}, "corpus: somewhere: only for units byte-pairs"),
        ({"longest": 9, "units": "codons"}, "longest: 9: only for units byte-pairs, and units are codons"),
        ({"units": "byte-pairs", "k": 4}, "k: 4: only for units k-mers, and units are byte-pairs"),
        ({"units": "byte-pairs"}, "corpus: byte pairs are learnt from one; pass a folder written by prepare"),
        ({"units": "byte-pairs", "k": 6}, "k: 6: only for units k-mers, and units are byte-pairs"),
        (
            {"alphabet": "protein", "k": 6},
            "k: 6: protein tokenizers have one token for each residue; leave k out",
        ),
        (
            {"alphabet": "protein", "overlapping": True},
            "overlapping: True: protein .* residue; leave overlapping out",
        ),
        *(
            ({"alphabet": "protein", "units": units}, f"units: {units}: .*; leave units out, or set alphabet")
            for units in ("codons", "byte-pairs")
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(tmp_path, settings, message):
    with pytest.raises(UserError, match=message) as error:
        build(tmp_path / "t", **settings)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "t").exists()


def test_proteins_have_no_byte_pairs(tmp_path):
    (tmp_path / "p.fasta").write_text(">a\nMKVLAAGIV\n>b\nMKKLLPTAA\n")
    settings = {"input": [tmp_path / "p.fasta"], "alphabet": "protein", "validation": 0, "test": 0}
    pipeline.prepare.run(PrepareConfig(output=tmp_path / "corpus", **settings))
    with pytest.raises(UserError, match=r"corpus: .* holds proteins; byte pairs are for DNA"):
        build(tmp_path / "t", units="byte-pairs", corpus=tmp_path / "corpus")
