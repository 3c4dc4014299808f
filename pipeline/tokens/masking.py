"""Which bases are hidden, and what the network sees in their place.

Runs of bases (or residues) are hidden, not tokens: with overlapping k-mers all s + k - 1 tokens that touch a
run of s bases are targets, and one choice of mask, replace or keep is made for the whole run, so that nothing
hidden can be read off a neighbour. Visible bases between two runs number at least k, so that some visible
token covers each of them. Every draw is a function of the key of its window.

Shapes: B windows, R runs, M targets, T tokens, L letters.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.config import MaskingConfig
from pipeline.errors import UserError
from pipeline.keyed import integers, uniforms, words
from pipeline.tokens.kmers import Codec, TokenBatch, Tokens, ranges

MASK, REPLACE, KEEP = 0, 1, 2
# What a draw is for, in the upper half of its number.
_COUNT, _LENGTH, _RUN, _LETTER, _RESCUE = (np.uint64(use << 32) for use in range(5))


@dataclass(frozen=True)
class Masked:
    """A batch ready for the network.

    ``ids`` (T,) are the tokens of all windows end to end, specials included, as shown; ``targets`` (M,) are
    the places in it that are asked for, ascending, and ``labels`` (M,) their true tokens. ``hidden`` are the
    places in ``truth.codes`` of the letters that no token outside of the targets covers; ``fates`` (R,) are
    those of the runs.
    """

    truth: TokenBatch
    ids: np.ndarray
    targets: np.ndarray
    labels: np.ndarray
    hidden: np.ndarray
    fates: np.ndarray


@dataclass(frozen=True)
class Runs:
    """Runs in their windows, in letters (stride 1) or else in tokens; all arrays are (R,), in order."""

    window: np.ndarray
    start: np.ndarray
    length: np.ndarray
    fate: np.ndarray


def check_masking(masking: MaskingConfig, codec: Codec) -> None:
    """Refuse shares that cannot be had.

    Raises:
        UserError: ``keep`` and ``replace`` exceed 1, or overlapping k-mers leave too little to hide.
    """
    if masking.replace + masking.keep > 1:
        raise UserError(
            f"masking: replace {masking.replace} and keep {masking.keep} are more than all runs; lower one"
        )
    run, gap = masking.run or codec.k, _gap(codec)
    if masking.fraction > run / (run + gap):
        raise UserError(
            f"masking.fraction: {masking.fraction}: between runs of {run} bases {gap} have to stay visible, "
            f"so at most {run / (run + gap):.2f} can be hidden; lower it, or raise masking.run"
        )


def touched(tokens: Tokens, marked_L: np.ndarray) -> np.ndarray:
    """Return (T,) whether each token covers a marked base."""
    before = np.concatenate(([0], np.cumsum(marked_L)))
    return before[tokens.starts + tokens.spans] > before[tokens.starts]


def place_runs(places_B: np.ndarray, masking: MaskingConfig, mean: int, gap: int, key_B: np.ndarray) -> Runs:
    """Place runs at random, at least ``gap`` apart, so that they fill ``masking.fraction`` of the places.

    What cannot be filled exactly is rounded at random, so that the expected share is exact; each window has
    at least one run. With random lengths the last run is cut to what is left of the share.

    Args:
        places_B: places of each window, at least 1.
        masking: the share, whether runs have one length or geometric lengths, and the shares of their fates.
        mean: places in a run, or on average.
        gap: places between two runs, at least.
        key_B: keys of the windows.
    """
    share = places_B * masking.fraction
    luck = uniforms(words(key_B, _COUNT))
    if masking.run_lengths == "fixed":
        run = np.minimum(mean, places_B)
        number_B = np.minimum((share / run + luck).astype(int), (places_B + gap) // (run + gap))
        number_B = np.maximum(number_B, 1)
        number = np.arange(number_B.max())
        length = np.broadcast_to(run[:, None], (len(run), len(number)))
        before = number * (run + gap)[:, None]
        filled = number_B * (run + gap) - gap
    else:
        wanted = np.maximum((share + luck).astype(int), 1)[:, None]
        number = np.arange(wanted.max())
        length = _geometric(uniforms(words(key_B[:, None], _LENGTH + number.astype(np.uint64))), mean)
        length = np.minimum(length, wanted - np.cumsum(length, 1) + length)
        before = np.cumsum(length, 1) - length + number * gap
        number_B = np.maximum(((length > 0) & (before + length <= places_B[:, None])).sum(1), 1)
        last = (np.arange(len(number_B)), number_B - 1)
        filled = before[last] + length[last]
    used = number < number_B[:, None]
    word = words(key_B[:, None], _RUN + number.astype(np.uint64))
    free = integers(word, (places_B - filled + 1)[:, None])
    start = np.sort(np.where(used, free, np.iinfo(int).max), 1) + before
    window = np.repeat(np.arange(len(places_B)), number_B)
    return Runs(window, start[used], length[used], _fates(word[used], masking))


def _fates(word_R: np.ndarray, masking: MaskingConfig) -> np.ndarray:
    """Choose what becomes of each run by the lower half of its word; the upper half has placed it."""
    luck = word_R & np.uint64(2**32 - 1)
    fate = np.full(len(word_R), MASK)
    fate[luck < np.uint64((masking.replace + masking.keep) * 2**32)] = KEEP
    fate[luck < np.uint64(masking.replace * 2**32)] = REPLACE
    return fate


def mask_batch(truth: TokenBatch, codec: Codec, masking: MaskingConfig, key_B: np.ndarray) -> Masked:
    """Hide runs of the bases of windows.

    Args:
        truth: the windows' tokens, each of at least one letter.
        codec: the codec that made them.
        masking: shares and run length.
        key_B: uint64 key of each window, of which its masks are a function.

    Returns:
        The batch as shown; every window that holds a real letter has a target.
    """
    runs = _draw_runs(truth, codec, masking, key_B)
    targets, run_M = _touch(truth, codec, runs)
    asked_B = np.bincount(runs.window[run_M], minlength=len(key_B))
    if (asked_B == 0).any():
        runs = _rescue(truth, codec, runs, np.flatnonzero(asked_B == 0), key_B)
        targets, run_M = _touch(truth, codec, runs)
    fate_M, ids = runs.fate[run_M], truth.ids.copy()
    ids[targets[fate_M == MASK]] = codec.special("mask")
    hidden, swapped = _hidden(truth, codec, runs, targets, run_M)
    ids[targets[fate_M == REPLACE]] = _replacement(truth, codec, targets[fate_M == REPLACE], swapped, key_B)
    fates = runs.fate[np.bincount(run_M, minlength=len(runs.fate)) > 0]
    return Masked(truth, ids, targets, truth.ids[targets].astype(np.int64), hidden, fates)


def _gap(codec: Codec) -> int:
    return codec.k if codec.overlapping and codec.k > 1 else 0


def _geometric(draws: np.ndarray, mean: int) -> np.ndarray:
    """Return lengths 1, 2, ... of which each is 1 - 1/mean times as likely as the one before."""
    return (
        np.ones(draws.shape, int) if mean == 1 else 1 + (np.log1p(-draws) / np.log1p(-1 / mean)).astype(int)
    )


def _draw_runs(truth: TokenBatch, codec: Codec, masking: MaskingConfig, key_B: np.ndarray) -> Runs:
    run = masking.run or codec.k
    if codec.k == 1 or codec.overlapping:
        runs = place_runs(truth.sizes, masking, run, _gap(codec), key_B)
        return _snap(truth, runs, codec.k) if codec.k > 1 else runs
    return place_runs(np.diff(truth.offsets) - 2, masking, max(1, round(run / codec.k)), 0, key_B)


def _snap(truth: TokenBatch, runs: Runs, gap: int) -> Runs:
    """Let no fewer than ``gap`` letters lie between a run and an end: no visible token could cover them.

    At the ends of its window a run is moved. After a letter that is not real it is made longer: between the
    two there would be only k-mers that touch the run.
    """
    start = np.where(runs.start < gap, 0, runs.start)
    room = truth.sizes[runs.window] - runs.length
    short = room - start < gap
    length = np.where(short & (start == 0), runs.length + room, runs.length)
    start = np.where(short & (start > 0), room, start)
    if (other := np.flatnonzero(truth.codes > 3)).size > 2 * len(truth.sizes):
        place = truth.begins[runs.window] + start
        left = place - 1 - other[np.searchsorted(other, place) - 1]
        extra = np.where((left < gap) & (start > 0), left, 0)
        start, length = start - extra, length + extra
    return Runs(runs.window, start, length, runs.fate)


def _touch(truth: TokenBatch, codec: Codec, runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens (M,) that cover real letters of runs, and the number of the run of each."""
    reach = codec.k - 1 if codec.overlapping else 0
    tokens_B = np.diff(truth.offsets) - 2
    first = np.maximum(runs.start - reach, 0)
    stop = np.minimum(runs.start + runs.length, tokens_B[runs.window])
    counts = np.maximum(stop - first, 0)
    run_M = np.repeat(np.arange(len(counts)), counts)
    place_M = first[run_M] + ranges(counts)
    token_M = truth.offsets[runs.window[run_M]] + 1 + place_M
    real = truth.codes[truth.starts[token_M]] < codec.n_real
    real &= (truth.spans[token_M] > 1) | (place_M >= runs.start[run_M])
    return token_M[real], run_M[real]


def _rescue(truth: TokenBatch, codec: Codec, runs: Runs, bare: np.ndarray, key_B: np.ndarray) -> Runs:
    """Give windows without a target one masked run of one place, if they hold a real letter."""
    window, start = [], []
    for b in bare:
        own = slice(truth.offsets[b] + 1, truth.offsets[b + 1] - 1)
        real = np.flatnonzero(truth.codes[truth.starts[own]] < codec.n_real)
        if len(real):
            chosen = real[integers(words(key_B[b : b + 1], _RESCUE), len(real))[0]]
            window.append(b)
            start.append(truth.starts[own][chosen] - truth.begins[b] if codec.overlapping else chosen)
    added = np.array(window, int), np.array(start, int), np.ones(len(window), int), np.full(len(window), MASK)
    old = runs.window, runs.start, runs.length, runs.fate
    both = [np.concatenate(pair) for pair in zip(old, added, strict=True)]
    order = np.argsort(both[0], kind="stable")
    return Runs(*(values[order] for values in both))


def _hidden(
    truth: TokenBatch, codec: Codec, runs: Runs, targets: np.ndarray, run_M: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of all real letters of the runs, and of those that are replaced."""
    if codec.k == 1:
        place = truth.starts[targets]
        return place, place[runs.fate[run_M] == REPLACE]
    if codec.overlapping:
        first, counts, fate = truth.begins[runs.window] + runs.start, runs.length, runs.fate
    else:
        first, counts, fate = truth.starts[targets], truth.spans[targets], runs.fate[run_M]
    place = np.repeat(first, counts) + ranges(counts)
    real = truth.codes[place] < codec.n_real
    return place[real], place[real & np.repeat(fate == REPLACE, counts)]


def _replacement(
    truth: TokenBatch, codec: Codec, targets: np.ndarray, swapped: np.ndarray, key_B: np.ndarray
) -> np.ndarray:
    """Return the ids of tokens when the letters at the places ``swapped`` are drawn anew."""
    window = np.searchsorted(truth.begins, swapped, side="right") - 1
    number = _LETTER + (swapped - truth.begins[window]).astype(np.uint64)
    shown_L = truth.codes.copy()
    shown_L[swapped] = integers(words(key_B[window], number), codec.n_real)
    return codec.reencode(shown_L, truth.starts[targets], truth.spans[targets])
