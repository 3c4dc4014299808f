"""Nothing that is hidden can be read off what is shown: on uniform random DNA a base stays worth 2 bits."""

import numpy as np
import pytest

from pipeline.config import MaskingConfig
from pipeline.keyed import keys
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.masking import MASK, mask_batch

SCHEMES = [(1, False), (3, True), (3, False), (6, True), (6, False)]
WINDOWS, LENGTH = 900, 1000


def random_batch(codec, seed=0, length=LENGTH):
    letters = np.random.default_rng(seed).integers(0, 4, (WINDOWS, length)).astype(np.uint8)
    return codec.batch(list(letters))


def votes_of_visible_tokens(codec, truth, shown):
    """(L, 4): how many tokens that are not masked say that a letter is A, C, G or T."""
    votes = np.zeros((len(truth.codes) + codec.k, 4), int)
    for offset in range(codec.k):
        said = codec.letter_at[offset, shown]
        speaks = (shown != codec.special("mask")) & (said < 4) & (offset < truth.spans)
        np.add.at(votes, (truth.starts[speaks] + offset, said[speaks]), 1)
    return votes[: len(truth.codes)]


def bits_of_oracle(votes, codes, places):
    """Bits of letters at ``places`` for one who has learnt on every other one how far to trust what is shown.

    Where visible tokens cover a letter, the oracle goes by their votes; else by the letters that are most
    voted for left and right of it.
    """
    said = np.where(votes.sum(1) > 0, votes.argmax(1), 4)
    lead = votes.max(1) - np.sort(votes, 1)[:, -2]
    context = np.where(said < 4, 100 + said * 10 + lead, 5 * np.roll(said, 1) + np.roll(said, -1))[places]
    counts = np.full((context.max() + 1, 4), 1.0)
    learn, judge = slice(0, None, 2), slice(1, None, 2)
    np.add.at(counts, (context[learn], codes[places[learn]]), 1)
    chance = counts / counts.sum(1, keepdims=True)
    return -np.log2(chance[context[judge], codes[places[judge]]]).mean()


def bases_of_masked_runs(codec, truth, masked):
    """The hidden bases whose tokens are masked, not replaced or kept."""
    token = np.searchsorted(truth.starts, masked.hidden, side="right") - 1
    return masked.hidden[masked.ids[token] == codec.special("mask")]


def dnabert(codec, truth, rng):
    """Masks as DNABERT draws them (Ji et al. 2021, doi:10.1093/bioinformatics/btab083), for 6-mers.

    Centres with probability 0.025, six tokens around each chosen, then mask, random token or itself token by
    token.
    """
    ids = truth.ids.astype(int)
    kmer = truth.spans == codec.k
    centres = np.flatnonzero((rng.random(len(ids)) < 0.025) & kmer)
    chosen = np.unique(np.clip(centres[:, None] + np.arange(-2, 4), 0, len(ids) - 1))
    chosen = chosen[kmer[chosen]]
    luck = rng.random(len(chosen))
    ids[chosen[luck < 0.8]] = codec.special("mask")
    swapped = chosen[luck >= 0.9]
    ids[swapped] = rng.integers(codec.first_kmer, len(codec.vocabulary), len(swapped))
    return ids, chosen


@pytest.mark.parametrize("run_lengths", ["fixed", "geometric"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_oracle_that_sees_all_visible_tokens_knows_nothing_of_masked_runs(scheme, run_lengths):
    codec, masking = KmerCodec("dna", *scheme), MaskingConfig(run_lengths=run_lengths)
    truth = random_batch(codec)
    masked = mask_batch(truth, codec, masking, keys(1, np.arange(WINDOWS)))
    places = bases_of_masked_runs(codec, truth, masked)
    assert len(places) > 100_000
    bits = bits_of_oracle(votes_of_visible_tokens(codec, truth, masked.ids), truth.codes, places)
    assert abs(bits - 2) < 0.02


@pytest.mark.parametrize("run_lengths", ["fixed", "geometric"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("length", [500, 1000])
def test_the_share_of_hidden_bases_is_the_one_asked_for(scheme, run_lengths, length):
    codec = KmerCodec("dna", *scheme)
    truth = random_batch(codec, length=length)
    for fraction in (0.15, 0.25):
        masking = MaskingConfig(fraction=fraction, run_lengths=run_lengths)
        masked = mask_batch(truth, codec, masking, keys(2, np.arange(WINDOWS)))
        assert len(masked.hidden) / (WINDOWS * length) == pytest.approx(fraction, rel=0.01)


def test_the_same_oracle_reads_masks_drawn_token_by_token():
    codec = KmerCodec("dna", 6, True)
    truth = random_batch(codec)
    ids, chosen = dnabert(codec, truth, np.random.default_rng(0))
    masked = chosen[ids[chosen] == codec.special("mask")]
    assert 0.12 < len(chosen) / (WINDOWS * LENGTH) < 0.16
    votes = votes_of_visible_tokens(codec, truth, ids)
    bits = bits_of_oracle(votes, truth.codes, truth.starts[masked])
    assert bits < 0.5, "most masked tokens begin with a base that a neighbour shows"
    truly_hidden = truth.starts[masked][votes[truth.starts[masked]].sum(1) == 0]
    assert len(truly_hidden) / (WINDOWS * LENGTH) < 0.05


def test_the_oracle_reads_a_run_whose_fate_is_drawn_token_by_token():
    """Hiding whole runs is not enough: one kept token of a run gives its bases away."""
    codec = KmerCodec("dna", 6, True)
    truth = random_batch(codec)
    masked = mask_batch(truth, codec, MaskingConfig(replace=0, keep=0), keys(3, np.arange(WINDOWS)))
    kept = masked.targets[np.random.default_rng(0).random(len(masked.targets)) < 0.1]
    ids = masked.ids.copy()
    ids[kept] = truth.ids[kept]
    bits = bits_of_oracle(votes_of_visible_tokens(codec, truth, ids), truth.codes, masked.hidden)
    assert bits < 1.3
    assert (masked.fates == MASK).all()
