"""Motifs found on one half of the records and tested on the other.

The first half says which words are worth a test, a bounded number for every head, and the matrices grow from
its regions. The second half, whose records had no part in that choice, gives the p-values, and they are
corrected for all words and heads that were tested on it. So a motif's significance is not that of the best of
some ten thousand words on the records that they were searched in.

A record's label and what a network makes of the record have to be independent under the null hypothesis. They
are not for records that a classifier was trained on: it may attend to them by what it learnt of their labels.
The second half therefore has to be of records that it was not trained on. Related records are not independent
either: of a cluster only one record of each class may be in the second half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.attention.matrices import Motif, Seed, grow
from pipeline.attention.nulls import matched_regions, permuted, whole
from pipeline.attention.words import Regions, enriched, false_discovery, held_words
from pipeline.sequences.alphabets import reverse_complement

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LARGEST_P = 0.05  # of a word in the first half, to be tested on the second
ANYWHERE = "any"  # stands for the head where attention is not heeded


@dataclass(frozen=True)
class Search:
    """How motifs are sought."""

    word_length: int = 6
    words_per_head: int = 100
    """words of a head that are tested on the second half, at most"""
    q_value: float = 0.05
    """false discovery rate over all heads and words tested"""
    max_motifs: int = 8
    both_strands: bool = False


@dataclass(frozen=True, eq=False)
class Half:
    """N records, which of them are positive, and the attended regions of each, by head."""

    sequences: Sequence[str]
    positive: np.ndarray
    """(N,) bool"""
    regions: Mapping[str, Regions]
    held: "Mapping[str, csr_array]"
    """by head, which words the regions of each record hold"""

    @classmethod
    def of(
        cls, sequences: Sequence[str], positive_N: np.ndarray, regions: Mapping[str, Regions], search: Search
    ) -> "Half":
        """Return a half with the words in its regions counted."""
        k, both = search.word_length, search.both_strands
        held = {head: held_words(sequences, found, k, both) for head, found in regions.items()}
        return cls(sequences, positive_N, regions, held)


@dataclass(frozen=True)
class Discovery:
    """What a search gave."""

    motifs: list[Motif]
    """p_value and q_value are those of the motif's word on the second half"""
    tested: list[Seed]
    """every word of every head that was tested there"""
    significant: int
    """of those, how many passed"""

    @property
    def best_q(self) -> float:
        """The smallest q-value of a word; 1 if none was tested."""
        return min((seed.q_value for seed in self.tested), default=1.0)


def discover(first: Half, second: Half, search: Search) -> Discovery:
    """Choose words on the first half, test them on the second, grow the significant ones into motifs.

    Args:
        first: gives words and matrices.
        second: gives p-values and q-values.
        search: how.
    """
    tested = assess_words(second, candidate_words(first, search), search.word_length)
    significant = [seed for seed in tested if seed.q_value <= search.q_value]
    place_P = np.flatnonzero(first.positive).tolist()
    sequences = [first.sequences[i] for i in place_P]
    regions = {head: [found[i] for i in place_P] for head, found in first.regions.items()}
    if search.both_strands:
        regions = {head: _on_both(sequences, found) for head, found in regions.items()}
        sequences = [f"{text}-{reverse_complement(text.upper())}" for text in sequences]
    return Discovery(grow(significant, sequences, regions, search.max_motifs), tested, len(significant))


def _on_both(sequences: Sequence[str], regions: Regions) -> Regions:
    """Return regions of sequences that are followed by one other letter and their reverse complement."""
    return [
        [*found, *((2 * len(text) + 1 - stop, 2 * len(text) + 1 - start) for start, stop in reversed(found))]
        for text, found in zip(sequences, regions, strict=True)
    ]


def candidate_words(first: Half, search: Search) -> dict[str, list[str]]:
    """Return by head the words most enriched in the first half: p at most 0.05, and a bounded number."""
    found = {}
    for head, held in first.held.items():
        words = enriched(held, first.positive, search.word_length)[: search.words_per_head]
        found[head] = [word.word for word in words if word.p_value <= LARGEST_P]
    return found


def assess_words(second: Half, words: Mapping[str, Sequence[str]], word_length: int) -> list[Seed]:
    """Test words by head on the second half; q-values are over all of them (Benjamini and Hochberg)."""
    found = [
        (word, head)
        for head, chosen in words.items()
        for word in enriched(second.held[head], second.positive, word_length, chosen)
    ]
    q_values = false_discovery([word.p_value for word, _ in found])
    return [Seed(word, float(q), head) for (word, head), q in zip(found, q_values, strict=True)]


# -- what the same search is run on besides


def relabelled(half: Half, seed: int, number: int) -> Half:
    """Return the half with its labels in a random order (number 0, 1, ...): nothing is there to be found."""
    return replace(half, positive=permuted(half.positive, seed, number))


def elsewhere(half: Half, search: Search, seed: int) -> tuple[Half, int]:
    """Return the half with regions that say nothing of the sequence, and how many of them overlap another.

    They are as many and as long as before, at places that regions of other sequences of the same class have
    (`matched_regions`).
    """
    regions, overlapping = {head: list(found) for head, found in half.regions.items()}, 0
    for which in (True, False):
        place = np.flatnonzero(half.positive == which).tolist()
        lengths = [len(half.sequences[i]) for i in place]
        for number, (head, found) in enumerate(half.regions.items()):
            key = 2 * (seed * len(half.regions) + number) + which
            matched, overlaps = matched_regions([found[i] for i in place], lengths, key)
            overlapping += overlaps
            for i, intervals in zip(place, matched, strict=True):
                regions[head][i] = intervals
    return Half.of(half.sequences, half.positive, regions, search), overlapping


def everywhere(half: Half, search: Search) -> Half:
    """Return the half with whole sequences as regions: enrichment of words without any attention."""
    regions = {ANYWHERE: whole([len(text) for text in half.sequences])}
    return Half.of(half.sequences, half.positive, regions, search)
