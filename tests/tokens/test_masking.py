import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.masking import IGNORED, generator, mask_window, place_runs

SCHEMES = [(1, True), (1, False), (3, True), (3, False), (6, True), (6, False)]
PURE = {
    "mask": MaskingConfig(replace=0, keep=0),
    "replace": MaskingConfig(replace=1, keep=0),
    "keep": MaskingConfig(replace=0, keep=1),
}


def random_dna(key, length=500, unknown=0.0):
    rng = np.random.default_rng(key)
    return np.where(rng.random(length) < unknown, 4, rng.integers(0, 4, length)).astype(np.uint8)


def read_visible(masked, codec, codes):
    """Read the shown tokens alone: for each letter the set of what visible tokens say it is."""
    tokens = codec.tokens(codes)
    names = list(codec.vocabulary)
    said = [set() for _ in codes]
    for token, start, span in zip(masked.ids, tokens.starts, tokens.spans, strict=True):
        if token != codec.special("mask"):
            assert len(names[token]) == span
            for offset, letter in enumerate(names[token]):
                said[start + offset].add(codec.letters.index(letter))
    return said


def stretches(hidden):
    edges = np.flatnonzero(np.diff(np.concatenate(([0], hidden, [0])).astype(int)))
    return edges.reshape(-1, 2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_visible_token_covers_a_masked_base(scheme):
    codec = KmerCodec("dna", *scheme)
    for key in range(40):
        codes = random_dna(key, unknown=0.02)
        masked = mask_window(codes, codec, PURE["mask"], generator(key))
        said = read_visible(masked, codec, codes)
        assert masked.hidden.any()
        for place in range(len(codes)):
            assert not (masked.hidden[place] and said[place]), "a masked base can be read"
            assert said[place] <= {codes[place]}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_visible_tokens_over_a_replaced_run_tell_the_replacement_and_not_the_truth(scheme):
    codec, agree, asked = KmerCodec("dna", *scheme), 0, 0
    for key in range(60):
        codes = random_dna(key)
        masked = mask_window(codes, codec, PURE["replace"], generator(key))
        assert codec.special("mask") not in masked.ids
        said = read_visible(masked, codec, codes)
        assert all(len(letters) == 1 for letters in said), "tokens disagree on a base"
        shown = np.array([letters.pop() for letters in said])
        assert np.array_equal(shown[~masked.hidden], codes[~masked.hidden])
        assert shown.max() < codec.n_real
        agree += int((shown == codes)[masked.hidden].sum())
        asked += int(masked.hidden.sum())
    assert asked > 2000
    assert abs(agree / asked - 1 / 4) < 4 * (3 / 16 / asked) ** 0.5, "the replacement tells the truth"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_kept_runs_show_the_truth_and_are_still_asked_for(scheme):
    codec, codes = KmerCodec("dna", *scheme), random_dna(5)
    masked = mask_window(codes, codec, PURE["keep"], generator(5))
    assert np.array_equal(masked.ids, codec.tokens(codes).ids)
    assert (masked.labels != IGNORED).any()


@pytest.mark.parametrize("k", [3, 6])
def test_one_fate_is_drawn_for_a_whole_run(k):
    """Runs of overlapping k-mers are apart, so each can be told from the others."""
    codec, runs, fates = KmerCodec("dna", k, True), 0, np.zeros(3, int)
    for key in range(150):
        codes = random_dna(key)
        masked = mask_window(codes, codec, MaskingConfig(replace=0.3, keep=0.3), generator(key))
        said = read_visible(masked, codec, codes)
        places = stretches(masked.hidden)
        assert (places[:, 1] - places[:, 0] == k).all()
        assert (places[1:, 0] - places[:-1, 1] >= k).all()
        for start, stop in places:
            seen = {bool(said[place]) for place in range(start, stop)}
            assert len(seen) == 1, "part of a run is masked and part is not"
        runs += len(places)
        fates += masked.runs
    assert runs == fates.sum()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shares_of_hidden_bases_and_of_fates_are_the_configured_ones(scheme):
    codec, masking = KmerCodec("dna", *scheme), MaskingConfig()
    hidden, unreadable, windows = 0, 0, 400
    fates = np.zeros(3, int)
    for key in range(windows):
        codes = random_dna(key)
        masked = mask_window(codes, codec, masking, generator(9, key))
        hidden += masked.hidden.sum()
        fates += masked.runs
        all_masked = mask_window(codes, codec, PURE["mask"], generator(9, key))
        unreadable += sum(not said for said in read_visible(all_masked, codec, codes))
    assert abs(hidden / (500 * windows) - masking.fraction) < 0.01
    assert abs(unreadable / (500 * windows) - masking.fraction) < 0.01
    runs = fates.sum()
    for fate, share in zip(fates, (0.8, 0.1, 0.1), strict=True):
        assert abs(fate / runs - share) < 4 * (share * (1 - share) / runs) ** 0.5


@pytest.mark.parametrize("fraction", [0.05, 0.3])
@pytest.mark.parametrize("run", [1, 4, 12])
def test_fraction_and_run_length_may_be_chosen(fraction, run):
    for scheme in ((1, False), (6, True)):
        codec, masking = KmerCodec("dna", *scheme), MaskingConfig(fraction=fraction, run=run)
        share = np.mean(
            [mask_window(random_dna(i), codec, masking, generator(i)).hidden.mean() for i in range(300)]
        )
        most = run / (run + codec.k)  # overlapping k-mers need k readable bases between two runs
        assert abs(share - min(fraction, most if codec.k > 1 else 1)) < 0.01


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=80, deadline=None)
@given(letters=st.text("ACGTN", min_size=1, max_size=30), key=st.integers(0, 1000))
def test_labels_are_true_tokens_that_touch_a_hidden_base_and_n_is_never_asked_for(scheme, letters, key):
    codec = KmerCodec("dna", *scheme)
    codes = codec.codes(letters)
    truth = codec.tokens(codes)
    masked = mask_window(codes, codec, MaskingConfig(), generator(key))
    for label, true, start, span in zip(masked.labels, truth.ids, truth.starts, truth.spans, strict=True):
        touches = masked.hidden[start : start + span].any()
        assert label == (true if touches else IGNORED)
        assert not (touches and (codes[start : start + span] == 4).any())
    assert not masked.hidden[codes == 4].any()
    assert masked.hidden.any() == (masked.labels != IGNORED).any() == bool(set(letters) & set("ACGT"))
    n_tokens = np.array(
        [(codes[s : s + n] == 4).any() for s, n in zip(truth.starts, truth.spans, strict=True)]
    )
    assert np.array_equal(masked.ids[n_tokens], truth.ids[n_tokens])


def test_proteins_hide_residues_and_replace_them_by_residues():
    codec = KmerCodec("protein", 1, False)
    codes = np.random.default_rng(0).integers(0, len(codec.letters), 20_000).astype(np.uint8)
    masked = mask_window(codes, codec, PURE["replace"], generator(0))
    changed = masked.ids != codec.tokens(codes).ids
    assert not (changed & ~masked.hidden).any()
    assert not masked.hidden[codes >= 20].any()
    assert set(codec.codes_of_track(masked.ids[masked.hidden])) == set(range(20))
    assert abs(masked.hidden[codes < 20].mean() - 0.15) < 0.01


def test_a_mask_is_a_function_of_its_key():
    codec, codes = KmerCodec("dna", 6, True), random_dna(1)
    again = [mask_window(codes, codec, MaskingConfig(), generator(7, 1, 2)) for _ in range(2)]
    other = mask_window(codes, codec, MaskingConfig(), generator(7, 1, 3))
    assert np.array_equal(again[0].ids, again[1].ids)
    assert np.array_equal(again[0].labels, again[1].labels)
    assert not np.array_equal(again[0].ids, other.ids)
    assert generator(1, 23).random() != generator(12, 3).random()
    assert (
        generator(3, 4).integers(0, 1 << 62, 3).tolist() == generator(3, 4).integers(0, 1 << 62, 3).tolist()
    )


@settings(max_examples=200, deadline=None)
@given(
    places=st.integers(1, 60),
    run=st.integers(1, 12),
    gap=st.integers(0, 8),
    fraction=st.floats(0.01, 0.99),
    key=st.integers(0, 99),
)
def test_runs_lie_inside_and_apart(places, run, gap, fraction, key):
    starts = place_runs(places, run, gap, fraction, generator(key))
    assert len(starts) >= 1
    assert starts[0] >= 0
    assert starts[-1] + min(run, places) <= places
    assert (np.diff(starts) >= min(run, places) + gap).all()
