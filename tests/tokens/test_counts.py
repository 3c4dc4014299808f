import math
from collections import defaultdict

import numpy as np
import pytest

from pipeline.tokens.bits import HiddenText, hidden_text
from pipeline.tokens.counts import STRENGTHS, CountModel, composition_bits
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import TokenSplit

DNA = KmerCodec("dna", 1, False)


def split_of(records, codec=DNA):
    tracks = [codec.track(codec.codes(letters)) for letters in records]
    offsets = np.concatenate(([0], np.cumsum([len(t) for t in tracks])))
    return TokenSplit(
        np.concatenate(tracks), offsets, [str(i) for i in range(len(tracks))], np.zeros(len(tracks))
    )


def random_letters(seed, length, letters="ACGT", p=None):
    return "".join(np.random.default_rng(seed).choice(list(letters), length, p=p))


def slow_counts(records, run, orders):
    """How often a letter stands at place j of a run between these letters on both sides, as dictionaries."""
    table = defaultdict(lambda: defaultdict(int))
    for text in records:
        for order in range(orders):
            for start in range(order, len(text) - run - order + 1):
                left, right = text[start - order : start], text[start + run : start + run + order]
                if "N" in left + right:
                    continue
                for j in range(run):
                    if text[start + j] != "N":
                        table[order, j, left, right][text[start + j]] += 1
    return table


def slow_probability(table, shown, start, run, j, orders, strength):
    """Probabilities of A, C, G, T at place j of the run at ``start``; ``?`` are hidden letters."""
    probability = dict.fromkeys("ACGT", 0.25)
    for order in range(orders):
        left, right = shown[max(0, start - order) : start], shown[start + run : start + run + order]
        if len(left) < order or len(right) < order or set(left + right) & set("N?"):
            continue
        counts = table[order, j, left, right]
        total = sum(counts.values()) + strength
        probability = {x: (counts[x] + strength * p) / total for x, p in probability.items()}
    return probability


@pytest.mark.parametrize("run", [1, 6])
def test_bits_equal_a_slow_definition(run):
    train = [random_letters(1, 400, "ACGTN", [0.3, 0.2, 0.2, 0.25, 0.05]), random_letters(2, 61), "ACG"]
    windows = [random_letters(i, 62, "ACGTN", [0.3, 0.2, 0.2, 0.25, 0.05]) for i in (3, 4)] + ["ACG"]
    hidden = []
    for i, window in enumerate(windows):
        marks = np.zeros(len(window), bool)
        for block in ((0, 3, 5, 9), (1, 4, 8), (0,))[i]:
            marks[block * run : (block + 1) * run] = True
        hidden.append(marks & (DNA.codes(window) < 4))
    model = CountModel(DNA, run).fit(split_of(train), DNA)
    model.strength = 4.0
    orders = len(model.tables)
    table = slow_counts(train, run, orders)
    expected = []
    for window, marks in zip(windows, hidden, strict=True):
        shown = "".join("?" if m else letter for letter, m in zip(window, marks, strict=True))
        for place in np.flatnonzero(marks):
            start = place // run * run
            p = slow_probability(table, shown, start, run, place - start, orders, 4.0)
            assert sum(p.values()) == pytest.approx(1)
            expected.append(-math.log2(p[window[place]]))
    text = HiddenText([DNA.codes(w) for w in windows], hidden)
    np.testing.assert_allclose(model.bits(text), expected, rtol=1e-12)


def test_the_tables_hold_only_what_fits():
    sizes = [table.size for table in CountModel(DNA, 6).tables]
    assert sizes == [6 * 4 * 16**order for order in range(len(sizes))]
    assert sizes[-1] <= 5_000_000 < sizes[-1] * 16


def test_hidden_letters_are_not_peeked_at():
    """The four letters that a place can hold sum to 1, and other hidden letters change nothing."""
    model = CountModel(DNA, 6).fit(split_of([random_letters(0, 5000, p=[0.4, 0.3, 0.2, 0.1])]), DNA)
    codes = DNA.codes(random_letters(1, 60))
    hidden = np.zeros(60, bool)
    hidden[6:12] = hidden[18:24] = True
    base = model.bits(HiddenText([codes], [hidden]))
    for index, place in enumerate(np.flatnonzero(hidden)):
        total = 0.0
        for letter in range(4):
            changed = codes.copy()
            changed[place] = letter
            bits = model.bits(HiddenText([changed], [hidden]))
            np.testing.assert_array_equal(np.delete(bits, index), np.delete(base, index))
            total += 2.0 ** -bits[index]
        assert total == pytest.approx(1)


def test_random_dna_costs_two_bits_and_not_less():
    train, held = split_of([random_letters(0, 60_000)]), split_of([random_letters(1, 60_000)])
    text, tuning = (
        hidden_text(held, DNA, 510, 60_000),
        hidden_text(split_of([random_letters(2, 9000)]), DNA, 510, 9000),
    )
    for run in (1, 6):
        bits = CountModel(DNA, run).fit(train, DNA).tune(tuning).bits(text)
        error = bits.std() / len(bits) ** 0.5
        assert 2 - 3 * error < bits.mean() < 2.02
    bits = composition_bits(train, DNA, text)
    assert bits.mean() == pytest.approx(2, abs=0.002)


def test_structure_is_found():
    """A repeated text is foretold from its neighbours; the composition alone knows nothing of it."""
    train = split_of([random_letters(0, 300) * 20])
    text = hidden_text(split_of([random_letters(0, 300)]), DNA, 510, 300)
    assert (
        CountModel(DNA, 6).fit(train, DNA).bits(text).mean() < 0.5 < composition_bits(train, DNA, text).mean()
    )


def test_composition_is_the_frequency_of_the_training_letters():
    train = split_of(["A" * 5 + "C" * 2 + "N" * 9])
    text = HiddenText([DNA.codes("ACGT")], [np.array([True, True, True, False])])
    np.testing.assert_allclose(composition_bits(train, DNA, text), -np.log2([6 / 11, 3 / 11, 1 / 11]))


def test_the_strength_is_the_one_with_the_fewest_bits():
    model = CountModel(DNA, 6).fit(split_of([random_letters(0, 3000, p=[0.4, 0.3, 0.2, 0.1])]), DNA)
    text = hidden_text(split_of([random_letters(1, 3000, p=[0.4, 0.3, 0.2, 0.1])]), DNA, 510, 3000)
    chosen = model.tune(text).strength
    costs = {}
    for strength in STRENGTHS:
        model.strength = strength
        costs[strength] = model.bits(text).mean()
    assert costs[chosen] == min(costs.values())
    assert len(set(costs.values())) > 1


def test_proteins_are_counted_by_residue():
    codec = KmerCodec("protein", 1, False)
    rng = np.random.default_rng(0)
    letters = "".join(rng.choice(list("LAGVSERTIDPKQNFYMHWC"), 20_000))
    model = CountModel(codec, 1).fit(split_of([letters], codec), codec)
    text = hidden_text(split_of([letters[::-1]], codec), codec, 100, 5000)
    model.strength = 256.0
    assert model.bits(text).mean() == pytest.approx(math.log2(20), abs=0.05)
