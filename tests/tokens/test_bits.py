import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.tokens.bits import HiddenText, bits_per_letter, hidden_text, hide_runs
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import TokenSplit

CODECS = [KmerCodec("dna", *scheme) for scheme in ((1, False), (3, True), (3, False), (6, True), (6, False))]


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


def text(codec, *windows):
    """Windows written with hidden letters in lower case."""
    codes = [codec.codes(w.upper()) for w in windows]
    return HiddenText(codes, [np.array([c.islower() for c in w]) for w in windows])


def test_overlapping_kmers_by_hand():
    codec = KmerCodec("dna", 2, True)
    # ACgTa: tokens AC Cg gT Ta, of which the last three touch something hidden.
    model = Chosen(
        codec,
        {
            6: {
                # g is read off the token that begins with it: G. 0.3, G alone 0.1; A 0.4; N does not count
                3: {"GA": 0.1, "GT": 0.2, "G": 0.1, "AC": 0.4, "N": 0.1, "<unk>": 0.1},
                # the last a is covered by no token that begins with it: second letter of Ta
                4: {"TA": 0.25, "CA": 0.25, "TT": 0.5},
            }
        },
    )
    bits = bits_per_letter(model, codec, text(codec, "ACgTa"))
    assert model.shown == [["<cls>", "AC", "<mask>", "<mask>", "<mask>", "<eos>"]]
    np.testing.assert_allclose(bits, [-math.log2(0.4 / 0.8), 1.0], rtol=1e-6)


def test_non_overlapping_kmers_by_hand():
    codec = KmerCodec("dna", 3, False)
    # ACg TTT NCa: tokens ACg | TTT | N | C | a
    beliefs = {1: {"ACG": 0.5, "TTG": 0.125, "CCC": 0.375}, 5: {"A": 0.2, "AAA": 0.05, "C": 0.75}}
    model = Chosen(codec, {7: beliefs})
    bits = bits_per_letter(model, codec, text(codec, "ACgTTTNCa"))
    assert model.shown == [["<cls>", "<mask>", "TTT", "N", "C", "<mask>", "<eos>"]]
    np.testing.assert_allclose(bits, [-math.log2(0.625), 2.0], rtol=1e-6)


def test_single_letters_by_hand_in_windows_of_several_lengths():
    codec = KmerCodec("dna", 1, False)
    model = Chosen(codec, {7: {2: {"C": 0.5, "G": 0.5}, 5: {"A": 0.125, "T": 0.875}}, 4: {1: {"T": 1.0}}})
    both = text(codec, "AcGTa", "tG")
    for budget in (1, 10_000):  # one window at a time, and padded together
        np.testing.assert_allclose(bits_per_letter(model, codec, both, budget), [1.0, 3.0, 0.0], atol=1e-6)
        assert sorted(model.shown[-2:], key=len) == [
            ["<cls>", "<mask>", "G", "<eos>"],
            ["<cls>", "A", "<mask>", "G", "T", "<mask>", "<eos>"],
        ]
    assert both.truth.tolist() == codec.codes("CAT").tolist()


def split_of(codec, records):
    tracks = [codec.track(codec.codes(letters)) for letters in records]
    offsets = np.concatenate(([0], np.cumsum([len(t) for t in tracks])))
    return TokenSplit(
        np.concatenate(tracks), offsets, [str(i) for i in range(len(tracks))], np.zeros(len(tracks))
    )


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(3)
    letters = ["".join(rng.choice(list("ACGTN"), n, p=[0.24] * 4 + [0.04])) for n in (3, 130, 64, 257)]
    return [*letters, "N" * 40]


@pytest.mark.parametrize("codec", [*CODECS, KmerCodec("protein", 1, False)], ids=str)
def test_an_undecided_network_scores_the_logarithm_of_the_alphabet(codec, records):
    split = split_of(codec, [r.replace("N", "N" if codec.alphabet == "dna" else "X") for r in records])
    hidden = hidden_text(split, codec, 64, 10_000)
    bits = bits_per_letter(Uniform(len(codec.vocabulary)), codec, hidden)
    assert len(bits) == len(hidden.truth) > 20
    np.testing.assert_allclose(bits, math.log2(codec.n_real), rtol=1e-6)


def test_the_hidden_text_is_the_same_for_all_tokenizers(records):
    texts = [hidden_text(split_of(codec, records), codec, 64, 10_000) for codec in CODECS]
    for other in texts[1:]:
        for ours, theirs in zip(
            (texts[0].windows, texts[0].hidden), (other.windows, other.hidden), strict=True
        ):
            assert len(ours) == len(theirs)
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not any(
        hidden[codes == 4].any() for codes, hidden in zip(texts[0].windows, texts[0].hidden, strict=True)
    )


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_nothing_hidden_is_shown(codec, records):
    """Other letters in the hidden places give the network the same input."""
    hidden = hidden_text(split_of(codec, records), codec, 64, 10_000)
    changed = [
        np.where(h, (w + 1) % 4, w).astype(np.uint8)
        for w, h in zip(hidden.windows, hidden.hidden, strict=True)
    ]
    seen = []
    for windows in (hidden.windows, changed):
        inputs = []

        class Spy(Uniform):
            def forward(self, input_ids, inputs=inputs, **others):
                inputs.append((input_ids.clone(), others["target_positions"].clone()))
                return super().forward(input_ids, **others)

        bits_per_letter(Spy(len(codec.vocabulary)), codec, HiddenText(windows, hidden.hidden))
        seen.append(inputs)
    assert all(torch.equal(a, b) for x, y in zip(*seen, strict=True) for a, b in zip(x, y, strict=True))


def test_runs_are_aligned_and_never_next_to_one_another():
    for key in range(200):
        rng = np.random.default_rng(key)
        codes = rng.integers(0, 4, rng.integers(1, 90)).astype(np.uint8)
        hidden = hide_runs(codes, 6, 4, 0.15, rng)
        blocks = [hidden[i : i + 6] for i in range(0, len(codes), 6)]
        whole = [block.all() for block in blocks]
        assert hidden.any()
        assert all(block.all() or not block.any() for block in blocks)
        assert not any(a and b for a, b in itertools.pairwise(whole))


def test_the_set_is_cut_at_the_number_of_letters_asked_for(records):
    codec = CODECS[0]
    hidden = hidden_text(split_of(codec, records), codec, 64, 100)
    assert [len(window) for window in hidden.windows] == [3, 64, 64]
