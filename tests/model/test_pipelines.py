"""The pipelines of transformers on raw text, in a process that has never heard of this package; all heads."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from pipeline.model import (
    StrandForMaskedLM,
    StrandForSequenceClassification,
    StrandForTokenClassification,
    StrandModel,
)
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
from pipeline.training.classifier import load_classifier

CONTEXT, IGNORED = 40, -100
MASKED = {
    "protein": ("mkvLAG", "IVGLCAK"),
    "dna-6mer": ("acgtac", "GTTTACAA"),
    "dna-bpe": ("acgtac", "GTTTACAA"),
}
JSON = (*MASKED, "codons", "dna-1mer", "dna-3mer-overlap")
PYTHON = "dna-6mer-overlap"
KINDS = ["background", "promoter", "other"]
HEADS = {"classifier": ("protein", StrandForSequenceClassification)}
HEADS |= {"labeller": ("dna-6mer", StrandForTokenClassification), "base": ("dna-6mer", StrandModel)}
HEADS |= {name: (name, StrandForMaskedLM) for name in (*JSON, PYTHON)}
AUTO = {StrandForMaskedLM: AutoModelForMaskedLM, StrandModel: AutoModel}
AUTO[StrandForSequenceClassification] = AutoModelForSequenceClassification
AUTO[StrandForTokenClassification] = AutoModelForTokenClassification
PROTEINS, BASES = ["mkvLAGIVGLCAK", "MKV"], "acgtacGTTTACAA"

STRANGER = """
import json, os, sys
sys.path[:] = [p for p in sys.path if p and not os.path.isdir(os.path.join(p, "pipeline", "model"))]
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline
root, masked, names, proteins, bases = sys.argv[1], *map(json.loads, sys.argv[2:])
plain = {n: AutoTokenizer.from_pretrained(f"{root}/{n}", trust_remote_code=False) for n in names}
told = {"ids": {n: tokenizer("ACGTACGTA")["input_ids"] for n, tokenizer in plain.items()}}
told["code"] = sorted(name for name in sys.modules if name.startswith("transformers_modules"))
def run(task, name, text, **settings):
    made = pipeline(task, model=f"{root}/{name}", trust_remote_code=True)
    assert type(made.model).__module__.startswith("transformers_modules.")
    return made(text, **settings)
hidden = {name: "<mask>".join(parts) for name, parts in masked.items()}
told["filled"] = {name: run("fill-mask", name, text, top_k=3) for name, text in hidden.items()}
told["features"] = {name: run("feature-extraction", name, "".join(parts)) for name, parts in masked.items()}
told["classes"] = run("text-classification", "classifier", proteins, top_k=None, batch_size=2)
told["labels"] = run("token-classification", "labeller", bases, ignore_labels=[])
told["halves"], half = [], {"dtype": torch.bfloat16, "trust_remote_code": True}
for time in range(3):
    model = AutoModelForMaskedLM.from_pretrained(f"{root}/protein", **half)
    assert model.model.rotary.inv_freq.dtype == torch.float32
    told["halves"].append(model(input_ids=torch.arange(4, 24)[None]).logits.float().tolist())
assert "pipeline" not in sys.modules
open(f"{root}/told.json", "w").write(json.dumps(told, default=float))
"""


def make(kind, tokenizer, **changes):
    """A network for these tokens, its weights large enough for an error to show."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"pad_token_id": tokenizer.pad_token_id, "mask_token_id": tokenizer.mask_token_id}
    tokens |= {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT}
    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(KINDS)), "label2id": {name: i for i, name in enumerate(KINDS)}}
    model = kind(kind.config_class(**sizes, **tokens, **names, **changes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer_folder):
    """A checkpoint of every tokenizer, and one of every head."""
    root = tmp_path_factory.mktemp("pipelines")
    for name, (scheme, kind) in HEADS.items():
        tokenizer = load_tokenizer(tokenizer_folder(scheme), model_max_length=CONTEXT)
        make(kind, tokenizer).save_pretrained(root / name)
        save_tokenizer(tokenizer, root / name)
    return root


@pytest.fixture(scope="module")
def told(folders, tmp_path_factory):
    """What the pipelines say in a process that cannot import this package and has no network."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path_factory.mktemp("modules"))}
    given = [json.dumps(value) for value in (MASKED, JSON, PROTEINS, BASES)]
    command = [sys.executable, "-c", STRANGER, str(folders), *given]
    nothing = subprocess.DEVNULL
    done = subprocess.run(command, cwd="/", env=environment, stdin=nothing, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folders / "told.json").read_text())


def ours(folder, kind):
    model, report = AUTO[kind].from_pretrained(folder, output_loading_info=True)
    assert type(model) is kind
    assert not any(report.values()), report
    return model.eval()


@pytest.mark.parametrize("name", HEADS)
def test_every_head_opens_without_a_key_too_many_or_too_few(folders, name):
    ours(folders / name, HEADS[name][1])


def test_tokenizers_of_rules_open_without_our_code(told, folders):
    assert told["code"] == []
    for name in JSON:
        assert told["ids"][name] == load_tokenizer(folders / name)("ACGTACGTA")["input_ids"]


@torch.no_grad()
@pytest.mark.parametrize("name", MASKED)
def test_fill_mask_gives_the_likeliest_tokens_in_their_sequence(told, folders, name):
    left, right = MASKED[name]
    tokenizer = load_tokenizer(folders / name)
    ids = tokenizer(f"{left}<mask>{right}")["input_ids"]
    place = ids.index(tokenizer.mask_token_id)
    assert 0 < place < len(ids) - 2
    probability = ours(folders / name, StrandForMaskedLM)(torch.tensor([ids])).logits[0, place].softmax(0)
    for said, score, token in zip(
        told["filled"][name], *(x.tolist() for x in probability.topk(3)), strict=True
    ):
        letters = tokenizer.convert_ids_to_tokens(token)
        assert (said["token"], said["token_str"]) == (token, letters)
        assert said["score"] == pytest.approx(score, abs=1e-6)
        filling = "" if letters in tokenizer.all_special_tokens else letters
        assert said["sequence"] == (left + filling + right).upper()


@torch.no_grad()
@pytest.mark.parametrize("name", MASKED)
def test_feature_extraction_gives_the_states_of_all_tokens(told, folders, name):
    batch = load_tokenizer(folders / name)("".join(MASKED[name]), return_tensors="pt")
    expected = ours(folders / name, StrandForMaskedLM).model(**batch).last_hidden_state
    torch.testing.assert_close(torch.tensor(told["features"][name]), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_text_classification_gives_the_probabilities_of_named_classes(told, folders):
    model, tokenizer = (
        ours(folders / "classifier", StrandForSequenceClassification),
        load_tokenizer(folders / "classifier"),
    )
    for text, said in zip(PROTEINS, told["classes"], strict=True):
        expected = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(0).tolist()
        assert {row["label"]: row["score"] for row in said} == pytest.approx(
            dict(zip(KINDS, expected, strict=True)), abs=1e-6
        )


@torch.no_grad()
def test_token_classification_says_which_letters_each_label_is_of(told, folders):
    model, tokenizer = (
        ours(folders / "labeller", StrandForTokenClassification),
        load_tokenizer(folders / "labeller"),
    )
    places = [(0, 6), (6, 12), (12, 13), (13, 14)]
    probability = model(**tokenizer(BASES, return_tensors="pt")).logits[0].softmax(1)[1:-1]
    assert [(row["start"], row["end"]) for row in told["labels"]] == places
    assert [row["word"] for row in told["labels"]] == [BASES[a:b].upper() for a, b in places]
    assert [row["entity"] for row in told["labels"]] == [KINDS[i] for i in probability.argmax(1)]
    assert [row["score"] for row in told["labels"]] == pytest.approx(probability.amax(1).tolist(), abs=1e-6)


@torch.no_grad()
def test_three_loads_in_half_precision_are_one(told, folders):
    first = torch.tensor(told["halves"][0])
    assert told["halves"][1] == told["halves"][2] == told["halves"][0]
    model = AutoModelForMaskedLM.from_pretrained(folders / "protein", dtype=torch.bfloat16)
    torch.testing.assert_close(first, model(input_ids=torch.arange(4, 24)[None]).logits.float())


# -- the head for tokens


def test_the_head_of_tokens_is_linear_and_passes_over_what_has_no_label(tiny_model):
    model = tiny_model(StrandForTokenClassification, num_labels=3)
    ids = torch.randint(5, 40, (2, 9))
    labels = torch.randint(0, 3, (2, 9))
    labels[0, 4:] = IGNORED
    labels[1, 0] = IGNORED
    said = model(ids, labels=labels)
    states = model.model(ids).last_hidden_state
    logits = states @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(said.logits, logits)
    chosen = logits.log_softmax(-1)[labels != IGNORED]
    expected = -chosen[range(len(chosen)), labels[labels != IGNORED]].mean()
    torch.testing.assert_close(said.loss, expected)
    share = model(ids, labels=labels, num_items_in_batch=torch.tensor(24)).loss
    torch.testing.assert_close(share, expected * len(chosen) / 24)


@torch.no_grad()
def test_the_head_of_tokens_reads_packed_sequences(tiny_model):
    model = tiny_model(StrandForTokenClassification, num_labels=3)
    first, second = torch.randint(5, 40, (1, 4)), torch.randint(5, 40, (1, 7))
    packed = model(torch.cat((first, second), 1), sequence_offsets=torch.tensor([0, 4, 11])).logits
    alone = torch.cat((model(first).logits, model(second).logits), 1)
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)


# -- what is saved


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_saved_once(tiny_model, tmp_path, tied):
    model = tiny_model(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert set(model.state_dict()) - names == ({"decoder.weight"} if tied else set())
    again = ours(tmp_path, StrandForMaskedLM)
    assert (again.decoder.weight is again.model.embeddings.weight) == tied


@torch.no_grad()
def test_an_adapter_is_saved_loaded_and_merged(tiny_model, tmp_path):
    peft = pytest.importorskip("peft")
    shape = {"num_labels": 3, "classifier_pooling": "mean"}
    base = tiny_model(StrandForSequenceClassification, **shape)
    base.save_pretrained(tmp_path / "base")
    ids = torch.randint(5, 40, (4, 11))
    before = base(ids).logits
    settings = {"r": 4, "target_modules": ["qkv", "out", "up", "down"], "init_lora_weights": False}
    adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", **settings)).eval()
    adapted.base_model.model.classifier.modules_to_save["default"].weight.mul_(2.0)
    expected = adapted(input_ids=ids).logits
    assert (expected - before).abs().max() > 0.1
    adapted.save_pretrained(tmp_path / "adapter")
    fresh = StrandForSequenceClassification.from_pretrained(tmp_path / "base")
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    torch.testing.assert_close(again(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-5)
    again.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = ours(tmp_path / "merged", StrandForSequenceClassification)
    torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-5, atol=1e-5)


# -- code of others

FOREIGN = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
class Theirs(PreTrainedTokenizerFast):
    pass
class TheirConfig(PreTrainedConfig):
    model_type = "strand"
"""


def test_code_in_a_checkpoint_is_not_run_by_us_even_if_one_says_yes(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    shutil.copytree(folders / "classifier", tmp_path / "foreign")
    (tmp_path / "foreign" / "theirs.py").write_text(FOREIGN)
    for name, place in (
        ("tokenizer_config.json", [None, "theirs.Theirs"]),
        ("config.json", "theirs.TheirConfig"),
    ):
        path = tmp_path / "foreign" / name
        facts = json.loads(path.read_text())
        path.write_text(
            json.dumps(facts | {"auto_map": dict.fromkeys(("AutoTokenizer", "AutoConfig"), place)})
        )
    model, _ = load_classifier(tmp_path / "foreign")
    assert isinstance(model, StrandForSequenceClassification)
    load_tokenizer(tmp_path / "foreign")
    assert not list(tmp_path.rglob("ran"))
