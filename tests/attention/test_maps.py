"""Maps as ESM's contact head takes them, from maps that eager attention kept."""

import numpy as np
import pytest
import torch
from transformers import EsmConfig, EsmForMaskedLM

from pipeline.attention import capture
from pipeline.attention.contacts import average_product_correction, symmetrise
from pipeline.attention.maps import corrected, head_maps, pair_features, weighted_maps
from pipeline.model import StrandModel

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
BOS, PAD, EOS = 0, 1, 2
LENGTHS = (21, 9, 14)


@pytest.fixture(scope="module")
def esm():
    torch.manual_seed(0)
    settings = {"vocab_size": 33, "pad_token_id": PAD, "mask_token_id": 32, "max_position_embeddings": 64}
    rotary = {"position_embedding_type": "rotary", "token_dropout": True}
    model = EsmForMaskedLM(EsmConfig(**SHAPE, **settings, **rotary)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 * parameter.shape[1] ** -0.5)
    return model


@pytest.fixture(params=["esm", "strand"])
def model(request, esm, tiny_model):
    return esm if request.param == "esm" else tiny_model(StrandModel, **SHAPE, pad_token_id=PAD)


@pytest.fixture
def inputs():
    """Three proteins of different lengths between special tokens, padded."""
    ids = torch.full((3, max(LENGTHS) + 2), PAD)
    for row, length in enumerate(LENGTHS):
        residues = torch.randint(4, 24, (length,), generator=torch.Generator().manual_seed(row))
        ids[row, : length + 2] = torch.cat((torch.tensor([BOS]), residues, torch.tensor([EOS])))
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def inner():
    return [np.arange(1, length + 1) for length in LENGTHS]


def expected_maps(model, inputs, residues):
    """Return for each row (N, R, R), in double precision."""
    kernel = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.cat(model(**inputs, output_attentions=True).attentions, 1).double().numpy()
    model.set_attn_implementation(kernel)
    own = [maps[row][:, place_R[:, None], place_R] for row, place_R in enumerate(residues)]
    return [average_product_correction(symmetrise(a)) for a in own]


def test_correction_is_that_of_the_contacts_module():
    maps = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    maps[1, 2] = 0
    before = maps.clone()
    expected = average_product_correction(symmetrise(maps.numpy()))
    np.testing.assert_allclose(corrected(maps).numpy(), expected, rtol=0, atol=1e-12)
    assert not corrected(maps)[1, 2].any()
    assert torch.equal(maps, before)


@pytest.mark.parametrize("block", [40, 2**18])
def test_maps_of_each_protein_of_a_padded_batch(model, inputs, block, monkeypatch):
    monkeypatch.setattr(capture, "BLOCK", block)
    found = list(head_maps(model, inputs, inner()))
    for maps, expected in zip(found, expected_maps(model, inputs, inner()), strict=True):
        assert maps.dtype == np.float32
        np.testing.assert_allclose(maps, expected, rtol=0, atol=2e-6)  # two entries are added


def test_residues_may_stand_apart(model, inputs):
    """Tokens left out of the map are still seen by the others."""
    residues = [np.array([2, 3, 7, 20]), np.array([9, 1]), np.array([5])]
    expected = expected_maps(model, inputs, residues)
    for maps, theirs in zip(head_maps(model, inputs, residues), expected, strict=True):
        np.testing.assert_allclose(maps, theirs, rtol=0, atol=2e-6)
    weights = np.random.default_rng(0).normal(size=12)
    for maps, theirs in zip(weighted_maps(model, inputs, residues, weights), expected, strict=True):
        np.testing.assert_allclose(maps, np.einsum("n,nij->ij", weights, theirs), rtol=0, atol=1e-5)


def test_features_of_pairs_are_ordered_by_layer_and_head(model, inputs):
    pairs = [np.triu_indices(length, 6) for length in LENGTHS]
    pairs[1] = (np.array([8, 0]), np.array([1, 8]))
    found = pair_features(model, inputs, inner(), pairs)
    for features, (i, j), maps in zip(found, pairs, expected_maps(model, inputs, inner()), strict=True):
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, maps[:, i, j].T, rtol=0, atol=2e-6)


@pytest.mark.parametrize("block", [40, 2**18])
def test_a_weighted_sum_is_that_of_the_maps(model, inputs, block, monkeypatch):
    monkeypatch.setattr(capture, "BLOCK", block)
    weights = np.random.default_rng(0).normal(size=12)
    weights[[0, 5, 8, 9, 10, 11]] = 0  # the last layer has none left
    found = weighted_maps(model, inputs, inner(), weights)
    for maps, theirs in zip(found, expected_maps(model, inputs, inner()), strict=True):
        assert maps.dtype == np.float32
        np.testing.assert_allclose(maps, np.einsum("n,nij->ij", weights, theirs), rtol=0, atol=5e-6)
        np.testing.assert_allclose(maps, maps.T, rtol=0, atol=1e-6)


@torch.no_grad()
def test_it_is_the_logit_of_esms_contact_head(esm, inputs):
    """Alone and in a padded batch, with weights as large as published ones."""
    regression = esm.esm.contact_head.regression
    regression.weight.normal_(std=3.0)
    regression.bias.fill_(-3.5)
    kernel = esm.config._attn_implementation
    for row, place_R in enumerate(inner()):
        own = {name: value[row : row + 1, : LENGTHS[row] + 2] for name, value in inputs.items()}
        esm.set_attn_implementation("eager")
        expected = esm.predict_contacts(own["input_ids"], own["attention_mask"])[0].numpy()
        esm.set_attn_implementation(kernel)
        weights, bias = regression.weight[0].numpy(), regression.bias.item()
        alone = weighted_maps(esm, own, [place_R], weights)[0]
        together = weighted_maps(esm, inputs, inner(), weights)[row]
        for logits in (alone, together):
            np.testing.assert_allclose(1 / (1 + np.exp(-logits - bias)), expected, rtol=0, atol=1e-5)
        assert expected.max() - expected.min() > 0.05, "the case tells nothing"


def test_a_weighted_sum_needs_no_map_of_each_head(tiny_model, monkeypatch, largest_tensor):
    monkeypatch.setattr(capture, "BLOCK", 1024)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 8}
    model = tiny_model(StrandModel, **shape, pad_token_id=PAD)
    ids = torch.randint(4, 24, (1, 98))
    batch, place = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, [np.arange(1, 97)]
    with largest_tensor() as largest:
        weighted_maps(model, batch, place, np.ones(16))
    assert largest.size <= 2 * 96 * 96, "more than the sum and its correction"
    with largest_tensor() as largest:
        pair_features(model, batch, place, [(np.array([0]), np.array([9]))])
    assert largest.size <= 8 * 96 * 96, "more than the maps of a layer of a protein"


def test_wrong_requests_are_told_and_leave_the_model_as_it_was(model, inputs):
    kernel = model.config._attn_implementation
    with pytest.raises(ValueError, match="residues: places of 2 proteins for 3 rows"):
        weighted_maps(model, inputs, inner()[:2], np.ones(12))
    for wrong in (np.arange(1, 12), np.array([-1, 2]), np.array([40]), np.array([], int)):
        residues = [inner()[0], wrong, inner()[2]]
        with pytest.raises(ValueError, match="residues: row 1: none, or padding"):
            weighted_maps(model, inputs, residues, np.ones(12))
    with pytest.raises(ValueError, match=r"weights: shape \(11,\) for 3 layers of 4 heads"):
        weighted_maps(model, inputs, inner(), np.ones(11))
    with pytest.raises(IndexError):
        pair_features(model, inputs, inner(), [(np.array([99]), np.array([0]))] * 3)
    assert model.config._attn_implementation == kernel
