"""Figures over several seeds against a slow computation of each, row by row."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from pipeline.training import metrics
from pipeline.training.evaluation import Evaluation, Predicted, areas, in_lines, validated

SIZE = 90


@pytest.fixture
def few_resamples(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 60)


def predicted(labels, seeds, strength, seed=0):
    """What a classifier of so much strength says with several seeds, at thresholds that differ by row."""
    rng = np.random.default_rng(seed)
    scores, thresholds = [], []
    for _ in range(seeds):
        score = 1 / (1 + np.exp(-(rng.normal(size=len(labels)) + strength * (labels - 0.5))))
        scores.append(np.stack([1 - score, score], 1))
        thresholds.append(rng.choice([0.3, 0.45, 0.6], len(labels)))
    return Predicted(scores, thresholds, [np.ones(len(labels))] * seeds)


@pytest.fixture
def judged():
    labels = np.arange(SIZE) % 3 // 2
    clusters = np.array([f"c{i // 4}" for i in range(SIZE)])
    evaluation = Evaluation(labels, ["background", "promoter"], 1, clusters, 7)
    return evaluation, predicted(labels, 3, 2.0), predicted(labels, 2, 1.0, seed=1)


def slow(labels, said, rows):
    """MCC and AUROC of these rows, some of them several times, each seed by itself, and their means."""
    found = []
    for scores, threshold in zip(said.scores, said.thresholds, strict=True):
        score, label = scores[rows, 1], labels[rows]
        found.append((matthews_corrcoef(label, score > threshold[rows]), roc_auc_score(label, score)))
    return np.mean(found, 0)


def test_paired_intervals_are_those_of_a_slow_computation(judged, few_resamples):
    evaluation, ours, control = judged
    found = evaluation.figures(ours, {"rival": control})
    ((weights, *rest),) = [list(metrics._resamples(SIZE, evaluation.clusters, 7))]
    assert not rest
    assert len(weights) == 60
    assert (weights.reshape(60, -1)[:, :88].reshape(60, 22, 4).std(2) == 0).all(), "clusters are whole"
    drawn = [np.repeat(np.arange(SIZE), weight.astype(int)) for weight in weights]
    ours_draws, their_draws = (
        np.array([slow(evaluation.labels, said, rows) for rows in drawn]) for said in (ours, control)
    )
    everything = np.arange(SIZE)
    points = [slow(evaluation.labels, said, everything) for said in (ours, control)]
    ahead = found["controls"]["rival"]["ours_minus_it"]
    for i, name in enumerate(("mcc", "auroc")):
        low, high = np.quantile(ours_draws[:, i] - their_draws[:, i], (0.025, 0.975))
        assert ahead[name]["interval"] == pytest.approx([low, high], abs=1e-9)
        assert ahead[name]["difference"] == pytest.approx(points[0][i] - points[1][i], abs=1e-9)
        expected = np.quantile(ours_draws[:, i], (0.025, 0.975))
        assert found["at_threshold"]["intervals"][name] == pytest.approx(list(expected), abs=1e-9)
        assert found["at_threshold"][name] == pytest.approx(points[0][i], abs=1e-9)
    assert found["at_threshold"]["thresholds"] == [0.3, 0.6]


def test_other_negatives_share_the_clusters_of_their_positives(judged, few_resamples):
    evaluation, ours, _ = judged
    positive = np.flatnonzero(evaluation.is_positive)
    others = predicted(np.zeros(len(positive)), 3, 2.0, seed=5)
    numbers = evaluation.cluster_numbers()[positive]
    found = evaluation.against(ours, others, numbers, None)
    labels = np.repeat([1, 0], len(positive))
    both = Predicted(
        [np.concatenate([a[positive], b]) for a, b in zip(ours.scores, others.scores, strict=True)],
        [np.concatenate([a[positive], b]) for a, b in zip(ours.thresholds, others.thresholds, strict=True)],
        [],
    )
    mcc, auroc = slow(labels, both, np.arange(len(labels)))
    assert (found["mcc"], found["auroc"]) == pytest.approx((mcc, auroc), abs=1e-9)
    calls = [s[:, 1] > t for s, t in zip(others.scores, others.thresholds, strict=True)]
    assert found["false_positive_rate"] == pytest.approx(np.mean(calls), abs=1e-9)
    weights = next(metrics._resamples(len(labels), np.tile(numbers, 2), 7))
    assert (weights[:, : len(positive)] == weights[:, len(positive) :]).all()
    rates = [np.mean([np.average(call, weights=w[len(positive) :]) for call in calls]) for w in weights]
    expected = np.quantile(rates, (0.025, 0.975))
    assert found["intervals"]["false_positive_rate"] == pytest.approx(list(expected), abs=1e-9)


def mean_over(fold, labels, scores):
    """AUROC of each fold by itself, averaged over folds and seeds."""
    inside = [fold == f for f in np.unique(fold)]
    return np.mean([roc_auc_score(labels[i], s[i, 1]) for s in scores for i in inside])


def test_scores_of_two_folds_are_not_ranked_against_each_other(judged, few_resamples):
    """A scale of its own for each fold changes no area."""
    plain, ours, _ = judged
    fold = np.arange(SIZE) // 4 % 3
    evaluation = replace(plain, parts=fold)
    raised = [s[:, 1] ** np.array([0.2, 1, 4])[fold] for s in ours.scores]
    scaled = replace(ours, scores=[np.stack([1 - s, s], 1) for s in raised])
    one, other = (evaluation.figures(said, {})["at_threshold"] for said in (ours, scaled))
    expected = mean_over(fold, plain.labels, ours.scores)
    column = [s[:, 1] for s in scaled.scores]
    area = areas(plain.is_positive, {"value": column}, None, fold)["value"]
    assert (one["auroc"], area) == pytest.approx((expected, expected), abs=1e-12)
    for name in ("auroc", "auprc"):
        assert other[name] == pytest.approx(one[name], abs=1e-12)
        assert other["intervals"][name] == pytest.approx(one["intervals"][name], abs=1e-12)
    assert plain.figures(scaled, {})["at_threshold"]["auroc"] < expected - 0.01


def test_positives_meet_the_other_negatives_of_their_own_fold(judged, few_resamples):
    plain, ours, _ = judged
    fold, chosen = np.arange(SIZE) // 4 % 3, np.flatnonzero(plain.is_positive)
    others = predicted(np.zeros(len(chosen)), 3, 2.0, seed=5)
    numbers = np.arange(len(chosen))
    found = replace(plain, parts=fold).against(ours, others, numbers, fold[chosen])
    both = [np.concatenate([a[chosen], b]) for a, b in zip(ours.scores, others.scores, strict=True)]
    expected = mean_over(np.tile(fold[chosen], 2), np.repeat([1, 0], len(chosen)), both)
    assert found["auroc"] == pytest.approx(expected, abs=1e-12)


def test_reliability_is_given_before_and_after_the_temperature():
    labels = np.arange(200) % 2
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 2)) + 2 * np.eye(2)[labels]
    scores = np.exp(logits / 2.5) / np.exp(logits / 2.5).sum(1, keepdims=True)
    said = Predicted([scores], [np.full(200, 0.5)], [np.full(200, 2.5)])
    found = Evaluation(labels, ["a", "b"], 1, None, 0).figures(said, {})["calibration"]
    raw = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for end, each in (("", scores), ("_before", raw)):
        bins, likeliest = found[f"reliability{end}"], each.max(1)
        for i, (low, right) in enumerate(zip(bins["confidence"], bins["right"], strict=True)):
            inside = np.ceil(likeliest * 15) == np.ceil(low * 15)
            assert bins["n"][i] == inside.sum()
            assert low == pytest.approx(likeliest[inside].mean())
            assert right == pytest.approx((each.argmax(1) == labels)[inside].mean())
        assert sum(bins["n"]) == 200
    assert found["temperature"] == 2.5


def test_areas_are_means_over_seeds():
    positive = np.arange(40) % 2 == 0
    scores = [np.random.default_rng(seed).normal(size=40) for seed in range(3)]
    expected = np.mean([roc_auc_score(positive, score) for score in scores])
    assert areas(positive, {"value": scores}, None)["value"] == pytest.approx(expected)
    assert areas(positive | True, {"value": scores}, None)["value"] is None


def test_runs_are_compared_by_what_scikit_learn_measures():
    labels = np.arange(30) % 2
    scores = predicted(labels, 1, 1.0).scores[0]
    found = validated(labels, scores)
    assert found["loss"] == pytest.approx(-np.log(scores[np.arange(30), labels]).mean())
    assert found["mcc"] == pytest.approx(matthews_corrcoef(labels, scores[:, 1] > 0.5))
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, scores[:, 1]))


def test_seeds_and_thresholds_are_told(judged, few_resamples):
    evaluation, ours, control = judged
    found = evaluation.figures(ours, {"rival": control}) | {
        "majority": {"class": "background", "accuracy": 0.6}
    }
    first, *others = in_lines(found, "the test rows of 3 folds together")
    assert first.startswith(
        "promoter on the test rows of 3 folds together: at thresholds 0.300 to 0.600 MCC "
    )
    assert " +- " in first
    assert "over seeds" in first
    assert others[0].startswith("control rival: MCC ")
