"""Random weights to start from, and to compare with."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pipeline.tokens.kmers import KmerCodec

COMPOSED_STD = 0.3


def compose_kmers(model, codec: "KmerCodec") -> None:
    """Start every k-mer's vector as the sum of one vector for each of its letters at each place.

    K-mers that share letters then start out alike, as words do that share subwords (Bojanowski et al. 2017,
    doi:10.1162/tacl_a_00051), and what is learned of one serves the others from the first step; from
    independent vectors a small network predicts little more than base composition for many hundred steps. The
    standard deviation of 0.3 is large beside the size of an optimizer step, so that the composition is not
    forgotten at once.
    """
    if codec.k == 1:
        return
    letters_at = torch.from_numpy(codec.letter_at[:, codec.first_kmer :].astype("int64"))
    table = model.get_input_embeddings().weight
    parts = torch.randn(codec.k, 4, table.shape[1]) * COMPOSED_STD / codec.k**0.5
    with torch.no_grad():
        table[codec.first_kmer :] = sum(parts[place][letters_at[place]] for place in range(codec.k))


def fresh(kind: type, config, codec: "KmerCodec", seed: int):
    """Return a network of class ``kind`` with random weights that are a function of the seed."""
    torch.manual_seed(seed)
    model = kind(config)
    compose_kmers(model, codec)
    return model
