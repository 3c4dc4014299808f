import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from pipeline.attention.contacts import mean_ranges, score_ranges
from pipeline.attention.regression import (
    Protein,
    Regression,
    above,
    fit,
    fit_separation,
    group,
    held_out,
    judge,
    separation_features,
)
from pipeline.sequences.structure import contact_map, expectation, read_structure

DATA = Path(os.environ.get("STRANDLM_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def pairs(n=900, features=6, seed=0):
    """Features of pairs, of which the first two tell contacts, and contacts."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(n, features)) * [1, 0.5, 1, 1, 1, 1]
    return seen, rng.random(n) < expit(2 * seen[:, 0] - 3 * seen[:, 1] - 2)


@pytest.mark.parametrize("strength", [0.15, 0.05])
def test_the_fit_is_the_optimum_of_the_penalised_likelihood(strength):
    """Where a weight is not zero, C x the loss has the slope of the penalty; else a smaller one."""
    seen, right = pairs()
    found = fit([seen[:300], seen[300:]], [right[:300], right[300:]], strength)
    ones = np.concatenate([seen, np.ones((len(seen), 1))], 1)  # liblinear penalises the intercept, too
    weights = np.append(found.weights, found.bias)
    slopes = -strength * ones.T @ (found.probabilities(seen) - right)
    used = np.abs(weights) > 1e-9
    np.testing.assert_allclose(slopes[used], np.sign(weights[used]), atol=0.02)
    assert (np.abs(slopes) < 1.02).all()
    assert used[[0, 1]].all()
    assert used.sum() < len(used)
    assert found.weights[0] > 0 > found.weights[1]


def protein(name, family, n=40, seed=0):
    rng = np.random.default_rng(seed)
    contacts = np.triu(rng.random((n, n)) < 0.2, 1)
    resolved = np.arange(n) != 5
    known = np.outer(resolved, resolved)
    return Protein(name, None, contacts | contacts.T, known, 6, family)


def test_pairs_are_resolved_and_apart():
    one = protein("a", "a")
    i, j = one.pairs
    assert len(i) == sum(b - a >= 6 and 5 not in (a, b) for a in range(40) for b in range(40))
    assert one.labels.tolist() == [bool(one.contacts[a, b]) for a, b in zip(i, j, strict=True)]
    values = np.arange(1.0, len(i) + 1)
    found = one.unfold(values)
    assert found[i, j].tolist() == values.tolist()
    assert np.count_nonzero(found) == len(i)
    np.testing.assert_allclose(separation_features(one)[:, 0], np.log(j - i))


def test_no_member_of_a_family_is_fitted_on_when_one_is_judged():
    proteins = [protein(str(k), family, seed=k) for k, family in enumerate("aabbc")]
    features = [np.full((len(one.labels), 1), float(k)) for k, one in enumerate(proteins)]
    calls = []

    def spy(given, labels):
        used = [int(one[0, 0]) for one in given]
        for k, told in zip(used, labels, strict=True):
            np.testing.assert_array_equal(told, proteins[k].labels)
        calls.append(used)
        return Regression(np.zeros(1), float(len(calls)))

    maps = held_out(proteins, features, spy)
    assert calls == [[2, 3, 4], [0, 1, 4], [0, 1, 2, 3]]
    for call, members in zip((1, 2, 3), ((0, 1), (2, 3), (4,)), strict=True):
        for k in members:
            np.testing.assert_allclose(maps[k][proteins[k].pairs], expit(call))
    calls.clear()
    held_out(proteins, features, spy, most=2, seed=1)
    assert [len(used) for used in calls] == [2, 2, 2]
    assert not {0, 1} & set(calls[0])


def test_a_planted_head_is_found_on_proteins_not_seen():
    proteins = [protein(str(k), str(k), seed=k) for k in range(6)]
    rng = np.random.default_rng(9)
    features = []
    for one in proteins:
        seen = rng.normal(size=(len(one.labels), 8))
        seen[:, 3] += 2.5 * one.labels
        features.append(seen)
    ours = judge(proteins, held_out(proteins, features, fit))
    blind = judge(proteins, held_out(proteins, [separation_features(p) for p in proteins], fit_separation))
    mean, floor = mean_ranges(ours)["all"], mean_ranges(blind)["all"]
    assert mean["at_l"] > 0.9 > 0.35 > floor["at_l"]
    assert mean["intervals"]["at_l"][0] > floor["intervals"]["at_l"][1]
    gain = above(ours, blind, 0)
    assert gain["difference"] == pytest.approx(mean["at_l"] - floor["at_l"])
    assert gain["interval"][0] > 0.5


def test_families_are_chains_of_similar_proteins():
    rng = np.random.default_rng(0)
    letters = list("ACDEFGHIKLMNPQRSTVWY")
    ends = ["".join(rng.choice(letters, 60)) for _ in range(4)]
    sequences = {"a": ends[0], "b": ends[1], "ab": ends[0][:50] + ends[1][:50], "c": ends[2], "d": ends[3]}
    assert group(sequences, 1e-3) == {"a": "a", "b": "a", "ab": "a", "c": "c", "d": "d"}
    assert len(set(group(sequences, 0.0).values())) == 5


def test_expectation_is_blasts_formula():
    """A run of 10 W scores 110, so bits are (0.267 x 110 - ln 0.041) / ln 2 = 46.98."""
    assert expectation("W" * 10, "W" * 10) == pytest.approx(100 * 2**-46.98, rel=0.02)
    gapped = "WWWWWWWWWW" + "CCCCCCCCCC"
    scores = 0.267 * (200 - 12)
    assert expectation("W" * 10 + "A" + "C" * 10, gapped) == pytest.approx(
        0.041 * 21 * 20 * np.exp(-scores), rel=0.01
    )


# -- real structures


def structures(count):
    folder = DATA / "structures" / "kortemme40"
    if not folder.is_dir():
        pytest.skip(f"no {folder}; set STRANDLM_DATA")
    return sorted(folder.glob("*.pdb.gz"))[:count]


def slow_contacts(path):
    """Read residues line by line; of each atom the most occupied place; C-beta, or C-alpha of glycine."""
    best = {}
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        if line.startswith("ATOM") and line[12:16].strip() in ("CA", "CB"):
            key = line[21:27], line[12:16].strip()
            if float(line[54:60]) > best.get(key, (-1.0,))[0]:
                best[key] = (float(line[54:60]), [float(line[30 + 8 * k : 38 + 8 * k]) for k in range(3)])
    residues = list(dict.fromkeys(residue for residue, _ in best))
    points = [best.get((residue, "CB"), best[residue, "CA"])[1] for residue in residues]
    return [[math.dist(p, q) < 8 for q in points] for p in points]


def slow_precision(scores, touch, low, high):
    """At L, L/2 and L/5, and the area under the ROC curve."""
    n = len(touch)
    candidates = [(i, j) for i in range(n) for j in range(i + low, min(n, i + high + 1))]
    candidates.sort(key=lambda pair: (-scores[pair], pair))
    right = [touch[i][j] for i, j in candidates]
    area = roc_auc_score(right, [scores[pair] for pair in candidates])
    tops = (right[: max(1, n // part)] for part in (1, 2, 5))
    return [sum(top) / len(top) for top in tops], area


def test_precision_on_twenty_structures_is_an_independent_implementations():
    paths = structures(20)
    assert len(paths) == 20
    rng = np.random.default_rng(0)
    for path in paths:
        touch = slow_contacts(path)
        structure = read_structure(path)
        contacts, known = contact_map(structure)
        assert known.all()
        scores = np.round(rng.normal(size=contacts.shape) + 1.5 * contacts, 1)  # with ties
        found = score_ranges(scores, contacts, known)
        for name, low, high in (("all", 6, 999), ("short", 6, 11), ("medium", 12, 23), ("long", 24, 999)):
            precisions, area = slow_precision(scores, touch, low, high)
            assert [found[name][key] for key in ("at_l", "at_l2", "at_l5")] == precisions
            assert found[name]["auc"] == pytest.approx(area, abs=1e-12)
            reached = min(found[name]["contacts"], len(touch), found[name]["pairs"])
            assert found[name]["ceiling_at_l"] == pytest.approx(
                reached / min(len(touch), found[name]["pairs"])
            )


def test_homologs_of_both_sets_are_held_together():
    structures(1)
    wanted = (
        "1FKB_A",
        "2PPN_A",
        "1MSI_A",
        "1UCS_A",
        "1C9O_A",
        "3I2Z_A",
        "1POH_A",
        "1PTF_A",
        "3CHY_A",
        "1MVO_A",
    )
    paths = sorted((DATA / "structures").glob("*/*.pdb.gz"))
    sequences = {
        path.name[-13:-7]: read_structure(path).sequence for path in paths if path.name[-13:-7] in wanted
    }
    family = group(sequences, 1e-5)
    for one, other in zip(wanted[::2], wanted[1::2], strict=True):
        assert family[one] == family[other]
    assert len(set(family.values())) == 5
