from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.errors import UserError
from pipeline.keyed import keys
from pipeline.tokens.bytepairs import BytePairCodec
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.masking import check_masking, mask_batch, place_runs

SCHEMES = [(1, True), (1, False), (3, True), (3, False), (6, True), (6, False)]
PURE = {
    "mask": MaskingConfig(replace=0, keep=0),
    "replace": MaskingConfig(replace=1, keep=0),
    "keep": MaskingConfig(replace=0, keep=1),
}


IGNORED = -100


@dataclass
class Window:
    ids: np.ndarray
    labels: np.ndarray
    hidden: np.ndarray
    runs: np.ndarray


def mask_window(codes, codec, masking, *key):
    """One window masked, without its special tokens, labels at every token."""
    masked = mask_batch(codec.batch([codes]), codec, masking, keys(*key))
    labels = np.full(len(masked.ids), IGNORED)
    labels[masked.targets] = masked.labels
    runs = np.bincount(masked.fates, minlength=3)
    hidden = np.zeros(len(codes) + 2, bool)
    hidden[masked.hidden] = True
    assert hidden.sum() == len(masked.hidden)
    return Window(masked.ids[1:-1], labels[1:-1], hidden[1:-1], runs)


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
def test_the_hidden_bases_are_those_that_no_visible_token_covers(scheme):
    codec = KmerCodec("dna", *scheme)
    for key in range(160):
        codes = random_dna(key, 500 if key < 40 else 1 + key % 40, unknown=0.02 if key < 100 else 0.1)
        masked = mask_window(codes, codec, PURE["mask"], key)
        said = read_visible(masked, codec, codes)
        assert masked.hidden.any() or codes.min() == 4
        for place in range(len(codes)):
            assert said[place] == (set() if masked.hidden[place] else {codes[place]})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_visible_tokens_over_a_replaced_run_tell_the_replacement_and_not_the_truth(scheme):
    codec, agree, asked = KmerCodec("dna", *scheme), 0, 0
    for key in range(60):
        codes = random_dna(key)
        masked = mask_window(codes, codec, PURE["replace"], key)
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
    masked = mask_window(codes, codec, PURE["keep"], 5)
    assert np.array_equal(masked.ids, codec.tokens(codes).ids)
    assert (masked.labels != IGNORED).any()


@pytest.mark.parametrize("k", [3, 6])
def test_one_fate_is_drawn_for_a_whole_run(k):
    """Runs of overlapping k-mers are apart, so each can be told from the others."""
    codec, runs, fates = KmerCodec("dna", k, True), 0, np.zeros(3, int)
    for key in range(150):
        codes = random_dna(key)
        masked = mask_window(codes, codec, MaskingConfig(replace=0.3, keep=0.3), key)
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
        masked = mask_window(codes, codec, masking, 9, key)
        hidden += masked.hidden.sum()
        fates += masked.runs
        all_masked = mask_window(codes, codec, PURE["mask"], 9, key)
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
        share = np.mean([mask_window(random_dna(i), codec, masking, i).hidden.mean() for i in range(300)])
        most = run / (run + codec.k)  # overlapping k-mers need k readable bases between two runs
        assert abs(share - min(fraction, most if codec.k > 1 else 1)) < 0.01


@pytest.mark.parametrize("run", [None, 6, 12])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_has_the_length_asked_for(scheme, run):
    codec = KmerCodec("dna", *scheme)
    masked = mask_window(random_dna(0, 6000), codec, MaskingConfig(run=run), 1)
    assert masked.hidden.sum() == masked.runs.sum() * (run or codec.k)


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=80, deadline=None)
@given(letters=st.text("ACGTN", min_size=1, max_size=30), key=st.integers(0, 1000))
def test_labels_are_true_tokens_that_touch_a_hidden_base_and_n_is_never_asked_for(scheme, letters, key):
    codec = KmerCodec("dna", *scheme)
    codes = codec.codes(letters)
    truth = codec.tokens(codes)
    masked = mask_window(codes, codec, MaskingConfig(), key)
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
    masked = mask_window(codes, codec, PURE["replace"], 0)
    changed = masked.ids != codec.tokens(codes).ids
    assert not (changed & ~masked.hidden).any()
    assert not masked.hidden[codes >= 20].any()
    assert set(codec.codes_of_track(masked.ids[masked.hidden])) == set(range(20))
    assert abs(masked.hidden[codes < 20].mean() - 0.15) < 0.01


def test_a_mask_is_a_function_of_its_key_and_not_of_its_batch():
    codec, codes = KmerCodec("dna", 6, True), random_dna(1)
    others = [random_dna(2, 30), codes, random_dna(3, 700)]
    alone = mask_window(codes, codec, MaskingConfig(), 7, 1, 2)
    other = mask_window(codes, codec, MaskingConfig(), 7, 1, 3)
    batch = mask_batch(codec.batch(others), codec, MaskingConfig(), keys(7, 1, np.array([9, 2, 8])))
    begin, end = batch.truth.offsets[1:3]
    assert np.array_equal(batch.ids[begin + 1 : end - 1], alone.ids)
    asked = batch.targets[(batch.targets >= begin) & (batch.targets < end)] - begin - 1
    assert np.array_equal(asked, np.flatnonzero(alone.labels != IGNORED))
    assert not np.array_equal(alone.ids, other.ids)


@pytest.mark.parametrize("run_lengths", ["fixed", "geometric"])
@settings(max_examples=200, deadline=None)
@given(
    places=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    run=st.integers(1, 12),
    gap=st.integers(0, 8),
    fraction=st.floats(0.01, 0.99),
    key=st.integers(0, 99),
)
def test_runs_lie_inside_and_apart(run_lengths, places, run, gap, fraction, key):
    masking = MaskingConfig(fraction=fraction, run_lengths=run_lengths)
    key_B = keys(key, np.arange(len(places)))
    runs = place_runs(np.array(places), masking, run, gap, key_B)
    window, start, length = runs.window, runs.start, runs.length
    assert set(window) == set(range(len(places)))
    assert (length >= 1).all()
    for number, size in enumerate(places):
        of = window == number
        assert start[of][0] >= 0
        assert start[of][-1] + length[of][-1] <= size
        assert (start[of][1:] >= start[of][:-1] + length[of][:-1] + gap).all()


def test_geometric_runs_have_their_mean_and_fill_their_share():
    places = np.full(400, 10_000)
    masking = MaskingConfig(run_lengths="geometric")
    runs = place_runs(places, masking, 4, 6, keys(1, np.arange(400)))
    length = runs.length
    assert abs(length.mean() - 4) < 0.05
    assert abs((length == 1).mean() - 1 / 4) < 0.01
    assert abs((length == 2).mean() - 3 / 16) < 0.01
    assert np.bincount(runs.window, length) == pytest.approx(1500, abs=1)


@pytest.mark.parametrize("name", ["mask", "replace", "keep"])
def test_byte_pairs_hide_the_letters_of_whole_tokens(name, tokenizer_folder):
    codec = BytePairCodec(tokenizer_folder("dna-bpe"))
    windows = [random_dna(key, 300, unknown=0.01) for key in range(40)]
    truth = codec.batch(windows)
    masked = mask_batch(truth, codec, PURE[name], keys(3, np.arange(40)))
    asked = np.zeros(len(truth.ids), bool)
    asked[masked.targets] = True
    assert np.array_equal(masked.ids[~asked], truth.ids[~asked])
    assert np.array_equal(masked.labels, truth.ids[masked.targets])
    covered = [range(truth.starts[i], truth.starts[i] + truth.spans[i]) for i in masked.targets]
    assert masked.hidden.tolist() == [place for places in covered for place in places]
    assert truth.codes[masked.hidden].max() < 4
    assert len(masked.hidden) / sum(map(len, windows)) == pytest.approx(0.15, abs=0.02)
    shown = masked.ids[asked]
    if name == "mask":
        assert set(shown) == {codec.special("mask")}
    else:
        assert np.array_equal(codec.spans[shown], truth.spans[masked.targets])
        assert (
            (shown == masked.labels).mean() == 1 if name == "keep" else (shown == masked.labels).mean() < 0.3
        )


def test_shares_that_cannot_be_had_are_refused():
    check_masking(MaskingConfig(fraction=0.5), KmerCodec("dna", 6, True))
    check_masking(MaskingConfig(fraction=0.9, run=1), KmerCodec("dna", 6, False))
    with pytest.raises(UserError, match=r"fraction: 0.2: between runs of 1 bases 6 .* at most 0.14 can"):
        check_masking(MaskingConfig(fraction=0.2, run=1), KmerCodec("dna", 6, True))
    with pytest.raises(UserError, match=r"replace 0.6 and keep 0.5 are more than all runs"):
        check_masking(MaskingConfig(replace=0.6, keep=0.5), KmerCodec("dna", 1, False))
