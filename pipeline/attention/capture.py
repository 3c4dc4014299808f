"""Attention of every head, reduced while it is computed.

The kernel registered here computes the layer's output as sdpa does, and beside it only what is asked for:
how much attention each token gets from the first token, or from all tokens on average. Memory is one block of
queries of one layer, never layers x heads x length squared. Shape suffixes: B batch, H heads, L tokens, Q
queries.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask

from pipeline.tokens.kmers import Tokens

KERNEL = "strand_received"
BLOCK = 128


class _Request:
    """What is being collected now; one at a time."""

    weights: torch.Tensor
    received: list[torch.Tensor] | None = None


def _received(query, key, attention_mask, scaling: float, weights_BQ: torch.Tensor) -> torch.Tensor:
    """Return (B, H, L) the attention that each token gets from the first Q queries, as a weighted sum."""
    total_BHL = 0.0
    for start in range(0, weights_BQ.shape[1], BLOCK):
        part_BQ = weights_BQ[:, start : start + BLOCK]
        stop = start + part_BQ.shape[1]
        scores = query[:, :, start:stop].float() @ key.float().transpose(-1, -2) * scaling
        if attention_mask is not None:
            scores = scores + attention_mask[:, :, start:stop].float()
        total_BHL = total_BHL + torch.einsum("bhql,bq->bhl", scores.softmax(-1), part_BQ)
    assert isinstance(total_BHL, torch.Tensor)
    return total_BHL


def _kernel(module, query, key, value, attention_mask, scaling, **kwargs):
    assert _Request.received is not None, f"{KERNEL} is for received_attention only"
    _Request.received.append(_received(query, key, attention_mask, scaling, _Request.weights))
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


AttentionInterface.register(KERNEL, _kernel)
AttentionMaskInterface.register(KERNEL, eager_mask)


@contextmanager
def _collecting(model, weights_BQ: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    before = model.config._attn_implementation
    model.set_attn_implementation(KERNEL)
    _Request.weights, _Request.received = weights_BQ, []
    try:
        yield _Request.received
    finally:
        _Request.received = None
        model.set_attn_implementation(before)


@torch.no_grad()
def received_attention(model, inputs: dict[str, torch.Tensor], queries: str) -> np.ndarray:
    """Return the attention that each token gets from every head, (layers, B, H, L), float32.

    Args:
        model: a strand model with any head.
        inputs: ``input_ids`` and ``attention_mask`` (B, L), padded on the right.
        queries: ``cls``, the first token's attention; ``all``, the mean over all tokens, padding left out.
    """
    model.eval()
    real_BL = inputs["attention_mask"].float()
    weights_BQ = real_BL[:, :1] if queries == "cls" else real_BL / real_BL.sum(1, keepdim=True)
    with _collecting(model, weights_BQ) as received:
        model(**inputs)
    return torch.stack(received).cpu().numpy()


def spread_to_letters(scores_T: np.ndarray, tokens: Tokens, length: int) -> np.ndarray:
    """Return (length,) scores of letters: the mean over the tokens that cover each, NaN where none does."""
    edges, covers = np.zeros(length + 1), np.zeros(length + 1)
    stops = tokens.starts + tokens.spans
    np.add.at(edges, tokens.starts, scores_T)
    np.add.at(edges, stops, -scores_T)
    np.add.at(covers, tokens.starts, 1)
    np.add.at(covers, stops, -1)
    coverage = np.cumsum(covers)[:-1]
    total = np.cumsum(edges)[:-1]
    return np.divide(total, coverage, out=np.full(length, np.nan), where=coverage > 0)
