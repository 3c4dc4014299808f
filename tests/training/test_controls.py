"""Features against slow definitions, choices against exhaustive search, and what each control can learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import StandardScaler

from pipeline.tokens.kmers import KmerCodec
from pipeline.training import controls
from pipeline.training.controls import (
    Rows,
    control_logits,
    gc_content,
    kmer_shares,
    one_hot,
    weight_matrices,
    why_not,
)

DNA, PROTEIN = KmerCodec("dna", 6, False), KmerCodec("protein", 1, False)
TEXTS = ["ACGTACGTAC", "NNNNNNNNNN", "GGGCNCCATA", "TTTTTTTTTT"]


def rows(texts, labels=None, codec=DNA):
    return Rows([codec.codes(text) for text in texts], np.array(labels if labels is not None else []))


def simulated(kind, classes=2, sizes=(300, 120, 200), length=30):
    """Splits of random DNA whose class is told by a word at a place, by one anywhere, or by GC content."""
    rng, words, splits = np.random.default_rng(1), ["", "TATAAT", "GCCGGC"], {}
    for name, size in zip(("train", "validation", "test"), sizes, strict=True):
        labels, texts = rng.integers(0, classes, size), []
        for label in labels:
            share = 0.25 + (0.08 * label if kind == "composition" else 0)
            letters = "".join(rng.choice(list("ACGT"), length, p=[0.5 - share, share, share, 0.5 - share]))
            word = words[label] if kind in ("place", "anywhere") else ""
            at = 12 if kind == "place" else rng.integers(0, length - 6)
            texts.append(letters[:at] + word + letters[at + len(word) :])
        splits[name] = rows(texts, labels)
    return splits


# -- features


def test_gc_content_is_that_of_real_letters():
    shares = [0.5, 0.5, 6 / 9, 0]
    codes = rows(TEXTS).codes
    assert gc_content(codes) == pytest.approx(np.array([[share, share**2] for share in shares]))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_kmers_are_counted_where_all_letters_are_real(k):
    texts = [*TEXTS, "A", "ACN"]
    words = ["".join("ACGT"[i // 4**p % 4] for p in range(k)[::-1]) for i in range(4**k)]
    expected = np.zeros((len(texts), 4**k))
    for row, text in enumerate(texts):
        pieces = [text[i : i + k] for i in range(len(text) - k + 1) if "N" not in text[i : i + k]]
        for piece in pieces:
            expected[row, words.index(piece)] += 1 / len(pieces)
    assert kmer_shares(rows(texts).codes, k, 4) == pytest.approx(expected, abs=1e-15)


def test_a_place_has_the_letter_that_is_there():
    found = one_hot(rows(TEXTS).codes, 4).toarray().reshape(4, 10, 4)
    for text, seen in zip(TEXTS, found, strict=True):
        for letter, column in zip(text, seen, strict=True):
            assert column.tolist() == [letter == other for other in "ACGT"]


def test_weight_matrices_score_the_sum_of_log_odds():
    texts, labels = ["ACG", "ACT", "NCG", "TTA", "GTA"], [1, 1, 1, 0, 0]
    train = rows(texts, labels)
    letters = "".join(texts).replace("N", "")
    background = {a: (letters.count(a) + 0.25) / (len(letters) + 1) for a in "ACGT"}
    new = ["ACG", "GTN"]
    expected = np.zeros((2, 2))
    for label in (0, 1):
        own = [text for text, other in zip(texts, labels, strict=True) if other == label]
        for i, text in enumerate(new):
            for place, letter in enumerate(text.replace("N", "")):
                column = [each[place] for each in own if each[place] != "N"]
                share = (column.count(letter) + background[letter]) / (len(column) + 1)
                expected[i, label] += np.log(share / background[letter])
    assert weight_matrices(train, 4)(rows(new).codes) == pytest.approx(expected, abs=1e-12)


# -- what can be had


def test_controls_that_the_data_does_not_allow_say_why():
    one, several = {"train": rows(TEXTS)}, {"train": rows(TEXTS), "test": rows(["ACGT"])}
    proteins = {"train": rows(["MKV", "MKA"], codec=PROTEIN)}
    for name in ("gc", "kmers", "positions", "pwm", "cnn"):
        assert why_not(name, DNA, one) is None
        aligned = name in ("positions", "pwm", "cnn")
        expected = "sequences are of 4 to 10 letters, not of one length" if aligned else None
        assert why_not(name, DNA, several) == expected
        assert why_not(name, PROTEIN, proteins) == ("proteins have no GC content" if name == "gc" else None)


def test_proteins_have_their_letters():
    rng = np.random.default_rng(0)
    splits = {}
    for name, size in (("train", 300), ("validation", 40), ("test", 60)):
        labels = rng.integers(0, 2, size)
        texts = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWYX"), 12)) for _ in labels]
        texts = [
            text[:5] + ("W" if label else "C") + text[6:] for text, label in zip(texts, labels, strict=True)
        ]
        splits[name] = rows(texts, labels, PROTEIN)
    for name in ("positions", "pwm"):
        logits = control_logits(name, PROTEIN, splits, 0)["test"]
        assert roc_auc_score(splits["test"].labels, logits[:, 1] - logits[:, 0]) > 0.9
    assert kmer_shares(splits["test"].codes, 2, 20).shape == (60, 400)
    assert control_logits("kmers", PROTEIN, splits, 0)["test"].shape == (60, 2)


# -- what they learn


@pytest.mark.parametrize(
    ("kind", "high", "low"),
    [
        ("place", {"positions": 0.97, "pwm": 0.97}, {}),
        ("anywhere", {"kmers": 0.85}, {"pwm": 0.8}),
        ("composition", {"gc": 0.72, "kmers": 0.68}, {}),
        ("nothing", {}, {"gc": 0.62, "positions": 0.62, "pwm": 0.62}),
    ],
)
def test_each_control_learns_what_it_can_see_and_no_more(kind, high, low):
    splits = simulated(kind)
    for name in (*high, *low):
        logits = control_logits(name, DNA, splits, 0)["test"]
        area = roc_auc_score(splits["test"].labels, logits[:, 1] - logits[:, 0])
        assert area > high.get(name, 0.35), name
        assert area < low.get(name, 1.01), name


def test_length_of_words_and_penalty_are_those_that_validate_best():
    splits, tried = simulated("anywhere"), {}
    train, validation = splits["train"], splits["validation"]
    for k in (1, 2, 3, 4):
        scaler = StandardScaler().fit(kmer_shares(train.codes, k, 4))
        seen = [scaler.transform(kmer_shares(splits[name].codes, k, 4)) for name in splits]
        for strength in (0.01, 0.1, 1.0):
            model = LogisticRegression(C=strength, max_iter=1000).fit(seen[0], train.labels)
            loss = log_loss(validation.labels, model.predict_proba(seen[1]))
            tried[loss] = model.predict_log_proba(seen[2])
    assert len(tried) == 12
    found = control_logits("kmers", DNA, splits, 0)
    assert found["test"] == pytest.approx(tried[min(tried)], abs=1e-9)
    assert set(found) == {"validation", "test"}


@pytest.mark.parametrize("name", ["positions", "pwm"])
def test_labels_that_are_scored_decide_nothing(name):
    splits = simulated("place")
    other = {**splits, "test": Rows(splits["test"].codes, 1 - splits["test"].labels)}
    one, two = (control_logits(name, DNA, each, 0)["test"] for each in (splits, other))
    assert (one == two).all()


def test_without_validation_the_usual_choice_is_made():
    splits = simulated("anywhere")
    scaler = StandardScaler().fit(kmer_shares(splits["train"].codes, 3, 4))
    seen = {name: scaler.transform(kmer_shares(each.codes, 3, 4)) for name, each in splits.items()}
    model = LogisticRegression(C=0.1, max_iter=1000).fit(seen["train"], splits["train"].labels)
    del splits["validation"]
    found = control_logits("kmers", DNA, splits, 0)
    assert set(found) == {"test"}
    assert found["test"] == pytest.approx(model.predict_log_proba(seen["test"]), abs=1e-9)


def test_several_classes():
    splits = simulated("place", classes=3)
    for name in ("gc", "positions", "pwm"):
        logits = control_logits(name, DNA, splits, 0)["test"]
        assert np.exp(logits).sum(1) == pytest.approx(1)
        if name in ("positions", "pwm"):
            assert (logits.argmax(1) == splits["test"].labels).mean() > 0.9


# -- the convolutional network


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(controls, "CHANNELS", 16)
    monkeypatch.setattr(controls, "EPOCHS", 5)
    monkeypatch.setattr(controls, "BATCH", 16)
    monkeypatch.setattr(controls, "RATE", 5e-3)


def test_the_network_learns_a_word_and_is_a_function_of_the_seed(small):
    splits = simulated("place", sizes=(200, 60, 100))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (control_logits("cnn", DNA, splits, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert (one["test"] == two["test"]).all()
    assert not np.allclose(one["test"], other["test"])
    assert roc_auc_score(splits["test"].labels, one["test"] @ [-1, 1]) > 0.95


def test_the_network_knows_places():
    """The same letters, elsewhere: only the learned values of places tell them apart."""
    torch.manual_seed(0)
    network = controls.small_network(60, 4, 2).eval()
    seen = torch.zeros(2, 4, 60)
    seen[0, 1, 25], seen[1, 1, 35] = 1, 1
    with torch.no_grad():
        apart = network(seen)
        network.place_CL.zero_()
        alike = network(seen)
    assert (apart[0] - apart[1]).abs().max() > 1e-3
    torch.testing.assert_close(alike[0], alike[1])


def test_the_network_keeps_the_epoch_that_validated_best(small, monkeypatch):
    """Random labels are learnt by heart; without validation the last epoch is taken."""
    splits, losses = simulated("nothing", sizes=(100, 60, 60)), []
    output = controls._network_output

    def spy(network, seen):
        logits = output(network, seen)
        losses.append(logits)
        return logits

    monkeypatch.setattr(controls, "_network_output", spy)
    monkeypatch.setattr(controls, "EPOCHS", 8)
    found = control_logits("cnn", DNA, splits, 0)
    every = [log_loss(splits["validation"].labels, each.softmax(1).numpy()) for each in losses[::2]]
    best = int(np.argmin(every))
    assert best < 7, "the last epoch is the best: nothing is tested"
    assert (found["validation"] == losses[2 * best].numpy()).all()
    assert (found["test"] == losses[2 * best + 1].numpy()).all()
    losses.clear()
    del splits["validation"]
    assert (control_logits("cnn", DNA, splits, 0)["test"] == losses[-1].numpy()).all()
    assert len(losses) == 8
