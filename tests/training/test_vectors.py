import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tokens.kmers import KmerCodec, Tokens
from pipeline.tokens.windows import Reading, window_bounds
from pipeline.training.vectors import (
    Encoder,
    batches_of,
    letters_read,
    pieces_of,
    rows_of,
    vectors_of,
)

WIDTH = 3


def reading_of(codec, text, size, overlap):
    tokens = codec.tokens(codec.codes(text))
    whole = np.array([[0, len(tokens.ids)]])
    return Reading("a", tokens, whole if len(tokens.ids) <= size else window_bounds(tokens, size, overlap))


def slow(reading, states):
    """Return the vector of every letter: for each window the mean over its tokens there, then over these."""
    found = [[] for _ in range(letters_read(reading))]
    for window, (first, stop) in zip(states, reading.bounds, strict=True):
        covering = [[] for _ in found]
        for token, state in zip(range(first, stop), window, strict=True):
            begin = reading.tokens.starts[token]
            for letter in range(begin, begin + reading.tokens.spans[token]):
                covering[letter].append(state)
        for letter, there in enumerate(covering):
            if there:
                found[letter].append(np.mean(there, 0))
    return np.array([np.mean(each, 0) for each in found])


CODECS = [
    KmerCodec("dna", 3, True),
    KmerCodec("dna", 3, False),
    KmerCodec("dna", 3, False, codons=True),
    KmerCodec("dna", 1, False),
]


@given(
    codec=st.sampled_from(CODECS),
    text=st.text("ACGTN", min_size=1, max_size=60),
    size=st.integers(6, 20),
    overlap=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_letters_and_means_are_those_of_a_slow_definition(codec, text, size, overlap, seed):
    reading, rng = reading_of(codec, text, size, overlap), np.random.default_rng(seed)
    states = [rng.normal(size=(stop - first, WIDTH)).astype(np.float32) for first, stop in reading.bounds]
    expected = slow(reading, states)
    assert len(expected) == letters_read(reading) == len(text)
    letters, mean, share = np.zeros_like(expected), np.zeros(WIDTH), 0.0
    for piece, window in zip(pieces_of(reading, 0), states, strict=True):
        letters[piece.begin : piece.begin + len(piece.share)] += piece.spread(window)
        weights = piece.weights("mean")
        assert weights[0] == weights[-1] == 0
        mean += weights[1:-1] @ window / len(text)
        share += piece.weights("cls")[0] / len(text)
        assert not piece.weights("cls")[1:].any()
    assert letters == pytest.approx(expected, abs=1e-5)
    assert mean == pytest.approx(expected.mean(0), abs=1e-5)
    assert share == pytest.approx(1, abs=1e-5)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 120))
def test_batches_hold_everything_once_and_keep_to_the_budget(sizes, budget):
    batches = batches_of(sizes, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= budget
    longest = [max(sizes[i] for i in batch) for batch in batches]
    assert longest == sorted(longest)


def test_skipped_records_have_no_vectors():
    skipped = Reading("a", Tokens(*(np.arange(3),) * 3), np.empty((0, 2), int))
    whole = reading_of(CODECS[0], "ACGTACG", 20, 0)
    assert rows_of([whole, skipped], "per_letter").tolist() == [7, 0]
    assert rows_of([whole, skipped], "mean").tolist() == [1, 0]


@pytest.fixture
def encoder(tiny_model):
    from pipeline.model import StrandModel

    def build(budget=64, packs=True, **changes):
        encoder = Encoder(tiny_model(StrandModel, vocab_size=80, **changes), CODECS[0], [-1, 0, 1], budget)
        if not packs:
            encoder.packs = False
            encoder.model.set_attn_implementation("sdpa")
        return encoder

    return build


READINGS = [
    reading_of(CODECS[0], "".join(np.random.default_rng(n).choice(list("ACGT"), n)), 12, 4)
    for n in (5, 30, 14, 5, 9)
]


@pytest.mark.parametrize("pooling", ["mean", "cls", "per_letter"])
@pytest.mark.parametrize("changes", [{}, {"sliding_window": 2, "token_dropout": True, "mask_token_id": 4}])
def test_packed_and_padded_batches_agree(encoder, pooling, changes):
    packed = vectors_of(encoder(**changes), READINGS, pooling)
    padded = vectors_of(encoder(packs=False, **changes), READINGS, pooling)
    assert packed.shape == (3, rows_of(READINGS, pooling).sum(), 32)
    assert packed == pytest.approx(padded, abs=1e-5)


def test_no_more_tokens_are_read_at_once_than_there_is_room_for(encoder, monkeypatch):
    one, seen = encoder(budget=30), []
    forward = one.model.forward
    monkeypatch.setattr(one.model, "forward", lambda **x: seen.append(x) or forward(**x))
    vectors_of(one, READINGS, "mean")
    assert max(x["input_ids"].shape[1] for x in seen) <= 30
    assert all(x["input_ids"].shape[0] == 1 and "attention_mask" not in x for x in seen)
    assert len(seen) > 2


def test_hooks_are_gone_afterwards(encoder):
    one = encoder()
    vectors_of(one, READINGS, "mean")
    assert not any(layer._forward_pre_hooks for layer in one.model.layers)
