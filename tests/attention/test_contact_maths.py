import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score
from transformers.models.esm.modeling_esm import EsmContactPredictionHead

from pipeline.attention.contacts import (
    average_product_correction,
    in_context,
    mean_ranges,
    mutual_information,
    precision_at,
    random_precision,
    score_ranges,
    scored_pairs,
    sequence_weights,
    symmetrise,
)


def test_correction_is_esms():
    """The head of ESM's contact predictor, with the weight of one map set to one and the others to none."""
    rng = np.random.default_rng(0)
    attention = rng.random((1, 2, 3, 9, 9))
    head = EsmContactPredictionHead(in_features=6, eos_idx=2)
    tokens = torch.full((1, 9), 5)
    tokens[0, -1] = 2
    expected = average_product_correction(symmetrise(attention[0, :, :, 1:-1, 1:-1]))
    for n, layer, h in ((0, 0, 0), (4, 1, 1)):
        with torch.no_grad():
            head.regression.weight.zero_()
            head.regression.bias.zero_()
            head.regression.weight[0, n] = 1
            head.double()
            found = torch.logit(head(tokens, torch.tensor(attention)))[0]
        np.testing.assert_allclose(found.numpy(), expected[layer, h], atol=1e-9)


def test_correction_takes_products_away():
    a = np.outer([1.0, 2, 3], [4.0, 5, 6])
    np.testing.assert_allclose(average_product_correction(a), 0, atol=1e-12)
    np.testing.assert_array_equal(average_product_correction(np.zeros((2, 3, 3))), np.zeros((2, 3, 3)))


def slow_precision(scores, contacts, known, fraction, low, high):
    n = len(scores)
    pairs = [(i, j) for i in range(n) for j in range(n) if low <= j - i <= high and known[i, j]]
    pairs.sort(key=lambda p: -scores[p])
    best = pairs[: max(1, int(sum(known[i, i] for i in range(n)) * fraction))]
    return sum(bool(contacts[p]) for p in best) / len(best)


def test_context_is_a_tenth_of_the_neighbours_and_the_sizes_of_the_columns():
    scores = np.random.default_rng(3).normal(size=(7, 7)) + 5 * np.eye(7)
    expected = np.zeros((7, 7))
    for i, j in np.ndindex(7, 7):
        around = [(a, b) for a in range(i - 1, i + 2) for b in range(j - 1, j + 2) if (a, b) != (i, j)]
        inside = [scores[a, b] for a, b in around if a != b and 0 <= a < 7 and 0 <= b < 7]
        expected[i, j] = 0 if i == j else scores[i, j] + 0.1 * sum(inside)
    rms = [sum(x * x for x in expected[i]) ** 0.5 / 7**0.5 for i in range(7)]
    sizes = [one + sum(rms) / 14 for one in rms]
    for i, j in np.ndindex(7, 7):
        expected[i, j] /= (sizes[i] * sizes[j]) ** 0.5
    np.testing.assert_allclose(in_context(scores), expected, atol=1e-12)


def test_context_has_no_scale_and_tells_nothing_where_there_is_nothing():
    scores = symmetrise(np.random.default_rng(3).normal(size=(7, 7)))
    np.testing.assert_allclose(in_context(100 * scores), in_context(scores), atol=1e-12)
    np.testing.assert_array_equal(in_context(np.zeros((7, 7))), np.zeros((7, 7)))


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.2])
@pytest.mark.parametrize(("low", "high"), [(6, None), (6, 11), (12, 23), (1, None)])
def test_precision_is_the_definition(fraction, low, high):
    rng = np.random.default_rng(3)
    scores, contacts = symmetrise(rng.random((30, 30))), symmetrise(rng.random((30, 30))) > 1.2
    resolved = rng.random(30) > 0.2
    known = np.outer(resolved, resolved)
    expected = slow_precision(scores, contacts, known, fraction, low, high or 99)
    assert precision_at(scores, contacts, known, fraction, low, high) == pytest.approx(expected, abs=1e-12)
    i, j = scored_pairs(known, low, high)
    wanted = [(a, b) for a in range(30) for b in range(30) if low <= b - a <= (high or 99) and known[a, b]]
    assert list(zip(i, j, strict=True)) == wanted
    assert random_precision(contacts, known, low, high) == pytest.approx(contacts[i, j].mean())


def test_unresolved_residues_count_neither_as_right_nor_as_length():
    scores = np.zeros((10, 10))
    scores[0, 9], scores[1, 8], scores[2, 9] = 3, 2, 1
    contacts = np.zeros((10, 10), bool)
    contacts[1, 8] = True
    known = np.ones((10, 10), bool)
    known[9], known[:, 9] = False, False
    assert precision_at(scores, contacts, known, 1 / 9) == 1.0
    assert precision_at(scores, contacts, known, 2 / 9) == 0.5
    assert np.isnan(precision_at(scores, contacts, known[:5, :5]))
    with pytest.raises(ValueError, match="not a number"):
        precision_at(np.full((10, 10), np.nan), contacts, known)


def test_means_over_proteins_leave_out_what_is_not_defined():
    rng = np.random.default_rng(0)
    small, large = (np.ones((n, n), bool) for n in (20, 60))
    proteins = []
    for known in (small, large, large):
        contacts = symmetrise(rng.random(known.shape)) > 1.7
        proteins.append(score_ranges(symmetrise(rng.random(known.shape)) + contacts, contacts, known))
    means = mean_ranges(proteins)
    assert proteins[0]["long"] == dict.fromkeys(proteins[0]["long"]) | {"pairs": 0, "contacts": 0}
    assert means["all"]["proteins"] == 3
    assert means["long"]["proteins"] == 2
    for name, found in means.items():
        for key in ("at_l", "at_l5", "ceiling_at_l2", "auc"):
            values = [p[name][key] for p in proteins if p[name][key] is not None]
            assert found[key] == pytest.approx(np.mean(values))
            low, high = found["intervals"][key]
            assert min(values) <= low <= found[key] <= high <= max(values)
        assert found["pairs"] == sum(p[name]["pairs"] for p in proteins)
    one = mean_ranges(proteins[:1])["all"]
    assert one["intervals"] == {}
    assert one["at_l"] == proteins[0]["all"]["at_l"]


def alignment(n=60, length=12, letters=5, seed=0):
    rng = np.random.default_rng(seed)
    ancestors = rng.integers(0, letters, (6, length))
    rows = ancestors[rng.integers(0, 6, n)]
    return np.where(rng.random(rows.shape) < 0.15, rng.integers(0, letters, rows.shape), rows)


@pytest.mark.parametrize("chunk", [7, 1024])
def test_weights_are_one_over_the_cluster(chunk, monkeypatch):
    monkeypatch.setattr("pipeline.attention.contacts.CHUNK", chunk)
    codes = alignment()
    expected = [1 / sum((a == b).mean() >= 0.75 for b in codes) for a in codes]
    np.testing.assert_allclose(sequence_weights(codes, 0.75), expected, atol=1e-12)
    assert len(set(expected)) > 3


def test_identity_at_the_threshold_counts():
    codes = np.zeros((2, 10), int)
    codes[1, :2] = 1
    np.testing.assert_array_equal(sequence_weights(codes), [0.5, 0.5])
    codes[1, 2] = 1
    np.testing.assert_array_equal(sequence_weights(codes), [1, 1])


@pytest.mark.parametrize("chunk", [7, 1024])
def test_mutual_information_is_scikit_learns(chunk, monkeypatch):
    monkeypatch.setattr("pipeline.attention.contacts.CHUNK", chunk)
    codes = alignment()
    found = mutual_information(codes)
    for i in range(codes.shape[1]):
        for j in range(codes.shape[1]):
            expected = mutual_info_score(codes[:, i], codes[:, j]) if i != j else 0
            assert found[i, j] == pytest.approx(expected, abs=1e-6)


def test_a_weight_of_two_is_the_row_twice():
    codes, weights = alignment(), np.ones(60)
    weights[:20] = 2
    twice = np.concatenate([codes, codes[:20]])
    np.testing.assert_allclose(mutual_information(codes, weights), mutual_information(twice), atol=1e-6)
