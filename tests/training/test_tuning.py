"""How classifiers are made and trained: each setting on networks of one or two layers, without the stage."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.utils.class_weight import compute_class_weight
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

import pipeline.prepare
from pipeline.config import FinetuneConfig, PrepareConfig
from pipeline.errors import UserError
from pipeline.model import StrandConfig, StrandForMaskedLM, StrandForSequenceClassification
from pipeline.model.modeling_strand import StrandAttention
from pipeline.sequences.alphabets import reverse_complement
from pipeline.tokens.kmers import codec_of
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
from pipeline.training import tuning
from pipeline.training.classifier import class_logits, encode, encode_all, pad, softmax
from pipeline.training.initialise import fresh

NAMES = ["background", "promoter"]
CLASSIFIER = "classifier.weight"
SOURCES = {f"{name}_strand.py" for name in ("attention", "configuration", "contacts", "modeling")}
WORD = "TATAAA"
METHODS = {
    "head": {"adapt": "head"},
    "lora": {"adapt": "lora"},
    "attention": {"pooling": "attention", "layer_decay": 0.5, "dropout": 0.2},
    "together": {
        "adapt": "lora",
        "lora": {"rank": 2, "dropout": 0.1},
        "pooling": "attention",
        "layer_decay": 0.7,
        "class_weights": "balanced",
        "patience": 1,
    },
}


def toy(count, seed=0, lengths=(60, 80)):
    """Half of the sequences have the word within 3 bases of one place; shuffles of their like have not."""
    rng = np.random.default_rng(seed)
    texts = []
    for i in range(count):
        letters = rng.choice(list("ACGT"), rng.integers(*lengths, endpoint=True), p=[0.3, 0.2, 0.2, 0.3])
        at = lengths[0] // 2 + rng.integers(-3, 4)
        letters[at : at + len(WORD)] = list(WORD)
        if i % 2 == 0:
            rng.shuffle(letters)
        texts.append("".join(letters))
    return {"sequence": texts, "label": [i % 2 for i in range(count)]}


def make_checkpoint(folder, tokenizer_folder, name="dna-3mer-overlap", **changes):
    """Write a language model with random weights, whose k-mers start as sums of letters."""
    codec = codec_of(tokenizer_folder(name))
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": len(codec.vocabulary), "max_position_embeddings": 130} | changes
    fresh(StrandForMaskedLM, StrandConfig(**sizes), codec, 0).save_pretrained(folder)
    save_tokenizer(load_tokenizer(tokenizer_folder(name)), folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer_folder):
    return make_checkpoint(tmp_path_factory.mktemp("tuning") / "lm", tokenizer_folder)


@pytest.fixture(scope="module")
def codec(checkpoint):
    return codec_of(checkpoint)


@pytest.fixture(scope="module")
def few():
    return {"train": toy(24), "validation": toy(12, seed=1)}


@pytest.fixture
def settings(checkpoint, tmp_path):
    def make(**changes):
        given = {"checkpoint": checkpoint, "data": tmp_path, "epochs": 2, "batch_size": 8}
        return FinetuneConfig(output=tmp_path / "classifier", **given | {"learning_rate": 1e-2} | changes)

    return make


@pytest.fixture
def train(settings, codec, few, tmp_path):
    """Return the classifier before (its weights) and after training."""

    def run(splits=few, **changes):
        config = settings(**changes)
        model = tuning.new_model(config, NAMES, codec, True)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        return before, tuning.fit(config, model, codec, splits, tmp_path / "work")

    return run


def changed(before, model):
    """Return the names of the weights that training changed."""
    after = model.state_dict()
    assert list(before) == list(after)
    return {name for name in before if not torch.equal(before[name], after[name])}


# -- every method


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bytes_and_an_ordinary_checkpoint(train, codec, few, tmp_path, method):
    written = []
    for name in ("one", "two"):
        _, model = train(epochs=1, **METHODS[method])
        model.save_pretrained(tmp_path / name)
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == {"config.json", "model.safetensors"} | SOURCES
    loaded, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "one", output_loading_info=True
    )
    assert not any(report.values()), report
    expected, found = (class_logits(one, codec, few["train"]["sequence"], 7) for one in (model, loaded))
    assert (found == expected).all()
    assert not model.training
    assert not (tmp_path / "work").exists()


STRANGER = """
import sys, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
sys.path[:] = [path for path in sys.path if path]
model, report = AutoModelForSequenceClassification.from_pretrained(
    sys.argv[1], trust_remote_code=True, output_loading_info=True
)
assert type(model).__module__.startswith("transformers_modules."), type(model)
assert not any(report.values()), report
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
with torch.no_grad():
    print(model.eval()(**tokenizer(sys.argv[2:], padding=True, return_tensors="pt")).logits.tolist())
"""


@pytest.mark.slow
def test_a_process_without_our_package_reads_what_lora_and_attention_gave(train, codec, checkpoint, tmp_path):
    _, model = train(**METHODS["together"])
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(load_tokenizer(checkpoint), tmp_path / "model")
    texts = ["ACGTTAGC", "ACGATTACAGGCTATAAACG", "A"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", STRANGER, str(tmp_path / "model"), *texts]
    finished = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = np.array(json.loads(finished.stdout))
    assert found == pytest.approx(class_logits(model, codec, texts, 8), abs=1e-5)


# -- what is trained


def test_head_alone(train):
    before, model = train(adapt="head", pooling="attention")
    assert changed(before, model) == {CLASSIFIER, "classifier.bias", "pooling_query.weight"}


def test_a_frozen_encoder_drops_nothing_out(settings, few, codec, tokenizer_folder, tmp_path):
    folder = make_checkpoint(tmp_path / "lm", tokenizer_folder, hidden_dropout=0.5)
    seen = {"head": [], "full": []}
    for adapt, modes in seen.items():
        config = settings(checkpoint=folder, adapt=adapt, epochs=1)
        model = tuning.new_model(config, NAMES, codec, True)
        layer = model.model.layers[0]
        layer.register_forward_pre_hook(lambda layer, _, modes=modes: modes.append(layer.dropout.training))
        tuning.fit(config, model, codec, few, tmp_path / "work")
    assert seen == {"head": [False] * 4, "full": [True] * 3 + [False]}
    assert not model.model._forward_pre_hooks


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize(("asked", "share"), [(None, 0.5), (0, 0), (0.2, 0.2)])
def test_layers_drop_what_is_asked_for_or_what_the_checkpoint_says(
    settings, codec, tokenizer_folder, tmp_path, asked, share, pretrained
):
    folder = make_checkpoint(tmp_path / "lm", tokenizer_folder, hidden_dropout=0.5)
    model = tuning.new_model(settings(checkpoint=folder, dropout=asked), NAMES, codec, pretrained)
    assert {layer.dropout.p for layer in model.model.layers} == {share}
    assert model.config.hidden_dropout == share


def test_lora_adds_updates_of_low_rank_and_merges_them(train, few, codec, monkeypatch):
    from peft.tuners.lora import LoraModel

    merge, seen = LoraModel.merge_and_unload, {}

    def spy(tuner):
        seen["logits"] = class_logits(tuner.model, codec, few["validation"]["sequence"], 5)
        seen["scaling"] = tuner.model.model.layers[0].mlp.up.scaling["default"]
        return merge(tuner)

    monkeypatch.setattr(LoraModel, "merge_and_unload", spy)
    before, model = train(adapt="lora", lora={"rank": 3, "alpha": 12}, epochs=6)
    layers = {name for name in before if ".layers." in name and "norm" not in name}
    assert len(layers) == 2 * 4
    assert changed(before, model) == layers | {CLASSIFIER, "classifier.bias"}
    for name in layers:
        update = (model.state_dict()[name] - before[name]).double()
        assert torch.linalg.matrix_rank(update, rtol=1e-4) == 3, name
    merged = class_logits(model, codec, few["validation"]["sequence"], 5)
    assert merged == pytest.approx(seen["logits"], abs=1e-5)
    assert seen["scaling"] == 4


def test_the_best_epoch_is_kept_with_lora_too(train, few, codec, monkeypatch):
    """The second of four by the figure that is given; what follows it changes the weights no more."""
    figures, logits = iter([0.1, 0.9, 0.2, 0.3]), []

    def validate(prediction):
        logits.append(prediction.predictions)
        return {"mcc": next(figures), "auroc": 0.5}

    monkeypatch.setattr(tuning, "_validate", validate)
    splits = {"train": few["train"], "validation": toy(12, seed=1, lengths=(70, 70))}
    _, model = train(splits, adapt="lora", best_by="mcc", epochs=4)
    found = class_logits(model, codec, splits["validation"]["sequence"], 12)
    assert np.sort(found, 0) == pytest.approx(np.sort(logits[1], 0), abs=1e-5), "rows come by length"
    assert abs(np.sort(found, 0) - np.sort(logits[3], 0)).max() > 1e-2


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_rates_fall_from_layer_to_layer(settings, few, codec, decay):
    """The first step of Adam moves every weight by its rate, whatever the gradient."""
    config = settings(layer_decay=decay, weight_decay=0.0, pooling="attention")
    model = tuning.new_model(config, NAMES, codec, True)
    with torch.no_grad():
        model.pooling_query.weight.normal_()
    before = {name: value.clone() for name, value in model.named_parameters()}
    optimizer = tuning._optimizer(config, model)
    inputs = pad(encode_all(few["train"]["sequence"], codec), codec)
    (1000 * model(**inputs, labels=torch.tensor(few["train"]["label"])).loss).backward()
    optimizer.step()
    depth = {"embeddings": 3, "layers.0": 2, "layers.1": 1, "norm": 0}
    for name, value in model.named_parameters():
        down = next((n for part, n in depth.items() if name.startswith(f"model.{part}")), 0)
        moved = float((value - before[name]).abs().max())
        assert moved == pytest.approx(1e-2 * decay**down, rel=1e-2), name


def test_only_matrices_of_layers_and_head_decay(settings, codec):
    model = tuning.new_model(settings(weight_decay=0.3), NAMES, codec, True)
    groups = tuning._optimizer(settings(weight_decay=0.3), model).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        none = name.endswith("bias") or "norm" in name or "embeddings" in name
        assert decays[id(parameter)] == (0 if none else 0.3), name


def test_checkpointing_of_gradients_changes_nothing(train, monkeypatch):
    calls = {False: 0, True: 0}
    results = {}
    for on in calls:
        with monkeypatch.context() as patch:
            forward = StrandAttention.forward

            def counted(self, *args, on=on, forward=forward, **kwargs):
                calls[on] += self.training
                return forward(self, *args, **kwargs)

            patch.setattr(StrandAttention, "forward", counted)
            results[on] = train(epochs=1, gradient_checkpointing=on)[1].state_dict()
    assert calls == {False: 6, True: 12}
    assert all(torch.equal(results[True][name], value) for name, value in results[False].items())


# -- what is classified


def test_attention_starts_as_the_mean_over_the_letters(settings, codec):
    model = tuning.new_model(settings(pooling="attention"), NAMES, codec, True).eval()
    inputs = pad([encode(text, codec) for text in ("ACGTTAGCA", "ACGATTACAGGCTATAAACG")], codec)
    with torch.no_grad():
        states = model.model(**inputs).last_hidden_state
        expected = torch.stack([states[0, 1:8].mean(0), states[1, 1:19].mean(0)])
        torch.testing.assert_close(model(**inputs).logits, model.classifier(expected))


@pytest.mark.parametrize("pooling", ["cls", "mean", "attention"])
def test_neighbours_and_padding_change_no_logits(settings, codec, pooling):
    model = tuning.new_model(settings(pooling=pooling), NAMES, codec, True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=1.0 if "pooling" in name else 0.2)
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ACGTN"), size)) for size in (4, 9, 90, 40, 1)]
    alone, together = (class_logits(model.eval(), codec, texts, size) for size in (1, 5))
    assert together == pytest.approx(alone, abs=1e-5)
    assert np.ptp(alone) > 0.1


def test_attention_reads_neither_padding_nor_specials(tiny_model):
    """Against weights written out by hand, with padding on either side."""
    sizes = {"classifier_pooling": "attention", "framing_token_ids": [2, 3]}
    model = tiny_model(StrandForSequenceClassification, **sizes)
    ids = torch.tensor([[0, 0, 2, 9, 8, 7, 3], [2, 9, 8, 7, 3, 0, 0], [2, 3, 0, 0, 0, 0, 0]])
    with torch.no_grad():
        states = model.model(ids).last_hidden_state
        scores = states @ model.pooling_query.weight[0]
        found = model(ids).logits
        for row, places in enumerate(([3, 4, 5], [1, 2, 3], [0, 1])):
            weights = np.exp(scores[row, places].numpy())
            pooled = (torch.from_numpy(weights / weights.sum())[:, None] * states[row, places]).sum(0)
            torch.testing.assert_close(found[row], model.classifier(pooled), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


# -- loss and length of training


def test_balanced_weights_are_those_of_scikit_learn(settings):
    labels = [0] * 5 + [1] * 30 + [2] * 10
    loss = tuning._loss(settings(class_weights="balanced"), labels)
    logits, some = torch.randn(8, 3), torch.tensor([0, 1, 1, 2, 1, 0, 2, 1])
    weights = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=labels)).float()
    expected = -(logits.log_softmax(1)[torch.arange(8), some] * weights[some]).sum() / weights[some].sum()
    torch.testing.assert_close(loss(SequenceClassifierOutput(logits=logits), some), expected)
    assert tuning._loss(settings(), labels) is None


@pytest.mark.parametrize(("weights", "expected"), [("none", 0.75), ("balanced", 0.5)])
def test_a_class_counts_by_its_weight(train, codec, weights, expected):
    """Sequences that are all the same: what is predicted of them is the share of a class in the loss."""
    rows = {"sequence": ["ACGTACGTAC"] * 80, "label": [0, 1, 1, 1] * 20}
    changes = {"adapt": "head", "epochs": 60, "batch_size": 80, "learning_rate": 0.1}
    _, model = train({"train": rows}, class_weights=weights, **changes)
    logits = class_logits(model, codec, rows["sequence"][:1], 1)
    assert softmax(logits)[0, 1] == pytest.approx(expected, abs=0.02)


def test_training_stops_when_validation_gets_no_better(train, monkeypatch, capsys):
    figures = iter([0.1, 0.5, 0.4, 0.5, 0.9])
    monkeypatch.setattr(tuning, "_validate", lambda _: {"mcc": next(figures), "auroc": 0.5})
    train(patience=2, best_by="mcc", epochs=5)
    said = capsys.readouterr().err
    assert "epoch 4 of 5" in said
    assert "epoch 5 of 5" not in said
    assert "epoch 4 is the last: validation got no better (patience)" in said
    assert next(figures) == 0.9


def test_without_patience_nothing_is_said_to_stop(train, capsys):
    train()
    assert "is the last" not in capsys.readouterr().err


# -- defaults


def learnt(folder, lengths, **changes):
    """Return the AUROC on fresh sequences after training by defaults on few, from random weights."""
    config = FinetuneConfig(output=folder / "classifier", checkpoint=folder, data=folder, **changes)
    splits = {"train": toy(500, 0, lengths), "validation": toy(100, 1, lengths)}
    model = tuning.new_model(config, NAMES, codec_of(folder), True)
    tuning.fit(config, model, codec_of(folder), splits, folder / "work")
    test = toy(300, 2, lengths)
    logits = class_logits(model, codec_of(folder), test["sequence"], 100)
    return roc_auc_score(test["label"], logits[:, 1] - logits[:, 0])


def test_defaults_learn_a_small_set(tokenizer_folder, tmp_path):
    """A word near its place, against shuffles of such sequences."""
    folder = make_checkpoint(tmp_path / "lm", tokenizer_folder, num_hidden_layers=1)
    assert learnt(folder, (20, 24)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 3e-3])
@pytest.mark.parametrize("name", ["dna-3mer-overlap", "dna-6mer-overlap"])
def test_defaults_learn_longer_sequences_and_other_kmers(tokenizer_folder, tmp_path, name, rate):
    """And at ten times the rate the best weights are kept, which are good enough."""
    changes = {} if rate is None else {"learning_rate": rate}
    assert learnt(make_checkpoint(tmp_path / "lm", tokenizer_folder, name), (60, 80), **changes) > 0.9


def test_small_sets_are_read_until_there_are_enough_steps(settings):
    epochs = {
        per_epoch: tuning._epochs(settings(epochs=None), per_epoch) for per_epoch in (1, 9, 125, 126, 740)
    }
    assert epochs == {1: 500, 9: 56, 125: 4, 126: 4, 740: 4}
    assert tuning._epochs(settings(epochs=0.2), 9) == 0.2


# -- rows


@pytest.mark.parametrize("name", ["dna-1mer", "dna-3mer-overlap", "dna-6mer", "codons", "dna-bpe"])
def test_rows_encoded_at_once_are_those_encoded_alone(tokenizer_folder, name):
    codec = codec_of(tokenizer_folder(name))
    texts = [*toy(20)["sequence"], "A", "ACGTNNACGTACGGT", "NNN"]
    for text, ids in zip(texts, encode_all(texts, codec), strict=True):
        assert ids.tolist() == encode(text, codec).tolist(), text


def test_batches_hold_similar_lengths(settings, codec, monkeypatch, tmp_path):
    """And each row once an epoch, in an order that is the seed's."""
    rows, orders = toy(96, lengths=(40, 120)), {}
    spied = tuning._collate
    for run, seed in enumerate((0, 0, 1)):
        config = settings(epochs=2, seed=seed)
        seen = orders.setdefault(run, [])

        def spy(batch, codec, seen=seen):
            seen.append([len(row["input_ids"]) for row in batch])
            return spied(batch, codec)

        monkeypatch.setattr(tuning, "_collate", spy)
        model = tuning.new_model(config, NAMES, codec, True)
        tuning.fit(config, model, codec, {"train": rows}, tmp_path / "work")
    assert orders[0] == orders[1] != orders[2]
    lengths = sorted(len(ids) for ids in encode_all(rows["sequence"], codec))
    for epoch in (orders[0][:12], orders[0][12:]):
        assert sorted(length for batch in epoch for length in batch) == lengths
    assert orders[0][:12] != orders[0][12:]
    padding = 1 - sum(map(sum, orders[0])) / sum(8 * max(batch) for batch in orders[0])
    assert padding < 0.18, "in random order it is about 0.28"


def test_no_mask_reaches_attention_where_nothing_is_padded(train, few, monkeypatch):
    seen = []
    monkeypatch.setattr(StrandAttention, "forward", spy_on(StrandAttention.forward, seen))
    train({"train": toy(16, lengths=(70, 70))})
    assert seen
    assert all(mask is None for mask in seen)
    train(few)
    assert not all(mask is None for mask in seen)


def spy_on(forward, seen):
    def spied(self, x_BLD, position_embeddings=None, attention_mask=None, **kwargs):
        seen.append(attention_mask)
        return forward(self, x_BLD, position_embeddings, attention_mask, **kwargs)

    return spied


# -- both strands


@pytest.fixture
def strandless(tmp_path):
    """A corpus, as far as it says that its labels are those of both strands."""

    def make(strandless):
        text = "".join(f">{i}\n{letters}\n" for i, letters in enumerate(toy(4)["sequence"]))
        (tmp_path / "in.fa").write_text(text)
        config = PrepareConfig(output=tmp_path / "corpus", input=[tmp_path / "in.fa"], strandless=strandless)
        return pipeline.prepare.run(config).folder

    return make


def test_half_of_the_rows_are_shown_as_their_other_strand(codec):
    rows = toy(400)
    shown = {}
    for epoch in (0, 1, 0):
        data = tuning.Rows(rows, codec, seed=3, both_strands=True)
        data.set_epoch(epoch)
        texts = zip(data, rows["sequence"], rows["label"], strict=True)
        turned = []
        for row, text, label in texts:
            other = row["input_ids"].tolist() == encode(reverse_complement(text), codec).tolist()
            assert other or row["input_ids"].tolist() == encode(text, codec).tolist()
            assert row["label"] == label
            turned.append(other)
        assert shown.setdefault(epoch, turned) == turned
        assert 150 < sum(turned) < 250
    agree = np.mean(np.array(shown[0]) == np.array(shown[1]))
    assert 0.4 < agree < 0.6
    assert tuning.Rows(rows, codec, seed=4, both_strands=True).strand_N.tolist() != data.strand_N.tolist()
    assert tuning.Rows(rows, codec).strand_N.sum() == 0


def test_strands_are_drawn_anew_in_every_epoch(train, strandless, monkeypatch):
    seen, chosen = [], tuning.Rows.set_epoch
    monkeypatch.setattr(
        tuning.Rows, "set_epoch", lambda rows, n: chosen(rows, n) or seen.append((len(rows.strands), n))
    )
    train(data=strandless(True), reverse_complement=True, epochs=3)
    assert sorted({n for strands, n in seen if strands == 2}) == [0, 1, 2]
    assert {n for strands, n in seen if strands == 1} == {0}, "validation rows are read as they are"


# -- hidden letters


def test_letters_are_hidden_from_training_rows_alone(train, monkeypatch, codec):
    seen, chosen = [], tuning.Rows.set_epoch
    monkeypatch.setattr(tuning.Rows, "set_epoch", lambda rows, n: chosen(rows, n) or seen.append((rows, n)))
    train(hide=0.25, epochs=2)
    hiding = {rows.masking is not None: {n for other, n in seen if other is rows} for rows, _ in seen}
    assert hiding == {True: {0, 1}, False: {0}}
    for rows in {id(rows): rows for rows, _ in seen}.values():
        share = np.mean(np.concatenate(rows.shown[0]) == codec.special("mask"))
        assert (share > 0.25) if rows.masking else (share == 0)


@pytest.mark.parametrize("both_strands", [False, True])
def test_hidden_letters_are_no_tokens_and_the_others_are_left(codec, both_strands):
    """A quarter of the letters, whole runs of them, others in every epoch, the same for the same seed."""
    rows = toy(200)
    data, again = (tuning.Rows(rows, codec, 3, 0.25, both_strands) for _ in range(2))
    plain = tuning.Rows(rows, codec, 3, both_strands=both_strands)
    hidden = {}
    for epoch in (0, 1, 0):
        for each in (data, again, plain):
            each.set_epoch(epoch)
        shares, masks = [], []
        for row in range(len(data)):
            shown, whole = data[row]["input_ids"], plain[row]["input_ids"]
            assert shown.tolist() == again[row]["input_ids"].tolist()
            mask = shown == codec.special("mask")
            assert (shown == whole)[~mask].all()
            covered = np.zeros(len(whole) + codec.k, bool)
            for place in np.flatnonzero(~mask[1:-1]):
                covered[place : place + codec.k] = True
            letters = len(rows["sequence"][row])
            shares.append(1 - covered[:letters].mean())
            masks.append(mask.tolist())
        assert np.mean(shares) == pytest.approx(0.25, abs=0.01)
        assert hidden.setdefault(epoch, masks) == masks
    assert hidden[0] != hidden[1]


# -- mistakes


def test_labels_of_one_strand_are_not_turned(train, strandless):
    with pytest.raises(UserError, match=r"^reverse_complement: the labels of .*corpus may be those of one "):
        train(data=strandless(False), reverse_complement=True)


def test_proteins_have_no_other_strand(settings, few, tokenizer_folder, tmp_path):
    protein = codec_of(tokenizer_folder("protein"))
    with pytest.raises(UserError, match=r"^reverse_complement: proteins have no other strand; pass --rev"):
        tuning.fit(settings(reverse_complement=True), None, protein, few, tmp_path / "work")


def test_a_frozen_encoder_refuses_dropout(train):
    with pytest.raises(UserError, match=r"^dropout: a frozen encoder drops nothing; leave it out, or pass"):
        train(adapt="head", dropout=0.1)


def test_patience_needs_validation(train, few):
    with pytest.raises(UserError, match=r"^patience: .* has no validation split that could get better; prep"):
        train({"train": few["train"]}, patience=1)
