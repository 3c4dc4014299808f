"""Checkpoints where this package is not and no network is; and the code of others, which is not run here."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import transformers
from packaging.requirements import Requirement
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import pipeline.convert
import pipeline.pretrain
from pipeline.cli import main
from pipeline.config import ConvertConfig, ModelConfig, PretrainConfig
from pipeline.model import (
    StrandConfig,
    StrandForMaskedLM,
    StrandForSequenceClassification,
    StrandForTokenClassification,
    StrandModel,
)
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer

ROOT = Path(__file__).parents[2]
TOKENIZERS = sorted(path.name for path in (ROOT / "tokenizers").iterdir())
OF_CODE = ["dna-6mer-overlap"]
OF_RULES = [name for name in TOKENIZERS if name not in OF_CODE]
EXPORTED = ["codons", "dna-3mer-overlap", "dna-bpe"]  # others: tests/test_convert.py
HEADS = {"AutoModel": StrandModel, "AutoModelForMaskedLM": StrandForMaskedLM}
HEADS |= {"AutoModelForSequenceClassification": StrandForSequenceClassification}
HEADS |= {"AutoModelForTokenClassification": StrandForTokenClassification}
CONTEXT, TIMES = 64, 3
TEXTS = ["ACGTTGCANACGATTACAGGCTTAAC", "acgtaca"]
PROTEIN = "MKVLAAGIVGLCAKAYEERWNPQSTHDF"
# ESM's, so that every checkpoint can be exported, too.
SHAPE = {"norm": "layernorm", "activation": "gelu", "use_bias": True, "lm_head": "dense"}
SHAPE |= {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}

STRANGER = """
import json, os, socket, sys
def refuse(*_, **__):
    raise AssertionError("somebody asked for the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
sys.path[:] = [p for p in sys.path if p and not os.path.isdir(os.path.join(p, "pipeline", "model"))]
import torch, transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer
root, texts, jobs = sys.argv[1], *map(json.loads, sys.argv[2:])
told, refused = {}, {}
for name, head, code in jobs["without"]:
    tokenizer = AutoTokenizer.from_pretrained(f"{root}/{name}", trust_remote_code=False)
    told[f"{name}.ids"] = tokenizer(texts[0], return_tensors="pt")["input_ids"]
    if not code:
        auto = transformers.AutoModelForMaskedLM
        model, report = auto.from_pretrained(f"{root}/{name}", output_loading_info=True)
        assert not any(report.values()), report
        assert type(model).__module__.startswith("transformers.models.esm.")
        told[f"{name}.{head}"] = model.eval()(**tokenizer(texts, padding=True, return_tensors="pt")).logits
assert not [name for name in sys.modules if name.startswith("transformers_modules")]
for name, head in jobs["refused"]:
    try:
        getattr(transformers, head).from_pretrained(f"{root}/{name}")
    except ValueError as error:
        refused[f"{name}.{head}"] = str(error)
for name, head, times in jobs["with"]:
    tokenizer = AutoTokenizer.from_pretrained(f"{root}/{name}", trust_remote_code=True)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    told[f"{name}.ids"] = tokenizer(texts[0], return_tensors="pt")["input_ids"]
    for kind in ("float32", "bfloat16"):
        for time in range(times):
            model, report = getattr(transformers, head).from_pretrained(
                f"{root}/{name}", dtype=getattr(torch, kind), trust_remote_code=True, output_loading_info=True
            )
            assert not any(report.values()), report
            assert type(model).__module__.startswith("transformers_modules.")
            encoder = model.base_model
            tables = encoder.rotary(torch.zeros(1, 1, dtype=encoder.dtype), torch.arange(9)[None])
            assert {table.dtype for table in (*tables, encoder.rotary.inv_freq)} == {torch.float32}
            assert encoder.dtype == getattr(torch, kind)
            told[f"{name}.{head}.{kind}.{time}"] = model(**batch)[0]
assert "pipeline" not in sys.modules
save_file({k: v.detach().contiguous() for k, v in told.items()}, f"{root}/told")
open(f"{root}/refused.json", "w").write(json.dumps(refused))
"""


def write(folder, scheme, kind=StrandForMaskedLM, **changes):
    """A checkpoint as a stage leaves it, its weights large enough for an error to show."""
    tokenizer = load_tokenizer(ROOT / "tokenizers" / scheme, model_max_length=CONTEXT)
    facts = {"pad_token_id": tokenizer.pad_token_id, "mask_token_id": tokenizer.mask_token_id}
    facts |= {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT}
    facts |= {"alphabet": "protein" if scheme == "protein" else "dna"}
    torch.manual_seed(0)
    model = kind(StrandConfig(**SHAPE | facts | changes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


JOBS = [(name, "AutoModelForMaskedLM", TIMES) for name in TOKENIZERS]
JOBS += [(head, head, 1) for head in HEADS if head != "AutoModelForMaskedLM"]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Checkpoints of every tokenizer and head, some of them exported; what another process makes of all."""
    root = tmp_path_factory.mktemp("every.where-1")
    for name in TOKENIZERS:
        write(root / name, name)
    for name, kind in HEADS.items():
        write(root / name, "protein", kind, num_labels=3)
    for name in EXPORTED:
        pipeline.convert.run(ConvertConfig(output=root / f"{name}-esm", source=root / name, to="esm"))
    plain = [(name, "", True) for name in OF_RULES] + [(f"{name}-esm", "esm", False) for name in EXPORTED]
    heads = ["AutoConfig", *HEADS]
    refused = [(OF_CODE[0], head) for head in [*heads, "AutoTokenizer"]] + [("protein", h) for h in heads]
    jobs = {"without": plain, "with": JOBS, "refused": refused}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(root / "modules")}
    command = [sys.executable, "-c", STRANGER, str(root), *map(json.dumps, (TEXTS, jobs))]
    nothing = subprocess.DEVNULL
    done = subprocess.run(
        command, cwd="/", env=environment, stdin=nothing, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return root, load_file(root / "told"), json.loads((root / "refused.json").read_text())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "head", "times"), JOBS)
def test_every_load_gives_our_numbers(stranger, name, head, times, kind):
    root, told, _ = stranger
    dtype = getattr(torch, kind)
    model = HEADS[head].from_pretrained(root / name, dtype=dtype).eval()
    ours = model(**load_tokenizer(root / name)(TEXTS, padding=True, return_tensors="pt"))[0]
    first = told[f"{name}.{head}.{kind}.0"]
    assert first.dtype == dtype
    for time in range(1, times):
        assert torch.equal(told[f"{name}.{head}.{kind}.{time}"], first)
    torch.testing.assert_close(first, ours, rtol=1e-6, atol=1e-6)
    assert first.float().std() > 0.03


@torch.no_grad()
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_are_ours_and_those_of_rules_need_no_code(stranger, name):
    """The process has read all of rules, and all that is exported, before it trusts any code."""
    root, told, _ = stranger
    tokenizer = load_tokenizer(root / name)
    assert told[f"{name}.ids"].tolist() == [tokenizer(TEXTS[0])["input_ids"]]
    if name in EXPORTED:
        assert told[f"{name}-esm.ids"].tolist() == told[f"{name}.ids"].tolist()
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        ours = StrandForMaskedLM.from_pretrained(root / name)(**batch).logits
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(told[f"{name}-esm.esm"][real], ours[real], rtol=1e-5, atol=1e-5)


def test_without_consent_the_error_says_how_to_give_it(stranger):
    refused = stranger[2]
    assert len(refused) == 2 * (1 + len(HEADS)) + 1
    for name, message in refused.items():
        assert "trust_remote_code=True" in message, name


def test_the_versions_that_are_supported_begin_with_a_tested_one():
    """What is installed is in the range; until there is a newer one its first and last are the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (range_,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "transformers"]
    assert transformers.__version__ in range_.specifier
    assert {each.operator for each in range_.specifier} == {">=", "<"}


# -- names of weights


WRAPPED = {"wrapped": "module.", "compiled": "_orig_mod.", "both": "module._orig_mod."}


def renamed(folder, target, change):
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    save_file(change(tensors), target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("prefix", WRAPPED.values(), ids=list(WRAPPED))
def test_a_network_that_would_be_random_is_not_loaded(tmp_path, prefix):
    folder = write(tmp_path / "plain", "protein")
    bad = renamed(folder, tmp_path / "bad", lambda t: {f"{prefix}{name}": value for name, value in t.items()})
    for auto in (AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification):
        with pytest.raises(OSError, match="27 of 27 weights of the encoder are not in it") as caught:
            auto.from_pretrained(bad)
        assert f"but {prefix}decoder.bias is; save the network itself" in str(caught.value)


def test_a_part_of_the_encoder_may_be_new_but_not_most_of_it(tmp_path):
    """As when biases are added; the head is another matter."""
    folder = write(tmp_path / "plain", "protein", StrandModel)
    _, report = StrandForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert {name.split(".")[0] for name in report["missing_keys"]} == {"decoder", "head"}

    def few(t):
        return {name: value for name, value in t.items() if ".mlp" not in name}

    _, report = StrandModel.from_pretrained(renamed(folder, tmp_path / "few", few), output_loading_info=True)
    assert len(report["missing_keys"]) == 12

    def most(t):
        return {name: value for name, value in t.items() if "layers" not in name}

    with pytest.raises(OSError, match="24 of 27 weights of the encoder are not in it"):
        StrandModel.from_pretrained(renamed(folder, tmp_path / "most", most))


def test_weights_are_never_unpickled(tmp_path):
    folder = write(tmp_path / "pickled", "protein")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"no file named model.safetensors"):
        AutoModelForMaskedLM.from_pretrained(folder)


@pytest.mark.parametrize("how", ["compile", "accelerate"])
def test_a_compiled_run_saves_the_names_of_the_plain_network(rule_folder, tmp_path, monkeypatch, how):
    """The wrapping is what counts: nothing is translated."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER" if how == "accelerate" else "NO")
    small = {"steps": 1, "window": 40, "tokens_per_step": 200, "evaluation_bases": 99, "count_model": False}
    shape = ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    given = {"data": rule_folder / "tokens", "output": tmp_path / "lm", "compile": how == "compile"}
    with torch.compiler.set_stance("force_eager"):
        pipeline.pretrain.run(PretrainConfig(**given, **small, model=shape))
    for folder in (tmp_path / "lm", tmp_path / "lm" / "checkpoints" / "step-000001"):
        for auto in (AutoModel, AutoModelForMaskedLM):
            _, report = auto.from_pretrained(folder, output_loading_info=True)
            assert not report["missing_keys"]
            assert set(report["unexpected_keys"]) == ({"decoder.bias"} if auto is AutoModel else set())
        names = load_file(folder / "model.safetensors")
        assert all(name.split(".")[0] in ("model", "decoder") for name in names)
        assert "decoder.weight" not in names


def test_what_accelerate_saves_and_loads_stays_tied(tmp_path):
    from accelerate import Accelerator

    folder = write(tmp_path / "plain", "protein")
    accelerator, ids = Accelerator(cpu=True), torch.arange(4, 24)[None]
    model = accelerator.prepare(StrandForMaskedLM.from_pretrained(folder))
    expected = model(ids).logits.detach()
    accelerator.save_state(tmp_path / "state")
    with torch.no_grad():
        model.model.embeddings.weight.zero_()
    accelerator.load_state(tmp_path / "state")
    assert model.decoder.weight is model.model.embeddings.weight
    assert torch.equal(model(ids).logits, expected)


# -- code of others

TRAP = """
from pathlib import Path
Path({marker!r}).touch()
class Theirs:
    pass
"""
AUTO = dict.fromkeys(("AutoConfig", *HEADS), "theirs.Theirs")


def trapped(source, target, marker, ours):
    """A checkpoint whose code leaves a mark where it is run: of our kind, or of a kind nobody knows."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("manifest.json", "checkpoints"))
    for path in (*target.glob("*.py"), target / "theirs.py"):
        path.write_text(TRAP.format(marker=str(marker)))
    changes = {
        "config.json": {"auto_map": AUTO} | ({} if ours else {"model_type": "theirs"}),
        "tokenizer_config.json": {
            "auto_map": {"AutoTokenizer": ["theirs.Theirs", None]},
            "tokenizer_class": "Theirs",
        },
    }
    for name, facts in changes.items():
        path = target / name
        path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return target


QUICK = {
    "pretrain": "--start-from X --data TOKENS --steps 1 --window 40 --tokens-per-step 200 "
    "--evaluation-bases 99 --count-model false",
    "finetune": "--checkpoint X --data CORPUS --epochs 0.02 --untrained-control false --controls gc "
    "--allow-collapse true --shuffled-negatives false",
    "predict": "--checkpoint X --input FASTA",
    "embed": "--checkpoint X --input FASTA",
    "score": "--checkpoint X --input FASTA",
    "evaluate": "--checkpoint X --data TOKENS --letters 200 --count-model false",
    "motifs": "--checkpoint X --data CORPUS --max-sequences 20",
    "contacts": "--checkpoint X --data FASTA",
    "convert": "--to esm X",
    "tokenize": "--tokenizer X --corpus CORPUS",
    "probe": "--vectors X --table FASTA --target a",
}
NEVER = {"probe"}  # takes no checkpoint


@pytest.fixture
def command(rule_folder, classifier_folder, tmp_path, monkeypatch):
    """Run a command on a checkpoint whose code is a trap; return its exit code, and whether the code ran."""
    monkeypatch.setattr("builtins.input", lambda _: "y")  # even where somebody would say yes
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))

    def run(name, ours):
        protein = name in ("contacts", "convert")
        made = {"predict": classifier_folder, "motifs": classifier_folder}
        source = write(tmp_path / "protein", "protein") if protein else made.get(name, rule_folder / "lm")
        (tmp_path / "a.fa").write_text(f">a\n{PROTEIN if protein else 'ACGTTGCATGCATGCCATGC' * 2}\n")
        marker = tmp_path / "marker"
        places = {"X": trapped(source, tmp_path / "x", marker, ours), "FASTA": tmp_path / "a.fa"}
        places |= {"CORPUS": rule_folder / "corpus", "TOKENS": rule_folder / "tokens"}
        words = [str(places.get(word, word)) for word in QUICK[name].split()]
        try:
            main([name, *words, "--output", str(tmp_path / "output")])
        except SystemExit as stop:
            return stop.code, marker.exists()
        return 0, marker.exists()

    return run


@pytest.mark.parametrize("name", QUICK)
def test_our_commands_use_our_code_and_not_that_of_a_checkpoint(command, name):
    assert command(name, ours=True) == (2 if name in NEVER else 0, False)


@pytest.mark.parametrize("name", sorted(QUICK.keys() - {"tokenize"}))
def test_our_commands_refuse_networks_that_only_their_own_code_knows(command, name, capsys):
    assert command(name, ours=False) == (2, False)
    assert capsys.readouterr().err.splitlines()[-1].startswith("strandlm: error: ")
