"""A checkpoint must open in a process that has never heard of this package."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from pipeline.model import KmerTokenizer, StrandForMaskedLM, StrandForSequenceClassification
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer

DNA = "ACGTTAGCNACGATTACAGGCT"
KMER, JSON = "dna-6mer-overlap", "dna-6mer"
CONTEXT = 40

STRANGER = """
import importlib.util, json, os, sys
sys.path[:] = [p for p in sys.path if p and not os.path.isdir(os.path.join(p, "pipeline", "model"))]
found = importlib.util.find_spec("pipeline")  # editable installs leave data files
folders = found.submodule_search_locations if found else ()
assert not any(name.endswith(".py") for folder in folders for name in os.listdir(folder))
import torch
from safetensors.torch import save_file
from transformers import (AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification,
                          AutoTokenizer)
root, dna = sys.argv[1:]
HEADS = {"masked": AutoModelForMaskedLM, "base": AutoModel, "classifier": AutoModelForSequenceClassification}
said, told = {}, {}
def refused(auto, name):
    try:
        auto.from_pretrained(f"{root}/{name}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
for name in ("kmer", "json"):
    for kind in ("AutoConfig", "AutoModelForMaskedLM"):
        said[f"{name}.{kind}"] = refused(globals()[kind], name)
said["kmer.AutoTokenizer"] = refused(AutoTokenizer, "kmer")
said["plain_ids"] = AutoTokenizer.from_pretrained(f"{root}/json")(dna)["input_ids"]
trust = dict(trust_remote_code=True)
def load(name, auto, kernel="sdpa"):
    model, report = auto.from_pretrained(f"{root}/{name}", output_loading_info=True,
                                         attn_implementation=kernel, **trust)
    assert not report["missing_keys"] and type(model).__module__.startswith("transformers_modules.")
    return model
for name in ("kmer", "json", "classifier", "finetuned"):
    tokenizer = AutoTokenizer.from_pretrained(f"{root}/{name}", **trust)
    batch = tokenizer([dna, "acgt"], padding=True, return_tensors="pt")
    said[f"{name}.ids"] = tokenizer(dna)["input_ids"]
    said[f"{name}.long"] = len(tokenizer("ACGT" * 5000, truncation=True)["input_ids"])
    said[f"{name}.max"] = [tokenizer.model_max_length,
                           AutoConfig.from_pretrained(f"{root}/{name}", **trust).max_position_embeddings]
    for head in ("classifier",) if name in ("classifier", "finetuned") else ("masked", "base"):
        for time in range(3):
            with torch.no_grad():
                told[f"{name}.{head}.{time}"] = load(name, HEADS[head])(**batch)[0]
model = load("kmer", AutoModelForMaskedLM, "eager")
tokenizer = AutoTokenizer.from_pretrained(f"{root}/kmer", **trust)
maps = model(**tokenizer(dna, return_tensors="pt"), output_attentions=True).attentions
said["maps"] = [list(a.shape) for a in maps]
model.save_pretrained(f"{root}/again")
assert "pipeline" not in sys.modules
save_file({k: v.contiguous() for k, v in told.items()}, f"{root}/told")
open(f"{root}/said.json", "w").write(json.dumps(said))
"""


def write_checkpoint(folder, model, tokenizer_folder):
    """As the pretraining stage does it."""
    model.save_pretrained(folder)
    tokenizer = load_tokenizer(tokenizer_folder)
    tokenizer.model_max_length = CONTEXT
    save_tokenizer(tokenizer, folder)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory, tokenizer_folder, classifier_folder):
    """Four checkpoints, the last one as fine-tuning leaves it, and what another process made of them."""
    from pipeline.model import StrandConfig

    root = tmp_path_factory.mktemp("check.point-1")  # dots and hyphens: names real runs have
    models = {}
    for name, kind, scheme in (
        ("kmer", StrandForMaskedLM, KMER),
        ("json", StrandForMaskedLM, JSON),
        ("classifier", StrandForSequenceClassification, KMER),
    ):
        torch.manual_seed(1)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = StrandConfig(vocab_size=4106, max_position_embeddings=CONTEXT, num_labels=3, **sizes)
        models[name] = kind(config).eval()
        for parameter in models[name].parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        write_checkpoint(root / name, models[name], tokenizer_folder(scheme))
    shutil.copytree(classifier_folder, root / "finetuned", ignore=shutil.ignore_patterns("manifest.json"))
    models["finetuned"] = StrandForSequenceClassification.from_pretrained(root / "finetuned").eval()
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(root / "modules")}
    command = [sys.executable, "-c", STRANGER, root, DNA]
    finished = subprocess.run(
        command, cwd="/", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return root, models, json.loads((root / "said.json").read_text()), load_file(root / "told")


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("kmer", "masked"),
        ("kmer", "base"),
        ("json", "masked"),
        ("classifier", "classifier"),
        ("finetuned", "classifier"),
    ],
)
def test_a_stranger_gets_our_numbers_each_time(stranger, name, head):
    root, models, _, told = stranger
    model = models[name].model if head == "base" else models[name]
    batch = load_tokenizer(root / name)([DNA, "acgt"], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**batch)[0]
    for time in range(3):
        assert torch.equal(told[f"{name}.{head}.{time}"], told[f"{name}.{head}.0"])
        torch.testing.assert_close(told[f"{name}.{head}.{time}"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["kmer", "json"])
def test_a_stranger_gets_our_tokens(stranger, tokenizer_folder, name):
    _, _, said, _ = stranger
    codec = KmerCodec.of(tokenizer_folder(KMER if name == "kmer" else JSON))
    ids = codec.tokens(codec.codes(DNA)).ids
    assert said[f"{name}.ids"] == [codec.special("cls"), *ids, codec.special("eos")]


@pytest.mark.parametrize(
    "what", ["kmer.AutoConfig", "kmer.AutoModelForMaskedLM", "kmer.AutoTokenizer", "json.AutoConfig"]
)
def test_code_is_not_run_without_consent(stranger, what):
    assert "trust_remote_code=True" in stranger[2][what]


def test_a_json_tokenizer_needs_no_code(stranger):
    _, _, said, _ = stranger
    assert said["plain_ids"] == said["json.ids"]


@pytest.mark.parametrize("name", ["kmer", "json", "classifier"])
def test_the_tokenizer_knows_the_models_context(stranger, name):
    root, _, said, _ = stranger
    assert said[f"{name}.max"] == [CONTEXT, CONTEXT]
    assert said[f"{name}.long"] == CONTEXT
    ours = load_tokenizer(root / name)
    assert len(ours("ACGT" * 5000, truncation=True)["input_ids"]) == ours.model_max_length == CONTEXT


def test_a_stranger_can_read_attention(stranger):
    _, _, said, _ = stranger
    tokens = len(said["kmer.ids"])
    assert said["maps"] == [[1, 2, tokens, tokens]] * 2


def test_a_checkpoint_carries_the_code_it_needs_and_no_more(stranger):
    root = stranger[0]
    network = {f"{part}_strand.py" for part in ("attention", "configuration", "contacts", "modeling")}
    for name, expected in (
        ("kmer", {*network, "tokenization_strand.py"}),
        ("json", network),
        ("finetuned", network),
        ("again", network),
    ):
        assert {path.name for path in (root / name).glob("*.py")} == expected, name
    facts = json.loads((root / "kmer" / "tokenizer_config.json").read_text())
    assert (facts["alphabet"], facts["k"], facts["overlapping"]) == ("dna", 6, True)
    assert KmerCodec.of(root / "json") == KmerCodec("dna", 6, False)
    for path in root.glob("*/*.json"):
        assert str(root.parent) not in path.read_text(), f"{path} holds a path of this machine"


def test_tokens_survive_another_round(stranger, tmp_path):
    """A classifier's tokenizer is saved from a checkpoint's, not from the folder it first came from."""
    root = stranger[0]
    for name in ("kmer", "json"):
        codec = KmerCodec.of(root / name)
        save_tokenizer(load_tokenizer(root / name), tmp_path / name)
        assert KmerCodec.of(tmp_path / name) == codec
        again = AutoTokenizer.from_pretrained(tmp_path / name)
        assert again(DNA)["input_ids"] == load_tokenizer(root / name)(DNA)["input_ids"]
        assert again.model_max_length == CONTEXT
        assert isinstance(again, KmerTokenizer) == (name == "kmer")
