import math
from collections import defaultdict

import numpy as np
import pytest

from pipeline.tokens import counts, store
from pipeline.tokens.bits import HiddenText, hidden_text, single_letters
from pipeline.tokens.counts import STRENGTHS, CountModel, composition_bits
from pipeline.tokens.kmers import KmerCodec

DNA = KmerCodec("dna", 1, False)


def split_of(records, codec=DNA):
    return store.split_of([codec.track(codec.codes(letters)) for letters in records])


def hide(run, windows, blocks, codec=DNA):
    """Return windows of letters with the blocks of ``run`` letters hidden that are numbered for each."""
    starts = [np.array(numbers, int) * run for numbers in blocks]
    return HiddenText(run, [codec.codes(w) for w in windows], starts, np.arange(len(windows)))


def random_letters(seed, length, letters="ACGT", p=None):
    return "".join(np.random.default_rng(seed).choice(list(letters), length, p=p))


def slow_counts(records, run, orders, two_sided):
    """How often a letter stands at place j of a run between these letters on both sides, as dictionaries."""
    table = defaultdict(lambda: defaultdict(int))
    for text in records:
        for order in range(orders):
            beyond = order if two_sided else 0
            for start in range(order, len(text) - run - beyond + 1):
                left, right = text[start - order : start], text[start + run : start + run + beyond]
                if "N" in left + right:
                    continue
                for j in range(run):
                    if text[start + j] != "N":
                        table[order, j, left, right][text[start + j]] += 1
    return table


def slow_probabilities(table, shown, start, run, j, orders, strength, two_sided):
    """Probabilities of A, C, G, T at place j of the run at ``start``, by order; ``?`` are hidden letters."""
    probability, found = dict.fromkeys("ACGT", 0.25), []
    for order in range(orders):
        beyond = order if two_sided else 0
        left, right = shown[max(0, start - order) : start], shown[start + run : start + run + beyond]
        if len(left) == order and len(right) == beyond and not set(left + right) & set("N?"):
            counts = table[order, j, left, right]
            total = sum(counts.values()) + strength
            probability = {x: (counts[x] + strength * p) / total for x, p in probability.items()}
        found.append(probability)
    return found


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("run", [1, 6])
def test_bits_equal_a_slow_definition(run, two_sided, monkeypatch):
    monkeypatch.setattr(counts, "_BLOCK", 100)
    train = [
        random_letters(1, 400, "ACGTN", [0.3, 0.2, 0.2, 0.25, 0.05]),
        random_letters(2, 61),
        "ACG",
        "A" * 8,
    ]
    windows = [random_letters(i, 62, "ACGTN", [0.3, 0.2, 0.2, 0.25, 0.05]) for i in (3, 4)] + ["ACGTAC"]
    blocks = [
        [b for b in numbers if "N" not in window[b * run : (b + 1) * run]]
        for window, numbers in zip(windows, ((0, 3, 5, 9), (1, 4, 8), (0,)), strict=True)
    ]
    text = hide(run, windows, blocks)
    model = CountModel(DNA, run, two_sided).fit(split_of(train), DNA)
    model.strength = 4.0
    orders = len(model.tables)
    table = slow_counts(train, run, orders, two_sided)
    expected = []
    for number, window in enumerate(windows):
        hidden = text.hidden(number)
        shown = "".join("?" if h else letter for letter, h in zip(window, hidden, strict=True))
        for place in np.flatnonzero(hidden):
            start = place // run * run
            found = slow_probabilities(table, shown, start, run, place - start, orders, 4.0, two_sided)
            assert sum(found[-1].values()) == pytest.approx(1)
            expected.append([-math.log2(p[window[place]]) for p in found])
    assert len(expected) >= 5 * run
    np.testing.assert_allclose(model.bits_by_order(text), np.transpose(expected), rtol=1e-12)
    np.testing.assert_array_equal(model.bits(text), model.bits_by_order(text)[-1])


def test_the_tables_hold_only_what_fits():
    sizes = [table.size for table in CountModel(DNA, 6).tables]
    assert sizes == [6 * 4 * 16**order for order in range(len(sizes))]
    assert sizes[-1] <= 5_000_000 < sizes[-1] * 16
    sizes = [table.size for table in CountModel(DNA, 6, two_sided=False).tables]
    assert sizes == [6 * 4 * 4**order for order in range(len(sizes))]
    assert sizes[-1] <= 5_000_000 < sizes[-1] * 4


def test_hidden_letters_are_not_peeked_at():
    """The four letters that a place can hold sum to 1, and other hidden letters change nothing."""
    model = CountModel(DNA, 6).fit(split_of([random_letters(0, 5000, p=[0.4, 0.3, 0.2, 0.1])]), DNA)
    text = hide(6, [random_letters(1, 60)], [[1, 3]])
    base = model.bits(text)
    for index, place in enumerate(text.places[0]):
        total = 0.0
        for letter in range(4):
            changed = text.windows[0].copy()
            changed[place] = letter
            bits = model.bits(HiddenText(6, [changed], text.starts, text.records))
            np.testing.assert_array_equal(np.delete(bits, index), np.delete(base, index))
            total += 2.0 ** -bits[index]
        assert total == pytest.approx(1)


@pytest.mark.parametrize("two_sided", [True, False])
def test_random_dna_costs_two_bits_and_not_less(two_sided):
    train, held, other = (split_of([random_letters(i, n)]) for i, n in enumerate((60_000, 60_000, 9000)))
    text, tuning = hidden_text(held, DNA, 510, 60_000), hidden_text(other, DNA, 510, 9000)
    for each, tune in ((text, tuning), (single_letters(text, 4), single_letters(tuning, 4))):
        bits = each.bits(CountModel(DNA, each.run, two_sided).fit(train, DNA).tune(tune).bits(each))
        assert 2 - 3 * bits.standard_error < bits.per_letter < 2.02
    assert composition_bits(train, DNA, text).mean() == pytest.approx(2, abs=0.002)


def test_letters_on_both_sides_say_more():
    """ACGTACGT..., with jumps: where the two sides of a run disagree, both know part of it."""
    rng = np.random.default_rng(0)
    codes = np.cumsum(np.where(rng.random(40_000) < 0.1, rng.integers(0, 4, 40_000), 1)) % 4
    train, held = (split_of(["".join(DNA.letters[c] for c in half)]) for half in np.split(codes, 2))
    text = hidden_text(held, DNA, 510, 20_000)
    one, both = (
        CountModel(DNA, 6, side).fit(train, DNA).tune(text).bits_by_order(text) for side in (False, True)
    )
    assert both[-1].mean() < one[-1].mean() - 0.1
    assert one[1].mean() < one[0].mean() - 0.5
    assert both[1].mean() < both[0].mean() - 0.5


def test_structure_is_found():
    """A repeated text is foretold from its neighbours; the composition alone knows nothing of it."""
    train = split_of([random_letters(0, 300) * 20])
    text = hidden_text(split_of([random_letters(0, 300)]), DNA, 510, 300)
    assert (
        CountModel(DNA, 6).fit(train, DNA).bits(text).mean() < 0.5 < composition_bits(train, DNA, text).mean()
    )


def test_composition_is_the_frequency_of_the_training_letters():
    train = split_of(["A" * 5 + "C" * 2 + "N" * 9])
    text = hide(1, ["ACGT"], [[0, 1, 2]])
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
