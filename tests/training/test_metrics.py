"""Measures against scikit-learn, intervals against a slow bootstrap, choices against exhaustive search."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
    recall_score,
    roc_auc_score,
)

from pipeline.training import metrics
from pipeline.training.metrics import (
    MEASURES,
    against_rest,
    among_all,
    best_threshold,
    bootstrap,
    calibration_error,
    measure,
    one_class,
    temperature,
)


def classified(classes=2, size=200, seed=0, decimals=1):
    """Labels and probabilities that know something of them; rounded, so that many are equal."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, size)
    scores = softmax(rng.normal(size=(size, classes)) + 1.2 * np.eye(classes)[labels], 1)
    scores = np.round(scores, decimals) + 0.01
    return labels, scores / scores.sum(1, keepdims=True)


def specificity(labels, called, weights, average):
    cells = confusion_matrix(labels, called, sample_weight=weights)
    true, total = cells.sum(1), cells.sum()
    found = (total - true - cells.sum(0) + np.diag(cells)) / (total - true)
    return found[1] if average == "binary" else found.mean()


def by_scikit_learn(labels, scores, called, weights):
    average = "binary" if scores.shape[1] == 2 else "macro"
    chosen = scores[:, 1] if average == "binary" else scores
    of_class = np.eye(scores.shape[1])[labels]
    area = {} if average == "binary" else {"multi_class": "ovr"}
    given = {"sample_weight": weights}
    return {
        "mcc": matthews_corrcoef(labels, called, **given),
        "f1": f1_score(labels, called, average=average, **given),
        "accuracy": accuracy_score(labels, called, **given),
        "sensitivity": recall_score(labels, called, average=average, **given),
        "specificity": specificity(labels, called, weights, average),
        "auroc": roc_auc_score(labels, chosen, **area, **given),
        "auprc": average_precision_score(labels if average == "binary" else of_class, chosen, **given),
        "brier": brier_score_loss(labels, chosen, **given),
    }


# -- measures


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_measures_of_weighted_sequences_are_those_of_scikit_learn(classes):
    labels, scores = classified(classes)
    judged = against_rest(labels, scores, 1, 0.35) if classes == 2 else among_all(labels, scores)
    weights = np.random.default_rng(1).integers(0, 4, (3, len(labels)))
    found = measure(judged, weights.astype(float))
    assert set(found) == set(MEASURES)
    for row, weight in enumerate(weights):
        expected = by_scikit_learn(labels, scores, judged.called, weight)
        for name, value in expected.items():
            assert found[name][row] == pytest.approx(value, abs=1e-12), name


def test_one_class_against_the_rest_of_several():
    labels, scores = classified(3)
    judged = against_rest(labels, scores, 2, 0.4)
    pair = np.stack([1 - scores[:, 2], scores[:, 2]], 1)
    expected = by_scikit_learn((labels == 2).astype(int), pair, (scores[:, 2] > 0.4).astype(int), None)
    found = measure(judged, np.ones((1, len(labels))))
    assert {name: value[0] for name, value in found.items()} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("label", "undefined"),
    [(0, {"mcc", "f1", "sensitivity", "auroc", "auprc"}), (1, {"mcc", "specificity", "auroc"})],
)
def test_what_one_class_alone_leaves_undefined_is_none(label, undefined):
    _, scores = classified()
    found = bootstrap(against_rest(np.full(len(scores), label), scores, 1), None, 0)
    summary = found.summary()
    assert {name for name in MEASURES if summary[name] is None} == undefined
    assert {name for name, interval in summary["intervals"].items() if interval is None} == undefined
    assert found.minus(found)["auroc"] == {"difference": None, "interval": None}


def test_calling_one_class_has_an_mcc_of_nothing():
    labels, scores = classified()
    judged = against_rest(labels, scores, 1, 1.0)
    assert not judged.called.any()
    assert bootstrap(judged, None, 0).summary()["mcc"] == matthews_corrcoef(labels, judged.called) == 0


# -- intervals


def by_definition(labels, scores, called):
    """MCC as Pearson's correlation, AUROC as a share of pairs."""
    pairs = scores[labels == 1, 1][:, None] - scores[labels == 0, 1]
    return {
        "mcc": np.corrcoef(labels, called)[0, 1],
        "auroc": (pairs > 0).mean() + (pairs == 0).mean() / 2,
        "accuracy": (labels == called).mean(),
        "brier": ((scores[:, 1] - labels) ** 2).mean(),
    }


def test_intervals_are_those_of_a_slow_bootstrap():
    """It has a generator of its own, so the two agree but for what some thousand draws leave open."""
    labels, scores = classified(size=150)
    judged = against_rest(labels, scores, 1)
    intervals = bootstrap(judged, None, 0).summary()["intervals"]
    rng, drawn = np.random.default_rng(7), []
    for _ in range(3000):
        rows = rng.integers(0, len(labels), len(labels))
        drawn.append(by_definition(labels[rows], scores[rows], judged.called[rows]))
    for name in drawn[0]:
        expected = np.quantile([each[name] for each in drawn], (0.025, 0.975))
        width = expected[1] - expected[0]
        assert intervals[name] == pytest.approx(expected, abs=0.06 * width), name


def test_percentiles_are_taken_of_the_resamples(monkeypatch):
    """The very resamples, written out row by row for scikit-learn; several chunks."""
    monkeypatch.setattr(metrics, "RESAMPLES", 11)
    monkeypatch.setattr(metrics, "AT_ONCE", 1000)
    labels, scores = classified()
    judged = against_rest(labels, scores, 1)
    weights = np.concatenate(list(metrics._resamples(len(labels), None, 3))).astype(int)
    assert weights.shape == (11, len(labels))
    assert (weights.sum(1) == len(labels)).all()
    assert len(np.unique(weights, axis=0)) == 11
    drawn = []
    for weight in weights:
        rows = np.repeat(np.arange(len(labels)), weight)
        drawn.append(by_scikit_learn(labels[rows], scores[rows], judged.called[rows], None))
    summary = bootstrap(judged, None, 3).summary()
    for name in MEASURES:
        expected = np.quantile([each[name] for each in drawn], (0.025, 0.975))
        assert summary["intervals"][name] == pytest.approx(expected, abs=1e-12), name


def test_clusters_are_drawn_whole():
    """Sequences that are all there four times have the intervals of the single ones, not half as wide."""
    labels, scores = classified()
    single = bootstrap(against_rest(labels, scores, 1), None, 5).summary()
    order = np.random.default_rng(0).permutation(4 * len(labels))
    cluster = np.array([f"c{i:04d}" for i in np.tile(np.arange(len(labels)), 4)])[order]
    many = against_rest(np.tile(labels, 4)[order], np.tile(scores, (4, 1))[order], 1)
    clustered, blind = (bootstrap(many, groups, 5).summary() for groups in (cluster, None))
    for name in MEASURES:
        assert clustered["intervals"][name] == pytest.approx(single["intervals"][name], abs=1e-9), name
        wide, narrow = (np.ptp(each["intervals"][name]) for each in (clustered, blind))
        assert 0.4 < narrow / wide < 0.6, name


def test_differences_are_paired():
    labels, scores = classified()
    worse = scores.copy()
    worse[::10] = worse[::10, ::-1]
    ours, theirs = (bootstrap(against_rest(labels, each, 1), None, 2) for each in (scores, worse))
    assert ours.minus(ours)["mcc"] == {"difference": 0.0, "interval": [0.0, 0.0]}
    found = ours.minus(theirs)
    for name in ("mcc", "auroc"):
        assert found[name]["difference"] == ours.point[name] - theirs.point[name]
        expected = np.quantile(ours.draws[name] - theirs.draws[name], (0.025, 0.975))
        assert found[name]["interval"] == pytest.approx(expected, abs=1e-12)
        independent = np.hypot(*(np.ptp(each.summary()["intervals"][name]) for each in (ours, theirs)))
        assert np.ptp(found[name]["interval"]) < 0.8 * independent


def test_the_seed_decides():
    judged = against_rest(*classified(), 1)
    one, two, other = (bootstrap(judged, None, seed).summary()["intervals"] for seed in (1, 1, 2))
    assert one == two != other


# -- threshold and temperature


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_has_the_highest_mcc_of_all(seed):
    labels, scores = classified(size=60, seed=seed, decimals=2)
    positive, score = labels == 1, scores[:, 1]
    threshold = best_threshold(positive, score)
    unique = np.unique(score)
    every = np.append((unique[1:] + unique[:-1]) / 2, 0.5)
    found = np.array([matthews_corrcoef(positive, score > cut) for cut in every])
    assert matthews_corrcoef(positive, score > threshold) == pytest.approx(found.max(), abs=1e-12)
    best = every[found >= found.max() - 1e-12]
    assert threshold == pytest.approx(best[np.abs(best - 0.5).argmin()], abs=1e-12)


def test_a_threshold_that_nothing_decides_is_a_half():
    score = np.array([0.1, 0.2, 0.8, 0.9])
    assert best_threshold(score > 0.5, score) == 0.5
    assert best_threshold(score > 0, score) == best_threshold(score > 1, score) == 0.5
    assert best_threshold(np.array([True, False, True, False]), np.full(4, 0.3)) == 0.5
    assert best_threshold(score > 0.15, score) == pytest.approx(0.15)
    equally_good = best_threshold(np.array([False, True, False, True]), np.array([0.1, 0.2, 0.7, 0.8]))
    assert equally_good == pytest.approx(0.75), "0.15 has the same MCC, but is farther from 0.5"
    near = np.array([0.25, np.nextafter(0.25, 1)])
    assert (near > best_threshold(np.array([False, True]), near)).tolist() == [False, True]


@pytest.mark.parametrize("classes", [2, 4])
def test_the_temperature_undoes_a_factor(classes):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, classes)) * 1.5
    labels = (softmax(logits, 1).cumsum(1) < rng.random((20_000, 1))).sum(1)
    for factor in (0.3, 1, 4):
        assert temperature(logits * factor, labels) == pytest.approx(factor, rel=0.04)


def test_the_temperature_has_the_least_smoothed_cross_entropy():
    rng = np.random.default_rng(3)
    labels, logits = np.array([0] * 5 + [1] * 9 + [2] * 3), rng.normal(size=(17, 3))
    logits[np.arange(17), labels] += 2
    counts = np.array([5, 9, 3])[labels]
    targets = np.repeat((1 / (counts + 2) / 2)[:, None], 3, 1)
    targets[np.arange(17), labels] = (counts + 1) / (counts + 2)
    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 20_001))
    losses = [-(targets * log_softmax(logits / t, 1)).sum() for t in grid[::20]]
    assert temperature(logits, labels) == pytest.approx(grid[::20][int(np.argmin(losses))], rel=0.01)


def test_classes_told_apart_without_error_do_not_ask_for_certainty():
    labels = np.repeat([0, 1], 40)
    logits = np.stack([-6.0 * (labels - 0.5), 6.0 * (labels - 0.5)], 1)
    top = softmax(logits / temperature(logits, labels), 1).max(1)
    assert top == pytest.approx(41 / 42, abs=1e-4)
    assert temperature(logits[:40], labels[:40]) == 1.0


def test_the_calibration_error_is_its_definition():
    labels, scores = classified(3, decimals=6)
    top, right = scores.max(1), scores.argmax(1) == labels
    error = 0.0
    for i in range(15):
        inside = (top > i / 15) & (top <= (i + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(top[inside].mean() - right[inside].mean())
    assert calibration_error(labels, scores) == pytest.approx(error, abs=1e-12)
    assert error > 0.01
    certain = np.eye(3)[labels]
    assert calibration_error(labels, certain) == 0
    assert calibration_error((labels + 1) % 3, certain) == 1


# -- collapse


def test_calling_one_class_is_collapse_where_there_are_two():
    labels, _ = classified()
    flat = np.tile([0.4, 0.6], (len(labels), 1))
    assert one_class(labels, flat, np.ones_like(labels), 0) == 1
    assert one_class(np.ones_like(labels), flat, np.ones_like(labels), 0) is None
    few = np.where(np.arange(len(labels)) < 4, 0, 1)
    assert one_class(few, flat, np.ones_like(labels), 0) is None
    assert one_class(np.where(np.arange(len(labels)) < 5, 0, 1), flat, np.ones_like(labels), 0) == 1


def test_a_threshold_in_the_noise_does_not_hide_it_and_ranks_do_excuse_it():
    """All likeliest are of one class; what is called otherwise by a threshold is by chance, or right."""
    labels, scores = classified(decimals=6)
    noise = np.random.default_rng(1).random(len(labels))
    for score, expected in ((noise, 0), (scores[:, 1], None)):
        squeezed = 0.4 + 0.05 * score
        called = (squeezed > np.median(squeezed)).astype(int)
        assert one_class(labels, np.stack([1 - squeezed, squeezed], 1), called, 0) == expected
    assert one_class(labels, scores, scores.argmax(1), 0) is None
