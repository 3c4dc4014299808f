"""predict_contacts against a slow definition; that EsmForMaskedLM gives the same is in test_convert.py."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from pipeline.attention.contacts import average_product_correction, symmetrise
from pipeline.model import StrandConfig, StrandForMaskedLM

CLS, PAD, EOS = 0, 1, 2
HEAD = {"contact_head": True, "framing_token_ids": [CLS, EOS], "pad_token_id": PAD}


@pytest.fixture
def fitted(tiny_model):
    model = tiny_model(**HEAD, positions="none")
    torch.manual_seed(1)
    model.contact_head.regression.weight.normal_(std=30)
    model.contact_head.regression.bias.fill_(-0.5)
    return model


def batch(lengths, left=False, seed=0):
    rng, width = np.random.default_rng(seed), max(lengths) + 2
    ids = np.full((len(lengths), width), PAD)
    for row, n in enumerate(lengths):
        tokens = [CLS, *rng.integers(4, 24, n), EOS]
        ids[row, slice(width - n - 2, None) if left else slice(n + 2)] = tokens
    ids = torch.from_numpy(ids)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


@torch.no_grad()
def slow(model, ids):
    """Contacts of one sequence between special tokens, from eager attention, a head at a time."""
    model.set_attn_implementation("eager")
    maps = (
        torch.cat(model(ids[None], output_attentions=True).attentions, 1)[0, :, 1:-1, 1:-1].double().numpy()
    )
    weights = model.contact_head.regression.weight[0].double().numpy()
    logits = model.contact_head.regression.bias.item() + sum(
        weight * average_product_correction(symmetrise(one))
        for weight, one in zip(weights, maps, strict=True)
    )
    return 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize("left", [False, True])
def test_probabilities_are_the_definition_alone_and_padded(fitted, left):
    lengths = (9, 30, 17)
    inputs = batch(lengths, left)
    told = fitted.predict_contacts(**inputs)
    assert told.shape == (3, 30, 30)
    assert not told.requires_grad
    for row, n in enumerate(lengths):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        expected = slow(fitted, ids)
        assert expected.std() > 0.05
        np.testing.assert_allclose(told[row, :n, :n].numpy(), expected, atol=1e-5)
        np.testing.assert_allclose(fitted.predict_contacts(ids[None])[0].numpy(), expected, atol=1e-5)


def test_the_model_is_left_as_it_was(fitted):
    inputs = batch((12,))
    expected = slow(fitted, inputs["input_ids"][0])
    fitted.set_attn_implementation("sdpa")
    hooks = [len(layer.attention._forward_hooks) for layer in fitted.model.layers]  # transformers has its own
    np.testing.assert_allclose(fitted.predict_contacts(**inputs)[0].numpy(), expected, atol=1e-5)
    with pytest.raises(IndexError):
        fitted.predict_contacts(torch.tensor([[CLS, 99, EOS]]))
    assert fitted.config._attn_implementation == "sdpa"
    assert hooks == [len(layer.attention._forward_hooks) for layer in fitted.model.layers]


@pytest.mark.parametrize("options", [{}, HEAD])
def test_without_a_fitted_regression_there_is_no_answer(tiny_model, options):
    with pytest.raises(ValueError, match="no fitted contact regression in this checkpoint"):
        tiny_model(**options).predict_contacts(**batch((9,)))


def test_no_optimizer_sees_it(fitted):
    assert not list(fitted.contact_head.parameters())
    fitted(**batch((9, 12)), labels=batch((9, 12))["input_ids"]).loss.backward()
    assert all(parameter.grad is not None for parameter in fitted.parameters())


def test_a_checkpoint_holds_it(fitted, tmp_path):
    fitted.save_pretrained(tmp_path)
    told = fitted.predict_contacts(**batch((9, 12)))
    loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(loaded.contact_head.regression.weight, fitted.contact_head.regression.weight)
    torch.testing.assert_close(loaded.predict_contacts(**batch((9, 12))), told, rtol=0, atol=1e-6)
    for auto in (AutoModel, AutoModelForSequenceClassification):
        _, report = auto.from_pretrained(tmp_path, output_loading_info=True)
        assert not any("contact" in str(key) for key in report["unexpected_keys"])
    half = AutoModelForMaskedLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    torch.testing.assert_close(half.predict_contacts(**batch((9, 12))), told, rtol=0, atol=0.2)


def test_a_checkpoint_that_lost_it_is_not_fitted(fitted, tmp_path):
    fitted.save_pretrained(
        tmp_path, state_dict={k: v for k, v in fitted.state_dict().items() if "contact" not in k}
    )
    loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {"contact_head.regression.weight", "contact_head.regression.bias"}
    with pytest.raises(ValueError, match="no fitted contact regression"):
        loaded.predict_contacts(**batch((9,)))


def test_checkpoints_of_before_load(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"contact_head": false,', ""))
    assert "contact_head" not in path.read_text()
    loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, StrandForMaskedLM)
    assert not any(report.values())
    assert loaded.contact_head is None


def test_what_is_no_residue_must_be_known():
    with pytest.raises(Exception, match="contact_head needs framing_token_ids"):
        StrandConfig(contact_head=True)
