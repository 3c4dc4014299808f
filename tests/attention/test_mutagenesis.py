from itertools import cycle, islice

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from pipeline.attention import mutagenesis
from pipeline.attention.mutagenesis import (
    classifier_changes,
    likelihood_changes,
    position_effects,
    write_effects,
)
from pipeline.errors import UserError
from pipeline.model import StrandForMaskedLM, StrandForSequenceClassification
from pipeline.sequences.places import Place
from pipeline.tokens.kmers import codec_of
from pipeline.tokens.likelihood import Marginals

RNG = np.random.default_rng(0)
TEXTS = ["".join(RNG.choice(list("ACGT"), size)) for size in (13, 8, 14)]
TEXTS[2] = TEXTS[2][:7] + "N" + TEXTS[2][8:]
ODD = [*TEXTS, "NNN", "G"]


def loaded(name, folder, tiny_model, kind, **sizes):
    codec = codec_of(folder(name))
    specials = {"pad_token_id": codec.special("pad"), "mask_token_id": codec.special("mask")}
    return tiny_model(kind, vocab_size=len(codec.vocabulary), **specials | sizes), codec


@pytest.fixture(params=["dna-1mer", "dna-3mer-overlap", "dna-6mer", "dna-bpe"])
def classifier(request, tokenizer_folder, tiny_model):
    kind, folder = StrandForSequenceClassification, tokenizer_folder
    model, codec = loaded(request.param, folder, tiny_model, kind, num_labels=3, max_position_embeddings=64)
    return model, codec, AutoTokenizer.from_pretrained(folder(request.param))


@pytest.fixture(params=["dna-1mer", "dna-3mer-overlap", "dna-6mer"])
def masked(request, tokenizer_folder, tiny_model):
    model, codec = loaded(request.param, tokenizer_folder, tiny_model, StrandForMaskedLM)
    return model, codec, AutoTokenizer.from_pretrained(tokenizer_folder(request.param))


@torch.no_grad()
def log_odds(model, tokenizer, text, positive):
    logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
    return float(torch.logit(logits.double().softmax(0))[positive])


def test_changes_are_those_of_every_mutant_by_itself(classifier):
    model, codec, tokenizer = classifier
    found = list(classifier_changes(model, codec, iter(ODD), 1, 16))
    assert [len(change) for change in found] == [len(text) for text in ODD]
    for text, change in zip(ODD, found, strict=True):
        own = log_odds(model, tokenizer, text, 1)
        for place, row in enumerate(change):
            if text[place] == "N":
                assert np.isnan(row).all()
                continue
            assert row["ACGT".index(text[place])] == 0
            for letter, value in zip("ACGT", row, strict=True):
                if letter != text[place]:
                    mutant = text[:place] + letter + text[place + 1 :]
                    assert value == pytest.approx(log_odds(model, tokenizer, mutant, 1) - own, abs=1e-5)
    assert np.nanmax(np.abs(found[0])) > 0.05, "a network that heeds nothing tests nothing"


def test_changes_do_not_depend_on_the_batch(classifier, monkeypatch):
    model, codec, _ = classifier
    together = list(classifier_changes(model, codec, ODD, 1, 64))
    monkeypatch.setattr(mutagenesis, "AT_ONCE", 5)
    for i, text in enumerate(ODD):
        alone = list(classifier_changes(model, codec, [text], 1, 2))
        assert len(alone) == 1
        assert alone[0] == pytest.approx(together[i], abs=1e-5, nan_ok=True)


def test_sequences_are_read_as_they_are_needed(classifier):
    model, codec, _ = classifier
    endless = classifier_changes(model, codec, cycle(TEXTS[:2]), 0, 64)
    assert [len(change) for change in islice(endless, 3)] == [13, 8, 13]


def test_mutants_that_do_not_fit_are_an_error(tokenizer_folder, tiny_model):
    sizes = {"num_labels": 2, "max_position_embeddings": 12}
    model, codec = loaded("dna-bpe", tokenizer_folder, tiny_model, StrandForSequenceClassification, **sizes)
    with pytest.raises(
        UserError,
        match=r"^a sequence with one letter substituted has \d+ tokens, more than the classifier's 10;",
    ):
        list(classifier_changes(model, codec, [TEXTS[0] * 5], 1, 8))


@torch.no_grad()
def letter_log_probabilities(model, tokenizer, text, place, k, overlapping):
    """The definition written out: hide what touches the place, read the letter from the token there."""
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    starts = np.cumsum([0, *(1 if overlapping else len(names[i]) for i in ids[1:-1].tolist())])[:-1]
    touching = [t for t, s in enumerate(starts) if s <= place < s + len(names[ids[t + 1]])]
    shown = ids.clone()
    shown[[t + 1 for t in touching]] = tokenizer.mask_token_id
    asked = touching[-1]  # the token that begins with the letter, or covers it at the end
    probabilities = model(input_ids=shown[None]).logits[0, asked + 1].double().softmax(0)
    offset, old = place - starts[asked], names[ids[asked + 1]]
    if not overlapping and len(old) > 1:
        new = [old[:offset] + letter + old[offset + 1 :] for letter in "ACGT"]
        return torch.stack([probabilities[names.index(name)] for name in new]).log().numpy()
    real = [name if not name.startswith("<") else "" for name in names]
    sums = [sum(probabilities[i] for i, n in enumerate(real) if n[offset : offset + 1] == a) for a in "ACGT"]
    return np.log([float(x) for x in sums])


def test_likelihoods_are_those_of_every_place_hidden_by_itself(masked):
    model, codec, tokenizer = masked
    found = list(likelihood_changes(model, codec, iter(TEXTS[:2]), 200))
    for text, change in zip(TEXTS[:2], found, strict=True):
        for place, row in enumerate(change):
            logs = letter_log_probabilities(model, tokenizer, text, place, codec.k, codec.overlapping)
            assert row == pytest.approx(logs - logs["ACGT".index(text[place])], abs=2e-5)
    assert np.abs(found[0]).max() > 0.05


def test_likelihoods_are_masked_marginals_beside_unknown_letters_too(masked, monkeypatch):
    model, codec, _ = masked
    together = list(likelihood_changes(model, codec, ODD, 4096))
    monkeypatch.setattr(mutagenesis, "AT_ONCE", 3)
    alone = [next(likelihood_changes(model, codec, [text], 1)) for text in ODD]
    marginals, text = Marginals(codec, 100), TEXTS[2]
    expected = np.where(np.array(list(text))[:, None] == "N", np.nan, np.zeros((1, 4)))
    mutants = {
        (place, a): text[:place] + letter + text[place + 1 :]
        for place in range(len(text))
        for a, letter in enumerate("ACGT")
        if text[place] not in ("N", letter)
    }
    keys = {at: marginals.add(text, mutant) for at, mutant in mutants.items()}
    answers = marginals.answers(model, 4096)
    for at, key in keys.items():
        expected[at] = answers[key]
    assert together[2] == pytest.approx(expected, abs=1e-5, nan_ok=True)
    assert [each.shape for each in together] == [(len(text), 4) for text in ODD]
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)


def test_residues_have_twenty_letters(tokenizer_folder, tiny_model):
    model, codec = loaded("protein", tokenizer_folder, tiny_model, StrandForMaskedLM)
    (change,) = likelihood_changes(model, codec, ["MKXV"], 100)
    assert change.shape == (4, 20)
    assert np.isnan(change[2]).all()
    assert np.isfinite(change[[0, 1, 3]]).all()
    assert (change == 0).sum() == 3


def test_byte_pairs_have_no_likelihoods_of_letters(tokenizer_folder):
    with pytest.raises(UserError, match=r"^checkpoint: its tokens are byte pairs"):
        likelihood_changes(None, codec_of(tokenizer_folder("dna-bpe")), TEXTS, 100)


def test_effects_are_mean_drops():
    change = np.array([[0, -3.0, -1.5, -1.5], [1, 2, 0, 3], [np.nan] * 4])
    assert position_effects(change) == pytest.approx([2, -2, np.nan], nan_ok=True)


def test_effects_lie_where_the_bases_do(tmp_path):
    places = [
        Place("chr2", 100, 104, "+"),
        None,
        Place("chr1", 7, 9, "-"),
        Place("chr2", 102, 105, "+"),
        Place("chr1", 0, 1, "+"),
    ]
    effects = [
        np.array([1.0, 2, 3, np.nan]),
        np.array([9.0]),
        np.array([0.5, -0.25]),
        np.array([5.0, 4, 6]),
        np.array([8.0]),
    ]
    written = write_effects(tmp_path, places, effects)
    assert [path.name for path in written] == ["effects.plus.bedgraph", "effects.minus.bedgraph"]
    assert written[0].read_text().splitlines() == [
        "chr2\t100\t101\t1",
        "chr2\t101\t102\t2",
        "chr2\t102\t103\t4",
        "chr2\t103\t104\t4",
        "chr2\t104\t105\t6",
        "chr1\t0\t1\t8",
    ]
    assert written[1].read_text().splitlines() == ["chr1\t7\t8\t-0.25", "chr1\t8\t9\t0.5"]
    assert write_effects(tmp_path / "none", [None], [np.array([1.0])]) == []
