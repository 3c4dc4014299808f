import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from pipeline.attention.contacts import precision_at, sequence_weights
from pipeline.attention.couplings import (
    PseudoLikelihood,
    coupling_scores,
    frequencies,
    mean_field,
    pseudo_likelihood,
)
from pipeline.worlds.family import evolve, sample_contacts, sample_potts


def rows(n=60, length=5, letters=4, seed=0):
    """Codes with gaps (the last letter) and two columns that go together."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, letters, (n, length))
    codes[:, 4] = np.where(rng.random(n) < 0.8, codes[:, 0], codes[:, 4])
    return codes, rng.random(n) + 0.2


def slow_scores(J, residues):
    L, Q = J.shape[0], J.shape[2]
    norms = np.zeros((L, L))
    for i in range(L):
        for j in range(L):
            if i != j:
                pair = (J[i, j] + J[j, i].T) / 2
                ones = np.full((Q, Q), 1 / Q)
                pair = pair - ones @ pair - pair @ ones + pair.mean()
                norms[i, j] = np.linalg.norm(pair[:residues, :residues])
    expected = norms - np.outer(norms.sum(1), norms.sum(0)) / norms.sum()
    np.fill_diagonal(expected, 0)
    return expected


@pytest.mark.parametrize("residues", [3, 4])
def test_scores_are_corrected_norms_of_centred_couplings(residues):
    J = np.random.default_rng(1).normal(size=(6, 6, 4, 4))
    np.testing.assert_allclose(coupling_scores(J, residues), slow_scores(J, residues), atol=1e-12)
    assert np.abs(coupling_scores(J, 4) - coupling_scores(J, 3)).max() > 0.1


def test_what_is_said_of_one_column_alone_is_no_coupling():
    rng = np.random.default_rng(0)
    J = rng.normal(size=(4, 4, 3, 1)) + rng.normal(size=(4, 4, 1, 3))
    np.testing.assert_allclose(coupling_scores(J, 3), 0, atol=1e-12)


def slow_frequencies(codes, weights, share, Q):
    L = codes.shape[1]
    single, pairs = np.zeros((L, Q)), np.zeros((L, Q, L, Q))
    for row, weight in zip(codes, weights, strict=True):
        for i in range(L):
            single[i, row[i]] += weight / weights.sum()
            for j in range(L):
                pairs[i, row[i], j, row[j]] += weight / weights.sum()
    single, pairs = (1 - share) * single + share / Q, (1 - share) * pairs + share / Q**2
    for i in range(L):
        pairs[i, :, i] = np.diag(single[i])
    return single, pairs


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_frequencies_are_weighted_counts(share):
    codes, weights = rows()
    for found, expected in zip(
        frequencies(codes, weights, share, 3), slow_frequencies(codes, weights, share, 4), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_mean_field_is_minus_the_inverse_covariance():
    codes, weights = rows()
    single, pairs = slow_frequencies(codes, weights, 0.3, 4)
    keep = [(i, a) for i in range(5) for a in range(3)]
    covariances = [[pairs[i, a, j, b] - single[i, a] * single[j, b] for j, b in keep] for i, a in keep]
    inverse = np.linalg.inv(covariances)
    found = mean_field(codes, weights, 0.3, residues=3)
    for m, (i, a) in enumerate(keep):
        for n, (j, b) in enumerate(keep):
            assert found[i, j, a, b] == pytest.approx(-inverse[m, n] if i != j else 0, abs=1e-5)
    assert not found[:, :, 3].any()
    assert not found[:, :, :, 3].any()


def test_mean_field_of_two_columns_by_hand():
    """Two letters, no gaps: C = [[1/4, c], [c, 1/4]], so the coupling is c / (1/16 - c^2)."""
    codes = np.array([[0, 0]] * 3 + [[1, 1]] * 3 + [[0, 1], [1, 0]])
    c = 0.6 * (3 / 8) + 0.4 / 4 - 1 / 4
    found = mean_field(codes, np.ones(8), 0.4, residues=1)
    assert found[0, 1, 0, 0] == pytest.approx(c / (1 / 16 - c * c), abs=1e-6)


def slow_objective(fields, J, codes, weights, field_decay, coupling_decay, R):
    """The objective, column by column, for a dictionary of one matrix for each pair of columns i < j."""
    value = field_decay * (fields**2).sum() + coupling_decay * sum((m**2).sum() for m in J.values())
    for row, weight in zip(codes, weights, strict=True):
        for i, letter in enumerate(row):
            if letter == R:
                continue
            logits = fields[i].copy()
            for j, other in enumerate(row):
                if j != i and other < R:
                    logits += J[i, j][:, other] if i < j else J[j, i][other]
            value -= weight * (logits[letter] - np.log(np.exp(logits).sum()))
    return value


def unpack(x, L, R):
    pairs = [(i, j) for i in range(L) for j in range(i + 1, L)]
    matrices = x[L * R :].reshape(len(pairs), R, R)
    return x[: L * R].reshape(L, R), dict(zip(pairs, matrices, strict=True))


def dense(J, L, R):
    full = torch.zeros(L, R, L, R, dtype=torch.double)
    for (i, j), matrix in J.items():
        full[i, :, j], full[j, :, i] = torch.tensor(matrix), torch.tensor(matrix.T)
    return full.view(L * R, L * R)


def test_objective_and_gradient(monkeypatch):
    monkeypatch.setattr("pipeline.attention.couplings.CHUNK", 7)
    codes, weights = rows(n=20)
    L, R = 5, 3
    x = np.random.default_rng(0).normal(size=L * R + 10 * R * R) * 0.5
    objective = PseudoLikelihood(codes, weights, 0.05, 0.3, R)

    def slow(x):
        return slow_objective(*unpack(x, L, R), codes, weights, 0.05, 0.3, R)

    fields, J = unpack(x, L, R)
    value, by_field, by_coupling = objective(torch.tensor(fields).flatten(), dense(J, L, R))
    assert float(value) == pytest.approx(slow(x), abs=1e-9)
    for place in range(L * R):
        up, down = x.copy(), x.copy()
        up[place] += 1e-5
        down[place] -= 1e-5
        assert by_field[place] == pytest.approx((slow(up) - slow(down)) / 2e-5, abs=1e-6)
    by = by_coupling.view(L, R, L, R)
    assert torch.equal(by, by.permute(2, 3, 0, 1))
    for n, (i, j) in enumerate(J):
        for a, b in ((0, 0), (2, 1)):
            up, down = x.copy(), x.copy()
            place = L * R + n * R * R + a * R + b
            up[place] += 1e-5
            down[place] -= 1e-5
            # a pair's matrix stands in the dense one twice
            assert 2 * by[i, a, j, b] == pytest.approx((slow(up) - slow(down)) / 2e-5, abs=1e-6)
    assert not by.diagonal(dim1=0, dim2=2).any()


def test_pseudo_likelihood_is_the_minimum():
    codes, weights = rows(n=12, letters=3)
    codes, L, R = codes[:, [0, 1, 4]], 3, 2

    def slow(x):
        return slow_objective(*unpack(x, L, R), codes, weights, 0.01, 0.5, R)

    best = minimize(slow, np.zeros(L * R + 3 * R * R), method="L-BFGS-B", options={"maxfun": 10**6})
    found = pseudo_likelihood(codes, weights, coupling_decay=0.5, residues=R)
    expected = dense(unpack(best.x, L, R)[1], L, R).view(L, R, L, R).transpose(1, 2)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.abs(found).max() > 0.3
    default = pseudo_likelihood(codes, weights, residues=R)  # 0.2 for each other column
    np.testing.assert_allclose(
        default, pseudo_likelihood(codes, weights, coupling_decay=0.4, residues=R), atol=0
    )


@pytest.fixture(scope="module")
def planted():
    """A simulated family of 600 rows and 30 columns, and its contacts."""
    rng = np.random.default_rng(3)
    pairs = sample_contacts(30, rng)
    codes = evolve(600, sample_potts(30, pairs, rng), rng)
    contacts = np.zeros((30, 30), bool)
    contacts[tuple(np.transpose(pairs))] = True
    return codes, sequence_weights(codes), contacts | contacts.T


def test_planted_contacts_are_found(planted):
    codes, weights, contacts = planted
    known = np.ones_like(contacts)
    for couplings in (mean_field(codes, weights), pseudo_likelihood(codes, weights, iterations=15)):
        assert precision_at(coupling_scores(couplings), contacts, known) > 0.7


def test_a_weight_of_two_is_the_row_twice():
    codes, _ = rows()
    heavier, twice = np.where(np.arange(60) < 20, 2, 1), np.concatenate([codes, codes[:20]])
    for method in (mean_field, pseudo_likelihood):
        found = method(codes, heavier, residues=3)
        np.testing.assert_allclose(found, method(twice, np.ones(80), residues=3), atol=1e-3)
