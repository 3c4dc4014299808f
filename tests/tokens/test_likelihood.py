"""Pseudo-log-likelihoods and masked marginals against a slow definition: one place in one pass."""

import math
from functools import cached_property

import numpy as np
import pytest
import torch

from pipeline.tokens.kmers import codec_of
from pipeline.tokens.likelihood import Marginals, pseudo_log_likelihoods, text_likelihoods
from pipeline.tokens.vocabulary import load_tokenizer
from pipeline.tokens.windows import Context

NAMES = ["dna-1mer", "dna-3mer-overlap", "dna-6mer-overlap", "dna-6mer", "codons", "dna-bpe", "protein"]
DNA = ["ACGTTGCATTGACCATGATTACAGAT", "TTGNCATAGNNACGTAGCAT", "AC", "G", "NNN"]
PROTEINS = ["MKVLAAGIRSTWWYCDEFHNPQ", "MKXLAZAG", "W"]
SIZE = 100


class Slow:
    """The definition, with the Hugging Face tokenizer's tokens as text."""

    def __init__(self, folder, model):
        self.tokenizer, self.model = load_tokenizer(folder), model
        self.kind = folder.name
        self.letters = "ACDEFGHIKLMNPQRSTVWY" if self.kind == "protein" else "ACGT"
        self.overlaps = "overlap" in self.kind
        self.single = self.overlaps or "1mer" in self.kind or self.kind == "protein"
        self.k = {"dna-1mer": 1, "protein": 1, "codons": 3, "dna-3mer-overlap": 3}.get(self.kind, 6)
        self.vocabulary = self.tokenizer.get_vocab()

    def tokens(self, text):
        """Return [(token, start)]."""
        tokens = self.tokenizer.tokenize(text)
        ends = np.cumsum([len(token) for token in tokens]).tolist()
        starts = range(len(tokens)) if self.overlaps else [0, *ends[:-1]]
        return list(zip(tokens, starts, strict=True))

    def probabilities(self, tokens, places):
        """Return {index: (V,) probabilities} of the tokens that touch a place, all of them hidden at once."""
        hidden = [i for i, (t, s) in enumerate(tokens) if any(s <= p < s + len(t) for p in places)]
        ids = [
            self.tokenizer.mask_token_id if i in hidden else self.vocabulary[t]
            for i, (t, _) in enumerate(tokens)
        ]
        ids = [self.tokenizer.cls_token_id, *ids, self.tokenizer.eos_token_id]
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0, 1:-1].double()
        return {i: logits[i].softmax(-1) for i in hidden}

    def real(self, token):
        return not token.startswith("<") and set(token) <= set(self.letters)

    @cached_property
    def having(self):
        """Return {(offset, letter): ids of the tokens that have it there}, "" for any real letter."""
        found = {}
        for token, i in self.vocabulary.items():
            for offset, letter in enumerate(token if token[0] != "<" else ""):
                for key in (letter, "") if letter in self.letters else ():
                    found.setdefault((offset, key), []).append(i)
        return found

    @cached_property
    def real_ids(self):
        """Return the ids of the tokens that stretches of real letters consist of."""
        fits = [t for t in self.vocabulary if self.real(t) and (self.kind == "dna-bpe" or len(t) == self.k)]
        return [self.vocabulary[t] for t in fits]

    def letter(self, probability_V, offset, letter):
        """Return the log-probability of a letter at an offset, summed over the tokens that have it there."""
        one, any_of_them = (probability_V[self.having[offset, key]].sum() for key in (letter, ""))
        return math.log(one / any_of_them)

    def token(self, probability_V, token):
        """Return the log-probability of a token among those of real letters."""
        return math.log(probability_V[self.vocabulary[token]] / probability_V[self.real_ids].sum())

    def at(self, tokens, text, place):
        """Return the log-probability of a letter hidden alone."""
        index = max(i for i, (_, s) in enumerate(tokens) if s <= place)
        found = self.probabilities(tokens, [place])[index]
        return self.letter(found, place - tokens[index][1], text[place])

    def whole(self, tokens, index):
        """Return the log-probability of a token hidden as a whole."""
        token, start = tokens[index]
        found = self.probabilities(tokens, [start])[index]
        alone = len(token) == 1 and self.kind != "dna-bpe"
        return self.letter(found, 0, token) if alone else self.token(found, token)

    def likelihood(self, text):
        """Return the sum and the number of letters in it."""
        tokens = self.tokens(text)
        if self.single:
            places = [p for p, letter in enumerate(text) if letter in self.letters]
            return sum(self.at(tokens, text, p) for p in places), len(places)
        real = [i for i, (token, _) in enumerate(tokens) if self.real(token)]
        return sum(self.whole(tokens, i) for i in real), sum(len(tokens[i][0]) for i in real)


@pytest.fixture
def pair(tokenizer_folder, tiny_model):
    """The codec of a tokenizer, a tiny model with its vocabulary, and the definition."""

    def build(name, **changes):
        codec = codec_of(tokenizer_folder(name))
        model = tiny_model(
            vocab_size=len(codec.vocabulary),
            pad_token_id=codec.special("pad"),
            num_hidden_layers=1,
            **changes,
        )
        return codec, model, Slow(tokenizer_folder(name), model)

    return build


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [30, 5000])
def test_it_is_the_sum_over_letters_hidden_one_by_one(pair, name, budget):
    codec, model, slow = pair(name)
    texts = PROTEINS if name == "protein" else DNA
    found = text_likelihoods(model, codec, texts, SIZE, budget)
    for text in texts if budget > 30 else texts[:2]:
        nats, scored = slow.likelihood(text)
        assert found[text].nats == pytest.approx(nats, rel=2e-5, abs=1e-5)
        assert (found[text].scored, found[text].not_scored) == (scored, len(text) - scored)
        if scored:
            assert found[text].bits_per_letter == pytest.approx(-nats / math.log(2) / scored, rel=2e-5)
        else:
            assert math.isnan(found[text].bits_per_letter)


def test_texts_that_do_not_fit_have_none(pair):
    codec, model, _ = pair("dna-1mer")
    assert list(text_likelihoods(model, codec, ["ACGT", "ACGTA"], 4, 100)) == ["ACGT"]


@pytest.mark.parametrize(("name", "size"), [("dna-1mer", 10), ("dna-3mer-overlap", 11), ("codons", 6)])
def test_a_letter_of_a_long_text_is_hidden_in_the_window_where_it_is_farthest_from_an_edge(pair, name, size):
    codec, model, slow = pair(name)
    text = ("ACGTTGCATTGACCATGATTACAGATTTGCCATA" * 2)[:62]
    text = text if name != "codons" else text[:20] + "N" + text[21:]
    reading = Context(codec, size, "window", 4).read("r", text)
    assert len(reading.bounds) > 3
    tokens, expected = slow.tokens(text), []
    for index, (token, start) in enumerate(tokens):
        inside = [
            (min(index - a, b - 1 - index), -w) for w, (a, b) in enumerate(reading.bounds) if a <= index < b
        ]
        first, stop = reading.bounds[-max(inside)[1]]
        shown, own = tokens[first:stop], index - first
        if slow.single:
            last = len(tokens) - 1 == index
            places = range(start, start + len(token) if last else start + 1)
            expected += [slow.at(shown, text, place) for place in places]
        elif slow.real(token):
            expected.append(slow.whole(shown, own))
    [found] = pseudo_log_likelihoods(model, codec, [(reading, codec.codes(text))], 500)
    assert found.nats == pytest.approx(sum(expected), rel=2e-5)
    assert found.scored == 62 - text.count("N")


def test_what_is_cut_off_is_not_scored(pair):
    codec, model, slow = pair("dna-3mer-overlap")
    text = DNA[0]
    reading = Context(codec, 8, "truncate").read("r", text)
    [found] = pseudo_log_likelihoods(model, codec, [(reading, codec.codes(text))], 500)
    nats, _ = slow.likelihood(text[:10])
    assert found.nats == pytest.approx(nats, rel=2e-5)
    assert (found.scored, found.not_scored) == (10, 16)


@pytest.mark.parametrize(("name", "joined"), [("dna-1mer", 0), ("dna-6mer", 0), ("dna-3mer-overlap", 4)])
def test_letters_that_overlapping_kmers_cannot_hide_alone_are_counted(pair, name, joined):
    """Letters 2 and 3 hide letter 1, which one token alone shows, and so at the end."""
    codec, model, _ = pair(name)
    assert text_likelihoods(model, codec, [DNA[0]], SIZE, 500)[DNA[0]].joined == joined


# -- masked marginals


def changed(text, **letters):
    """Return the text with other letters at places named p1, p2... (from 1)."""
    new = list(text)
    for place, letter in letters.items():
        new[int(place[1:]) - 1] = letter
    return "".join(new)


def slow_marginal(slow, old, new, window=None):
    """Return the log-ratio: of letters, or of the k-mers that they lie in."""
    places = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    tokens = slow.tokens(old)[slice(*(window or (None, None)))]
    found = slow.probabilities(tokens, places)
    total = 0.0
    if slow.single:
        for place in places:
            index = max(i for i, (_, s) in enumerate(tokens) if s <= place)
            offset = place - tokens[index][1]
            total += slow.letter(found[index], offset, new[place]) - slow.letter(
                found[index], offset, old[place]
            )
        return total
    for index, probability_V in found.items():
        token, start = tokens[index]
        other = new[start : start + len(token)]
        one = len(token) == 1
        terms = [
            slow.letter(probability_V, 0, t) if one else slow.token(probability_V, t) for t in (other, token)
        ]
        total += terms[0] - terms[1]
    return total


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dna-bpe"])
def test_marginals_hide_all_places_that_change_at_once(pair, name):
    codec, model, slow = pair(name)
    old = "MKVLAGIRSXTWWYCDEFHNPQ" if name == "protein" else "ACGTTGCATTGACNCATGATTACAGA"
    news = [changed(old, p5="C"), changed(old, p5="A" if name != "protein" else "G"), changed(old, p1="T")]
    news += [changed(old, p5="C", p6="C"), changed(old, p3="A", p17="C"), changed(old, p22="C")]
    marginals = Marginals(codec, SIZE)
    keys = [marginals.add(old, new) for new in news]
    answers = marginals.answers(model, 5000)
    for key, new in zip(keys, news, strict=True):
        assert answers[key] == pytest.approx(slow_marginal(slow, old, new), abs=5e-5), new
    assert len({round(answers[key], 4) for key in keys}) > 4


def test_a_place_is_shown_once_for_all_its_letters(pair):
    codec, model, _ = pair("protein")
    rows = []
    model.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    marginals = Marginals(codec, SIZE)
    for letter in "ACDEFGHIKLMNPQRSTWY":
        marginals.add("MKVL", f"MK{letter}L")
        marginals.add("MKVL", f"M{letter}VL") if letter != "K" else None
    assert len(marginals.answers(model, 1000)) == 19 + 18 + 2  # and both as they are
    assert sum(rows) == 2


@pytest.mark.parametrize(("place", "window"), [(0, (0, 8)), (3, (0, 8)), (13, (9, 17)), (25, (18, 26))])
def test_of_a_long_text_the_model_sees_what_is_around(pair, place, window):
    codec, model, slow = pair("dna-1mer")
    old = DNA[0]
    new = changed(old, **{f"p{place + 1}": "C" if old[place] != "C" else "A"})
    marginals = Marginals(codec, 8)
    key = marginals.add(old, new)
    assert marginals.answers(model, 500)[key] == pytest.approx(
        slow_marginal(slow, old, new, window), abs=5e-5
    )


def test_places_too_far_apart_are_refused(pair):
    codec, _, _ = pair("dna-1mer")
    marginals = Marginals(codec, 8)
    assert marginals.add(DNA[0], changed(DNA[0], p2="A", p9="C"))
    assert marginals.add(DNA[0], changed(DNA[0], p2="A", p10="G")) is None
