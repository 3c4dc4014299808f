import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

import pipeline
import pipeline.build_tokenizer
import pipeline.encode
from pipeline.artifacts import read_manifest
from pipeline.config import BuildTokenizerConfig, LettersConfig, TokenizeConfig
from pipeline.errors import UserError
from pipeline.model import KmerTokenizer
from pipeline.tokens.kmers import KmerCodec, codec_of, read_facts
from pipeline.tokens.store import load_tokens
from pipeline.tokens.vocabulary import (
    build_tokenizer,
    find_tokenizer,
    load_tokenizer,
    retarget,
    save_tokenizer,
)

FOLDERS = {
    "dna-1mer": ({"k": 1}, 10),
    "dna-6mer": ({"k": 6}, 4106),
    "dna-3mer-overlap": ({"k": 3, "overlapping": True}, 74),
    "dna-6mer-overlap": ({"k": 6, "overlapping": True}, 4106),
    "codons": ({"units": "codons"}, 74),
    "protein": ({"alphabet": "protein", "k": 1}, 33),
}
LEARNT = "dna-bpe"
ROOT = Path(pipeline.__file__).parents[1]


def test_the_folders_are_the_ones_listed_here():
    assert {path.name for path in (ROOT / "tokenizers").iterdir()} == {*FOLDERS, LEARNT}


@pytest.mark.parametrize("name", FOLDERS)
def test_each_folder_loads_and_equals_a_fresh_build(name, tokenizer_folder, tmp_path):
    settings, size = FOLDERS[name]
    folder = tokenizer_folder(name)
    tokenizer, codec = load_tokenizer(folder), codec_of(folder)
    facts = {"alphabet": "dna", "k": 3, "overlapping": False, "units": "k-mers"} | settings
    assert read_facts(folder) | facts == read_facts(folder)
    assert read_facts(folder)["letters"] == LettersConfig().model_dump()
    assert len(tokenizer) == size
    assert tokenizer.get_vocab() == codec.vocabulary
    assert tokenizer.model_max_length == 512
    result = pipeline.build_tokenizer.run(BuildTokenizerConfig(output=tmp_path / name, **settings))
    assert result.manifest["counts"] == {"tokens": size}
    written = {path.name for path in result.folder.iterdir()} - {"manifest.json"}
    assert written == {path.name for path in folder.iterdir()}
    for file in written:
        assert (folder / file).read_bytes() == (result.folder / file).read_bytes(), file


def test_the_byte_pairs_say_where_they_were_learnt(tokenizer_folder, tmp_path):
    """Learning needs the genomes; what is made of the pairs does not."""
    folder = tokenizer_folder(LEARNT)
    facts = read_facts(folder)
    assert [name.split("_")[0] for name in facts["trained_on"]["files"]] == [
        "ecoli",
        "hpylori",
        "saureus",
        "vcholerae",
    ]
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    options = {"units": "byte-pairs", "merges": list(map(tuple, merges)), "trained_on": facts["trained_on"]}
    save_tokenizer(build_tokenizer("dna", 6, False, 512, **options), tmp_path)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    vocabulary = load_tokenizer(folder).get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    assert len(tokens) == 512 == tokens.index(merges[-1][0] + merges[-1][1]) + 1
    assert tokens[:12] == ["<pad>", "<unk>", "<cls>", "<eos>", "<mask>", *"ACGTN", *map("".join, merges[:2])]
    assert all(set(token) <= set("ACGT") for token in tokens[10:])


@pytest.mark.parametrize("name", [*FOLDERS, LEARNT])
def test_only_long_overlapping_kmers_need_code(name, tokenizer_folder):
    config = json.loads((tokenizer_folder(name) / "tokenizer_config.json").read_text())
    code = name == "dna-6mer-overlap"
    assert "auto_map" not in config
    assert config["tokenizer_class"] == ("KmerTokenizer" if code else "TokenizersBackend")


def test_folders_that_need_code_say_nothing_of_code_that_is_not_there(tokenizer_folder, tmp_path):
    """A checkpoint made of such a folder carries the code, and a folder made of that checkpoint does not."""
    config, policy = BuildTokenizerConfig(output=tmp_path / "built", overlapping=True), LettersConfig()
    folders = [tokenizer_folder("dna-6mer-overlap"), pipeline.build_tokenizer.run(config).folder]
    save_tokenizer(load_tokenizer(folders[1]), tmp_path / "checkpoint")
    for letters in (policy, policy.model_copy(update={"uracil": "error"})):
        folders.append(tmp_path / f"retargeted-{letters.uracil}")
        retarget(tmp_path / "checkpoint", folders[-1], letters)
    for folder in folders:
        assert {path.suffix for path in folder.iterdir()} == {".json"}
        assert "auto_map" not in json.loads((folder / "tokenizer_config.json").read_text())
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert isinstance(tokenizer, KmerTokenizer)
        assert tokenizer.tokenize("ACGTACG") == ["ACGTAC", "CGTACG"]
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert names == {"tokenizer_config.json", "vocab.json", "tokenization_strand.py"}
    saved = json.loads((tmp_path / "checkpoint" / "tokenizer_config.json").read_text())
    assert saved["auto_map"] == {"AutoTokenizer": ["tokenization_strand.KmerTokenizer", None]}


OPEN = """
import sys
from transformers import AutoTokenizer
checkpoint, folder = sys.argv[1:]
print(AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True).tokenize("ACGTACG"))
assert "pipeline" not in sys.modules
AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
"""


def test_without_strandlm_the_checkpoint_opens_and_the_folder_does_not(tokenizer_folder, tmp_path):
    folder = tokenizer_folder("dna-6mer-overlap")
    save_tokenizer(load_tokenizer(folder), tmp_path / "checkpoint")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", OPEN, tmp_path / "checkpoint", folder]
    finished = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=120)
    assert finished.stdout == "['ACGTAC', 'CGTACG']\n", finished.stderr[-2000:]
    assert finished.returncode == 1
    last = finished.stderr[finished.stderr.rindex("ValueError") :]
    assert "instantiate the backend tokenizer" in last
    assert "tokenization_strand.py" not in finished.stderr


def test_tokenizers_holds_json_alone():
    """Python in there would take the place of the package of the same name."""
    files = [path for path in (ROOT / "tokenizers").rglob("*") if path.is_file()]
    assert files
    assert {path.suffix for path in files} == {".json"}
    import tokenizers

    assert "site-packages" in tokenizers.__file__


def test_no_module_of_ours_hides_one_of_the_standard_library():
    names = {path.stem for path in (ROOT / "pipeline").glob("*.py")}
    names |= {path.name for path in (ROOT / "pipeline").iterdir() if path.is_dir()}
    assert not names & sys.stdlib_module_names


@pytest.mark.parametrize("overlapping", [False, True])
def test_special_tokens_are_marked_for_collators(overlapping):
    tokenizer = build_tokenizer("dna", 3, overlapping, max_length=64)
    encoded = tokenizer("ACGTACG", return_special_tokens_mask=True)
    assert [i for i, special in enumerate(encoded["special_tokens_mask"]) if special] == [
        0,
        len(encoded["input_ids"]) - 1,
    ]
    pair = tokenizer("ACGTAC", "TTTTTT")["input_ids"]
    first, second = tokenizer("ACGTAC")["input_ids"], tokenizer("TTTTTT")["input_ids"]
    assert pair == [*first, *second[1:]]


def test_letters_that_no_rule_covers_become_unknown_and_lose_nothing_else():
    for overlapping in (False, True):
        tokenizer = build_tokenizer("dna", 3, overlapping, max_length=64)
        ids = tokenizer("ACG!ACG")["input_ids"]
        assert ids.count(tokenizer.unk_token_id) == 1


def test_proteins_have_no_kmers():
    for k, overlapping, message in (
        (3, False, "k: 3: protein tokenizers have one token for each residue; leave k out"),
        (1, True, "overlapping: True: protein tokenizers have one .*; leave overlapping out"),
    ):
        with pytest.raises(UserError, match=message):
            build_tokenizer("protein", k, overlapping, max_length=64)


def test_a_tokenizer_is_found_by_name_or_path(tmp_path, monkeypatch):
    shipped = ROOT / "tokenizers" / "dna-1mer"
    monkeypatch.chdir(tmp_path)
    assert find_tokenizer("dna-1mer") == shipped
    assert find_tokenizer(str(shipped)) == shipped
    with pytest.raises(
        UserError, match="'dna-9mer' is neither a tokenizer folder nor one of codons, dna-1mer, "
    ):
        find_tokenizer("dna-9mer")


# -- the stage that uses them


def test_a_token_folder_gives_back_the_corpus(token_folder):
    from datasets import load_from_disk

    corpus = load_from_disk(str(token_folder.parent / "corpus"))
    splits, codec = load_tokens(token_folder)
    assert set(splits) == {"train", "validation", "test"}
    for name, split in splits.items():
        assert list(split.ids) == list(corpus[name]["id"])
        assert split.starts.tolist() == list(corpus[name]["start"])
        assert len(split) == len(corpus[name])
        for record, letters in enumerate(corpus[name]["sequence"]):
            track = split.slice(record, 0, int(split.lengths[record]))
            assert "".join(codec.letters[c] for c in codec.codes_of_track(track)) == letters
            assert split.slice(record, 3, 5).tolist() == track[3:8].tolist()
    counts = read_manifest(token_folder)["counts"]
    assert counts["train"]["letters"] == sum(map(len, corpus["train"]["sequence"]))
    assert KmerCodec.of(token_folder / "tokenizer") == codec == KmerCodec("dna", 1, False)


@pytest.mark.parametrize("tokenizer", ["dna-6mer-overlap", "dna-6mer"])
def test_tokens_are_stored_as_a_track_in_the_smallest_type(token_folder, tmp_path, tokenizer):
    corpus = token_folder.parent / "corpus"
    pipeline.encode.run(TokenizeConfig(output=tmp_path / "t", corpus=corpus, tokenizer=tokenizer))
    splits, codec = load_tokens(tmp_path / "t")
    plain, letters = load_tokens(token_folder)
    for ours, theirs in zip(splits.values(), plain.values(), strict=True):
        for record in range(len(theirs)):
            track, single = ours.row(record), theirs.row(record)
            assert (track.dtype, single.dtype) == (np.uint16, np.uint8)
            assert np.array_equal(codec.codes_of_track(track), letters.codes_of_track(single))


def test_a_corpus_of_another_alphabet_is_refused(token_folder, tmp_path):
    config = TokenizeConfig(output=tmp_path / "t", corpus=token_folder.parent / "corpus", tokenizer="protein")
    with pytest.raises(UserError, match=r"tokenizer: protein reads protein, but .* holds dna sequences"):
        pipeline.encode.run(config)
    with pytest.raises(UserError, match="written by tokenize, not by prepare"):
        pipeline.encode.run(TokenizeConfig(output=tmp_path / "t", corpus=token_folder))
    with pytest.raises(UserError, match="written by prepare, not by tokenize"):
        load_tokens(token_folder.parent / "corpus")
    assert not (tmp_path / "t").exists()
