"""Blanks inside sequences: layout, which is taken out and counted, or what stands between overlapping k-mers.

The latter is the form in which DNABERT takes sequences (Ji et al. 2021, doi:10.1093/bioinformatics/btab083).
"""

from collections.abc import Sequence
from itertools import pairwise

from pipeline.log import say
from pipeline.sequences.records import BLANKS, Source

LEAST_WORDS, LEAST_K = 3, 3


def join_kmers(words: Sequence[bytes]) -> bytes | None:
    """Return the sequence that has these k-mers (k >= 2), one beginning at each of its letters, or None."""
    follow = all(a[1:] == b[:-1] for a, b in pairwise(words))
    if not follow or len(words[0]) < 2:
        return None
    return words[0] + b"".join(word[-1:] for word in words[1:])


class BlankLines:
    """Takes the blanks out of the sequence lines of one record.

    Words are joined on their overlap if they are three or more k-mers (k >= 3), each k - 1 letters into the
    one before; the lines after such a line may go on with it. Words that are all one letter, as in NNN NNN
    NNN, are runs of it instead.
    """

    def __init__(self, source: Source):
        self.source = source
        self._word = b""

    @property
    def joining(self) -> bool:
        """Whether the last line was k-mers, so that the next may go on with them."""
        return bool(self._word)

    def letters(self, text: bytes, where: str) -> bytes:
        """Return the letters of a line, blanks at its ends stripped, and count what was done to it."""
        words = text.split() if self._word or _may_be_kmers(text) else []
        joined = join_kmers([self._word, *words] if self._word else words) if words else None
        if joined is None:
            self._word = b""
            return without_blanks(text, where, self.source)
        if not self._word:
            said = f"{self.source.path}: {where}: overlapping {len(words[0])}-mers joined"
            self.source.notes.warn("kmers_joined", said)
        known, self._word = len(self._word), words[-1]
        return joined[known:]


def _may_be_kmers(text: bytes) -> bool:
    """Tell whether a line begins with enough k-mers that are long enough, and is no run of one letter."""
    first = text.split(maxsplit=LEAST_WORDS)[:LEAST_WORDS]
    begun = len(first) == LEAST_WORDS and len(first[0]) >= LEAST_K and join_kmers(first) is not None
    return begun and len(set(text.translate(None, BLANKS).upper())) > 1


def without_blanks(text: bytes, where: str, source: Source) -> bytes:
    """Return a sequence line, stripped before, without the blanks inside it, which are counted."""
    letters = text.translate(None, BLANKS)
    if len(letters) < len(text):
        if not source.notes["blanks_removed"]:
            say(f"{source.path}: {where}: blanks inside the sequence, removed; further ones are counted only")
        source.notes["blanks_removed"] += len(text) - len(letters)
    return letters
