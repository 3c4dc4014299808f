import numpy as np
import pytest
import torch
from transformers import EsmConfig, EsmForMaskedLM

from pipeline.attention.contacts import in_context
from pipeline.attention.couplings import coupling_scores
from pipeline.attention.jacobian import Row, categorical_jacobian, logits_of, mean_jacobian
from pipeline.model import FactoredConfig, FactoredForMaskedLM

RESIDUES = [4, 9, 5, 7]
GAP, MASK = 3, 2
R, V = len(RESIDUES), 12


def strand(tiny_model):
    return tiny_model(vocab_size=V, alphabet="protein", mask_token_id=MASK)


def esm(_):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"vocab_size": V, "mask_token_id": MASK, "pad_token_id": 1, "token_dropout": True}
    return EsmForMaskedLM(
        EsmConfig(**sizes, **special, position_embedding_type="rotary", initializer_range=0.5)
    )


def slow_jacobian(model, ids, positions):
    """One mutant at a time, by the definition."""
    found = np.zeros((len(positions), len(positions), R, R))
    with torch.no_grad():
        before = model.eval()(input_ids=torch.tensor([ids])).logits[0]
        for i, place in enumerate(positions):
            for a, residue in enumerate(RESIDUES):
                mutant = [*ids]
                mutant[place] = residue
                after = model(input_ids=torch.tensor([mutant])).logits[0]
                for j, other in enumerate(positions):
                    for b, token in enumerate(RESIDUES):
                        found[i, j, a, b] = after[other, token] - before[other, token]
    return found


IDS = [0, 4, 5, 7, 6, 9, 9, 10]  # 0 and 10 frame it, 6 is no residue of the list
POSITIONS = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", [strand, esm])
@pytest.mark.parametrize("tokens", [1, 40, 4096])
def test_jacobian_is_the_definition(tiny_model, kind, tokens):
    model = kind(tiny_model)
    expected = slow_jacobian(model, IDS, POSITIONS)
    found = categorical_jacobian(
        logits_of(model.train()), np.array(IDS), np.array(POSITIONS), RESIDUES, tokens
    )
    assert found.dtype == np.float32
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-5)


def factored(columns=7, seed=0):
    torch.manual_seed(seed)
    config = FactoredConfig(
        num_columns=columns, residue_token_ids=RESIDUES, vocab_size=V, num_attention_heads=3, hidden_size=12
    )
    return FactoredForMaskedLM(config)


def test_jacobian_of_a_linear_model_is_its_couplings():
    model = factored()
    ids = np.array(RESIDUES)[np.random.default_rng(0).integers(0, R, 7)]
    found = categorical_jacobian(logits_of(model), ids, np.arange(7), RESIDUES)
    with torch.no_grad():
        # couplings() has the column that is told first, the Jacobian the column that is changed
        told = model.model.couplings().permute(1, 0, 2, 3).numpy()
    before = told[np.arange(7), :, [RESIDUES.index(token) for token in ids]]
    np.testing.assert_allclose(found, told - before[:, :, None], atol=1e-6)
    expected = model.predict_contacts().numpy()
    np.testing.assert_allclose(in_context(coupling_scores(found, R)), expected, atol=1e-6)


def test_the_mean_is_taken_over_rows_with_both_columns(tiny_model):
    model = strand(tiny_model)
    rows = [
        Row(np.array(IDS), np.array(POSITIONS), np.array([0, 1, 3, 4, 6, 7])),
        Row(np.array([0, 5, 4, 10]), np.array([1, 2]), np.array([3, 1])),
        Row(np.array([0, 9, 10]), np.array([1]), np.array([2])),
    ]
    total, seen = np.zeros((9, 9, R, R)), np.zeros((9, 9))
    for row in rows:
        one = slow_jacobian(model, row.ids.tolist(), row.positions.tolist())
        for i, column in enumerate(row.columns):
            for j, other in enumerate(row.columns):
                total[column, other] += one[i, j]
                seen[column, other] += 1
    expected = total / np.maximum(seen, 1)[:, :, None, None]
    assert seen[1, 3] == 2
    assert seen[2, 3] == 0
    np.testing.assert_allclose(mean_jacobian(logits_of(model), rows, 9, RESIDUES), expected, atol=2e-5)


def test_no_more_tokens_than_asked_for_are_read_at_once():
    model, sizes = factored(), []

    def logits(ids):
        sizes.append(ids.numel())
        return model(ids).logits

    categorical_jacobian(logits, np.full(7, RESIDUES[0]), np.arange(7), RESIDUES, tokens=30)
    assert max(sizes) == 28
    assert sum(sizes) == 7 * (1 + 7 * (R - 1))  # what is not changed is not read again


@pytest.mark.parametrize("columns", [[0, 1], [0, 1, 1]])
def test_residues_need_columns_of_their_own(columns):
    row = Row(np.full(7, RESIDUES[0]), np.arange(3), np.array(columns))
    with pytest.raises(ValueError, match="row 0: 3 residues"):
        mean_jacobian(logits_of(factored()), [row], 7, RESIDUES)
