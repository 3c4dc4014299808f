import numpy as np
import pandas as pd
import pytest

from pipeline.tokens.bits import Bits, HiddenText
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import split_of
from pipeline.training.scores import Scores, reference_bits, say_if_few, summary, write_windows

CODEC = KmerCodec("dna", 1, False)


def letters_of(*means, noise=0.1, windows=40, each=25):
    """Bits of letters in windows, around one mean for every model, with noise of its own in each window."""
    rng, window = np.random.default_rng(0), np.repeat(np.arange(windows), each)
    ones, text = np.ones(windows * each, int), rng.normal(0, 1, windows)[window]
    names = ("value", "baseline", "random")
    return {
        name: Bits(mean + text + rng.normal(0, noise, windows)[window], ones, window)
        for name, mean in zip(names, means, strict=True)
    }


def test_the_gap_is_closed_from_composition_to_counting():
    bits = letters_of(1.7, 1.8, 2.0)
    value, baseline, random = (bits[name].bits.mean() for name in ("value", "baseline", "random"))
    assert summary(bits)["gap_closed"] == pytest.approx((random - value) / (random - baseline))


@pytest.mark.parametrize("baseline", [1.9992, 1.9991, 2.01])
def test_there_is_no_gap_to_close_where_counting_is_no_better(baseline):
    """Text that is as hard for both says nothing of the gap, so its noise is that of the difference."""
    assert "gap_closed" not in summary(letters_of(2.0956, baseline, 1.9991, noise=0))


def test_a_gap_within_its_noise_is_none():
    kept = 0
    for gap in (0.5, 2.0):  # standard errors
        bits = letters_of(1.7, 2.0, 2.0)
        difference = bits["random"].bits - bits["baseline"].bits
        windows = difference.reshape(40, 25).mean(1)
        error = windows.std(ddof=1) / 40**0.5
        ones, window = bits["random"].letters, bits["random"].window
        bits["random"] = Bits(bits["random"].bits - difference.mean() + gap * error, ones, window)
        kept += "gap_closed" in summary(bits)
        assert ("gap_closed" in summary(bits)) == (gap > 1)
    assert kept == 1


def test_a_gap_of_one_window_has_no_noise_to_be_judged_by():
    assert "gap_closed" not in summary(letters_of(1.7, 1.8, 2.0, windows=1))


def hidden(*windows):
    """Hide the first six letters of each window."""
    starts = [np.array([0])] * len(windows)
    return HiddenText(6, [CODEC.codes(w) for w in windows], starts, np.arange(len(windows)))


@pytest.mark.filterwarnings("error")
def test_text_for_tuning_without_letters_is_replaced_by_the_text_itself():
    train = split_of([CODEC.track(CODEC.codes("ACGTTGCAAC" * 90))])
    text = HiddenText(6, [CODEC.codes("GTTGCAACACGTTGCAACACG")], [np.array([6])], np.array([0]))
    empty = hidden("ACGTACNNNNNN")
    found, expected = reference_bits(train, CODEC, text, empty), reference_bits(train, CODEC, text, text)
    assert found["single_baseline"].total == 1
    np.testing.assert_array_equal(found["single_baseline"].bits, expected["single_baseline"].bits)
    assert reference_bits(train, CODEC, empty, empty)["single_baseline"].total == 0


def test_few_letters_are_said_to_be_few(capsys):
    say_if_few(1000, "test")
    assert capsys.readouterr().err == ""
    say_if_few(999, "validation")
    assert "the score rests on 999 hidden letters of the validation split" in capsys.readouterr().err


def test_a_test_split_that_cannot_be_scored_is_not_a_missing_one(capsys):
    from pipeline.config import PretrainConfig

    config = PretrainConfig(output="out", data="tokens", steps=1)
    unknown = split_of([CODEC.track(CODEC.codes("ACGN" * 30))])
    for splits, said in (
        ({}, "no test split, so no final score\n"),
        ({"test": unknown}, "no letters of the test split can be hidden, so no final score\n"),
    ):
        assert Scores(config, splits, CODEC).final(None, None, True) == {}
        assert capsys.readouterr().err == said


# -- windows.tsv


def scores_of(records, window=40, codec=CODEC):
    from pipeline.config import PretrainConfig

    config = PretrainConfig(output="out", data=["tokens"], window=window)
    split = split_of([codec.track(codec.codes(letters)) for letters in records])
    return Scores(config, {"train": split, "validation": split, "test": split}, codec)


def random_dna(number, length, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("ACGT"), length)) for _ in range(number)]


def test_windows_add_up_to_the_scores(tiny_model, tmp_path):
    scores = {"some": scores_of(random_dna(5, 100)), "others": scores_of(random_dna(3, 90, seed=1))}
    networks = tiny_model(vocab_size=10, seed=1), tiny_model(vocab_size=10, seed=2)
    found = {name: one.final(*networks, True)["bits_per_hidden_base"] for name, one in scores.items()}
    write_windows(tmp_path, scores)
    table = pd.read_csv(tmp_path / "windows.tsv", sep="\t")
    models = ["value", "untrained", "baseline", "random"]
    assert table.columns.tolist() == ["data_set", "hidden", "letters", *models]
    assert (
        table["data_set"].tolist() == ["some"] * 15 + ["others"] * 6
    )  # 10 letters have no run of six inside
    for name, rows in table.groupby("data_set"):
        assert rows["letters"].sum() == found[name]["hidden_letters"]
        for model in models:
            mean = rows[model].sum() / rows["letters"].sum()
            assert mean == pytest.approx(found[name][model], abs=1e-7), (name, model)


def hidden_of(scores, tiny_model):
    size = len(scores.codec.vocabulary)
    scores.final(tiny_model(vocab_size=size), tiny_model(vocab_size=size), False)
    return [row["hidden"] for row in scores.windows()]


def test_a_window_is_known_by_its_letters_and_the_places_hidden(tiny_model):
    records = random_dna(4, 40)
    known = hidden_of(scores_of(records), tiny_model)
    assert len(set(known)) == 4
    assert hidden_of(scores_of(records, codec=KmerCodec("dna", 3, True)), tiny_model) == known
    changed = [*records[:3], records[3][:-1] + ("A" if records[3][-1] != "A" else "C")]
    others = hidden_of(scores_of(changed), tiny_model)
    assert others[:3] == known[:3]
    assert others[3] != known[3]
    moved = scores_of(records)
    moved.texts["test"].starts[0] = (moved.texts["test"].starts[0] + 6) % 36
    others = hidden_of(moved, tiny_model)
    assert others[1:] == known[1:]
    assert others[0] != known[0]


def test_without_test_text_there_are_no_windows(tmp_path):
    scores = scores_of(["ACGN" * 30])
    scores.final(None, None, True)
    write_windows(tmp_path, {"some": scores})
    assert not list(tmp_path.iterdir())
