from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec, codec_of
from pipeline.tokens.vocabulary import load_tokenizer
from pipeline.tokens.windows import Context, stitch, window_bounds

NAMES = ["dna-1mer", "dna-3mer-overlap", "dna-6mer-overlap", "dna-6mer", "codons", "dna-bpe", "protein"]
SCHEMES = [("dna", 1, False), ("dna", 3, True), ("dna", 6, True), ("dna", 6, False), ("dna", 3, False, True)]
DNA = st.text("ACGT", min_size=1, max_size=150)
DNA_WITH_N = st.lists(st.sampled_from(["ACGTTGCA", "C", "N", "NNN", "GATTACA"]), min_size=1, max_size=40).map(
    "".join
)


def letters(tokens, first, stop):
    """Return the set of places that tokens cover."""
    pairs = zip(tokens.starts[first:stop], tokens.spans[first:stop], strict=True)
    return {place for start, span in pairs for place in range(start, start + span)}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SCHEMES), DNA | DNA_WITH_N, st.integers(1, 40), st.integers(0, 39))
def test_windows_cover_all_and_share_enough_and_are_few(scheme, sequence, size, overlap):
    codec = KmerCodec(*scheme)
    tokens = codec.tokens(codec.codes(sequence))
    size, overlap = min(size, len(tokens.ids)), min(overlap, size - 1, len(tokens.ids) - 1)
    bounds = window_bounds(tokens, size, overlap).tolist()
    assert bounds[0][0] == 0
    assert bounds[-1][1] == len(tokens.ids)
    assert {stop - first for first, stop in bounds} == {size}
    for (first, stop), (following, after) in pairwise(bounds):
        assert first < following <= stop
        shared = letters(tokens, first, stop) & letters(tokens, following, after)
        assert len(shared) >= overlap
        if after < len(tokens.ids) and following < stop:  # one token further on would be too far
            assert tokens.starts[following + 1] > tokens.starts[stop - 1] + tokens.spans[stop - 1] - overlap


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([3, 6]), st.sampled_from([True, False]), DNA, st.integers(1, 20), st.integers(0, 19))
def test_a_window_is_what_its_letters_alone_are(k, overlapping, sequence, size, overlap):
    codec = KmerCodec("dna", k, overlapping)
    context = Context(codec, size, "window", min(overlap, size - 1))
    reading = context.read("a", sequence)
    for (first, stop), ids in zip(reading.bounds, reading.windows, strict=True):
        covered = letters(reading.tokens, first, stop)
        part = sequence[min(covered) : max(covered) + 1]
        assert codec.tokens(codec.codes(part)).ids.tolist() == ids.tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [5, 11])
def test_the_beginning_is_what_the_tokenizer_leaves(tokenizer_folder, name, size):
    folder, rng = tokenizer_folder(name), np.random.default_rng(size)
    codec, tokenizer = codec_of(folder), load_tokenizer(folder)
    alphabet = "ACDEFGHIKLMNPQRSTVWYX" if codec.alphabet == "protein" else "ACGTACGTACGTN"
    for _ in range(10):
        sequence = "".join(rng.choice(list(alphabet), 150))
        context = Context(codec, size, "truncate")
        (ids,) = context.read("a", sequence).windows
        expected = tokenizer(sequence, truncation=True, max_length=size + 2)["input_ids"]
        assert ids.tolist() == expected[1:-1]
        assert context.counts(1) == {"read": 1, "truncated": 1}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 19))
def test_a_token_comes_from_the_window_where_it_is_farthest_from_an_edge(length, size, overlap):
    codec, size = KmerCodec("dna", 1, False), min(size, length)
    tokens = codec.tokens(codec.codes("A" * length))
    bounds = window_bounds(tokens, size, min(overlap, size - 1))
    states = [np.array([[window, token] for token in range(*b)]) for window, b in enumerate(bounds)]
    stitched = stitch(states, bounds)
    for token in range(length):
        edge = [min(token - first, stop - 1 - token) for first, stop in bounds]
        assert stitched[token].tolist() == [int(np.argmax(edge)), token]


def test_a_stated_example():
    """3-mers, 4 tokens: 6 letters a window, of which 3 are shared, except at the end."""
    codec = KmerCodec("dna", 3, True)
    context = Context(codec, 4, "window", 3)
    reading = context.read("a", "ACGTACGTAC")
    assert reading.bounds.tolist() == [[0, 4], [3, 7], [4, 8]]
    assert reading.note == "windowed: 10 letters in 3 windows"
    states = [np.full((4, 1), window) for window in range(3)]
    assert stitch(states, reading.bounds)[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


def test_overlapping_kmers_across_the_edges_of_windows_are_read():
    """Windows that need not overlap still share k - 1 letters: else some tokens would be in no window."""
    codec = KmerCodec("dna", 6, True)
    bounds = Context(codec, 4, "window", 0).read("a", "ACGTACGTACGTACGTA").bounds
    assert bounds.tolist() == [[0, 4], [4, 8], [8, 12]]


def test_what_becomes_of_long_records_is_counted_and_noted(capsys):
    codec = KmerCodec("dna", 3, True)
    expected: dict[Any, str] = {
        "skip": "skipped: only 12 of 13 letters fit",
        "truncate": "truncated: the first 12 of 13 letters",
    }
    for what, note in expected.items():
        context = Context(codec, 10, what)
        assert [context.read("fits", "A" * 12).note, context.read("long", "A" * 13).note] == ["", note]
        reason = note.partition(":")[0]
        assert context.counts(2) == {"read": 2, reason: 1}
        assert context.summary() == f", 1 {reason}"
        assert f"record 'long': {note}\n" in capsys.readouterr().err
    skipped = Context(codec, 10, "skip")
    skipped.read("long", "A" * 13)
    with pytest.raises(UserError, match=r"^every record \(1\) is longer than the .* pass --long"):
        skipped.counts(1)


def test_windows_that_would_not_move_on_are_refused():
    codec = KmerCodec("dna", 6, False)
    message = r"^overlap: 10: windows may have as few as 10 letters; give fewer$"
    with pytest.raises(UserError, match=message):
        Context(codec, 10, "window", 10)
    Context(codec, 10, "window", 9)
    Context(codec, 10, "truncate", 10)


def test_what_fits_is_told_in_letters_that_are_covered():
    """Before an N, 3-mers give way to letters that the 3-mer before has covered: ACG, C, G, N, ACG."""
    context = Context(KmerCodec("dna", 3, True), 2)
    with pytest.raises(
        UserError, match=r"^record 'a': 7 letters are 5 tokens, .* 2 \(the first 3 letters fit"
    ):
        context.check([("a", "ACGNACG")])
