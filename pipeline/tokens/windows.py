"""What a model reads of records that are longer than its context, and how its windows are put together again.

A window is a run of consecutive tokens of the whole record. So every token stands for the same letters with
windows as without (codons stay in frame, byte pairs are those of the record), and the first window is what
the Hugging Face tokenizer gives with ``truncation=True``. What fits depends on the record, as k-mers with an
N are read letter by letter; so limits and overlaps are told in letters and windows are cut in tokens.

Shapes: T tokens of a record, W windows, D channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from pipeline.errors import UserError
from pipeline.sequences.records import Notes
from pipeline.tokens.kmers import Codec, Tokens

WAYS_OUT = "pass --long-sequences skip, truncate or window"


@dataclass(frozen=True)
class Reading:
    """What a model reads of a record.

    Attributes:
        name: the record's id.
        tokens: the tokens of the record, or of its beginning, without specials.
        bounds: (W, 2) the first token of each window, and the one after its last; no window if it is skipped.
        note: what became of it because it does not fit, why it cannot be read, or nothing.
    """

    name: str
    tokens: Tokens
    bounds: np.ndarray
    note: str = ""

    @cached_property
    def windows(self) -> list[np.ndarray]:
        """Ids of the tokens of each window, without specials."""
        return [self.tokens.ids[first:stop] for first, stop in self.bounds]


@dataclass(frozen=True)
class Context:
    """How many tokens a model can read at once, and what becomes of longer records.

    Attributes:
        codec: codec of the model's tokenizer.
        size: tokens of a window, special tokens not counted.
        long_sequences: stop at a longer record, skip it, read its beginning, or read it in windows.
        overlap: letters that consecutive windows share, at least.
        notes: where ``skipped``, ``truncated`` and ``windowed`` records are counted.

    Raises:
        UserError: the shortest window, one letter for each token, would not be longer than the overlap.
    """

    codec: Codec
    size: int
    long_sequences: Literal["error", "skip", "truncate", "window"] = "error"
    overlap: int = 0
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self):
        if self.long_sequences == "window" and self.overlap >= self.size:
            raise UserError(
                f"overlap: {self.overlap}: windows may have as few as {self.size} letters; give fewer"
            )

    def check(self, records: Sequence[tuple[str, str]], way_out: str = WAYS_OUT) -> None:
        """Refuse (id, sequence) pairs that do not fit, if that is what should become of them.

        Raises:
            UserError: names the first such record, its length, how much of it fits, and the way out.
        """
        for name, sequence in records if self.long_sequences == "error" else ():
            if len(sequence) > self.size and len((tokens := self._tokens(sequence)).ids) > self.size:
                raise UserError(
                    f"record {name!r}: {len(sequence)} letters are {len(tokens.ids)} tokens, more than the "
                    f"model's {self.size} (the first {self._fit(tokens)} letters fit); {way_out}"
                )

    def read(self, name: str, sequence: str, fault: str = "") -> Reading:
        """Return what the model reads of a record; if that is not all at once, it is counted and said.

        Args:
            name: its id.
            sequence: its letters.
            fault: why nothing is to be read of it.
        """
        if fault:
            return Reading(name, Tokens(*np.empty((3, 0), int)), np.empty((0, 2), int), fault)
        tokens = self._tokens(sequence)
        if len(tokens.ids) <= self.size:
            return Reading(name, tokens, np.array([[0, len(tokens.ids)]]))
        reading = self._read_long(name, tokens, len(sequence))
        self.notes.warn(reading.note.partition(":")[0], f"record {name!r}: {reading.note}")
        return reading

    def counts(self, read: int) -> dict[str, int]:
        """Return how many records were read, skipped, truncated and windowed, where there are any.

        Raises:
            UserError: all were skipped.
        """
        if self.notes["skipped"] == read:
            raise UserError(
                f"every record ({read}) is longer than the model's context, so nothing is left; pass "
                "--long-sequences truncate or window"
            )
        return {"read": read, **+self.notes}

    def summary(self) -> str:
        """Return in words how many records were skipped, truncated or windowed, to end a line with."""
        return "".join(f", {number} {what}" for what, number in self.notes.items())

    def _read_long(self, name: str, tokens: Tokens, length: int) -> Reading:
        if self.long_sequences == "window":
            bounds_W2 = window_bounds(tokens, self.size, self.overlap)
            return Reading(name, tokens, bounds_W2, f"windowed: {length} letters in {len(bounds_W2)} windows")
        fit = self._fit(tokens)
        if self.long_sequences == "truncate":
            first = Tokens(*(part[: self.size] for part in (tokens.ids, tokens.starts, tokens.spans)))
            note = f"truncated: the first {fit} of {length} letters"
            return Reading(name, first, np.array([[0, self.size]]), note)
        assert self.long_sequences == "skip", "check comes first"
        return Reading(name, tokens, np.empty((0, 2), int), f"skipped: only {fit} of {length} letters fit")

    def _tokens(self, sequence: str) -> Tokens:
        return self.codec.tokens(self.codec.codes(sequence))

    def _fit(self, tokens: Tokens) -> int:
        """Return how many letters of a record that is too long fit."""
        return int((tokens.starts + tokens.spans)[: self.size].max())


def window_bounds(tokens: Tokens, size: int, overlap: int) -> np.ndarray:
    """Return the first token of every window, and the one after its last (W, 2), as few as will do.

    Each window has ``size`` tokens and shares ``overlap`` letters or more with the next; no token between
    them is left out, and the last ends with the record.

    Args:
        tokens: the tokens of the record, more than ``size``.
        size: tokens of a window.
        overlap: letters, fewer than ``size``.
    """
    last = len(tokens.ids) - size
    assert last >= 0, "the record fits"
    assert overlap < size, "windows must move on"
    firsts = [0]
    while firsts[-1] < last:
        stop = firsts[-1] + size
        shared = tokens.starts[stop - 1] + tokens.spans[stop - 1] - overlap
        first = int(np.searchsorted(tokens.starts, shared, side="right")) - 1
        firsts.append(min(first, stop, last))
    return np.array(firsts)[:, None] + [0, size]


def stitch(states: Sequence[np.ndarray], bounds_W2: np.ndarray) -> np.ndarray:
    """Return one vector for each token (T, D) out of those of windows, which overlap.

    Every token is taken from the window in which it is farthest, in tokens, from an edge, from the earlier of
    two equal ones: each window hands over to the next in the middle of what they share.

    Args:
        states: the vectors (size, D) of each window's tokens.
        bounds_W2: the first token of each window, and the one after its last.
    """
    firsts_W, stops_W = bounds_W2.T
    middles = (stops_W[:-1] + firsts_W[1:] + 1) // 2
    begins_W, ends_W = np.append(0, middles) - firsts_W, np.append(middles, stops_W[-1]) - firsts_W
    return np.concatenate([s[b:e] for s, b, e in zip(states, begins_W, ends_W, strict=True)])
