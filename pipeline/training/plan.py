"""The batch plan: which windows make up which optimizer step, from lengths and seed alone.

A step is first a set of windows with a fixed total of letters; processes and accumulation only divide its
micro-batches among themselves. So the plan, and every mask, is the same however a run is cut up or resumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


def _epoch(lengths: np.ndarray, window: int, both_strands: bool, seed: int, epoch: int) -> list[Window]:
    """Return an epoch's windows in random order: records cut from a random phase, leftovers left out."""
    rng = generator(ORDER, seed, epoch)
    windows: list[tuple[int, int, int]] = []
    for record, length in enumerate(lengths.tolist()):
        pieces = max(1, length // window)
        size = min(length, window)
        phase = int(rng.integers(0, length - pieces * size + 1))
        windows += [(record, phase + i * size, size) for i in range(pieces) if size]
    order = rng.permutation(len(windows))
    reverse = rng.random(len(windows)) < (0.5 if both_strands else 0.0)
    return [Window(epoch, *windows[int(i)], bool(r)) for i, r in zip(order, reverse, strict=True)]


def steps(
    lengths: np.ndarray, window: int, letters_per_step: int, both_strands: bool, seed: int
) -> Iterator[list[Window]]:
    """Yield the windows of step 0, 1, 2... without end.

    Args:
        lengths: (records,) letters in each record; at least one is not empty.
        window: longest window, in letters.
        letters_per_step: letters in a step; the last window that reaches them belongs to the step.
        both_strands: read each window from a random strand.
        seed: of the order, the phases and the strands.
    """
    assert lengths.max(initial=0) > 0
    epoch, step, letters = 0, [], 0
    while True:
        for piece in _epoch(lengths, window, both_strands, seed, epoch):
            step.append(piece)
            letters += piece.length
            if letters >= letters_per_step:
                yield step
                step, letters = [], 0
        epoch += 1


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
