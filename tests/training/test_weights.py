"""Checkpoints whose files do not go together, or whose weights are no numbers, by every road there is."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM

import pipeline.convert
import pipeline.embed
from pipeline.config import ConvertConfig, EmbedConfig, FinetuneConfig, PretrainConfig
from pipeline.errors import UserError
from pipeline.model import (
    FactoredConfig,
    FactoredForMaskedLM,
    StrandForMaskedLM,
    StrandForSequenceClassification,
    StrandModel,
)
from pipeline.tokens.kmers import codec_of
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
from pipeline.training.classifier import load_classifier
from pipeline.training.network import make_config, make_model
from pipeline.training.scores import load_language_model
from pipeline.training.tuning import new_model
from pipeline.training.weights import load_weights

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
UP = "model.layers.1.mlp.up.weight"  # 96 x 32: two times 48, as SwiGLU has it


def rewrite(folder, change, name=WEIGHTS):
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name, metadata={"format": "pt"})


def settings(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def lm(tiny_model, tmp_path, tokenizer_folder):
    folder = tmp_path / "lm"
    tiny_model(vocab_size=33, alphabet="protein", pad_token_id=1, mask_token_id=32).save_pretrained(folder)
    save_tokenizer(load_tokenizer(tokenizer_folder("protein")), folder)
    return folder


@pytest.fixture
def classifier(tiny_model, tmp_path, tokenizer_folder):
    folder = tmp_path / "classifier"
    tiny_model(StrandForSequenceClassification, vocab_size=33, alphabet="protein").save_pretrained(folder)
    save_tokenizer(load_tokenizer(tokenizer_folder("protein")), folder)
    return folder


@pytest.fixture
def factored(tmp_path):
    folder = tmp_path / "factored"
    sizes = {"num_columns": 6, "num_attention_heads": 2, "hidden_size": 4}
    FactoredForMaskedLM(FactoredConfig(residue_token_ids=[4, 5, 6], **sizes)).save_pretrained(folder)
    return folder


def refused(call, *words):
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def started(folder):
    config = PretrainConfig(output="o", data="d", start_from=folder)
    codec = codec_of(folder)
    return make_model(config, make_config(config, codec, 0), codec)


def tuned(folder):
    config = FinetuneConfig(output="o", data="d", checkpoint=folder)
    return new_model(config, ["a", "b", "c"], codec_of(folder), pretrained=True)


ROADS = {
    "score": load_language_model,
    "pretrain": started,
    "finetune": tuned,
    "embed": lambda folder: pipeline.embed._load(EmbedConfig(output="o", checkpoint=folder, input=["x"])),
    "convert": lambda folder: pipeline.convert.run(
        ConvertConfig(output=folder.parent / "esm", source=folder, to="esm")
    ),
    "plain": lambda folder: load_weights(AutoModel, folder),
}
roads = pytest.mark.parametrize("load", ROADS.values(), ids=list(ROADS))


@roads
def test_another_shape_than_configs(lm, load):
    settings(lm, intermediate_size=40)
    refused(lambda: load(lm), "checkpoint: ", f"{WEIGHTS}: tensor model.layers.0.mlp.", "by config.json ")
    settings(lm, intermediate_size=48)
    rewrite(lm, lambda tensors: tensors.update({UP: tensors[UP][:80].clone()}))
    refused(lambda: load(lm), f"{lm / WEIGHTS}: tensor {UP} is 80 x 32, but by config.json 96 x 32; put the ")


@roads
def test_more_layers_than_configs(lm, load):
    settings(lm, num_hidden_layers=1)
    refused(
        lambda: load(lm),
        f"{lm / WEIGHTS}: no place for tensor model.layers.1.",
        "(StrandForMaskedLM with num_hidden_layers 1); put the config.json there",
    )


@roads
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_weight_that_is_no_number(lm, load, value):
    rewrite(lm, lambda tensors: tensors[UP].view(-1)[5:7].fill_(value))
    name = UP if load not in (ROADS["embed"], ROADS["plain"]) else UP.removeprefix("model.")
    refused(lambda: load(lm), f"{lm / WEIGHTS}: tensor {name}: 2 of 3072 weights are NaN or infinite")


@roads
def test_fewer_layers_than_configs(lm, load):
    settings(lm, num_hidden_layers=3)
    refused(lambda: load(lm), f"{lm}: tensor model.layers.2.attention", "is in no file of weights; copy all")


@roads
def test_damaged_files(lm, load):
    path = lm / WEIGHTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    refused(lambda: load(lm), f"{path}: not whole safetensors: ", "; copy it again")
    path.unlink()
    refused(lambda: load(lm), f"{lm}: no {WEIGHTS}; pass a checkpoint")
    (lm / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    refused(lambda: load(lm), f"{lm}: pytorch_model.bin is a pickle, which can run code and is not read")
    (lm / INDEX).write_text(json.dumps({"weight_map": {UP: "model-00002-of-00002.safetensors"}}))
    refused(lambda: load(lm), f"{lm / INDEX}: names model-00002-of-00002.safetensors, which is not there")
    (lm / "config.json").write_text('{"model_type": "strand"')
    refused(lambda: load(lm), f"{lm / 'config.json'}: not JSON: ", "column 24")


@pytest.mark.parametrize("names", [None, [], ["Bert"], ["KmerTokenizer"], ["FactoredModel"]])
def test_a_network_that_is_not_ours(lm, names):
    settings(lm, architectures=names)
    refused(
        lambda: load_weights(AutoModel, lm), f"config.json: architectures: {names or []}: not one network"
    )


def test_the_file_is_the_shard_that_holds_the_tensor(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    load_weights(AutoModelForMaskedLM, tmp_path)
    shard = json.loads((tmp_path / INDEX).read_text())["weight_map"][UP]
    assert shard != sorted(path.name for path in tmp_path.glob("*.safetensors"))[0]
    rewrite(tmp_path, lambda tensors: tensors[UP].fill_(float("nan")), shard)
    refused(lambda: load_weights(AutoModelForMaskedLM, tmp_path), f"{tmp_path / shard}: tensor {UP}: 3072 of")


def test_heads_that_are_not_asked_for_are_not_in_the_way(tiny_model, tmp_path):
    """A head that is not used may be damaged; one that is used may not, and may be missing."""
    model = tiny_model(lm_head="dense", contact_head=True, framing_token_ids=[0, 2])
    model.save_pretrained(tmp_path / "lm")
    loaded, missing = load_weights(AutoModel, tmp_path / "lm")
    assert isinstance(loaded, StrandModel)
    assert not missing
    assert torch.equal(loaded.norm.weight, model.model.norm.weight)
    rewrite(tmp_path / "lm", lambda tensors: tensors["decoder.bias"].fill_(float("nan")))
    load_weights(AutoModel, tmp_path / "lm")
    refused(lambda: load_weights(AutoModelForMaskedLM, tmp_path / "lm"), "tensor decoder.bias: 40 of 40")
    model.model.save_pretrained(tmp_path / "encoder")
    _, missing = load_weights(StrandForMaskedLM, tmp_path / "encoder")
    assert {name.split(".")[0] for name in missing} == {"head", "decoder", "contact_head"}
    settings(tmp_path / "lm", contact_head=False)
    refused(lambda: load_weights(AutoModel, tmp_path / "lm"), "no place for tensor contact_head.regression.")


def test_a_classifier_of_other_classes_gets_a_new_head(classifier):
    stored = load_file(classifier / WEIGHTS)
    model = tuned(classifier)
    assert (stored["classifier.weight"].shape[0], model.classifier.weight.shape[0]) == (2, 3)
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, stored[f"model.{name}"]), name


def test_a_classifier_with_other_classes_in_its_config(classifier):
    load_classifier(classifier)
    settings(classifier, id2label={"0": "a", "1": "b", "2": "c"}, label2id={"a": 0, "b": 1, "c": 2})
    refused(lambda: load_classifier(classifier), "tensor classifier.", " is 2", "but by config.json 3")


def test_factored_attention_is_held_to_its_config_too(factored):
    load_weights(AutoModelForMaskedLM, factored)
    settings(factored, num_columns=7)
    refused(lambda: load_weights(AutoModelForMaskedLM, factored), "tensor ", "but by config.json ")
    settings(factored, num_columns=6)
    rewrite(factored, lambda tensors: tensors["model.keys"].view(-1)[:1].fill_(float("inf")))
    refused(lambda: load_weights(AutoModelForMaskedLM, factored), "tensor model.keys: 1 of 24 weights")
    path = factored / "config.json"
    old = json.loads(path.read_text())
    del old["factored_version"]
    path.write_text(json.dumps(old))
    refused(lambda: load_weights(AutoModelForMaskedLM, factored), f"checkpoint: {factored}: ", "version=1: w")


def test_a_regression_that_is_not_read_is_told(lm, capsys):
    load_weights(AutoModel, lm)
    assert "contact_regression" not in capsys.readouterr().err
    (lm / "contact_regression.safetensors").write_bytes(b"0")
    load_weights(AutoModel, lm)
    assert "contact_regression.safetensors: not read: convert ESM-2 anew" in capsys.readouterr().err
