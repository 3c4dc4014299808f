"""Vectors out of a network's hidden states: one for each record, or one for each of its letters.

A record is read in one window or in several that overlap. A letter's vector is the mean over the tokens of a
window that cover it, and then over the windows that cover it, which weigh the same; a record's vector is the
mean over its letters.

Shapes: N records, R rows of vectors, B windows of a batch, T tokens of a window (F: with its special tokens),
L letters that they cover, D channels, Y layers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from pipeline.model.attention_strand import CPU, fastest_attention
from pipeline.tokens.kmers import Codec, Tokens
from pipeline.tokens.windows import Reading
from pipeline.training.classifier import frame, pad

Pooling = Literal["mean", "cls", "per_letter"]


@dataclass(frozen=True)
class Piece:
    """A window of a record.

    Attributes:
        record: number of the record.
        tokens: of the window, without specials; ``starts`` count from its first letter.
        begin: that letter's place in the record.
        share: (L,) what the window counts for at each of its letters: one divided by the windows there.
    """

    record: int
    tokens: Tokens
    begin: int
    share: np.ndarray

    @cached_property
    def coverage(self) -> np.ndarray:
        """How many tokens of the window cover each letter (L,)."""
        coverage_L = np.zeros(len(self.share), np.float32)
        for _, place in self._offsets():
            coverage_L[place] += 1
        return coverage_L

    def _offsets(self) -> Iterator[tuple[np.ndarray | slice, np.ndarray]]:
        """Yield which tokens have a first, a second, ... letter, and where it is: no place twice in one."""
        starts, spans = self.tokens.starts, self.tokens.spans
        for offset in range(int(spans.max())):
            chosen = slice(None) if (spans > offset).all() else np.flatnonzero(spans > offset)
            yield chosen, starts[chosen] + offset

    def weights(self, pooling: Pooling) -> np.ndarray:
        """Return what the vector of each token (F,) counts for in the sum over the record's letters."""
        weight_F = np.zeros(len(self.tokens.ids) + 2, np.float32)
        if pooling == "cls":
            weight_F[0] = self.share.sum()
            return weight_F
        of_letter_L = self.share / self.coverage
        for chosen, place in self._offsets():
            weight_F[1:-1][chosen] += of_letter_L[place]
        return weight_F

    def spread(self, states_TD: np.ndarray) -> np.ndarray:
        """Return vectors of letters (L, D): means over the tokens that cover each, times the share."""
        vectors_LD = np.zeros((len(self.share), states_TD.shape[1]), np.float32)
        for chosen, place in self._offsets():
            vectors_LD[place] += states_TD[chosen]
        return vectors_LD * (self.share / self.coverage)[:, None]


def letters_read(reading: Reading) -> int:
    """Return how many letters of a record its tokens cover; none, if it is skipped."""
    return int((reading.tokens.starts + reading.tokens.spans).max()) if len(reading.bounds) else 0


def pieces_of(reading: Reading, record: int) -> list[Piece]:
    """Return the windows of a record."""
    starts, stops = reading.tokens.starts, reading.tokens.starts + reading.tokens.spans
    begins = [int(starts[first]) for first, _ in reading.bounds]
    ends = [int(stops[first:last].max()) for first, last in reading.bounds]
    times_L = np.zeros(letters_read(reading), np.float32)
    for begin, end in zip(begins, ends, strict=True):
        times_L[begin:end] += 1
    return [
        Piece(record, _part(reading.tokens, first, last), begin, 1 / times_L[begin:end])
        for (first, last), begin, end in zip(reading.bounds.tolist(), begins, ends, strict=True)
    ]


def _part(tokens: Tokens, first: int, last: int) -> Tokens:
    starts = tokens.starts[first:last]
    return Tokens(tokens.ids[first:last], starts - starts[0], tokens.spans[first:last])


def batches_of(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of indices, similar sizes together: in each, as many as the budget has room for.

    Args:
        sizes: tokens of each window.
        budget: tokens of a batch, padding included; a window that is larger is a batch by itself.
    """
    batches: list[list[int]] = []
    for i in np.argsort(sizes, kind="stable").tolist():
        if not batches or (len(batches[-1]) + 1) * sizes[i] > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


class Encoder:
    """A network that gives the hidden states of some of its layers.

    On a CPU the sequences of a batch are packed end to end, so that no padding is computed and no mask slows
    attention down; on other devices they are padded.

    Args:
        model: a `StrandModel`, on its device and in the type that it computes in.
        codec: codec of its tokenizer.
        layers: 0 is the embedding, the last is the states after the last norm; may be counted from behind.
        budget: tokens read at once.
    """

    def __init__(self, model, codec: Codec, layers: Sequence[int], budget: int):
        self.model, self.codec, self.budget = model.eval(), codec, budget
        count = model.config.num_hidden_layers + 1
        self.layers = [layer % count for layer in layers]
        self.packs = model.device.type == "cpu"
        kernel = CPU if self.packs else fastest_attention(model.device, model.dtype, training=False)
        model.set_attn_implementation(kernel)

    @property
    def width(self) -> int:
        """Channels of a vector, D."""
        return self.model.config.hidden_size

    @contextmanager
    def _recording(self) -> Iterator[dict[int, torch.Tensor]]:
        """Keep what goes into those layers whose predecessors are wanted, and nothing else."""
        seen: dict[int, torch.Tensor] = {}
        hooks = [
            self.model.layers[layer].register_forward_pre_hook(
                lambda _, inputs, layer=layer: seen.__setitem__(layer, inputs[0])
            )
            for layer in set(self.layers) - {len(self.model.layers)}
        ]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()

    def _inputs(self, framed: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        if not self.packs:
            return {name: x.to(self.model.device) for name, x in pad(framed, self.codec).items()}
        offsets = np.cumsum([0, *map(len, framed)])
        ids = np.concatenate(framed).astype(np.int64, copy=False)
        return {"input_ids": torch.from_numpy(ids)[None], "sequence_offsets": torch.from_numpy(offsets)}

    @torch.inference_mode()
    def states(self, framed: Sequence[np.ndarray]) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        """Yield batches of windows, as places in ``framed``, with the states of each layer.

        These are (F of all windows of the batch, D), one window after another, in float32.

        Args:
            framed: ids (F,) of the tokens of each window, specials included.
        """
        with self._recording() as seen:
            for batch in batches_of([len(ids_F) for ids_F in framed], self.budget):
                inputs = self._inputs([framed[i] for i in batch])
                seen[len(self.model.layers)] = self.model(**inputs).last_hidden_state
                mask = inputs.get("attention_mask")
                real = slice(None) if mask is None else mask.flatten().bool()
                yield batch, [seen[layer].flatten(0, 1)[real].float() for layer in self.layers]


def rows_of(readings: Sequence[Reading], pooling: Pooling) -> np.ndarray:
    """Return how many vectors each record has (N,): one, or one for each letter; none, if it is skipped."""
    letters_N = np.array([letters_read(reading) for reading in readings], np.int64)
    return letters_N if pooling == "per_letter" else np.minimum(letters_N, 1)


@torch.inference_mode()
def vectors_of(encoder: Encoder, readings: Sequence[Reading], pooling: Pooling) -> np.ndarray:
    """Return the vectors of records, one after another: (Y, R, D), float32.

    Args:
        encoder: gives the states of tokens.
        readings: what is read of each record.
        pooling: mean over letters; the vector of the first token, of several windows weighed by their
            letters; or one vector for each letter.
    """
    size_N = rows_of(readings, pooling)
    first_N = np.cumsum(size_N) - size_N
    vectors_YRD = np.zeros((len(encoder.layers), int(size_N.sum()), encoder.width), np.float32)
    pieces = [piece for i, reading in enumerate(readings) for piece in pieces_of(reading, i)]
    framed = [frame(piece.tokens.ids, encoder.codec) for piece in pieces]
    letters_N = np.array([letters_read(reading) for reading in readings])
    for batch, states in encoder.states(framed):
        chosen = [pieces[i] for i in batch]
        for vectors_RD, states_FD in zip(vectors_YRD, states, strict=True):
            if pooling == "per_letter":
                _add_letters(vectors_RD, states_FD, chosen, first_N)
            else:
                _add_sums(vectors_RD, states_FD, chosen, first_N, letters_N, pooling)
    return vectors_YRD


def _add_sums(vectors_RD, states_FD, pieces: Sequence[Piece], first_N, letters_N, pooling: Pooling) -> None:
    weights = [piece.weights(pooling) / letters_N[piece.record] for piece in pieces]
    weight_F = torch.from_numpy(np.concatenate(weights).astype(np.float32)).to(states_FD.device)
    lengths = torch.tensor([len(weight) for weight in weights], device=states_FD.device)
    sums_BD = torch.segment_reduce(states_FD * weight_F[:, None], "sum", lengths=lengths)
    np.add.at(vectors_RD, first_N[[piece.record for piece in pieces]], sums_BD.cpu().numpy())


def _add_letters(vectors_RD, states_FD, pieces: Sequence[Piece], first_N) -> None:
    at, states_FD = 0, states_FD.cpu().numpy()
    for piece in pieces:
        begin, count = first_N[piece.record] + piece.begin, len(piece.tokens.ids)
        vectors_RD[begin : begin + len(piece.share)] += piece.spread(states_FD[at + 1 : at + 1 + count])
        at += count + 2
