import numpy as np
import pytest
from scipy import stats

from pipeline.keyed import generator, integers, keys, mix, uniforms, words


def test_words_of_key_zero_are_the_published_sequence():
    """SplitMix64 from state 0, as other implementations print it."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert words(np.zeros(1, np.uint64), np.arange(3)).tolist() == expected
    assert mix(np.zeros(1, np.uint64)).tolist() == expected[:1]


def test_every_part_and_its_place_make_another_key():
    one = keys(1, np.array([2, 3, 2]), 4)
    assert one[0] == one[2]
    assert one[0] != one[1]
    distinct = {int(keys(*parts)[0]) for parts in [(1, 2), (2, 1), (0, 1, 2), (1, 2, 0), (12,), (1, 3)]}
    assert len(distinct) == 6
    assert np.array_equal(keys(5, np.arange(4))[2:], keys(5, np.array([2, 3])))


@pytest.mark.parametrize("axis", ["keys", "numbers"])
def test_draws_are_uniform_along_neighbouring_keys_and_numbers(axis):
    size = 50_000
    word = words(keys(np.arange(size)), 7) if axis == "keys" else words(keys(7), np.arange(size))
    draws = uniforms(word)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(stats.pearsonr(draws[1:], draws[:-1]).statistic) < 0.02
    counts = np.bincount(integers(word, 20), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-3
    low = word & np.uint64(2**32 - 1)
    assert stats.kstest(low / 2**32, "uniform").pvalue > 1e-3, "the lower halves are used, too"
    assert abs(stats.pearsonr(low.astype(float), draws).statistic) < 0.02


def test_a_generator_is_a_function_of_its_key():
    assert generator(3, 4).random() == generator(3, 4).random()
    assert generator(1, 23).random() != generator(12, 3).random()
