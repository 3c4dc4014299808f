"""The batch plan: which windows make up which optimizer step, from lengths and seed alone.

A step is first a set of windows with a fixed total of letters; processes and accumulation only divide its
micro-batches among themselves. So the plan, and every mask, is the same however a run is cut up or resumed.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.keyed import generator

ORDER, STRAND = 1, 2


@dataclass(frozen=True)
class Window:
    """Letters [start, start + length) of a record, on one strand, for the n-th time in an epoch."""

    epoch: int
    record: int
    start: int
    length: int
    reverse: bool
    occurrence: int = 0


def _epoch(
    lengths: np.ndarray, first: int, window: int, both_strands: bool, seed: int, epoch: int
) -> list[Window]:
    """Return an epoch's windows in random order: records cut from a random phase, leftovers left out.

    ``first`` is the number of the first record.
    """
    rng = generator(ORDER, seed, epoch)
    windows: list[tuple[int, int, int]] = []
    for record, length in enumerate(lengths.tolist(), first):
        pieces = max(1, length // window)
        size = min(length, window)
        phase = int(rng.integers(0, length - pieces * size + 1))
        windows += [(record, phase + i * size, size) for i in range(pieces) if size]
    order = rng.permutation(len(windows))
    reverse = rng.random(len(windows)) < (0.5 if both_strands else 0.0)
    return [Window(epoch, *windows[int(i)], bool(r)) for i, r in zip(order, reverse, strict=True)]


def epoch_size(lengths: np.ndarray, window: int) -> tuple[int, int]:
    """Return how many letters an epoch shows, and in how many windows."""
    pieces = np.maximum(1, lengths // window) * (lengths > 0)
    return int((pieces * np.minimum(lengths, window)).sum()), int(pieces.sum())


def _mixed(streams: Sequence[Iterator[Window]], shares: Sequence[float]) -> Iterator[Window]:
    """Yield windows of all data sets, each time of the one whose letters are furthest behind its share."""
    read = [0.0] * len(streams)
    while True:
        behind = read.index(min(read))
        piece = next(streams[behind])
        read[behind] += piece.length / shares[behind]
        yield piece


def _cut(window: Window, longest: int) -> list[Window]:
    """Return a window in as few pieces of at most ``longest`` letters as can be, of nearly one length."""
    if window.length <= longest:
        return [window]
    pieces = -(-window.length // longest)
    edges = [window.length * i // pieces for i in range(pieces + 1)]
    return [replace(window, start=window.start + a, length=b - a) for a, b in itertools.pairwise(edges)]


def longest_window(step: int, window: int, warmup: int) -> int:
    """Return how long windows are in a step: they grow from an eighth of ``window`` to all of it."""
    return max(1, window // 8 + (window - window // 8) * step // warmup) if step < warmup else window


def shares_of(sizes: Sequence[float], temperature: float) -> list[float]:
    """Return shares that sum to 1, in proportion to ``sizes`` ** (1 / ``temperature``).

    A temperature above 1 reads more of small data sets than their size (Arivazhagan et al. 2019,
    arXiv:1907.05019).
    """
    flattened = np.asarray(sizes, float) ** (1 / temperature)
    return (flattened / flattened.sum()).tolist()


def steps(
    lengths: Sequence[np.ndarray],
    window: int,
    letters_per_step: int,
    both_strands: bool,
    seed: int,
    shares: Sequence[float] = (1.0,),
    warmup: int = 0,
) -> Iterator[list[Window]]:
    """Yield the windows of step 0, 1, 2... without end.

    Args:
        lengths: (records,) letters in each record of every data set; at least one record of each is not
            empty. Records are numbered through all data sets; each has epochs of its own.
        window: longest window, in letters.
        letters_per_step: letters in a step; the last window that reaches them belongs to the step.
        both_strands: read each window from a random strand.
        seed: of the order, the phases and the strands.
        shares: of the letters, for every data set.
        warmup: steps in which windows grow; those of the full length are cut until then.
    """
    assert all(each.max(initial=0) > 0 for each in lengths)

    def stream(number: int) -> Iterator[Window]:
        first = sum(map(len, lengths[:number]))
        for epoch in itertools.count():
            yield from _epoch(lengths[number], first, window, both_strands, seed + number, epoch)

    pieces = _mixed([stream(number) for number in range(len(lengths))], shares)
    waiting: list[Window] = []
    for number in itertools.count():
        longest, step, letters = longest_window(number, window, warmup), [], 0
        while letters < letters_per_step:
            waiting = waiting or _cut(next(pieces), longest)
            step.append(waiting.pop(0))
            letters += step[-1].length
        yield step


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut a step into groups of similar length whose padded size is at most ``budget``.

    Returns:
        Indices into ``lengths``, longest first; a single window over the budget is a group of its own.
    """
    groups: list[list[int]] = []
    for i in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= budget:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
