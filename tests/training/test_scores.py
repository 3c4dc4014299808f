import numpy as np
import pytest

from pipeline.tokens.bits import Bits, HiddenText
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import split_of
from pipeline.training.scores import Scores, reference_bits, say_if_few, summary

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
