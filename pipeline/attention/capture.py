"""Attention of every head, reduced while it is computed.

The kernel registered here computes a layer's output as sdpa does, and hands the layer's queries and keys to
a reduction, which asks for weights a block at a time and keeps what it makes of them. So memory is one block
of scores, never layers x heads x length squared. It works for any model whose layers attend through the
attention interface of transformers: ours, ESM, BERT and others.

Shape suffixes: B batch, Y layers, H heads, K channels per head, L tokens, Q queries, T tokens of a window
without special tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pipeline.tokens.kmers import Tokens
from pipeline.tokens.windows import Context, Reading
from pipeline.training.classifier import frame, pad
from pipeline.training.vectors import batches_of, letters_read, pieces_of

KERNEL = "strand_reduced"
BLOCK = 2**18  # scores computed at a time: they stay in cache
CHUNK_BYTES = 2**26  # scores of letters that are kept until all records of a chunk are read
CHUNK_RECORDS = 4096
UNKNOWN = ("position_bias", "softcap", "s_aux")  # what changes scores in ways that are not known here

Queries = str | np.ndarray | torch.Tensor


@dataclass(frozen=True)
class Attention:
    """The attention of one layer, computed a block at a time.

    Attributes:
        query: (B, H, L, K), times the scaling.
        key: (B, H, L, K).
        mask: (B or 1, H or 1, L, L), True or 0 where a query sees a key; or None.
    """

    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return B, H, L."""
        B, H, L, _ = self.query.shape
        return B, H, L

    def row(self, row: int) -> "Attention":
        """Return the attention within one row of the batch."""
        own = slice(row, row + 1)
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[own]
        return Attention(self.query[own], self.key[own], mask)

    def blocks(
        self, heads: torch.Tensor, places_Q: torch.Tensor
    ) -> Iterator[tuple[slice, slice, slice, torch.Tensor]]:
        """Yield rows, heads and queries of a block, and their weights, which sum to 1 over keys.

        Args:
            heads: numbers of the heads, to which the slices of heads refer.
            places_Q: which tokens are queries; the slices of queries refer to these.
        """
        (B, _, L), H, Q = self.shape, len(heads), len(places_Q)
        q_BHQK, k_BHKL = self.query[:, heads][:, :, places_Q], self.key[:, heads].mT
        queries = max(1, min(Q, BLOCK // L))
        together = max(1, min(H, BLOCK // (queries * L)))
        rows = max(1, min(B, BLOCK // (together * queries * L)))
        for b in _slices(B, rows):
            for q in _slices(Q, queries):
                mask = self._mask(b, heads, places_Q[q])
                for h in _slices(H, together):
                    scores = q_BHQK[b, h, q] @ k_BHKL[b, h]
                    yield b, h, q, _masked(scores, mask, h).softmax(-1)

    def _mask(self, rows: slice, heads: torch.Tensor, places_Q: torch.Tensor) -> torch.Tensor | None:
        if self.mask is None:
            return None
        mask = self.mask if len(self.mask) == 1 else self.mask[rows]
        return (mask if mask.shape[1] == 1 else mask[:, heads])[:, :, places_Q]


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def _masked(scores: torch.Tensor, mask: torch.Tensor | None, heads: slice) -> torch.Tensor:
    """Return the scores as the mask leaves them: the lowest number, or less by what is added."""
    if mask is None:
        return scores
    mask = mask if mask.shape[1] == 1 else mask[:, heads]
    if mask.dtype == torch.bool:
        return scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return scores.add_(mask)


# -- the kernel

Reduction = Callable[[int, Attention], None]


class _Request:
    """What is made of each layer now, one request at a time, and how many layers there were."""

    reduction: Reduction | None = None
    layers = 0


def _kernel(module, query, key, value, attention_mask, scaling=None, **kwargs):
    assert _Request.reduction is not None, f"{KERNEL} is for capturing only"
    if unknown := [name for name in UNKNOWN if kwargs.get(name) is not None]:
        raise ValueError(f"{type(module).__name__}: attention with {unknown[0]} cannot be captured")
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{type(module).__name__}: only self-attention can be captured")
    causal = kwargs.get("is_causal")
    if attention_mask is None and (getattr(module, "is_causal", True) if causal is None else causal):
        raise ValueError(f"{type(module).__name__}: causal attention without a mask cannot be captured")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    fine = torch.promote_types(query.dtype, torch.float32)
    keys = repeat_kv(key, query.shape[1] // key.shape[1])
    attention = Attention(query.to(fine) * scaling, keys.to(fine), attention_mask)
    _Request.reduction(_Request.layers, attention)
    _Request.layers += 1
    del attention, keys
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def _mask_of(**settings: Any) -> torch.Tensor | None:
    """Return sdpa's mask: None only where every token sees every other."""
    settings["allow_is_causal_skip"] = False
    return sdpa_mask(**settings)


AttentionInterface.register(KERNEL, _kernel)
AttentionMaskInterface.register(KERNEL, _mask_of)


@contextmanager
def _reducing(model, reduction: Reduction) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(KERNEL)
    _Request.reduction, _Request.layers = reduction, 0
    try:
        yield
    finally:
        _Request.reduction = None
        model.set_attn_implementation(before)


@torch.no_grad()
def capture(model, inputs: dict[str, torch.Tensor], reduction: Reduction):
    """Run a model, in evaluation mode, with a reduction of the attention of each of its layers.

    Args:
        model: any model that attends through transformers' attention interface.
        inputs: what it takes; moved to its device.
        reduction: called with the number of each layer and its attention, in turn.

    Returns:
        What the model returns; it is what sdpa gives.

    Raises:
        ValueError: some layer attends in another way, so that its attention is not known.
    """
    model.eval()
    with _reducing(model, reduction):
        outputs = model(**{name: value.to(model.device) for name, value in inputs.items()})
    if _Request.layers != (layers := count_heads(model)[0]):
        raise ValueError(
            f"{type(model).__name__}: {_Request.layers} of {layers} layers attend through transformers' "
            "attention interface; the attention of the others cannot be captured"
        )
    return outputs


def count_heads(model) -> tuple[int, int]:
    """Return how many layers a model has, and how many heads each.

    Raises:
        ValueError: it is none with layers of attention.
    """
    counts = (getattr(model.config, f"num_{name}", None) for name in ("hidden_layers", "attention_heads"))
    match tuple(counts):
        case (int(layers), int(heads)):
            return layers, heads
    raise ValueError(f"{type(model).__name__}: no model with layers of attention heads")


# -- what tokens get


def query_weights(attention_mask: torch.Tensor, queries: Queries) -> torch.Tensor:
    """Return what the attention of each token as a query counts for (B, L), float32.

    Args:
        attention_mask: (B, L), 1 on tokens and 0 on padding.
        queries: ``cls``, the first token; ``all``, the mean over all tokens but padding; or (B, L): booleans,
            the mean over these tokens, or numbers, their sum with these weights.

    Raises:
        ValueError: another word or shape, weight on padding, or nothing to take the mean of.
    """
    real_BL = attention_mask.bool()
    if isinstance(queries, str):
        if queries not in ("cls", "all"):
            raise ValueError(f"queries: {queries!r} is neither cls nor all")
        first_BL = real_BL & (real_BL.cumsum(1) == 1)
        weights_BL = first_BL if queries == "cls" else real_BL
    else:
        weights_BL = torch.as_tensor(queries, device=real_BL.device)
    if weights_BL.shape != real_BL.shape:
        raise ValueError(f"queries: shape {tuple(weights_BL.shape)}, tokens have {tuple(real_BL.shape)}")
    if (weights_BL.bool() & ~real_BL).any():
        raise ValueError("queries: padding is among them")
    if weights_BL.dtype != torch.bool:
        return weights_BL.float()
    if not weights_BL.any(1).all():
        raise ValueError(f"queries: none in row {int((~weights_BL.any(1)).nonzero()[0])}")
    return weights_BL / weights_BL.sum(1, keepdim=True)


def _received(attention: Attention, heads: torch.Tensor, weights_BL: torch.Tensor) -> torch.Tensor:
    """Return (B, H, L) the attention that each token gets from the queries, as a weighted sum."""
    B, _, L = attention.shape
    places_Q = weights_BL.any(0).nonzero()[:, 0]
    weights_BQ = weights_BL[:, places_Q].to(attention.query.dtype)
    total_BHL = attention.query.new_zeros(B, len(heads), L)
    for b, h, q, part in attention.blocks(heads, places_Q):
        total_BHL[b, h] += (weights_BQ[b, None, None, q] @ part)[:, :, 0]
    return total_BHL


def received_attention(
    model,
    inputs: dict[str, torch.Tensor],
    queries: Queries,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> np.ndarray:
    """Return the attention that each token gets from every chosen head, (Y, B, H, L), float32.

    Args:
        model: see `capture`.
        inputs: ``input_ids`` and ``attention_mask`` (B, L), and what else the model takes.
        queries: whose attention; see `query_weights`.
        layers: numbers of the layers, from 0; all, if not given.
        heads: numbers of the heads in each, from 0; all, if not given.

    Raises:
        ValueError: the queries do not fit, there is no such layer or head, or see `capture`.
    """
    weights_BL = query_weights(inputs["attention_mask"], queries).to(model.device)
    chosen, numbers = (
        _chosen(name, asked, count)
        for name, asked, count in zip(("layers", "heads"), (layers, heads), count_heads(model), strict=True)
    )
    place_H = torch.tensor(numbers, device=model.device)
    received: dict[int, torch.Tensor] = {}

    def reduce(layer: int, attention: Attention) -> None:
        if layer in chosen:
            received[layer] = _received(attention, place_H, weights_BL).float().cpu()

    capture(model, inputs, reduce)
    return torch.stack([received[layer] for layer in chosen]).numpy()


def _chosen(name: str, asked: Sequence[int] | None, count: int) -> list[int]:
    chosen = list(range(count)) if asked is None else list(asked)
    if not chosen or (wrong := [number for number in chosen if not 0 <= number < count]):
        raise ValueError(f"{name}: {wrong[0] if chosen else 'none'} chosen; there are 0 to {count - 1}")
    return chosen


# -- from tokens to letters


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


@dataclass(frozen=True)
class _Record:
    name: str
    sequence: str
    reading: Reading


def _chunks(records: Iterable[tuple[str, str]], context: Context, heads: int) -> Iterator[list[_Record]]:
    """Yield records until their scores fill a chunk; a record that is larger is one by itself."""
    chunk, letters, most = [], 0, CHUNK_BYTES // (4 * heads)
    for name, sequence in records:
        context.check([(name, sequence)])
        letters += len(sequence)
        if chunk and (letters > most or len(chunk) == CHUNK_RECORDS):
            yield chunk
            chunk, letters = [], len(sequence)
        chunk.append(_Record(name, sequence, context.read(name, sequence)))
    if chunk:
        yield chunk


def letter_attention(
    model,
    context: Context,
    records: Iterable[tuple[str, str]],
    queries: str,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    budget: int = 8192,
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield records of a data set of any size, in its order, each with the attention that its letters get.

    That is (Y, H, letters of the record), float32: the mean over the tokens that cover a letter, and over the
    windows that do; NaN where no token that is read covers it. Memory is bounded: some records are read ahead
    and put into batches of similar lengths.

    Args:
        model: see `capture`.
        context: how records are read that are longer than the model's context.
        records: (id, cleaned sequence).
        queries: ``cls`` or ``all``, of each window; see `query_weights`.
        layers: see `received_attention`.
        heads: see `received_attention`.
        budget: tokens read at once, padding included.

    Raises:
        UserError: a record is too long, and should not be.
    """
    size_Y, size_H = (
        count if asked is None else len(asked)
        for asked, count in zip((layers, heads), count_heads(model), strict=True)
    )
    for chunk in _chunks(records, context, size_Y * size_H):
        scores = [np.full((len(record.sequence), size_Y * size_H), np.nan, np.float32) for record in chunk]
        for record, scores_LN in zip(chunk, scores, strict=True):
            scores_LN[: letters_read(record.reading)] = 0
        pieces = [piece for i, record in enumerate(chunk) for piece in pieces_of(record.reading, i)]
        framed = [frame(piece.tokens.ids, context.codec) for piece in pieces]
        for batch in batches_of([len(ids_F) for ids_F in framed], budget):
            inputs = pad([framed[i] for i in batch], context.codec)
            received_YBHL = received_attention(model, inputs, queries, layers, heads)
            for row, piece in enumerate(pieces[i] for i in batch):
                inner_YHT = received_YBHL[:, row, :, 1 : 1 + len(piece.tokens.ids)]
                own = scores[piece.record][piece.begin : piece.begin + len(piece.share)]
                own += piece.spread(inner_YHT.reshape(size_Y * size_H, -1).T)
        for record, scores_LN in zip(chunk, scores, strict=True):
            yield record.name, record.sequence, scores_LN.T.reshape(size_Y, size_H, -1)
