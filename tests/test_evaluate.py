import json
import shutil

import numpy as np
import pandas as pd
import pytest

import pipeline.encode
import pipeline.evaluate
import pipeline.prepare
import pipeline.pretrain
from pipeline.cli import main
from pipeline.config import EvaluateConfig, ModelConfig, PrepareConfig, PretrainConfig, TokenizeConfig
from pipeline.errors import UserError
from pipeline.model import StrandForSequenceClassification
from pipeline.tokens.bits import hidden_text, score, single_letters
from pipeline.tokens.counts import CountModel, composition_bits
from pipeline.tokens.store import load_tokens
from pipeline.training.scores import load_language_model

SPLITS = ("train", "validation", "test")
COLUMNS = [
    *("data_set", "group", "hidden_letters", "bits", "standard_error", "count_model", "composition"),
    *("single", "joint", "single_count_model", "soft_masked", "other"),
]


@pytest.fixture
def evaluate(rule_folder, tmp_path):
    """Evaluate the 3-mer model of the rule; return the table and the result."""

    def run(name="scores", **changes):
        settings = {"checkpoint": rule_folder / "lm", "data": [rule_folder / "tokens"]}
        result = pipeline.evaluate.run(EvaluateConfig(output=tmp_path / name, **settings | changes))
        return pd.read_csv(result.folder / "scores.tsv", sep="\t"), result

    return run


@pytest.fixture(scope="session")
def other_tokens(rule_folder, tmp_path_factory):
    """The same corpus in non-overlapping 6-mers."""
    folder = tmp_path_factory.mktemp("other") / "sixes"
    pipeline.encode.run(TokenizeConfig(output=folder, corpus=rule_folder / "corpus", tokenizer="dna-6mer"))
    return folder


def parts(rule_folder, split="test", window=40):
    splits, codec = load_tokens(rule_folder / "tokens")
    return splits, codec, hidden_text(splits[split], codec, window, 100_000)


def test_the_scores_are_those_of_the_rooms(evaluate, rule_folder):
    table, result = evaluate()
    assert table.columns.tolist() == COLUMNS
    assert len(table) == 1
    row = table.iloc[0]
    model, codec = load_language_model(rule_folder / "lm")
    splits, _, text = parts(rule_folder)
    scored = score(model, codec, text)
    assert (row["data_set"], row["group"]) == ("tokens", "(all)")
    assert row["hidden_letters"] == len(text.truth) == 120 * 6
    assert row["bits"] == pytest.approx(scored.letters.per_letter, abs=1e-5)
    assert row["standard_error"] == pytest.approx(scored.letters.standard_error, rel=1e-4)
    assert row["joint"] == pytest.approx(scored.joint.per_letter, abs=1e-5)
    single = single_letters(text, 4)
    assert row["single"] == pytest.approx(score(model, codec, single).letters.per_letter, abs=1e-5)
    composition = composition_bits(splits["train"], codec, text)
    assert row["composition"] == pytest.approx(composition.mean(), abs=1e-5)
    tuning = hidden_text(splits["validation"], codec, 40, 100_000)
    for name, each, tune in (
        ("count_model", text, tuning),
        ("single_count_model", single, single_letters(tuning, 4)),
    ):
        counts = CountModel(codec, each.run).fit(splits["train"], codec).tune(tune)
        assert row[name] == pytest.approx(counts.bits(each).mean(), abs=1e-5)
    assert row[["soft_masked", "other"]].isna().all()
    metrics = result.metrics()["bits_per_hidden_base"]
    assert metrics["value"] == pytest.approx(row["bits"], abs=1e-5)
    assert metrics["baseline"] == pytest.approx(row["count_model"], abs=1e-5)
    assert metrics["comparable"] is True
    assert metrics["unseen_letters"] == 0
    assert metrics["not_scored"] == 120 * 10  # rows of 40 bases: the last block of 6 and the 4 after it
    assert result.manifest["counts"]["tokens"] == {"hidden_letters": 720, "not_scored": 1200}


def test_it_is_the_same_score_as_pretraining_gave(evaluate, rule_folder):
    _, result = evaluate()
    trained = json.loads((rule_folder / "lm" / "metrics.json").read_text())["bits_per_hidden_base"]
    found = result.metrics()["bits_per_hidden_base"]
    assert trained.pop("untrained") > 1.9
    assert found == pytest.approx(trained, abs=1e-6)


def test_data_in_other_tokens_is_read_as_letters(evaluate, rule_folder, other_tokens):
    table, result = evaluate(data=[rule_folder / "tokens", other_tokens])
    assert table["data_set"].tolist() == ["tokens", "sixes"]
    ours, theirs = table.drop(columns="data_set").to_numpy()
    assert ours.tolist()[1:8] == theirs.tolist()[1:8]
    assert set(result.metrics()) == {"bits_per_hidden_base:tokens", "bits_per_hidden_base:sixes"}


def test_groups_are_the_rows_of_one_value(evaluate, rule_folder):
    table, _ = evaluate(by="id", letters=400)
    splits, codec = load_tokens(rule_folder / "tokens")
    text = hidden_text(splits["test"], codec, 40, 400)
    model, _ = load_language_model(rule_folder / "lm")
    found = score(model, codec, text).letters
    assert table["group"].tolist() == ["(all)", *sorted(splits["test"].ids)]
    rows = table.set_index("group")
    for window, record in enumerate(text.records):
        row = rows.loc[splits["test"].ids[record]]
        assert row["hidden_letters"] == 6
        assert row["bits"] == pytest.approx(found.where(found.window == window).per_letter, abs=1e-5)
    assert (rows["hidden_letters"] > 0).sum() == 1 + 10
    assert rows[rows["hidden_letters"] == 0]["bits"].isna().all()
    assert rows["hidden_letters"].iloc[1:].sum() == rows["hidden_letters"].iloc[0] == 60


def test_columns_kept_from_the_corpus_are_groups(evaluate):
    table, _ = evaluate(by="number")
    assert table["group"].tolist() == ["(all)", "0", "1", "2", "3"]
    rows = table.set_index("group")
    assert rows["hidden_letters"].tolist() == [720, 180, 180, 180, 180]
    assert rows["bits"].iloc[1:].mean() == pytest.approx(rows["bits"].iloc[0], abs=1e-5)
    assert rows["count_model"].iloc[1:].mean() == pytest.approx(rows["count_model"].iloc[0], abs=1e-5)


def test_what_is_printed(evaluate, capsys):
    evaluate(by="id")
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert lines[0] == "tokens, test split:"
    header = "group hidden letters bits standard error count model composition single joint"
    assert " ".join(lines[1].split()) == header
    assert lines[2].split()[:2] == ["(all)", "720"]
    assert len({len(line) for line in lines[1:3]}) == 1
    assert len(lines) == 3 + 20 + 3
    assert lines[-3] == "100 smaller groups are in scores.tsv"
    assert lines[-2] == "warning: the score rests on 720 hidden letters of the test split alone"
    assert "1,200 letters are in no run" in lines[-1]


def test_the_window_is_the_context_or_smaller(evaluate):
    table, _ = evaluate(window=24)
    assert table["hidden_letters"].iloc[0] == 120 * (6 + 6)
    with pytest.raises(UserError, match="window: 41: the model's context is 40 letters"):
        evaluate("other", window=41)


def test_the_count_model_never_sees_what_it_is_scored_on(evaluate, capsys):
    table, _ = evaluate(split="train")
    assert "the train split is what the count model would learn from" in capsys.readouterr().err
    assert np.isnan(table["count_model"].iloc[0])
    assert table["composition"].iloc[0] == pytest.approx(2, abs=0.05)
    table, _ = evaluate("off", count_model=False)
    assert np.isnan(table["count_model"].iloc[0])
    assert "learn" not in capsys.readouterr().err


@pytest.fixture
def prepared(tmp_path):
    """Make tokens of sequences, given by split."""

    def build(name, rows, tokenizer="dna-1mer", **settings):
        table = tmp_path / f"{name}.tsv"
        lines = [f"{split}{i}\t{s}\t{split}" for split, texts in rows.items() for i, s in enumerate(texts)]
        table.write_text("\n".join(["id\tsequence\tsplit", *lines]) + "\n")
        corpus, tokens = tmp_path / f"{name}-corpus", tmp_path / name
        settings = {"split_column": "split"} | settings
        pipeline.prepare.run(PrepareConfig(output=corpus, input=[table], **settings))
        pipeline.encode.run(TokenizeConfig(output=tokens, corpus=corpus, tokenizer=tokenizer))
        return tokens

    return build


def random_dna(seed, length):
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), length))


def test_without_a_train_split_nothing_is_compared(evaluate, rule_folder, monkeypatch, capsys):
    splits, codec = load_tokens(rule_folder / "tokens")
    monkeypatch.setattr("pipeline.tokens.store.load_tokens", lambda _: ({"test": splits["test"]}, codec))
    table, _ = evaluate()
    assert "no train split" in capsys.readouterr().err
    assert table[["count_model", "composition"]].isna().all().all()
    assert table["bits"].notna().all()


def test_soft_masked_bases_have_a_mean_of_their_own(evaluate, prepared, rule_folder, capsys):
    records = [random_dna(i, 12).lower() + random_dna(i + 9, 28) for i in range(9)]
    data = prepared("soft", {"train": ["ACGT"], "test": records}, letters={"case": "soft-mask"})
    row = evaluate(data=[data])[0].iloc[0]
    splits, codec = load_tokens(data)
    text = hidden_text(splits["test"], codec, 40, 1000)
    model, codec = load_language_model(rule_folder / "lm")
    found = score(model, codec, text).letters
    soft = np.concatenate(text.places) < 12
    assert 0 < soft.sum() < len(soft) == row["hidden_letters"]
    assert row["soft_masked"] == pytest.approx(found.bits[soft].mean(), abs=1e-5)
    assert row["other"] == pytest.approx(found.bits[~soft].mean(), abs=1e-5)
    header, printed = (line for line in capsys.readouterr().err.splitlines() if line[:3] in ("gro", "(al"))
    assert header.split()[-3:] == ["soft", "masked", "other"]
    assert printed.split()[-2:] == [f"{row['soft_masked']:.4f}", f"{row['other']:.4f}"]


def test_byte_pairs_are_reported_and_not_compared(evaluate, prepared, tmp_path, capsys):
    rows = {split: [random_dna(10 * n + i, 80) for i in range(9)] for n, split in enumerate(SPLITS)}
    data = prepared("pieces", rows, "dna-bpe")
    shape = ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = PretrainConfig(output=tmp_path / "lm", data=data, model=shape, steps=1, window=80)
    pipeline.pretrain.run(config)
    table, result = evaluate(checkpoint=tmp_path / "lm", data=[data])
    assert "not to be compared with other tokenizers" in capsys.readouterr().err
    row = table.iloc[0]
    assert row["bits"] == row["joint"]
    assert np.isnan(row["single"])
    assert 1.5 < row["bits"] < 4
    assert row["count_model"] == pytest.approx(2, abs=0.2)
    assert result.metrics()["bits_per_hidden_base"]["comparable"] is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by": "species"}, r"by: .*tokens has no column 'species'; its columns: id, .*kind"),
        ({"data": []}, "data: no token folder is given"),
        ({"window": 3}, r"data: .*tokens: no letters of the test split can be hidden: .* 6 real letters"),
        ({"window": 41}, "window: 41: the model's context is 40 letters"),
    ],
)
def test_mistakes(evaluate, changes, message, capsys):
    with pytest.raises(UserError, match=message):
        evaluate(**changes)
    assert "split:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ({"train": ["ACGTACGTACGT"]}, {}, r"split: .*second has no test split, only train"),
        ({"train": ["ACGT"], "test": ["ACGTACG"]}, {"by": "kind"}, r"by: .*second has no column 'kind'"),
        ({"train": ["ACGT"], "test": ["ACGNACGNACG"]}, {}, r"data: .*second: no letters of the test split"),
    ],
)
def test_every_data_set_is_checked_before_any_is_scored(
    evaluate, prepared, rule_folder, monkeypatch, rows, changes, message
):
    monkeypatch.delattr("pipeline.training.scores.network_bits")
    with pytest.raises(UserError, match=message):
        evaluate(data=[rule_folder / "tokens", prepared("second", rows)], **changes)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_text_full_of_unknown_letters_is_scored_without_noise(evaluate, prepared, capsys):
    """No base of the validation text, and in the second data set of the test text, can be hidden alone."""
    long, few = random_dna(1, 40), "ACGTAC" + "NACGT" * 6
    rows = {"train": [random_dna(0, 4000)], "validation": [few], "test": [long]}
    data = [prepared("some", rows), prepared("none", rows | {"test": [few.replace("AC", "CA")]})]
    table, _ = evaluate(data=data)
    assert table["hidden_letters"].tolist() == [6, 6]
    said = capsys.readouterr().err
    assert said.count("warning: the score rests on 6 hidden letters of the test split alone") == 2
    assert table["count_model"].tolist() == pytest.approx([2, 2], abs=0.5)
    assert table["single_count_model"].notna().tolist() == table["single"].notna().tolist() == [True, False]


def test_data_that_does_not_fit(evaluate, prepared, rule_folder, tiny_model, tmp_path):
    with pytest.raises(UserError, match=r"data: .*tokens is given twice"):
        evaluate(data=[rule_folder / "tokens"] * 2)
    only = prepared("only", {"train": ["ACGTACGTACGT"]})
    with pytest.raises(UserError, match=r"split: .*only has no test split, only train; choose"):
        evaluate(data=[only])
    rows = {"train": ["MKVLA"], "test": ["MAVLK"]}
    residues = prepared("residues", rows, "protein", alphabet="protein")
    with pytest.raises(
        UserError, match=r"data: .*residues holds protein sequences, but the checkpoint reads dna"
    ):
        evaluate(data=[residues])
    tiny_model(StrandForSequenceClassification).save_pretrained(tmp_path / "classifier")
    with pytest.raises(UserError, match="predicts no tokens; pass a folder written by pretrain"):
        evaluate(checkpoint=tmp_path / "classifier")
    with pytest.raises(UserError, match="written by prepare, not by tokenize"):
        evaluate(data=[rule_folder / "corpus"])


def test_folders_of_one_name_are_told_apart_by_their_path(evaluate, rule_folder, tmp_path):
    shutil.copytree(rule_folder / "tokens", tmp_path / "tokens")
    table, _ = evaluate(data=[rule_folder / "tokens", tmp_path / "tokens"])
    assert table["data_set"].tolist() == [str(rule_folder / "tokens"), str(tmp_path / "tokens")]


def test_the_command_line(rule_folder, tmp_path, capsys):
    flags = ["--checkpoint", str(rule_folder / "lm"), "--data", str(rule_folder / "tokens"), "--by", "kind"]
    main(["evaluate", "--output", str(tmp_path / "scores"), *flags])
    assert "tokens, test split:" in capsys.readouterr().err
    main(["evaluate", "--output", str(tmp_path / "scores"), *flags])
    assert "up to date, nothing to do" in capsys.readouterr().err
