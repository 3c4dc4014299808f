"""A checkpoint's card: what it says is in the files it is made from, and its lines of Python run."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from transformers import EsmConfig, EsmForMaskedLM

import pipeline.convert
from pipeline.artifacts import Workspace, hash_file, read_manifest
from pipeline.config import ConvertConfig, FinetuneConfig, PretrainConfig
from pipeline.report.card import CARD, LICENSE, Facts, Source, card, trace, write_card
from pipeline.tokens.vocabulary import PROTEIN_TOKENS

SHAPE = {"architectures": ["StrandForMaskedLM"], "model_type": "strand", "max_position_embeddings": 42}


def facts(**changes):
    """Facts made up of nothing: a network of 6-mers."""
    made = Facts(
        stage="pretrain",
        settings={"optimizer.learning_rate": 0.00125, "steps": 7, "start_from": None},
        config={**SHAPE, "norm_eps": 1e-5, "tie_word_embeddings": True},
        tokens={"alphabet": "dna", "k": 6, "overlapping": False},
        sources=[Source(0, "data", "toks|1", "ab" * 32, None)],
        counts={"parameters": 1234567, "letters_seen": 7000},
        metrics={"bits_per_hidden_base": {"value": 1.9, "untrained": 2.4, "standard_error": 0.004}},
    )
    return replace(made, **changes)


def front(text):
    """The YAML between the first two lines of dashes, as the Hub reads it."""
    assert text.startswith("---\n")
    return YAML(typ="safe").load(text.split("---\n")[1])


def rows(text, heading):
    """The tables of a section as lists of cells, heads left out."""
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (section,) = (part for part in section if part.startswith(heading + "\n"))
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    return [[c.strip("\N{NO-BREAK SPACE} ") for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def folders(rule_folder, classifier_folder, tmp_path_factory):
    """Checkpoints with their cards: of pretrain, finetune and both ways of convert."""
    root = tmp_path_factory.mktemp("cards")
    shutil.copytree(rule_folder / "lm", root / "lm")
    shutil.copytree(classifier_folder, root / "classifier")
    made = read_manifest(classifier_folder)
    space = Workspace(root / "classifier", made["counts"], made["inputs"])
    write_card(space, "finetune", FinetuneConfig(**made["config"]))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "max_position_embeddings": 40}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5}
    esm = EsmConfig(**sizes, **still, position_embedding_type="rotary")
    EsmForMaskedLM(esm).save_pretrained(root / "theirs")
    (root / "theirs" / "vocab.txt").write_text("\n".join(PROTEIN_TOKENS))
    taken = {"output": root / "taken", "source": root / "theirs", "from": "esm2"}
    pipeline.convert.run(ConvertConfig(**taken))
    pipeline.convert.run(ConvertConfig(output=root / "given", source=root / "taken", to="esm"))
    return root


def text_of(folder):
    return (folder / CARD).read_text()


# -- what it is a function of


def test_the_same_files_give_the_same_bytes(folders, rule_folder, tmp_path):
    made = read_manifest(rule_folder / "lm")
    shutil.copytree(rule_folder / "lm", tmp_path / "elsewhere", ignore=shutil.ignore_patterns(CARD))
    config = PretrainConfig(**made["config"]).model_copy(update={"output": tmp_path / "elsewhere"})
    write_card(Workspace(tmp_path / "elsewhere", made["counts"], made["inputs"]), "pretrain", config)
    assert text_of(tmp_path / "elsewhere") == text_of(folders / "lm")


@pytest.mark.parametrize("name", ["lm", "classifier", "taken", "given"])
def test_no_place_on_this_machine_is_in_it(folders, rule_folder, name):
    text = text_of(folders / name)
    for place in (str(rule_folder), str(folders), str(Path.home()) + "/", str(Path.cwd())):
        assert place not in text
    assert not re.search(r"(?<![\w`])/\w+/\w", text), "an absolute path"


def test_it_is_no_part_of_what_the_result_is_known_by(folders):
    """So filling in the licence does not make later stages run again."""
    for name in ("lm", "taken", "given"):
        assert CARD not in read_manifest(folders / name)["files"]


# -- what it says


def test_the_front_is_what_the_hub_reads(folders):
    expected = {
        "lm": ("fill-mask", {"dna", "genomics"}),
        "classifier": ("text-classification", {"dna", "genomics"}),
        "taken": ("fill-mask", {"protein", "proteins"}),
        "given": ("fill-mask", {"protein", "proteins"}),
    }
    for name, (task, tags) in expected.items():
        found = front(text_of(folders / name))
        assert found["license"] == LICENSE
        assert (found["library_name"], found["pipeline_tag"]) == ("transformers", task)
        assert set(found["tags"]) == {"strandlm", "biology", *tags}
        assert "base_model" not in found
    assert front(card(facts(base="owner/name")))["base_model"] == "owner/name"


def test_the_data_are_traced_to_their_files_with_hashes_and_counts(folders, rule_folder):
    corpus, tokens, lm = (read_manifest(rule_folder / name) for name in ("corpus", "tokens", "lm"))
    lines = [
        ["data `tokens`", "tokenize", tokens["content"]],
        ["of that, corpus `corpus`", "prepare", corpus["content"]],
        ["of that, input0 `rule.tsv`", "-", hash_file(rule_folder / "rule.tsv")],
        ["of that, tokenizer `dna-3mer-overlap`", "-", tokens["inputs"]["tokenizer"]],
    ]
    said = rows(text_of(folders / "lm"), "Data")[1:]
    assert [row[:3] for row in said] == lines
    counts = tokens["counts"]
    assert said[0][3] == "; ".join(
        f"{split}: {counts[split]['records']} records, {counts[split]['letters']:,} letters"
        for split in ("train", "validation", "test")
    )
    said = [row[:3] for row in rows(text_of(folders / "classifier"), "Data")[1:]]
    first = ["checkpoint `lm`", "pretrain", lm["content"]]
    assert said == [
        first,
        ["of that, " + lines[0][0], *lines[0][1:]],
        *lines[1:],
        ["data `corpus`", *lines[1][1:]],
        lines[2],
    ]


def test_a_folder_that_has_changed_is_traced_no_further(rule_folder):
    made = read_manifest(rule_folder / "lm")
    assert len(list(trace(made["inputs"], made["config"]))) == 4
    (only,) = trace({"data": "0" * 64}, made["config"])
    assert (only.name, only.content, only.manifest) == ("tokens", "0" * 64, None)
    two = {"input": ["/a/one.fa", "/a/two.fa"], "classes": {}}
    assert [s.name for s in trace({"input0": "0", "input1": "1"}, two)] == ["one.fa", "two.fa"]
    assert [s.name for s in trace({"input0": "0"}, two)] == [""], "one of the two was a folder"


def test_counts_and_settings_are_exact():
    text = card(facts())
    assert rows(text, "Counts")[1:] == [["letters seen", "7,000"], ["parameters", "1,234,567"]]
    found = dict(rows(text, "Configuration"))
    assert found["optimizer.learning_rate"] == "0.00125"
    assert (found["start_from"], found["norm_eps"], found["tie_word_embeddings"]) == ("null", "1e-05", "true")
    assert "toks\\|1" in text, "a bar in a name would end its cell"


def test_scores_stand_beside_their_controls_and_open_ones_are_limits(folders):
    bits = json.loads((folders / "lm" / "metrics.json").read_text())["bits_per_hidden_base"]
    text = text_of(folders / "lm")
    assert dict(rows(text, "Scores")[1:]) == {
        "this model": f"{bits['value']:.3f}",
        "untrained network": f"{bits['untrained']:.3f}",
        "two-sided count model": f"{bits['baseline']:.3f}",
        "base composition": f"{bits['random']:.3f}",
    }
    assert f"Standard error {bits['standard_error']:.3f}, {bits['hidden_letters']:,} hidden letters." in text
    open_one = "not clearly better than untrained network"
    assert open_one not in card(facts())
    worse = {"value": 2.395, "untrained": 2.4, "standard_error": 0.004}
    assert open_one in card(facts(metrics={"bits_per_hidden_base": worse}))


def test_a_classifier_stands_beside_each_of_its_controls(folders):
    (metric,) = json.loads((folders / "classifier" / "metrics.json").read_text()).values()
    text = text_of(folders / "classifier")
    table = {row[0]: row[1:] for row in rows(text, "Scores")}
    place = table[""].index("mcc")
    assert table.keys() >= {"this model", *metric["controls"]}
    for name, numbers in {"this model": metric["at_threshold"], **metric["controls"]}.items():
        low, high = numbers["intervals"]["mcc"]
        assert table[name][place] == f"{numbers['mcc']:.3f} ({low:.3f} to {high:.3f})"
    assert "Its classes: background, promoter." in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "It reads at most 40 tokens at once (a token is 6 bases); longer"),
        ({"tokens": {"alphabet": "dna", "k": 3, "overlapping": True}}, "A hidden base is 3 masked tokens"),
        ({"tokens": {"alphabet": "dna", "k": None}}, "(a token is one or more bases)"),
        ({"tokens": {}}, "(a token is a residue)"),
        ({"config": SHAPE | {"num_columns": 60}, "tokens": {}}, "aligned to 60 columns"),
        (
            {"stage": "convert"},
            "What the weights were trained on, and their licence, is for their source to say",
        ),
    ],
)
def test_limits_follow_from_the_configuration(changes, said):
    assert said in card(facts(**changes))


def test_data_sets_of_several_folders_are_told_apart_by_name(tmp_path):
    """Where two folders have one name their scores are kept by path."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "metrics.json").write_text(json.dumps({"bits_per_hidden_base:/a/t": {"value": 1.5}}))
    config = PretrainConfig(output=tmp_path, data=[Path("/b/t"), Path("/a/t")])
    write_card(Workspace(tmp_path), "pretrain", config)
    assert "### Bits per hidden base (t, data 2)" in text_of(tmp_path)
    assert "/a/t" not in text_of(tmp_path)


# -- its lines of Python


def test_its_lines_run_where_strandlm_is_installed(folders, monkeypatch):
    for name in ("lm", "classifier", "taken"):
        monkeypatch.chdir(folders / name)
        told = {}
        exec(blocks(text_of(folders / name))[0], told)
        assert torch.isfinite(told["logits"]).all()
        assert type(told["model"]).__module__.startswith("pipeline.")


STRANGER = """
import json, os, sys
sys.path[:] = [p for p in sys.path if p and not os.path.isdir(os.path.join(p, "pipeline", "model"))]
told = {}
for folder, code in json.loads(sys.argv[1]).items():
    os.chdir(folder)
    exec(code, names := {})
    told[folder] = [type(names["model"]).__module__.split(".")[0], list(names["logits"].shape)]
assert "pipeline" not in sys.modules
print(json.dumps(told))
"""


def test_its_lines_run_elsewhere(folders, tmp_path):
    given = {
        str(folders / name): blocks(text_of(folders / name))[-1]
        for name in ("lm", "classifier", "taken", "given")
    }
    assert [("trust_remote_code" in code) for code in given.values()] == [True, True, True, False]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", STRANGER, json.dumps(given)]
    done = subprocess.run(
        command, cwd="/", env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ours, theirs = "transformers_modules", "transformers"
    shapes = [[ours, [1, 20, 74]], [ours, [1, 2]], [ours, [1, 22, 33]], [theirs, [1, 22, 33]]]
    assert list(json.loads(done.stdout).values()) == shapes
