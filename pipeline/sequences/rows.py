"""Rows of a corpus: records, or the parts of equal length that long ones are cut into."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.sequences.alphabets import Piece


@dataclass(frozen=True, slots=True)
class Row:
    """Clean letters of a record from ``start`` on, lower case where soft-masked.

    ``gaps`` lists where gaps were removed inside the row: (offset of the letter behind them, their number).
    ``start`` counts letters as read, so letter i was letter ``start + i + (all removed at offsets <= i)``.
    """

    start: int
    sequence: bytes
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Where the record goes on behind the row, in letters as read."""
        return self.start + len(self.sequence) + sum(number for _, number in self.gaps)

    def part(self, begin: int, end: int) -> "Row":
        """Return letters [begin, end) of the row as a row of their own."""
        letters = self.sequence[begin:end]
        if not self.gaps:
            return self if len(letters) == len(self.sequence) else Row(self.start + begin, letters)
        places, numbers = np.array(self.gaps).T
        start = self.start + begin + int(numbers[places <= begin].sum())
        inside = (places > begin) & (places < end)
        gaps = zip((places[inside] - begin).tolist(), numbers[inside].tolist(), strict=True)
        return Row(start, letters, list(gaps))


_NOTHING = Row(0, b"")


class Cutter:
    """Cuts the stretches of a record, which come one by one, into rows of ``size`` letters and the rest."""

    def __init__(self, size: int):
        self.size = size
        self._rest = _NOTHING

    def add(self, piece: Piece) -> Iterator[Row]:
        """Yield the rows that a stretch completes; one that does not follow the last begins a new row."""
        if piece.start != self._rest.end:
            yield from self.end()
        whole = _joined(self._rest, piece)
        cut = len(whole.sequence) // self.size * self.size
        for begin in range(0, cut, self.size):
            yield whole.part(begin, begin + self.size)
        self._rest = _behind(whole, cut) if cut else whole

    def end(self) -> Iterator[Row]:
        """Yield what is left, if anything, and be ready for another record."""
        if self._rest.sequence:
            yield self._rest.part(0, len(self._rest.sequence))
        self._rest = _NOTHING


def _joined(rest: Row, piece: Piece) -> Row:
    """Return what was left and the stretch that follows it as one, its gaps at the ends included."""
    if not rest.sequence and not rest.gaps:
        return Row(piece.start, piece.sequence, piece.gaps)
    known, gaps = len(rest.sequence), rest.gaps
    moved = [(place + known, number) for place, number in piece.gaps]
    if gaps and moved and gaps[-1][0] == moved[0][0]:
        moved[0] = moved[0][0], gaps[-1][1] + moved[0][1]
        gaps = gaps[:-1]
    return Row(rest.start, rest.sequence + piece.sequence, gaps + moved)


def _behind(whole: Row, cut: int) -> Row:
    """Return what is left behind the first ``cut`` letters, the gaps before and behind it included."""
    before = sum(number for place, number in whole.gaps if place < cut)
    behind = [(place - cut, number) for place, number in whole.gaps if place >= cut]
    return Row(whole.start + cut + before, whole.sequence[cut:], behind)
