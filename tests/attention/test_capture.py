import numpy as np
import pytest
import torch

from pipeline.attention import capture
from pipeline.attention.capture import received_attention, spread_to_letters
from pipeline.attention.words import high_regions
from pipeline.model import StrandForMaskedLM, StrandForSequenceClassification
from pipeline.tokens.kmers import KmerCodec, Tokens
from pipeline.training.classifier import encode, pad

CODECS = [KmerCodec("dna", 3, True), KmerCodec("dna", 6, True), KmerCodec("dna", 6, False)]
CODECS += [KmerCodec("dna", 1, False)]


def random_dna(length, seed, share_n=0.0):
    rng = np.random.default_rng(seed)
    letters = rng.choice(list("ACGT"), length)
    letters[rng.random(length) < share_n] = "N"
    return "".join(letters)


# -- the attention that a token gets


@pytest.fixture
def batch():
    """Three sequences of different lengths, padded."""
    codec = KmerCodec("dna", 3, True)
    return pad([encode(random_dna(n, seed=n), codec) for n in (9, 23, 14)], codec)


@pytest.mark.parametrize("kind", [StrandForMaskedLM, StrandForSequenceClassification])
@pytest.mark.parametrize("queries", ["cls", "all"])
@pytest.mark.parametrize("block", [1, 4, 128])
def test_it_is_what_the_eager_kernel_gives(tiny_model, batch, kind, queries, block, monkeypatch):
    monkeypatch.setattr(capture, "BLOCK", block)
    model = tiny_model(kind, vocab_size=74)
    received = received_attention(model, batch, queries)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    assert received.shape == (2, 3, 2, batch["input_ids"].shape[1])
    assert received.dtype == np.float32
    for layer, map_BHLL in enumerate(maps):
        for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            asked = map_BHLL[row, :, :1] if queries == "cls" else map_BHLL[row, :, :length]
            expected = asked.double().mean(1).numpy()
            assert received[layer, row] == pytest.approx(expected, abs=1e-6)
            assert received[layer, row].sum(-1) == pytest.approx(1, abs=1e-5)
            assert not received[layer, row, :, length:].any(), "padding was attended to"


@pytest.mark.parametrize("queries", ["cls", "all"])
def test_it_does_not_depend_on_the_batch(tiny_model, batch, queries):
    model = tiny_model(vocab_size=74)
    together = received_attention(model, batch, queries)
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        expected = received_attention(model, alone, queries)[:, 0]
        assert together[:, row, :, :length] == pytest.approx(expected, abs=1e-6)


def test_the_model_is_left_as_it_was(tiny_model, batch):
    model = tiny_model(vocab_size=74)
    with torch.no_grad():
        before = model(**batch).logits
    kernel = model.config._attn_implementation
    received_attention(model, batch, "cls")
    with pytest.raises(IndexError):
        received_attention(model, {**batch, "input_ids": batch["input_ids"] + 100}, "all")
    assert model.config._attn_implementation == model.model.config._attn_implementation == kernel
    assert capture._Request.received is None
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, before)


# -- from tokens to letters


def slow_spread(scores, tokens, length):
    """Ask of every letter which tokens cover it."""
    letters = []
    for place in range(length):
        over = [s for s, a, n in zip(scores, tokens.starts, tokens.spans, strict=True) if a <= place < a + n]
        letters.append(float(np.mean(over, dtype=float)) if over else np.nan)
    return letters


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(("length", "share_n"), [(1, 0), (4, 0), (6, 0), (41, 0), (40, 0.1), (43, 0.5)])
def test_letters_get_the_mean_of_the_tokens_over_them(codec, length, share_n):
    sequence = random_dna(length, seed=length, share_n=share_n)
    tokens = codec.tokens(codec.codes(sequence))
    scores = np.random.default_rng(1).random(len(tokens.ids)).astype(np.float32)
    letters = spread_to_letters(scores, tokens, length)
    assert len(letters) == len(sequence)
    assert np.isfinite(letters).all(), "every letter is in some token"
    assert letters == pytest.approx(np.array(slow_spread(scores, tokens, length)), abs=1e-12)


def test_letters_that_no_token_covers_have_no_score():
    tokens = Tokens(np.zeros(2, int), np.array([1, 5]), np.array([3, 2]))
    letters = spread_to_letters(np.array([0.25, 0.5]), tokens, 8)
    assert letters.tolist()[1:4] + letters.tolist()[5:7] == [0.25] * 3 + [0.5] * 2
    assert np.flatnonzero(np.isnan(letters)).tolist() == [0, 4, 7]


@pytest.mark.parametrize(
    ("codec", "sequence", "attended"),
    [
        (KmerCodec("dna", 3, True), random_dna(40, 2), [20, 21, 22, 23]),
        (KmerCodec("dna", 6, True), random_dna(40, 2), [20]),
        (KmerCodec("dna", 6, False), "NN" + random_dna(38, 2), [20]),
        (KmerCodec("dna", 1, False), random_dna(40, 2), [20, 21, 22, 23, 24, 25]),
    ],
    ids=str,
)
def test_attention_on_a_word_is_reported_at_its_bases(codec, sequence, attended):
    """Attention lies on the tokens wholly inside bases 20 to 25 (from 0), and on no others."""
    tokens = codec.tokens(codec.codes(sequence))
    inside = np.isin(tokens.starts, attended)
    assert inside.sum() == len(attended)
    letters = spread_to_letters(inside / inside.sum(), tokens, len(sequence))
    assert np.flatnonzero(letters > 1e-9).tolist() == [20, 21, 22, 23, 24, 25]
    assert high_regions(letters, 6) == [(20, 26)]
