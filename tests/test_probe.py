import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, matthews_corrcoef, mean_squared_error, r2_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

import pipeline.embed
import pipeline.probe
import pipeline.report
import pipeline.training.metrics
import pipeline.training.probes
from pipeline.config import EmbedConfig, LettersConfig, ProbeConfig, ReportConfig
from pipeline.errors import UserError
from pipeline.sequences.splits import digest
from pipeline.tokens.vocabulary import build_tokenizer, save_tokenizer
from pipeline.training.folds import assign_folds
from pipeline.training.probes import Probing

FOLDS, COUNT = 3, 90


STRENGTHS = (0.01, 1.0)


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Fewer choices and resamples than usual."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.training.probes, "STRENGTHS", STRENGTHS)
        patch.setattr(pipeline.training.metrics, "RESAMPLES", 200)
        yield


def sequence(i):
    """Every other one is rich in leucine."""
    rng = np.random.default_rng(i)
    rest = "".join(rng.choice(list("ACDEFGHIKMNPQRSTVWY"), 12))
    return rest + ("LLLL" if i % 2 else "GGGG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Vectors of proteins by a random model (and by another), and a table with targets."""
    import torch

    from pipeline.model import StrandConfig, StrandModel

    folder = tmp_path_factory.mktemp("probe")
    (folder / "p.fa").write_text("".join(f">p{i}\n{sequence(i)}\n" for i in range(COUNT)))
    for name, seed in (("vectors", 0), ("untrained", 1)):
        torch.manual_seed(seed)
        tokenizer = build_tokenizer("protein", 1, False, 40)
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        config = StrandConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=40)
        StrandModel(config).save_pretrained(folder / f"{name}-model")
        save_tokenizer(tokenizer, folder / f"{name}-model")
        settings = {"input": [folder / "p.fa"], "checkpoint": folder / f"{name}-model", "shard_records": 64}
        pipeline.embed.run(EmbedConfig(output=folder / name, layers=[-1, 0], **settings))
    rng = np.random.default_rng(0)
    rows = {"id": [f"p{i}" for i in range(COUNT)]}
    rows["kind"] = [("rich" if i % 2 else "poor") if rng.random() < 0.9 else "rich" for i in range(COUNT)]
    rows["level"] = [f"{sequence(i).count('L') + rng.normal():.4f}" for i in range(COUNT)]
    rows["group"] = [f"g{i // 4}" for i in range(COUNT)]
    pd.DataFrame(rows).to_csv(folder / "t.tsv", sep="\t", index=False)
    return folder


@pytest.fixture
def probe(folder, tmp_path):
    def run(target="kind", name="probe", **changes):
        settings = {"vectors": folder / "vectors", "table": folder / "t.tsv", "layer": -1, "folds": FOLDS}
        return pipeline.probe.run(ProbeConfig(output=tmp_path / name, target=target, **settings | changes))

    return run


def vectors(folder, layer="layer_-1"):
    tables = [pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))]
    return np.stack(pd.concat(tables)[layer].tolist())


def by_hand(features, target, group, classification):
    """Cross-validation written out; return what is said of each record."""
    digests = np.array([digest(sequence(i)) for i in range(COUNT)], np.uint64)
    labels = target if classification else np.zeros(len(target), int)
    fold = assign_folds(group, digests, labels, FOLDS, 0)
    said = np.zeros((len(target), len(set(target)))) if classification else np.zeros(len(target))

    def fitted(strength, rows, size):
        scale = StandardScaler().fit(features[rows])
        ridge = Ridge(alpha=size / strength)
        model = LogisticRegression(C=strength, max_iter=1000) if classification else ridge
        model.fit(scale.transform(features[rows]), target[rows])
        predict = model.predict_proba if classification else model.predict
        return lambda others: predict(scale.transform(features[others]))

    for test in range(1, FOLDS + 1):
        train = np.flatnonzero(fold != test)
        inner = assign_folds(group[train], digests[train], labels[train], FOLDS, 0)
        losses = []
        for strength in STRENGTHS:
            parts = []
            for i in range(1, FOLDS + 1):
                rows, held = train[inner != i], train[inner == i]
                answer = fitted(strength, rows, len(train))(held)
                loss = log_loss if classification else mean_squared_error
                parts.append(loss(target[held], answer))
            losses.append(np.mean(parts))
        best = STRENGTHS[int(np.argmin(losses))]
        said[fold == test] = fitted(best, train, len(train))(fold == test)
    return said


def own_groups():
    return np.unique([sequence(i) for i in range(COUNT)], return_inverse=True)[1]


def test_classes_are_probed_as_scikit_learn_does(probe, folder, tmp_path):
    result = probe(untrained=folder / "untrained")
    metrics = result.metrics()
    target = np.unique(pd.read_csv(folder / "t.tsv", sep="\t")["kind"], return_inverse=True)[1]
    composition = np.array(
        [[sequence(i).count(x) / 16 for x in "ACDEFGHIKLMNPQRSTVWY"] for i in range(COUNT)]
    )
    for name, features in (
        ("vectors", vectors(folder / "vectors")),
        ("untrained", vectors(folder / "untrained")),
        ("composition", composition),
    ):
        said = by_hand(features, target, own_groups(), classification=True)
        mcc, auroc = (
            metrics[key] if name == "vectors" else metrics[key]["controls"][name] for key in ("mcc", "auroc")
        )
        assert auroc["value"] == pytest.approx(roc_auc_score(target, said[:, 1]), abs=1e-3)
        assert mcc["value"] == pytest.approx(matthews_corrcoef(target, said.argmax(1)), abs=0.03)
        assert auroc["low"] < auroc["value"] < auroc["high"]
    assert set(metrics["mcc"]["controls"]) == {"untrained", "composition", "kmers"}
    ahead = metrics["auroc"]["controls"]["untrained"]["ours_minus_it"]
    values = metrics["auroc"]["value"], metrics["auroc"]["controls"]["untrained"]["value"]
    assert ahead["difference"] == pytest.approx(values[0] - values[1])
    assert metrics["auroc"]["controls"]["composition"]["value"] > 0.85
    assert result.manifest["counts"]["records"] == COUNT
    pipeline.report.run(ReportConfig(output=tmp_path / "report", run=tmp_path, stages=["probe"]))
    assert json.loads((tmp_path / "report" / "report.json").read_text())["mcc"] == metrics["mcc"]


def test_numbers_are_probed_as_scikit_learn_does(probe, folder):
    metrics = probe("level", cluster_column="group").metrics()
    table = pd.read_csv(folder / "t.tsv", sep="\t")
    group = np.unique(table["group"], return_inverse=True)[1]
    said = by_hand(vectors(folder / "vectors"), table["level"].to_numpy(), group, classification=False)
    assert metrics["r2"]["value"] == pytest.approx(r2_score(table["level"], said), abs=1e-4)
    assert metrics["spearman"]["value"] == pytest.approx(spearmanr(table["level"], said).statistic, abs=1e-4)
    for metric in metrics.values():
        assert metric["low"] < metric["value"] < metric["high"]
        assert set(metric["controls"]) == {"composition", "kmers"}
    assert metrics["r2"]["controls"]["composition"]["value"] > 0.5


def test_the_penalty_is_chosen_on_what_was_not_trained_on():
    """Copies of one record, which have one target by chance, could be memorised."""
    rng, group = np.random.default_rng(0), np.repeat(np.arange(24), 4)
    features, target = rng.normal(size=(24, 40))[group], rng.normal(size=24)[group]
    probing = Probing(target, [], group, np.arange(96).astype(np.uint64), FOLDS, 0)
    assert probing.answers(features)[1] == [STRENGTHS[0]] * FOLDS


def test_what_stays_together_is_in_one_fold():
    group = np.repeat(np.arange(20), 3)
    digests = np.arange(60).astype(np.uint64)
    fold = Probing(np.arange(60) % 2, ["a", "b"], group, digests, 4, 0).fold_of(np.arange(60))
    assert {len(set(fold[group == g])) for g in range(20)} == {1}
    assert np.bincount(fold)[1:].tolist() == [15, 15, 15, 15]


def test_noise_is_not_known():
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        ones = np.arange(80, dtype=np.int64)
        probing = Probing(rng.integers(0, 2, 80), ["a", "b"], ones, ones.astype(np.uint64), 3, seed)
        said, _ = probing.answers(rng.normal(size=(80, 3)))
        assert said.sum(1) == pytest.approx(1)
        found.append(roc_auc_score(probing.target, said[:, 1]))
    assert 0.35 < np.mean(found) < 0.6


def test_rows_without_target_or_vector_are_counted(probe, folder, tmp_path, capsys):
    table = pd.read_csv(folder / "t.tsv", sep="\t")
    table.loc[:4, "kind"] = None
    more = pd.concat([table, pd.DataFrame({"id": ["x", "y"], "kind": ["rich", "poor"]})])
    more.to_csv(tmp_path / "t.csv", index=False)
    counts = probe(table=tmp_path / "t.csv").manifest["counts"]
    assert (counts["records"], counts["rows_without_target"], counts["rows_without_vector"]) == (85, 5, 2)
    said = capsys.readouterr().err
    assert "5 rows without target, left out" in said
    assert "kind of 85 records: MCC 0." in said
    assert "task: classification, by the targets" in said


def test_the_sequences_may_have_moved(probe, folder, tmp_path):
    moved = tmp_path / "moved.fa"
    (folder / "p.fa").rename(moved)
    try:
        with pytest.raises(UserError, match=r"^input: .*p.fa, which the vectors were made of, is not there"):
            probe("level")
        assert probe("level", input=[moved]).manifest["counts"]["records"] == COUNT
        moved.write_text(">p0\nACDE\n")
        with pytest.raises(UserError, match=r"^input: no sequence of record 'p1' \(89 such\); pass all$"):
            probe("level", name="other", input=[moved])
    finally:
        (folder / "p.fa").write_text("".join(f">p{i}\n{sequence(i)}\n" for i in range(COUNT)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "knd"}, "t.tsv: no column 'knd'; it has 'id', 'kind'"),
        ({"layer": None}, "^layer: .*vectors has the layers -1, 0; pass one as --layer$"),
        ({"layer": 3}, "^layer: 3: .*vectors has -1, 0$"),
        ({"task": "regression"}, "record 'p0': target '(poor|rich)' is no number; correct the cell$"),
        ({"target": "group"}, r"^target: class 'g\d+' has too few records, or groups of them, for 3 folds"),
        ({"id_column": "kind"}, r"the id 'rich' comes \d+ times; give every record one row$"),
        ({"id_column": "level"}, "no id of it has a vector in"),
        ({"vectors": "nowhere"}, "nowhere: no such file or folder"),
        ({"cluster_column": "kind", "folds": 3}, "^folds: 2 groups of records that stay together are fewer"),
    ],
)
def test_mistakes_are_told_in_a_line(probe, folder, changes, message):
    if "vectors" in changes:
        changes = {"vectors": folder / changes["vectors"]}
    with pytest.raises(UserError, match=message) as error:
        probe(**{"target": "kind"} | changes)
    assert "\n" not in str(error.value)


def test_letters_are_read_as_embed_reads_them(folder, tmp_path):
    """In upper case, also where the checkpoint's corpus remembered lower case."""
    (tmp_path / "lower.fa").write_text(">p0\nacDEF\n")
    config = ProbeConfig(
        output=tmp_path / "out",
        vectors=folder / "vectors",
        table=folder / "t.tsv",
        target="kind",
        input=[tmp_path / "lower.fa"],
    )
    index = {"letters": LettersConfig(case="soft-mask").model_dump(), "alphabet": "protein"}
    assert pipeline.probe._sequences(config, index, ["p0"]) == {"p0": b"ACDEF"}
