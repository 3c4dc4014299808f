"""What a batch asks of the network: hidden letters of windows, or every letter of aligned rows."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from pipeline.config import MaskingConfig
from pipeline.keyed import keys
from pipeline.tokens.kmers import Codec
from pipeline.tokens.masking import Masked, mask_batch
from pipeline.tokens.store import TokenSplit
from pipeline.training.plan import Window

MASKS = 3


@dataclass(frozen=True)
class Batch:
    """Sequences for the network: padded, (B, L), or packed end to end in one row, (1, T).

    ``attention_mask`` is like ``input_ids`` where those are padded; where they are packed, ``offsets``
    (S + 1,) are where each sequence begins and the last ends. ``positions`` (T,) are the places of the
    targets in the flattened batch, ``labels`` (T,) their tokens and ``weights`` (T,) what each counts in the
    loss.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    attention_mask: torch.Tensor | None = None
    offsets: torch.Tensor | None = None

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return len(self.input_ids) if self.offsets is None else len(self.offsets) - 1

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``; offsets stay where they can be read at once."""
        parts = {n: getattr(self, n) for n in self.__dataclass_fields__ if n != "offsets"}
        return replace(self, **{n: part.to(device) for n, part in parts.items() if part is not None})

    def empty(self) -> "Batch":
        """Return the same inputs with weight zero, for a process that has nothing left to do in a step."""
        return replace(self, weights=torch.zeros_like(self.weights))


class Objective(Protocol):
    """Makes batches of windows."""

    def batch(self, windows: list[Window]) -> Batch:
        """Return the batch of these windows; a function of the windows alone."""
        ...


@dataclass
class MaskedObjective:
    """Hidden runs of letters are to be predicted (Devlin et al. 2019, arXiv:1810.04805, in letters).

    ``packed`` batches are for kernels that take sequences end to end.
    """

    split: TokenSplit
    codec: Codec
    masking: MaskingConfig
    seed: int
    packed: bool = False
    hidden: int = 0
    letters: int = 0
    fates: np.ndarray = field(default_factory=lambda: np.zeros(3, int))

    def _codes(self, window: Window) -> np.ndarray:
        codes = self.codec.codes_of_track(self.split.slice(window.record, window.start, window.length))
        return np.where(codes < 4, 3 - codes, codes)[::-1] if window.reverse else codes

    def batch(self, windows: list[Window]) -> Batch:
        """Return the windows masked and framed by special tokens, padded or packed."""
        parts = np.array([(w.epoch, w.record, w.start, w.reverse, w.occurrence) for w in windows])
        key_B = keys(MASKS, self.seed, *parts.T)
        truth = self.codec.batch([self._codes(window) for window in windows])
        masked = mask_batch(truth, self.codec, self.masking, key_B)
        self.hidden += len(masked.hidden)
        self.letters += sum(window.length for window in windows)
        self.fates += np.bincount(masked.fates, minlength=3)
        offsets, weights = masked.truth.offsets, self._weights(windows, masked)
        if self.packed:
            return _batch(masked.ids[None], masked.targets, masked.labels, weights, offsets=offsets)
        ids, real = pad(masked.ids, offsets, self.codec.special("pad"))
        row = np.searchsorted(offsets, masked.targets, side="right") - 1
        positions = masked.targets - offsets[row] + row * ids.shape[1]
        return _batch(ids, positions, masked.labels, weights, attention_mask=real)

    def _weights(self, windows: list[Window], masked: Masked) -> np.ndarray:
        """Return what each target counts: less by the share of its letters that are soft-masked."""
        light = 1 - self.masking.soft_mask_weight
        if light == 0:
            return np.ones(len(masked.targets))
        soft_L = np.zeros(len(masked.truth.codes), int)
        for window, begin in zip(windows, masked.truth.begins, strict=True):
            soft = self.split.soft_letters(window.record, window.start, window.length)
            soft_L[begin : begin + window.length] = soft[::-1] if window.reverse else soft
        before = np.concatenate(([0], np.cumsum(soft_L)))
        starts, spans = masked.truth.starts[masked.targets], masked.truth.spans[masked.targets]
        return 1 - light * (before[starts + spans] - before[starts]) / spans

    def shares(self) -> dict[str, float]:
        """Return the share of letters hidden so far, and of runs masked, replaced and kept."""
        masked, replaced, kept = self.fates / max(1, self.fates.sum())
        return {
            "hidden": self.hidden / max(1, self.letters),
            "masked": float(masked),
            "replaced": float(replaced),
            "kept": float(kept),
        }


@dataclass
class AlignedObjective:
    """Every residue of an aligned row is to be predicted from the others; gaps are never asked for."""

    split: TokenSplit
    codec: Codec
    row_weights: np.ndarray

    @property
    def weight(self) -> float:
        """What all targets of the data count together."""
        rows = (self.codec.codes_of_track(self.split.row(record)) for record in range(len(self.split)))
        return float(self.row_weights @ [np.count_nonzero(row < self.codec.n_real) for row in rows])

    def batch(self, windows: list[Window]) -> Batch:
        """Return whole rows, each counting as much as its weight."""
        ids = np.stack([self.split.slice(w.record, 0, w.length) for w in windows]).astype(np.int64)
        real = self.codec.codes_of_track(ids) < self.codec.n_real
        weights = np.repeat(self.row_weights[[w.record for w in windows]], ids.shape[1])
        positions = np.flatnonzero(real.ravel())
        return _batch(ids, positions, ids.ravel()[positions], weights[positions])


def pad(ids: np.ndarray, offsets: np.ndarray, filler: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (B, L) of the ids that lie end to end, and which of their places are real."""
    lengths = np.diff(offsets)
    rows = np.full((len(lengths), lengths.max()), filler, np.int64)
    for row, (begin, end) in enumerate(pairwise(offsets)):
        rows[row, : end - begin] = ids[begin:end]
    return rows, np.arange(rows.shape[1]) < lengths[:, None]


def _batch(ids, positions, labels, weights, **rest: np.ndarray) -> Batch:
    parts = (ids.astype(np.int64, copy=False), positions, labels, weights.astype(np.float32))
    return Batch(
        *(torch.from_numpy(part) for part in parts),
        **{name: torch.from_numpy(part.astype(np.int64)) for name, part in rest.items()},
    )
