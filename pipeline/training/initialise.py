"""Random weights to start from, and to compare with."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pipeline.tokens.kmers import Codec

COMPOSED_STD = 0.3


def compose_kmers(model, codec: "Codec") -> None:
    """Start every k-mer's vector as the sum of one vector for each of its letters at each place.

    K-mers that share letters then start out alike, as words do that share subwords (Bojanowski et al. 2017,
    doi:10.1162/tacl_a_00051), and what is learned of one serves the others from the first step; from
    independent vectors a small network predicts little more than base composition for many hundred steps. The
    standard deviation of 0.3 is large beside the size of an optimizer step, so that the composition is not
    forgotten at once.
    """
    if codec.k == 1:
        return
    letters_VP = torch.from_numpy(codec.letter_at.astype("int64")).T
    several_V = (letters_VP < 4).sum(1) > 1
    table = model.get_input_embeddings().weight
    parts_PAD = torch.randn(letters_VP.shape[1], 5, table.shape[1]) * COMPOSED_STD / codec.k**0.5
    parts_PAD[:, 4] = 0  # no letter
    letters = letters_VP[several_V].clamp(max=4)
    with torch.no_grad():
        table[several_V] = sum(parts_PAD[place][letters[:, place]] for place in range(letters.shape[1]))


def fresh(kind: type, config, codec: "Codec", seed: int):
    """Return a network of class ``kind`` with random weights that are a function of the seed."""
    torch.manual_seed(seed)
    model = kind(config)
    compose_kmers(model, codec)
    return model
