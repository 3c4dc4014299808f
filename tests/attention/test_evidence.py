import json
from dataclasses import asdict
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom, spearmanr
from sklearn.metrics import roc_auc_score

from pipeline.attention.evidence import (
    Stratum,
    _compared,
    _p_value,
    agreement,
    site_auroc,
    support,
)

NAN = float("nan")


def noise(number, length, seed=0):
    return list(np.random.default_rng(seed).normal(size=(number, length)))


def high(effect):
    """The definition in words: the tenth with the highest effects, as far as they are above 0."""
    ordered = sorted(effect, reverse=True)
    return [e >= ordered[max(1, round(0.1 * len(effect))) - 1] and e > 0 for e in effect]


# -- attention and effects


def test_agreement_is_the_mean_of_that_within_each_sequence():
    rng = np.random.default_rng(1)
    effects = [rng.integers(-3, 6, size).astype(float) * 10.0**i for i, size in enumerate((30, 41, 55))]
    attention = [rng.integers(0, 9, len(e)) / 100 + 0.02 * e / np.ptp(e) for e in effects]
    effects[1][[3, 9]], attention[1][[9, 11]] = NAN, NAN
    keep = [np.isfinite(a) & np.isfinite(e) for a, e in zip(attention, effects, strict=True)]
    pairs = [(a[k], e[k]) for a, e, k in zip(attention, effects, keep, strict=True)]
    found = agreement({"0.1": attention}, effects, 0)["0.1"]
    assert found.spearman == pytest.approx(np.mean([spearmanr(*pair).statistic for pair in pairs]), abs=1e-12)
    areas = [roc_auc_score(high(e), a) for a, e in pairs]
    assert found.auroc == pytest.approx(np.mean(areas), abs=1e-12)
    assert found.sequences == 3


def test_what_cannot_be_compared_is_left_out_and_counted():
    up, down = np.arange(12.0), -1 - np.arange(12.0)
    attention = [up, np.ones(12), up, up, up[:1]]
    effects = [up, up, np.zeros(12), down, up[:1]]
    found = agreement({"h": attention}, effects, 0)["h"]
    assert found.sequences == 2
    assert found.spearman == pytest.approx(0)
    assert found.auroc == pytest.approx((1 + 0.5) / 2)  # of the first two; the others have no high effects
    nothing = agreement({"h": [up]}, [np.full(12, NAN)], 0)["h"]
    assert np.isnan([nothing.spearman, nothing.auroc, nothing.spearman_elsewhere]).all()
    assert nothing.sequences == 0


def test_what_positions_alone_give_is_told_from_what_the_sequence_gives():
    position, own = noise(1, 50)[0], noise(60, 50, 1)
    both = agreement({"position": [position] * 60, "sequence": own}, [position + o for o in own], 0)
    assert both["position"].spearman_elsewhere == pytest.approx(both["position"].spearman, abs=0.05)
    assert both["position"].spearman > 0.5
    assert both["sequence"].spearman > 0.5
    assert both["sequence"].spearman_elsewhere == pytest.approx(0, abs=0.08)
    assert both["sequence"].auroc > 0.8
    assert both["sequence"].auroc_elsewhere == pytest.approx(0.5, abs=0.08)


def test_another_sequence_is_never_the_own_one():
    effects = [np.roll(np.arange(8.0), i) for i in range(2)]
    for seed in range(6):
        found = agreement({"h": effects}, effects, seed)["h"]
        assert found.spearman == pytest.approx(1)
        assert found.spearman_elsewhere == pytest.approx(spearmanr(*effects).statistic)


# -- attention at sites


def overlaps(region, others):
    return any(region[0] < stop and start < region[1] for start, stop in others)


def test_attention_at_sites_is_compared_at_the_same_position_alone():
    """The definition written out, with an area by scikit-learn for each position."""
    rng = np.random.default_rng(2)
    lengths = rng.integers(20, 30, 40)
    attention = [rng.gamma(1, size=n) * rng.uniform(0.1, 9) for n in lengths]
    sites = [[] for _ in lengths]
    for i in range(0, 40, 2):
        start = int(rng.integers(0, 4)) * 3
        sites[i] = [(start, start + 5)] + ([(17, 20)] if i % 4 == 0 else [])
        attention[i][start : start + 5] *= 2
    attention[4][sites[4][0][0]] = attention[7][2] = NAN
    relative = [a / np.nanmean(a) for a in attention]
    total, count = 0.0, 0
    for region in sorted({region for each in sites for region in each}):
        means = [r[slice(*region)].mean() for r in relative]
        inside = [m for m, own in zip(means, sites, strict=True) if region in own and np.isfinite(m)]
        controls = [
            m for m, own in zip(means, sites, strict=True) if not overlaps(region, own) and np.isfinite(m)
        ]
        area = roc_auc_score([1] * len(inside) + [0] * len(controls), inside + controls)
        total, count = total + len(inside) * area, count + len(inside)
    found = site_auroc({"h": attention}, sites)["h"]
    assert found.auroc == pytest.approx(total / count, abs=1e-12)
    assert (found.sites, found.unmatched) == (count, 1)
    assert found.auroc > 0.6


def test_attention_to_a_position_is_none_to_the_site():
    """A head that attends to the same bases of every sequence has an area of one half there."""
    position = np.where((np.arange(40) >= 10) & (np.arange(40) < 16), 5.0, 1.0)
    attention = [position + 1e-3 * n for n in noise(400, 40)]
    sites = [[(10, 16)] if i % 2 else [] for i in range(400)]
    assert site_auroc({"h": attention}, sites)["h"].auroc == pytest.approx(0.5, abs=0.08)


def test_sites_without_controls_and_places_that_are_taken():
    attention = {"h": [np.array([1.0, 5, 1, 1]), np.array([1.0, 1, 1, 2]), np.array([1.0, 9, 1, 1])]}
    every = site_auroc(attention, [[(1, 2)]] * 3)["h"]
    assert np.isnan(every.auroc)
    assert (every.sites, every.unmatched) == (0, 3)
    sites = [[(1, 2)], [], []]
    assert site_auroc(attention, sites)["h"].auroc == 0.5
    assert site_auroc(attention, sites, [[(1, 2)], [], [(0, 3)]])["h"].auroc == 1


# -- motifs and effects


def exact(strata):
    """The share of all ways to choose the sites that have as high a sum."""
    ways = [[sum(way) for way in combinations([*s.inside, *s.controls], len(s.inside))] for s in strata]
    sums = np.array([sum(each) for each in product(*ways)])
    return (sums >= sum(s.inside.sum() for s in strata) - 1e-9).mean()


def stratum(inside, controls):
    return Stratum(np.array(inside, float), np.array(controls, float), np.arange(len(controls)))


@pytest.mark.parametrize(
    "strata",
    [
        [stratum([2, 1], [0, 1.5, 3]), stratum([1], [0, 2]), stratum([0.5, 0.25, -1], [0.1])],
        [stratum([3], [1, 2, 0]), stratum([3], [1, 2, 0, 5])],
        [stratum([1, 1], [1, 1])],
        [stratum([9, 8, 7], [1, 2, 3])],
    ],
)
def test_permutations_agree_with_all_of_them(strata):
    expected, times = exact(strata), 20_000
    found = _p_value(strata, np.random.default_rng(0), times)
    assert found == pytest.approx(expected, abs=4 * (expected * (1 - expected) / times) ** 0.5 + 1 / times)


def test_comparisons_are_weighted_by_sites():
    found = _compared([stratum([2, 4], [1, 1, 1]), stratum([0], [-3])], np.random.default_rng(0), 99)
    assert (found.sites, found.controls, found.sequences) == (3, 4, 3)
    assert found.mean == pytest.approx(2)
    assert found.difference == pytest.approx((1 + 3 + 3) / 3)


def placed(number, starts, width=6):
    return [[(int(s), int(s) + width)] if i < number else [] for i, s in enumerate(starts)]


def test_a_motif_that_matters_is_supported_and_one_that_does_not_is_not():
    rng, effects = np.random.default_rng(3), noise(100, 60)
    real, false = placed(60, rng.integers(0, 20, 100)), placed(60, rng.integers(30, 50, 100))
    for effect, regions in zip(effects, real, strict=True):
        for start, stop in regions:
            effect[start:stop] += 1
    effects[0][real[0][0][0]] = NAN
    harmful = [[(s + 20, e + 20) for s, e in each] for each in real]
    for effect, regions in zip(effects, harmful, strict=True):
        for start, stop in regions:
            effect[start:stop] -= 1
    found = support({"real": real, "false": false, "harmful": harmful, "none": [[]] * 100}, effects, 0)
    assert {name: each.supported for name, each in found.items()} == {
        "real": True,
        "false": False,
        "harmful": False,
        "none": False,
    }
    assert found["real"].sites == 59
    inside = [e[slice(*r[0])].mean() for e, r in zip(effects[1:60], real[1:60], strict=True)]
    assert found["real"].effect == pytest.approx(np.mean(inside))
    assert found["real"].within.difference == pytest.approx(1, abs=0.2)
    assert found["real"].at_position.difference == pytest.approx(1, abs=0.2)
    assert found["real"].p_value == 1 / 2000
    assert found["none"].p_value == found["none"].q_value == 1
    json.dumps({name: asdict(each) for name, each in found.items()})


def test_controls_overlap_no_site():
    """Effects are 1 in the sites, 0 elsewhere: no control has a part of it, and all sites have some."""
    rng = np.random.default_rng(4)
    sites = placed(50, rng.integers(0, 30, 60))
    effects = [np.zeros(36) for _ in sites]
    for effect, regions in zip(effects, sites, strict=True):
        for start, stop in regions:
            effect[start:stop] = 1
    found = support({"m": sites}, effects, 0)["m"]
    assert found.within.difference == found.at_position.difference == 1
    assert found.within.sites == 50
    assert found.at_position.sites >= 40


def test_controls_are_ten_for_a_site_and_one_of_each_other_sequence():
    sites = [[(10, 16)], [(12, 18)], [(12, 18)], *([] for _ in range(97))]
    found = support({"m": sites}, noise(100, 200), 0)["m"]
    assert found.within.controls == found.at_position.controls == found.at_position.sequences == 30
    assert found.within.sequences == 3
    few = support({"m": sites[:20]}, noise(20, 40), 0)["m"]
    assert few.at_position.controls == few.at_position.sequences == 17
    assert 9 <= few.within.controls <= 3 * 5  # of the 40 bases 6 are the site's


def test_a_position_that_matters_in_all_sequences_supports_no_motif():
    effects = noise(100, 60)
    for effect in effects:
        effect[20:26] += 1
    found = support({"m": placed(60, [20] * 100)}, effects, 0)["m"]
    assert found.within.p_value < 0.01
    assert found.at_position.sequences == 40
    assert found.p_value == found.at_position.p_value > 0.05
    assert not found.supported


def test_a_site_in_every_sequence_is_compared_within_it_alone():
    effects = noise(100, 60)
    for effect in effects:
        effect[20:26] += 1
    found = support({"m": placed(95, [20] * 100)}, effects, 0)["m"]
    assert found.at_position.sequences == 5
    assert found.p_value == found.within.p_value
    assert found.supported
    alone = support({"m": placed(100, [20] * 100)}, effects, 0)["m"]
    assert alone.at_position.sites == 0
    assert alone.supported


def test_p_values_of_motifs_that_do_not_matter_are_not_too_small():
    """Sites at random places: each p-value is below .1 no more often than that."""
    runs = 150
    within, at_position = [], []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        scale = rng.gamma(1, size=(30, 1))  # effects are larger in some sequences than in others
        effects = list(scale * rng.gamma(0.5, size=(30, 24)))
        found = support({"m": placed(15, rng.integers(0, 6, 30) * 3)}, effects, seed, 99)["m"]
        within.append(found.within.p_value)
        at_position.append(found.at_position.p_value)
    most = binom.ppf(0.999, runs, 0.1)
    assert (np.array(within) <= 0.1).sum() <= most
    assert (np.array(at_position) <= 0.1).sum() <= most
    assert np.mean(within) == pytest.approx(0.5, abs=0.08)
    assert np.mean(at_position) == pytest.approx(0.5, abs=0.08)


def test_sites_that_matter_less_against_the_class_than_others_do_not_support_it():
    effects = [effect - 2 for effect in noise(60, 60)]
    sites = placed(40, [20] * 60)
    for effect in effects[:40]:
        effect[20:26] += 1
    found = support({"m": sites}, effects, 0)["m"]
    assert found.q_value < 0.05
    assert found.effect < 0
    assert not found.supported
