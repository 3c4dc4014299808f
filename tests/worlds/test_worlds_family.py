"""The simulated family against full enumeration and slow loops."""

from itertools import product
from math import exp

import numpy as np
import pytest

from pipeline.attention.contacts import average_product_correction, mutual_information, precision_at
from pipeline.worlds import family


@pytest.mark.parametrize("length", [20, 33, 60, 120])
@pytest.mark.parametrize("seed", range(5))
def test_contacts_cover_every_site_one_to_three_times(length, seed):
    contacts = family.sample_contacts(length, np.random.default_rng(seed))
    degree = np.bincount(np.ravel(contacts), minlength=length)
    assert len(contacts) == len(set(contacts)) >= length
    assert contacts == sorted(contacts)
    assert all(i >= 0 and j - i >= 6 and j < length for i, j in contacts)
    assert 1 <= degree.min() <= degree.max() <= 3


def test_contacts_form_ladders():
    """Most contacts have a neighbour one step along a diagonal, as beside strands and helices."""
    contacts = set(family.sample_contacts(60, np.random.default_rng(0)))
    steps = [(1, 1), (-1, -1), (1, -1), (-1, 1)]
    neighboured = [any((i + a, j + b) in contacts for a, b in steps) for i, j in contacts]
    assert np.mean(neighboured) > 0.7


def toy_potts(rng):
    """Three sites with three letters and contacts 0-1 and 1-2."""
    fields = rng.normal(size=(3, 3))
    couplings = {(0, 1): rng.normal(size=(3, 3)), (1, 2): rng.normal(size=(3, 3))}
    neighbours = np.array([[1, 0], [0, 2], [1, 2]])
    tensor = np.zeros((3, 2, 3, 3))
    tensor[0, 0], tensor[1, 0] = couplings[0, 1], couplings[0, 1].T
    tensor[1, 1], tensor[2, 0] = couplings[1, 2], couplings[1, 2].T
    return family.Potts(fields, neighbours, tensor), couplings


def test_substitutions_sample_the_potts_model():
    rng = np.random.default_rng(0)
    potts, couplings = toy_potts(rng)
    weights = {}
    for s in product(range(3), repeat=3):
        energy = sum(potts.fields[i, s[i]] for i in range(3))
        energy += sum(matrix[s[i], s[j]] for (i, j), matrix in couplings.items())
        weights[s] = exp(energy)
    states = rng.integers(0, 3, (40_000, 3))
    family.substitute(states, np.full(len(states), 60), potts, rng)
    for s, weight in weights.items():
        found = (states == s).all(1).mean()
        assert found == pytest.approx(weight / sum(weights.values()), abs=0.01)


def test_substitutions_touch_only_the_rows_that_are_due():
    rng = np.random.default_rng(0)
    potts, _ = toy_potts(rng)
    states = rng.integers(0, 3, (100, 3))
    before = states.copy()
    family.substitute(states, np.repeat([0, 1], 50), potts, rng)
    np.testing.assert_array_equal(states[:50], before[:50])
    assert (states[50:] != before[50:]).sum(1).max() == 1


def test_sampled_couplings_are_symmetric_and_follow_the_contacts():
    rng = np.random.default_rng(0)
    contacts = family.sample_contacts(30, rng)
    potts = family.sample_potts(30, contacts, rng)
    found = {}
    for i in range(30):
        for d in range(3):
            if potts.couplings[i, d].any():
                found[i, int(potts.neighbours[i, d])] = potts.couplings[i, d]
    assert {pair for pair in found if pair[0] < pair[1]} == set(contacts)
    for (i, j), coupling in found.items():
        np.testing.assert_array_equal(coupling, found[j, i].T)


@pytest.mark.parametrize("count", [2, 3, 500])
def test_tree_has_the_wanted_number_of_leaves(count):
    rng = np.random.default_rng(0)
    potts = family.sample_potts(20, family.sample_contacts(20, rng), rng)
    leaves = family.evolve(count, potts, rng)
    assert leaves.shape == (count, 20)
    assert 0 <= leaves.min() <= leaves.max() < 20


def test_relatives_are_more_alike_than_strangers():
    """The nearest neighbour of a sequence shares far more with it than a random one: there is a phylogeny."""
    rng = np.random.default_rng(0)
    potts = family.sample_potts(60, family.sample_contacts(60, rng), rng)
    leaves = family.evolve(400, potts, rng)
    same = (leaves[:, None] == leaves).mean(2) - np.eye(400)
    assert np.median(same.max(1)) > np.median(same) + 0.2


@pytest.mark.parametrize("seed", range(4))
def test_mutual_information_finds_many_but_not_all_contacts(seed):
    rng = np.random.default_rng(seed)
    contacts = family.sample_contacts(60, rng)
    states = family.evolve(2000, family.sample_potts(60, contacts, rng), rng)
    truth = np.zeros((60, 60), bool)
    truth[tuple(np.transpose(contacts))] = True
    raw = mutual_information(states)
    plain, corrected = (
        precision_at(scores, truth, np.ones_like(truth)) for scores in (raw, average_product_correction(raw))
    )
    assert 0.5 < corrected < 0.9
    assert corrected > plain
    assert 0.3 < family.median_identity(states, rng) < 0.5
