import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tokens import bits
from pipeline.tokens.bits import (
    Bits,
    HiddenText,
    bits_per_letter,
    hidden_text,
    hide_runs,
    score,
    single_letters,
)
from pipeline.tokens.kmers import Codec, KmerCodec, Tokens
from pipeline.tokens.store import SoftMask, split_of

ONE, PROTEIN = KmerCodec("dna", 1, False), KmerCodec("protein", 1, False)
OVERLAPPING = [KmerCodec("dna", k, True) for k in (2, 3, 6)]
CODECS = [
    ONE,
    *OVERLAPPING,
    *(KmerCodec("dna", k, False) for k in (2, 3, 6)),
    KmerCodec("dna", 3, False, codons=True),
]


class Pieces(Codec):
    """Byte pairs of four tokens, longest first."""

    alphabet, k, overlapping = "dna", 2, False
    names = ("<pad>", "<cls>", "<eos>", "<mask>", *"ACGTN", "TA", "GTA", "CC")

    @property
    def vocabulary(self):
        return {name: i for i, name in enumerate(self.names)}

    def tokens(self, codes_L):
        text, pieces = self.text(codes_L), []
        while text:
            pieces.append(max((n for n in self.names if text.startswith(n)), key=len))
            text = text.removeprefix(pieces[-1])
        spans = np.array([len(piece) for piece in pieces])
        return Tokens(np.array([self.vocabulary[p] for p in pieces]), np.cumsum(spans) - spans, spans)


class Chosen(torch.nn.Module):
    """A network that says what it is told to: ``beliefs[window][place]`` is {token: probability}."""

    def __init__(self, codec, beliefs):
        super().__init__()
        self.codec, self.beliefs, self.shown = codec, beliefs, []
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, attention_mask, target_positions):
        names = {i: token for token, i in self.codec.vocabulary.items()}
        rows = [[names[i] for i in row if i != self.codec.special("pad")] for row in input_ids.tolist()]
        assert attention_mask.sum(1).tolist() == [len(row) for row in rows]
        self.shown += rows
        logits = torch.full((len(target_positions), len(names)), -1e9)
        for t, flat in enumerate(target_positions.tolist()):
            row, place = divmod(flat, input_ids.shape[1])
            for token, probability in self.beliefs[len(rows[row])][place].items():
                logits[t, self.codec.vocabulary[token]] = math.log(probability)
        return SimpleNamespace(logits=logits)


class Uniform(torch.nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.weight = tokens, torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, attention_mask, target_positions):
        return SimpleNamespace(logits=torch.full((len(target_positions), self.tokens), 0.7))


def text(codec, *windows, run=1):
    """Windows written with hidden letters in lower case, in runs of ``run`` letters."""
    starts = [np.flatnonzero([c.islower() for c in window])[::run] for window in windows]
    return HiddenText(run, [codec.codes(w.upper()) for w in windows], starts, np.arange(len(windows)))


def random_split(codec, *sizes, unknown=0.0, seed=3):
    rng = np.random.default_rng(seed)
    letters = rng.integers(0, codec.n_real, sum(sizes)).astype(np.uint8)
    letters[rng.random(len(letters)) < unknown] = codec.n_real
    return split_of([codec.track(codes) for codes in np.split(letters, np.cumsum(sizes)[:-1])])


# -- by hand: ACGTTA cgatcg TTGACA, the six in the middle hidden, under every kind of tokenizer

HAND = {
    # place of the token, <cls> being 0: {token: probability}
    "1-mers": (
        KmerCodec("dna", 1, False),
        [*"ACGTTA", *["<mask>"] * 6, *"TTGACA"],
        {
            7: {"C": 0.5, "G": 0.5},
            8: {"G": 0.25, "A": 0.75},
            9: {"A": 0.2, "T": 0.2, "N": 0.6},  # N cannot be hidden: half of the rest
            10: {"T": 1.0},
            11: {"C": 0.125, "A": 0.875},
            12: {"G": 0.5, "C": 0.5},
        },
        [1, 2, 1, 0, 3, 1],
        1 + 2 + 1 + 0 + 3 + 1,
    ),
    "overlapping 3-mers": (
        KmerCodec("dna", 3, True),
        ["ACG", "CGT", "GTT", "TTA", *["<mask>"] * 8, "TTG", "TGA", "GAC", "ACA"],
        {
            7: {"CGA": 0.25, "CTT": 0.25, "AAA": 0.5},  # C 0.5; the k-mer 0.25
            8: {"GAT": 0.125, "CCC": 0.375, "N": 0.5},  # G a quarter of what is real
            9: {"ATC": 0.5, "AAA": 0.25, "A": 0.25},
            10: {"TCG": 0.125, "TAA": 0.375, "CCC": 0.25, "T": 0.25},  # T 0.75; TCG 1/6 of k-mers
            11: {"CGT": 0.5, "GGG": 0.5},
            12: {"GTT": 0.25, "TTT": 0.75},
        },
        [1, 2, 0, -math.log2(0.75), 1, 2],
        2 + math.log2(6),
    ),
    "overlapping 6-mers": (
        KmerCodec("dna", 6, True),
        ["ACGTTA", *["<mask>"] * 11, "TTGACA"],
        {
            7: {"CGATCG": 0.125, "CAAAAA": 0.125, "TTTTTT": 0.25, "A": 0.5},  # C 1/4; CGATCG 1/4 of k-mers
            8: {"GATCGT": 0.5, "CATCGT": 0.5},
            9: {"ATCGTT": 1.0},
            10: {"TCGTTG": 0.25, "GCGTTG": 0.75},
            11: {"CGTTGA": 0.5, "CCCCCC": 0.5},
            12: {"GTTGAC": 0.0625, "TTTTTT": 0.9375},
        },
        [2, 1, 0, 2, 0, 4],
        2,
    ),
    "non-overlapping 6-mers": (
        KmerCodec("dna", 6, False),
        ["ACGTTA", "<mask>", "TTGACA"],
        {2: {"CGATCG": 0.0625, "CGTTTT": 0.1875, "CAAAAG": 0.25, "TTTTTG": 0.5}},
        [1, 2, -math.log2(0.3125), -math.log2(0.75), 4, -math.log2(0.8125)],
        4,
    ),
    "codons": (
        KmerCodec("dna", 3, False, codons=True),
        ["ACG", "TTA", "<mask>", "<mask>", "TTG", "ACA"],
        {3: {"CGA": 0.25, "CTT": 0.25, "GGG": 0.5}, 4: {"TCG": 0.125, "ACG": 0.875}},
        [1, -math.log2(0.75), 2, 3, 0, 0],
        2 + 3,
    ),
}


@pytest.mark.parametrize("kind", HAND)
def test_runs_of_six_by_hand(kind):
    codec, shown, beliefs, letters, joint = HAND[kind]
    model = Chosen(codec, {len(shown) + 2: beliefs})
    scored = score(model, codec, text(codec, "ACGTTAcgatcgTTGACA", run=6))
    assert model.shown == [["<cls>", *shown, "<eos>"]]
    np.testing.assert_allclose(scored.letters.bits, letters, atol=1e-6)
    np.testing.assert_allclose(scored.joint.bits, [joint], atol=1e-6)
    assert scored.main is scored.letters
    assert scored.main.per_letter == pytest.approx(sum(letters) / 6)
    assert scored.joint.per_letter == pytest.approx(joint / 6)
    assert scored.unseen == 0
    assert scored.comparable


def test_the_end_of_a_window_is_read_off_the_token_that_covers_it():
    codec = KmerCodec("dna", 2, True)
    beliefs = {
        3: {"GA": 0.1, "GT": 0.2, "G": 0.1, "AC": 0.4, "N": 0.2},
        4: {"TA": 0.25, "CA": 0.25, "TT": 0.5},
    }
    model = Chosen(codec, {6: beliefs})
    found = bits_per_letter(model, codec, text(codec, "ACgTa"))
    assert model.shown == [["<cls>", "AC", "<mask>", "<mask>", "<mask>", "<eos>"]]
    np.testing.assert_allclose(found, [-math.log2(0.4 / 0.8), 1.0], rtol=1e-6)


def test_windows_of_several_lengths_come_back_in_order():
    model = Chosen(ONE, {7: {2: {"C": 0.5, "G": 0.5}, 5: {"A": 0.125, "T": 0.875}}, 4: {1: {"T": 1.0}}})
    both = text(ONE, "AcGTa", "tG")
    for budget in (1, 10_000):  # one window at a time, and padded together
        np.testing.assert_allclose(bits_per_letter(model, ONE, both, budget), [1.0, 3.0, 0.0], atol=1e-6)
        assert sorted(model.shown[-2:], key=len) == [
            ["<cls>", "<mask>", "G", "<eos>"],
            ["<cls>", "A", "<mask>", "G", "T", "<mask>", "<eos>"],
        ]
    assert both.truth.tolist() == ONE.codes("CAT").tolist()
    assert both.window_of.tolist() == [0, 0, 1]


def test_byte_pairs_by_hand():
    codec = Pieces()
    # A GTA C TA: the run hides GTA and its neighbour C; CC NN: the run hides CC, and N is never asked for
    windows = text(codec, "AGTacTA", "ccNNAA", run=2)
    beliefs = {
        6: {2: {"GTA": 0.25, "TA": 0.25, "N": 0.5}, 3: {"C": 0.125, "A": 0.875}},
        7: {1: {"CC": 1.0}},
    }
    model = Chosen(codec, beliefs)
    scored = score(model, codec, windows)
    assert sorted(model.shown) == [
        ["<cls>", "<mask>", "N", "N", "A", "A", "<eos>"],
        ["<cls>", "A", "<mask>", "<mask>", "TA", "<eos>"],
    ]
    np.testing.assert_allclose(scored.joint.bits, [1.0, 3.0, 0.0], atol=1e-6)
    assert scored.joint.letters.tolist() == [3, 1, 2]
    assert scored.joint.window.tolist() == [0, 0, 1]
    assert scored.main.per_letter == pytest.approx(4 / 6)
    assert scored.letters is None
    assert not scored.comparable
    assert scored.unseen == 2  # G and T


# -- what is hidden


@pytest.mark.parametrize("codec", [*CODECS, PROTEIN], ids=str)
def test_an_undecided_network_scores_the_logarithm_of_the_alphabet(codec):
    hidden = hidden_text(random_split(codec, 3, 130, 64, 257, unknown=0.01), codec, 66, 10_000)
    scored = score(Uniform(len(codec.vocabulary)), codec, hidden)
    assert len(scored.letters.bits) == len(hidden.truth) > 20
    np.testing.assert_allclose(scored.letters.bits, math.log2(codec.n_real), rtol=1e-6)
    if codec is PROTEIN:
        assert scored.joint is None
    else:
        np.testing.assert_allclose(scored.joint.bits, 12, rtol=1e-6)
        assert scored.joint.total == scored.letters.total


@pytest.mark.parametrize("codec", [ONE, OVERLAPPING[1], OVERLAPPING[2], CODECS[-2], CODECS[-1]], ids=str)
def test_a_network_that_knows_nothing_does_not_beat_two_bits(codec, tiny_model):
    model = tiny_model(vocab_size=len(codec.vocabulary), pad_token_id=codec.special("pad"))
    hidden = hidden_text(random_split(codec, 6000, 6000), codec, 120, 12_000)
    scored = score(model, codec, hidden)
    singles = [score(model, codec, single_letters(hidden, 4)).letters] if bits.can_hide_one(codec) else []
    for found in (scored.letters, scored.joint, *singles):
        assert found.per_letter > 2 - 3 * found.standard_error


def test_the_hidden_text_is_the_same_for_all_tokenizers():
    texts = [hidden_text(random_split(c, 3, 130, 64, 257, unknown=0.02), c, 64, 300) for c in CODECS]
    for other in texts[1:]:
        for ours, theirs in ((texts[0].windows, other.windows), (texts[0].starts, other.starts)):
            assert len(ours) == len(theirs)
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert texts[0].truth.max() < 4


def unseen(codec, codes, starts, run=6):
    hidden = HiddenText(run, [codes], [np.array(starts)], np.zeros(1, int))
    return score(Uniform(len(codec.vocabulary)), codec, hidden).unseen


@settings(max_examples=15, deadline=None)
@given(st.text("AACCGGTTACGTACGTACGTN", min_size=6, max_size=50))
def test_runs_are_those_that_every_tokenizer_hides_alone(letters):
    codes = ONE.codes(letters)
    blocks = [b for b in range(0, len(codes) - 5, 6) if codes[b : b + 6].max() < 4]
    alone = [b for b in blocks if not any(unseen(codec, codes, [b]) for codec in CODECS)]
    assert bits.whole_runs(codes, 6, 4).tolist() == alone


def test_an_n_moves_the_frame_of_non_overlapping_kmers_and_the_runs_after_it_are_counted_not_scored():
    codes = ONE.codes("ACGTAC" + "N" + "GTACG" + "TACGTA" + "CGTACG")
    whole = KmerCodec("dna", 6, False)
    assert [unseen(whole, codes, [b]) for b in (0, 12, 18)] == [0, 1 + 5, 5]
    assert bits.whole_runs(codes, 6, 4).tolist() == [0]
    hidden = hidden_text(split_of([ONE.track(codes)]), ONE, 24, 100)
    assert hidden.not_scored == 5 + 6 + 6
    aligned = ONE.codes("ACGTAC" + "NNNNNN" + "TACGTA" + "CGTACG")
    assert bits.whole_runs(aligned, 6, 4).tolist() == [0, 12, 18]


@settings(max_examples=15, deadline=None)
@given(st.integers(12, 300), st.integers(0, 1000))
def test_nothing_else_is_hidden(size, seed):
    split = random_split(ONE, size, unknown=0.01, seed=seed)
    hidden = hidden_text(split, ONE, 100, 1000)
    for codec in CODECS if hidden.windows else []:
        assert score(Uniform(len(codec.vocabulary)), codec, hidden).unseen == 0
        if bits.can_hide_one(codec) and len((single := single_letters(hidden, 4)).truth):
            assert score(Uniform(len(codec.vocabulary)), codec, single).unseen == 0


def test_other_tokenizers_are_told_apart():
    hidden = hidden_text(random_split(ONE, 600), ONE, 100, 1000)
    for codec in (KmerCodec("dna", 4, False), KmerCodec("dna", 8, True)):
        scored = score(Uniform(len(codec.vocabulary)), codec, hidden)
        assert scored.unseen > 0
        assert not scored.comparable
        assert scored.joint is None
        assert not bits.can_hide_one(codec)
    assert [bits.can_hide_one(c) for c in CODECS] == [True] * 4 + [False] * 4


def test_single_letters_are_of_the_same_runs_and_of_all_codon_positions():
    hidden = hidden_text(random_split(ONE, 6000), ONE, 510, 6000)
    single = single_letters(hidden, 4)
    assert single.run == 1
    for starts, runs in zip(single.starts, hidden.starts, strict=True):
        assert set(starts // 6 * 6) <= set(runs)
        assert len(starts) >= len(runs) - 2  # the first and the last may lie at an end
        assert (np.diff(starts) > 6).all()
    assert set(np.concatenate(single.starts) % 6) == set(range(6))


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("alone", [False, True])
def test_nothing_hidden_is_shown(codec, alone):
    """Other letters in the hidden places give the network the same input."""
    if alone and not bits.can_hide_one(codec):
        return
    hidden = hidden_text(random_split(codec, 3, 130, 64, 257, unknown=0.01), codec, 64, 10_000)
    hidden = single_letters(hidden, 4) if alone else hidden
    changed = []
    for window, places in zip(hidden.windows, hidden.places, strict=True):
        changed.append(window.copy())
        changed[-1][places] = (window[places] + 1) % 4
    seen = []
    for windows in (hidden.windows, changed):
        inputs = []

        class Spy(Uniform):
            def forward(self, input_ids, inputs=inputs, **others):
                inputs.append((input_ids.clone(), others["target_positions"].clone()))
                return super().forward(input_ids, **others)

        score(
            Spy(len(codec.vocabulary)), codec, HiddenText(hidden.run, windows, hidden.starts, hidden.records)
        )
        seen.append(inputs)
    assert all(torch.equal(a, b) for x, y in zip(*seen, strict=True) for a, b in zip(x, y, strict=True))


def test_runs_are_aligned_and_never_next_to_one_another():
    hidden = blocks = 0
    for key in range(200):
        rng = np.random.default_rng(key)
        codes = rng.integers(0, 4, rng.integers(6, 590)).astype(np.uint8)
        starts = hide_runs(codes, 6, 4, 0.15, rng)
        blocks += len(codes) // 6 if len(starts) else 0
        hidden += len(starts)
        assert len(starts) or len(codes) < 12
        assert not (starts % 6).any()
        assert all(b - a >= 12 for a, b in itertools.pairwise(starts))
    assert hidden / blocks == pytest.approx(0.15, abs=0.01)


# -- which windows


def test_windows_cover_the_split_and_are_cut_at_the_number_of_letters():
    lengths = np.array([3, 130, 0, 64, 257])
    every = bits._sample(lengths, 64, 10_000)
    assert every.tolist() == [
        [record, first, min(64, length - first)]
        for record, length in enumerate(lengths.tolist())
        for first in range(0, length, 64)
    ]
    for letters in (64, 100, 200, 453):
        some = bits._sample(lengths, 64, letters)
        assert letters - 64 < some[:, 2].sum() <= letters
        assert {tuple(row) for row in some.tolist()} <= {tuple(row) for row in every.tolist()}
        assert some.tolist() == bits._sample(lengths, 64, letters).tolist()


def test_windows_are_from_all_over_the_split():
    some = bits._sample(np.array([100_000]), 100, 5000)
    assert np.histogram(some[:, 1], 5, (0, 100_000))[0].min() >= 4


def test_soft_masked_letters_are_known():
    track = ONE.track(ONE.codes("ACGTACGTACGT" * 5))
    split = split_of([track, track])
    assert hidden_text(split, ONE, 24, 1000).soft_masked is None
    object.__setattr__(split, "soft_mask", SoftMask(np.array([2, 9, 30, 60, 0, 60]), np.array([0, 4, 6])))
    hidden = hidden_text(split, ONE, 24, 1000)
    first = np.array([0, 24, 48] * 2)  # windows of 24, 24 and 12 letters
    place = np.concatenate([p + f for p, f in zip(hidden.places, first, strict=True)])
    soft = (hidden.records[hidden.window_of] == 1) | ((place >= 2) & (place < 9)) | (place >= 30)
    assert hidden.soft_masked.tolist() == soft.tolist()
    assert 0 < soft.sum() < len(soft)


# -- means and errors


def test_the_error_is_that_over_windows():
    rng = np.random.default_rng(0)
    letters = rng.integers(1, 9, 40)
    window = np.repeat(np.arange(40), letters)
    found = Bits(
        rng.normal(2, 0.1, letters.sum()) + rng.normal(0, 1, 40)[window], np.ones(len(window), int), window
    )
    assert found.per_letter == pytest.approx(found.bits.mean())
    without = np.array([found.where(window != w).per_letter for w in range(40)])
    jackknife = (39 / 40 * ((without - without.mean()) ** 2).sum()) ** 0.5
    assert found.standard_error == pytest.approx(jackknife, rel=0.05)
    assert found.standard_error > 1.5 * found.bits.std() / len(window) ** 0.5
    few = found.where(window == 3)
    assert few.total == letters[3]
    assert math.isnan(few.standard_error)
    assert math.isnan(found.where(window < 0).per_letter)


def test_an_entry_counts_as_many_letters_as_it_covers():
    assert Bits(np.array([3.0, 5.0]), np.array([1, 3]), np.array([0, 1])).per_letter == 2
