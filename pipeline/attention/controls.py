"""The search for motifs run on what holds none, or without attention: what a finding is compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.attention.discovery import Discovery, Half, Search, discover, elsewhere, everywhere, relabelled
from pipeline.attention.heads import Scores, attended
from pipeline.attention.nulls import shuffled
from pipeline.log import say

ABOUT = {
    "untrained": "attention of the same network with random weights",
    "shuffled_positives": "positives shuffled, each keeping its dinucleotides",
    "permuted_labels": "labels in random order",
    "random_regions": "regions of other sequences of the class: as many, as long, at the same places",
    "no_attention": "whole sequences as regions: plain enrichment of words",
}

Read = Callable[[Sequence[str], str], Scores]


@dataclass(frozen=True)
class Controls:
    """What controls are made of: both halves, how they are read and searched."""

    first: Half
    second: Half
    search: Search
    min_region: int
    read: Read
    """attention of the classifier on sequences"""
    read_untrained: Read
    """the same of an untrained network"""
    seed: int
    permutations: int = 1

    def run(self, name: str) -> list[Discovery]:
        """Return what the search gives on a control, for each time that it is run."""
        found = [discover(*halves, self.search) for halves in self._halves(name)]
        motifs = ", ".join(motif.consensus for one in found for motif in one.motifs) or "none"
        say(f"control {name} ({ABOUT[name]}): {motifs}")
        return found

    def _halves(self, name: str) -> list[tuple[Half, Half]]:
        both = self.first, self.second
        if name == "permuted_labels":
            return [
                (relabelled(self.first, self.seed, 2 * i), relabelled(self.second, self.seed, 2 * i + 1))
                for i in range(self.permutations)
            ]
        make = {
            "untrained": self._untrained,
            "shuffled_positives": self._shuffled,
            "random_regions": self._elsewhere,
            "no_attention": lambda half, _: everywhere(half, self.search),
        }[name]
        first, second = (make(half, number) for number, half in enumerate(both))
        return [(first, second)]

    def _half(self, half: Half, scores: Scores) -> Half:
        return Half.of(half.sequences, half.positive, attended(scores, self.min_region), self.search)

    def _untrained(self, half: Half, number: int) -> Half:
        return self._half(half, self.read_untrained(half.sequences, "attention of an untrained network"))

    def _elsewhere(self, half: Half, number: int) -> Half:
        moved, overlapping = elsewhere(half, self.search, 2 * self.seed + number)
        if overlapping:
            say(f"random regions: {overlapping} overlap another one, since their sequences had no room")
        return moved

    def _shuffled(self, half: Half, number: int) -> Half:
        """Return the half with its positives shuffled and read anew; the others stay as they are."""
        place = np.flatnonzero(half.positive).tolist()
        texts = shuffled([half.sequences[i] for i in place], self.seed, number)
        regions = attended(self.read(texts, "attention to shuffled positives"), self.min_region)
        sequences, merged = list(half.sequences), {head: list(found) for head, found in half.regions.items()}
        for row, i in enumerate(place):
            sequences[i] = texts[row]
            for head, found in merged.items():
                found[i] = regions[head][row]
        return Half.of(sequences, half.positive, merged, self.search)
