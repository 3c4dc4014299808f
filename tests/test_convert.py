"""Foreign weights: the same numbers and the same training here, and back again bit for bit."""

import json
import os
import shutil
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    EsmcConfig,
    EsmcForMaskedLM,
    EsmConfig,
    EsmForMaskedLM,
)

import pipeline.convert
import pipeline.model
from pipeline.artifacts import read_manifest
from pipeline.cli import main
from pipeline.config import ConvertConfig
from pipeline.errors import UserError
from pipeline.model import StrandConfig, StrandForMaskedLM, StrandForSequenceClassification
from pipeline.tokens.vocabulary import PROTEIN_TOKENS, load_tokenizer, save_tokenizer

MASK, CONTEXT = 32, 90
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
DEEP = {"hidden_size": 60, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 3}
ESM2 = [
    SMALL,
    SMALL | {"token_dropout": True, "tie_word_embeddings": False},
    DEEP | {"token_dropout": True, "emb_layer_norm_before": True, "vocab_size": 64},
]
ESMC = [SMALL, DEEP | {"attention_bias": True, "mlp_bias": True}]
CASES = [("esm2", options) for options in ESM2] + [("esmc", options) for options in ESMC]
PROTEIN = "MKVLAAGIVGLCAKAYEERWNPQSTHDF"


def foreign(layout, **options):
    """A random network of theirs, its weights large enough for an error to show."""
    torch.manual_seed(0)
    options |= {"pad_token_id": 1, "mask_token_id": MASK, "max_position_embeddings": CONTEXT}
    if layout == "esmc":
        model = EsmcForMaskedLM(EsmcConfig(**options))
    else:
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5}
        settings = {"vocab_size": 33, "position_embedding_type": "rotary", "emb_layer_norm_before": False}
        model = EsmForMaskedLM(EsmConfig(**settings | still | options))
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.shape[1] ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(torch.randn_like(parameter) * spread + (parameter.ndim == 1) * parameter)
        if layout == "esm2":
            model.esm.contact_head.regression.weight *= 20  # as corrected maps hold small numbers
    return model.eval()


def write(folder, model, tokens=PROTEIN_TOKENS):
    """As transformers saves it, with ESM-2's list of tokens."""
    model.save_pretrained(folder)
    if model.config.model_type == "esm":
        (folder / "vocab.txt").write_text("\n".join(tokens))
    return folder


def convert(output, source, **what):
    return pipeline.convert.run(ConvertConfig(output=output, source=source, **what)).folder


def loaded(folder, kind=AutoModelForMaskedLM, **settings):
    model, report = kind.from_pretrained(folder, output_loading_info=True, **settings)
    assert not any(report.values()), report
    return model


def padded(lengths=(5, 50, 17), masked=0.3):
    ids = torch.randint(4, 24, (len(lengths), max(lengths)))
    ids[torch.rand(ids.shape) < masked] = MASK
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids[:, 0] = 0
    for row, length in enumerate(lengths):
        ids[row, length - 1] = 2
    return {"input_ids": torch.where(mask, ids, 1), "attention_mask": mask.long()}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]['hidden_size']}")
def pair(request, tmp_path_factory):
    """Ours and theirs, both as they are opened from their folders, with eager attention, and the folders."""
    layout, options = request.param
    folder = tmp_path_factory.mktemp("pair")
    source = write(folder / "theirs", foreign(layout, **options))
    ours = convert(folder / "ours", source, **{"from": layout})
    models = [loaded(path, attn_implementation="eager") for path in (ours, source)]
    return (*models, ours, source)


# -- the same numbers


@torch.no_grad()
def test_logits_states_and_attentions_are_theirs(pair):
    ours, theirs, folder, _ = pair
    assert isinstance(ours, StrandForMaskedLM)
    torch.manual_seed(1)
    for lengths, masked in (((9,), 0.0), ((5, 50, 17), 0.3)):
        batch = padded(lengths, masked)
        real = batch["attention_mask"].bool()
        a, b = (model(**batch, output_hidden_states=True, output_attentions=True) for model in (ours, theirs))
        torch.testing.assert_close(a.logits[real], b.logits[real], rtol=1e-5, atol=1e-5)
        for mine, yours in zip(a.hidden_states, b.hidden_states, strict=True):
            torch.testing.assert_close(mine[real], yours[real], rtol=1e-5, atol=1e-5)
        both = real[:, None, :, None] & real[:, None, None, :]
        for mine, yours in zip(a.attentions, b.attentions, strict=True):
            torch.testing.assert_close(mine * both, yours * both, rtol=1e-5, atol=1e-5)
        assert a.logits[real].std() > 0.1
    assert ours.config.max_position_embeddings == load_tokenizer(folder).model_max_length == CONTEXT


@torch.no_grad()
def test_contacts_are_theirs(pair):
    ours, theirs, folder, _ = pair
    fitted = isinstance(theirs, EsmForMaskedLM)
    assert fitted == read_manifest(folder)["counts"]["contact_regression"] == ours.config.contact_head
    if not fitted:
        with pytest.raises(ValueError, match="no fitted contact regression"):
            ours.predict_contacts(**padded((9,)))
        return
    for lengths in ((9,), (9, 24, 15)):
        batch = padded(lengths, 0.1)
        told = theirs.predict_contacts(*batch.values())
        torch.testing.assert_close(ours.predict_contacts(**batch), told, rtol=1e-5, atol=1e-5)
        assert told.std() > 0.1


def test_training_takes_the_same_first_steps(pair):
    ours, theirs = (
        type(model).from_pretrained(folder) for model, folder in zip(pair[:2], pair[2:], strict=True)
    )
    torch.manual_seed(2)
    batches = [padded() for _ in range(5)]
    labels = [
        torch.where(b["input_ids"] == MASK, torch.randint(4, 24, b["input_ids"].shape), -100) for b in batches
    ]
    losses = []
    for model in (ours, theirs):
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        for batch, wanted in zip(batches, labels, strict=True):
            loss = model(**batch, labels=wanted).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    mine, yours = losses[:5], losses[5:]
    assert mine == pytest.approx(yours, abs=1e-4)
    assert mine[-1] != pytest.approx(mine[0], abs=1e-2)
    batch, real = batches[0], batches[0]["attention_mask"].bool()
    a, b = (model.eval()(**batch).logits[real] for model in (ours, theirs))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_rounded_frequencies_are_taken_over(tmp_path):
    """Those of ESM-2 lie among its weights, in half precision; at the 80th token it shows."""
    theirs, batch = foreign("esm2", **SMALL), padded((85,), 0.0)
    exact = theirs(**batch).logits
    theirs.esm.rotary_embeddings.inv_freq.copy_(theirs.esm.rotary_embeddings.inv_freq.half())
    rounded = theirs(**batch).logits
    assert (rounded - exact).abs().max() > 3e-4
    ours = convert(tmp_path / "ours", write(tmp_path / "theirs", theirs), **{"from": "esm2"})
    torch.testing.assert_close(loaded(ours)(**batch).logits, rounded, rtol=1e-5, atol=1e-5)
    back = loaded(convert(tmp_path / "back", ours, to="esm"))
    assert torch.equal(back.esm.rotary_embeddings.inv_freq, theirs.esm.rotary_embeddings.inv_freq)


# -- there and back


NOT_SETTINGS = {"_name_or_path", "transformers_version", "architectures"}


def assert_same(first, second):
    """Two networks have the same settings and, bit for bit, the same tensors and buffers."""
    a, b = (model.config.to_dict() for model in (first, second))
    assert {k: v for k, v in a.items() if k not in NOT_SETTINGS} == {
        k: v for k, v in b.items() if k not in NOT_SETTINGS
    }
    a, b = (model.state_dict() for model in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", ESM2)
def test_import_and_export_are_inverse(tmp_path, options, dtype):
    source = write(tmp_path / "theirs", foreign("esm2", **options).to(dtype))
    ours = convert(tmp_path / "ours", source, **{"from": "esm2"})
    back = convert(tmp_path / "back", ours, to="esm")
    again = convert(tmp_path / "again", back, **{"from": "esm2"})
    assert_same(loaded(source), loaded(back))
    assert_same(loaded(ours), loaded(again))
    names = [name for name in read_manifest(ours)["files"] if not name.endswith(".py")]
    for name in names:
        assert (ours / name).read_bytes() == (again / name).read_bytes(), name


def test_a_checkpoint_as_on_the_hub(tmp_path):
    """In parts, layer norms called by their first names, idle tensors of older versions, a pooler."""
    source = write(tmp_path / "theirs", foreign("esm2", **SMALL))
    plain = convert(tmp_path / "plain", source, **{"from": "esm2"})
    tensors = load_file(source / "model.safetensors")
    tensors = {
        name.replace("beta", "bias").replace("gamma", "weight"): value for name, value in tensors.items()
    }
    frequencies = tensors.pop("esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq")
    for i in range(2):
        tensors[f"esm.encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq"] = frequencies.clone()
    tensors["lm_head.decoder.weight"] = tensors["esm.embeddings.word_embeddings.weight"].clone()
    tensors["esm.embeddings.position_ids"] = torch.arange(CONTEXT)[None]
    tensors["esm.embeddings.position_embeddings.weight"] = torch.zeros(CONTEXT, 32)
    tensors["esm.pooler.dense.weight"] = torch.zeros(32, 32)
    names = sorted(tensors)
    index = {"weight_map": {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}}
    for part in (0, 1):
        save_file({name: tensors[name] for name in names[part::2]}, source / f"part-{part}.safetensors")
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    ours = convert(tmp_path / "ours", source, **{"from": "esm2"})
    assert (ours / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    left_out = ["esm.embeddings.position_embeddings.weight", "esm.pooler.dense.weight"]
    assert read_manifest(ours)["counts"]["left_out"] == left_out
    assert read_manifest(plain)["counts"]["left_out"] == []


def test_a_decoder_that_is_tied_in_name_only(tmp_path):
    source = write(tmp_path / "theirs", foreign("esm2", **SMALL, tie_word_embeddings=False))
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    ours = loaded(convert(tmp_path / "ours", source, **{"from": "esm2"}))
    assert not ours.config.tie_word_embeddings
    batch = padded((9,))
    torch.testing.assert_close(ours(**batch).logits, loaded(source)(**batch).logits, rtol=1e-5, atol=1e-5)


# -- nothing but transformers


STRANGER = """
import json, os, sys
sys.path[:] = [p for p in sys.path if p and not os.path.isdir(os.path.join(p, "pipeline", "model"))]
import torch
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer
told = {}
for folder, text in zip(sys.argv[2::2], sys.argv[3::2]):
    model, report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert type(model).__module__.startswith("transformers.models.esm.")
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", truncation=True)
    told[f"{folder}.ids"] = tokens["input_ids"]
    with torch.no_grad():
        told[f"{folder}.logits"] = model(**tokens).logits
assert "pipeline" not in sys.modules
save_file(told, sys.argv[1])
"""


def esm_shaped(folder, tokenizer, **changes):
    """A strand checkpoint in ESM's shape, with a tokenizer of ours."""
    torch.manual_seed(0)
    words = load_tokenizer(tokenizer, model_max_length=CONTEXT)
    ids = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, "mask_token_id": words.mask_token_id}
    esm = {
        "norm": "layernorm",
        "activation": "gelu",
        "use_bias": True,
        "lm_head": "dense",
        "token_dropout": True,
    }
    settings = SMALL | ids | esm | {"max_position_embeddings": CONTEXT} | changes
    model = StrandForMaskedLM(StrandConfig(**settings)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    save_tokenizer(words, folder)
    return folder


@torch.no_grad()
def test_an_export_opens_where_we_are_not(tmp_path, tokenizer_folder):
    texts = {
        "protein": PROTEIN[:9] + "<mask>" + PROTEIN[9:],
        "dna-6mer": "ACGTTAGCNACGATTACAGGCT",
        "dna-1mer": "ACNT",
    }
    folders = {name: esm_shaped(tmp_path / name, tokenizer_folder(name)) for name in texts}
    exported = {name: convert(tmp_path / f"{name}-esm", folder, to="esm") for name, folder in folders.items()}
    assert not any(path.suffix == ".py" for folder in exported.values() for path in folder.iterdir())
    arguments = [part for name, folder in exported.items() for part in (folder, texts[name])]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    call = [sys.executable, "-c", STRANGER, tmp_path / "told", *arguments]
    done = subprocess.run(call, cwd="/", env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    told = load_file(tmp_path / "told")
    for name, folder in folders.items():
        batch = load_tokenizer(folder)(texts[name], return_tensors="pt")
        assert torch.equal(told[f"{exported[name]}.ids"], batch["input_ids"])
        logits = loaded(folder)(**batch).logits
        torch.testing.assert_close(told[f"{exported[name]}.logits"], logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_without_a_regression_contacts_are_undecided(tmp_path, tokenizer_folder):
    theirs = loaded(
        convert(tmp_path / "esm", esm_shaped(tmp_path / "ours", tokenizer_folder("protein")), to="esm")
    )
    theirs.set_attn_implementation("eager")
    assert (theirs.predict_contacts(*padded((9,)).values()) == 0.5).all()
    assert read_manifest(tmp_path / "esm")["counts"]["contact_regression"] is False


# -- what follows in our engine


@pytest.fixture(scope="module")
def proteins(tmp_path_factory):
    """Random proteins of two classes: their corpus and their tokens."""
    import pipeline.encode
    import pipeline.prepare
    from pipeline.config import PrepareConfig, TokenizeConfig

    folder, rng = tmp_path_factory.mktemp("proteins"), np.random.default_rng(0)
    for name in ("one", "other"):
        rows = ["".join(rng.choice(list(PROTEIN_TOKENS[4:24]), 30)) for _ in range(20)]
        (folder / f"{name}.fa").write_text("".join(f">{name}{i}\n{row}\n" for i, row in enumerate(rows)))
    classes = {name: folder / f"{name}.fa" for name in ("one", "other")}
    settings = {"alphabet": "protein", "validation": 0.2, "test": 0.2}
    pipeline.prepare.run(PrepareConfig(output=folder / "corpus", classes=classes, **settings))
    pipeline.encode.run(
        TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer="protein")
    )
    return folder


@pytest.mark.parametrize("layout", ["esm2", "esmc"])
def test_our_stages_take_what_is_taken_over(tmp_path, proteins, layout):
    import pipeline.embed
    import pipeline.finetune
    import pipeline.pretrain
    from pipeline.config import EmbedConfig, FinetuneConfig, PretrainConfig

    source = write(tmp_path / "theirs", foreign(layout, **SMALL))
    ours = convert(tmp_path / "ours", source, **{"from": layout})
    small = {"steps": 2, "window": 40, "tokens_per_step": 400, "evaluation_bases": 200, "count_model": False}
    trained = pipeline.pretrain.run(
        PretrainConfig(output=tmp_path / "lm", data=proteins / "tokens", start_from=ours, **small)
    )
    assert loaded(trained.folder).config.vocab_size == (64 if layout == "esmc" else 33)
    epochs = {"epochs": 0.5, "untrained_control": False}
    pipeline.finetune.run(
        FinetuneConfig(output=tmp_path / "classifier", data=proteins / "corpus", checkpoint=ours, **epochs)
    )
    vectors = pipeline.embed.run(
        EmbedConfig(
            output=tmp_path / "vectors", checkpoint=ours, input=proteins / "one.fa", pooling="per_letter"
        )
    )
    assert vectors.manifest["counts"]["vectors"] == 20 * 30


def test_embedding_gives_their_states(tmp_path, proteins):
    import pyarrow.parquet as pq

    import pipeline.embed
    from pipeline.config import EmbedConfig

    theirs = foreign("esm2", **SMALL, token_dropout=True)
    ours = convert(tmp_path / "ours", write(tmp_path / "theirs", theirs), **{"from": "esm2"})
    (tmp_path / "p.fa").write_text(f">p\n{PROTEIN}\n")
    config = EmbedConfig(
        output=tmp_path / "v", checkpoint=ours, input=tmp_path / "p.fa", pooling="per_letter"
    )
    table = pq.read_table(pipeline.embed.run(config).folder / "vectors-000000.parquet")
    ids = AutoTokenizer.from_pretrained(ours)(PROTEIN, return_tensors="pt")
    expected = theirs.esm(**ids).last_hidden_state[0, 1:-1].detach()
    torch.testing.assert_close(torch.tensor(table["layer_-1"][0].as_py()), expected, rtol=1e-5, atol=1e-5)


# -- the command, and what it refuses


def test_the_source_follows_the_layout(tmp_path, capsys):
    source = write(tmp_path / "a,b", foreign("esmc", **SMALL))
    main(["convert", "--from", "esmc", str(source), "--output", str(tmp_path / "ours")])
    assert "token | is <null_1> here" in capsys.readouterr().err
    assert read_manifest(tmp_path / "ours")["counts"]["tokens_renamed"] == {"|": "<null_1>"}
    main(["convert", "--from", "esmc", "--source", str(source), "--output", str(tmp_path / "ours")])
    assert "up to date" in capsys.readouterr().err


def test_a_name_on_the_hub_that_lies_in_its_cache(tmp_path, sources, monkeypatch):
    cache = tmp_path / "models--someone--esm"
    shutil.copytree(sources["esm2"], cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    ours = convert(tmp_path / "ours", "someone/esm", **{"from": "esm2"})
    assert_same(loaded(ours), loaded(convert(tmp_path / "direct", sources["esm2"], **{"from": "esm2"})))


def test_another_version_is_refused(tmp_path, tokenizer_folder):
    """What was written before there were versions is of the first."""
    folder = esm_shaped(tmp_path / "ours", tokenizer_folder("protein"))
    settings = json.loads((folder / "config.json").read_text())
    assert settings.pop("strand_version") == 1
    (folder / "config.json").write_text(json.dumps(settings))
    assert loaded(folder).config.strand_version == 1
    for version, age in ((0, "older"), (2, "newer")):
        changed(strand_version=version)(folder)
        with pytest.raises(Exception, match=f"strand_version={version}: written by {age} code"):
            loaded(folder)
        with pytest.raises(UserError, match=f"strand_version={version}: written by {age} code"):
            convert(tmp_path / "esm", folder, to="esm")


def test_no_code_and_no_pickle_of_the_source_is_run(tmp_path):
    source = write(tmp_path / "theirs", foreign("esm2", **SMALL))
    (source / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    path = source / "config.json"
    auto = dict.fromkeys(("AutoConfig", "AutoModelForMaskedLM"), "evil.Evil")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": auto}))
    (source / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    ours = convert(tmp_path / "ours", source, **{"from": "esm2"})
    assert not (tmp_path / "ran").exists()
    assert "evil" not in (ours / "config.json").read_text()


def changed(**settings):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

    return change


def without(start):
    def change(folder):
        path = folder / "model.safetensors"
        save_file({k: v for k, v in load_file(path).items() if not k.startswith(start)}, path)

    return change


def with_adapter(folder):
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"esm.encoder.layer.0.lora_A.weight": torch.zeros(2, 2)}, path)


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def damaged(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def not_finite(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["esm.encoder.layer.1.output.dense.bias"][3:5] = torch.tensor([float("nan"), float("inf")])
    save_file(tensors, path, metadata={"format": "pt"})


def nameless(folder):
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text('{"model": {"vocab": [["L", -1.0]]}}')


def kmers(folder):
    (folder / "vocab.txt").write_text(
        "\n".join([*PROTEIN_TOKENS[:4], *map("".join, product("ACGT", repeat=3))])
    )


REFUSED = [
    (
        "esm2",
        changed(position_embedding_type="absolute"),
        "position_embedding_type is absolute; only rotary can",
    ),
    ("esm2", changed(is_decoder=True), "is_decoder is True; only False"),
    ("esm2", changed(pad_token_id=0), "pad_token_id is 0; only 1"),
    ("esm2", changed(model_type="esmc"), "a esmc model; pass --from esmc"),
    ("esm2", changed(model_type="bert"), "a bert model; only esm and esmc"),
    ("esm2", changed(hidden_size="wide"), "config.json: "),
    ("esm2", changed(num_attention_heads=2), "8 rotary frequencies by hidden_size and num_attention_heads"),
    (
        "esm2",
        changed(intermediate_size=65),
        "intermediate.dense.weight: 64 x 32, which is not what config.json says (65 x 32); put the config",
    ),
    ("esm2", lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"),
    ("esm2", lambda folder: (folder / "config.json").unlink(), "no config.json"),
    ("esm2", lambda folder: (folder / "vocab.txt").unlink(), "its tokens are unknown"),
    ("esm2", lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
    ("esm2", kmers, "68 tokens, not ESM-2's 33"),
    ("esm2", pickled, "pytorch_model.bin is a pickle, which can run code and is not read"),
    ("esm2", damaged, "cannot be read as safetensors"),
    ("esm2", not_finite, "tensor esm.encoder.layer.1.output.dense.bias: 2 of 32 weights are NaN or infinite"),
    ("esm2", nameless, "tokenizer.json: no tokens by name in model.vocab; add ESM's vocab.txt"),
    ("esm2", without("lm_head"), "no tensor lm_head.dense.weight; only a whole EsmForMaskedLM"),
    ("esm2", with_adapter, "no place for 1 tensors: esm.encoder.layer.0.lora_A.weight; merge adapters"),
    ("esmc", changed(mlp_bias=True), "mlp_bias is True; only False"),
    ("esmc", changed(hidden_act="gelu"), "hidden_act is gelu; only silu"),
    ("esmc", without("esmc.norm"), "no tensor esmc.norm.weight; only a whole EsmcForMaskedLM"),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return {layout: write(folder / layout, foreign(layout, **SMALL)) for layout in ("esm2", "esmc")}


@pytest.mark.parametrize(("layout", "change", "message"), REFUSED)
def test_what_does_not_fit_is_refused(tmp_path, sources, layout, change, message):
    source = shutil.copytree(sources[layout], tmp_path / "theirs")
    change(source)
    with pytest.raises(UserError) as caught:
        convert(tmp_path / "ours", source, **{"from": layout})
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "ours").exists()


def test_other_tokens_are_refused(tmp_path, sources):
    source = shutil.copytree(sources["esm2"], tmp_path / "theirs")
    tokens = [*PROTEIN_TOKENS]
    tokens[4], tokens[5] = tokens[5], tokens[4]
    (source / "vocab.txt").write_text("\n".join(tokens))
    with pytest.raises(UserError, match="token 4 is 'A', not 'L'"):
        convert(tmp_path / "ours", source, **{"from": "esm2"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "from, to: give one of them"),
        ({"from": "esm2", "to": "esm"}, "from, to: give one of them"),
        ({"from": "esm2", "source": None}, "source: none given"),
        ({"from": "esm2", "source": "nobody/nothing"}, "no such folder, nor to be had from the Hub"),
        ({"from": "esm2", "source": "no/such/folder"}, "no such folder, nor to be had from the Hub"),
        ({"to": "esm", "source": "no/such/folder"}, "no such file or folder"),
    ],
)
def test_a_task_that_is_none(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        convert(tmp_path / "out", **{"source": tmp_path} | settings)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"norm": "rmsnorm"}, "norm rmsnorm"),
        ({"norm_bias": "layers", "final_norm": False}, "norm_bias layers, final_norm False"),
        ({"norm_placement": "post"}, "norm_placement post"),
        ({"activation": "swiglu", "use_bias": False}, "activation swiglu, use_bias False"),
        ({"qk_norm": True, "residual_scale": 2.0}, "qk_norm True, residual_scale 2.0"),
        ({"positions": "sinusoidal"}, "positions sinusoidal"),
        ({"sliding_window": 8, "global_every": 2}, "sliding_window 8"),
        ({"lm_head": "linear"}, "lm_head linear"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_parameters "),
    ],
)
def test_an_option_that_esm_has_not_is_named(tmp_path, tokenizer_folder, options, named):
    source = esm_shaped(tmp_path / "ours", tokenizer_folder("protein"), **options)
    with pytest.raises(UserError, match=f"to: esm has nothing for {named}"):
        convert(tmp_path / "esm", source, to="esm")


def test_only_what_predicts_tokens_by_json_is_exported(tmp_path, tokenizer_folder, sources):
    masked = esm_shaped(tmp_path / "kmers", tokenizer_folder("dna-6mer-overlap"))
    with pytest.raises(UserError, match="need our tokenizer's source"):
        convert(tmp_path / "esm", masked, to="esm")
    with pytest.raises(UserError, match="a esm model"):
        convert(tmp_path / "esm", sources["esm2"], to="esm")
    StrandForSequenceClassification(StrandConfig(**SMALL)).save_pretrained(tmp_path / "classifier")
    with pytest.raises(UserError, match="no masked language model"):
        convert(tmp_path / "esm", tmp_path / "classifier", to="esm")
