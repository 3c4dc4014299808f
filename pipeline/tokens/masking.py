"""Which bases are hidden, and what the network sees in their place.

Runs of bases (or residues) are hidden, not tokens: with overlapping k-mers all s + k - 1 tokens that touch a
run of s bases are targets, and one choice of mask, replace or keep is made for the whole run, so that nothing
hidden can be read off a neighbour. Visible bases between two runs number at least k, so that some visible
token covers each of them.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from pipeline.config import MaskingConfig
from pipeline.tokens.kmers import KmerCodec, Tokens

IGNORED = -100
MASK, REPLACE, KEEP = 0, 1, 2


@dataclass(frozen=True)
class Masked:
    """A window ready for the network: ``ids`` and ``labels`` (T,), -100 where nothing is asked.

    ``hidden`` (L,) marks the bases chosen; ``runs`` counts those masked, replaced and kept.
    """

    ids: np.ndarray
    labels: np.ndarray
    hidden: np.ndarray
    runs: np.ndarray


def generator(*key: int) -> np.random.Generator:
    """Return a random generator that is a function of the integers in ``key`` alone."""
    digest = hashlib.blake2b(",".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, np.uint64)))


def place_runs(places: int, run: int, gap: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Return starts of non-overlapping runs that fill about ``fraction`` of ``places``, at random.

    Consecutive runs are at least ``gap`` apart. The number of runs is rounded at random so that the expected
    share is exact, and is at least one.
    """
    run = min(run, places)
    exact = places * fraction / run
    number = int(exact) + (rng.random() < exact % 1)
    number = max(1, min(number, (places + gap) // (run + gap)))
    slack = places - number * run - (number - 1) * gap
    return np.sort(rng.integers(0, slack + 1, number)) + np.arange(number) * (run + gap)


def _choose(codes_L: np.ndarray, tokens: Tokens, codec: KmerCodec, masking: MaskingConfig, rng):
    """Return the number of the run that hides each base (L,), -1 elsewhere, and the number of runs."""
    run = masking.run or codec.k
    if codec.stride == 1:
        gap = codec.k if codec.k > 1 else 0
        starts = place_runs(len(codes_L), run, gap, masking.fraction, rng)
        stops = starts + min(run, len(codes_L))
    else:
        length = max(1, round(run / codec.k))
        first = place_runs(len(tokens.ids), length, 0, masking.fraction, rng)
        last = np.minimum(first + length, len(tokens.ids)) - 1
        starts, stops = tokens.starts[first], tokens.starts[last] + tokens.spans[last]
    run_of_L = np.full(len(codes_L), -1)
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        run_of_L[start:stop] = number
    run_of_L[codes_L >= codec.n_real] = -1
    return run_of_L, len(starts)


def touched(tokens: Tokens, marked_L: np.ndarray) -> np.ndarray:
    """Return (T,) whether each token covers a marked base."""
    before = np.concatenate(([0], np.cumsum(marked_L)))
    return before[tokens.starts + tokens.spans] > before[tokens.starts]


def mask_window(
    codes_L: np.ndarray, codec: KmerCodec, masking: MaskingConfig, rng: np.random.Generator
) -> Masked:
    """Hide runs of a window's bases.

    Args:
        codes_L: letter codes of the window.
        codec: the tokenizer's codec.
        masking: shares and run length.
        rng: generator of this window alone.

    Returns:
        Tokens without specials. At least one base is hidden if the window has a real one.
    """
    truth = codec.tokens(codes_L)
    run_of_L, number = _choose(codes_L, truth, codec, masking, rng)
    real = np.flatnonzero(codes_L < codec.n_real)
    if not (run_of_L >= 0).any() and len(real):
        run_of_L[rng.choice(real)] = 0
    u = rng.random(number)
    fate = np.where(u < masking.replace, REPLACE, np.where(u < masking.replace + masking.keep, KEEP, MASK))
    hidden_L = run_of_L >= 0
    fate_L = np.where(hidden_L, fate[run_of_L], -1)

    shown_L = codes_L.copy()
    replaced = np.flatnonzero(fate_L == REPLACE)
    shown_L[replaced] = rng.integers(0, codec.n_real, len(replaced))
    seen = codec.tokens(shown_L)
    ids = np.where(touched(seen, fate_L == MASK), codec.special("mask"), seen.ids.astype(np.int64))
    labels = np.where(touched(truth, hidden_L), truth.ids.astype(np.int64), IGNORED)
    return Masked(ids, labels, hidden_L, np.bincount(fate, minlength=3))
