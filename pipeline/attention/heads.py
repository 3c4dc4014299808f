"""What every head of a classifier attends to, in letters, and which head reads which motif.

Shapes: N sequences, L letters (NaN behind the end of a shorter sequence).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.attention.evidence import site_auroc
from pipeline.attention.instances import Sites
from pipeline.attention.words import Regions, high_regions
from pipeline.errors import UserError
from pipeline.keyed import generator
from pipeline.log import track

if TYPE_CHECKING:
    from pipeline.tokens.kmers import Codec

DEALS = 20  # times that sites are dealt out to other sequences

Scores = dict[str, list[np.ndarray]]  # by head, the attention of each sequence's letters (L,)


def chosen_heads(config, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return (layer, head) of the heads named ``layer.head`` from 0, or of all.

    Raises:
        UserError: a name that no head has.
    """
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    every = {f"{layer}.{head}": (layer, head) for layer in range(layers) for head in range(heads)}
    for name in names:
        if name not in every:
            raise UserError(
                f"heads: {name!r} is no head of the checkpoint: it has 0.0 to {layers - 1}.{heads - 1}"
            )
    return [every[name] for name in names or every]


@dataclass(frozen=True)
class Reader:
    """How attention is read: by which heads, from which queries, how many sequences at once."""

    codec: "Codec"
    heads: Sequence[tuple[int, int]]
    queries: Literal["cls", "all"] = "cls"
    batch_size: int = 64

    def __call__(self, model, sequences: Sequence[str], what: str = "attention") -> Scores:
        """Return by head, for each sequence, the attention of its letters (L,), NaN where no token covers."""
        from pipeline.attention.capture import received_attention, spread_to_letters
        from pipeline.training.classifier import by_length, encode, pad

        pieces = [encode(sequence, self.codec) for sequence in sequences]
        tokens = [self.codec.tokens(self.codec.codes(sequence)) for sequence in sequences]
        scores: Scores = {f"{layer}.{head}": [np.empty(0)] * len(sequences) for layer, head in self.heads}
        batches = by_length(pieces, self.batch_size)
        for batch in track(batches, len(batches), what):
            received = received_attention(model, pad([pieces[i] for i in batch], self.codec), self.queries)
            for row, i in enumerate(batch):
                inner = received[:, row, :, 1 : len(pieces[i]) - 1]
                for layer, head in self.heads:
                    letters = spread_to_letters(inner[layer, head], tokens[i], len(sequences[i]))
                    scores[f"{layer}.{head}"][i] = letters
        return scores


def attended(scores: Scores, min_region: int) -> dict[str, Regions]:
    """Return the high regions of every sequence, by head."""
    return {head: [high_regions(score, min_region) for score in found] for head, found in scores.items()}


@dataclass(frozen=True)
class Reading:
    """How much of a head's attention lies on the sites of a motif."""

    head: str
    motif: str
    sites: int
    share: float
    """mean share of a sequence's attention that its site gets"""
    expected: float
    """the same of sites that are dealt out to other sequences, at their positions"""
    specialisation: float
    """share / expected: 1 if the head looks at that place whatever stands there"""
    in_regions: float
    """share of sites that one of the head's regions overlaps"""
    auroc: float
    """chance that a site has more attention than the same place of a sequence without a site there"""


def head_table(
    scores: Scores, regions: Mapping[str, Regions], sites: Mapping[str, Sites], seed: int
) -> list[Reading]:
    """Return for every head and motif how its attention lies on the motif's sites.

    Args:
        scores: by head, the attention of each of N sequences.
        regions: by head, their attended regions.
        sites: by motif, their best sites.
        seed: of how sites are dealt out.
    """
    areas = {name: site_auroc(scores, found.regions) for name, found in sites.items()}
    shares = {head: _shares(found) for head, found in scores.items()}
    return [
        _reading(head, name, shares[head], regions[head], found, areas[name][head].auroc, seed)
        for head in scores
        for name, found in sites.items()
    ]


def _shares(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return (N, L + 1) the share of attention that the letters before each place have."""
    size = max(map(len, scores), default=0)
    share_NL = np.zeros((len(scores), size + 1))
    for row, score in enumerate(scores):
        known = np.nan_to_num(score)
        share_NL[row, 1 : len(score) + 1] = known / max(known.sum(), 1e-30)
    return share_NL.cumsum(1)


def _reading(
    head: str, motif: str, share_NL: np.ndarray, regions: Regions, sites: Sites, auroc: float, seed: int
) -> Reading:
    place, missing = np.flatnonzero(sites.found), float("nan")
    start = sites.start[place]
    if not len(place):
        return Reading(head, motif, 0, missing, missing, missing, missing, missing)

    def share(start: np.ndarray) -> float:
        return float((share_NL[place, start + sites.width] - share_NL[place, start]).mean())

    rng = generator(seed, len(place), sites.width)
    expected = float(np.mean([share(rng.permutation(start)) for _ in range(DEALS)]))
    pairs = zip(place.tolist(), start.tolist(), strict=True)
    touched = [any(a < at + sites.width and b > at for a, b in regions[i]) for i, at in pairs]
    ratio = share(start) / expected if expected else missing
    return Reading(head, motif, len(place), share(start), expected, ratio, float(np.mean(touched)), auroc)
