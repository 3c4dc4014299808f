"""What a batch asks of the network: hidden letters of windows, or every letter of aligned rows."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from pipeline.config import MaskingConfig
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.masking import IGNORED, generator, mask_window
from pipeline.tokens.store import TokenSplit
from pipeline.training.plan import Window

MASKS = 3


@dataclass
class Batch:
    """A padded batch.

    ``input_ids`` and ``attention_mask`` are (B, L); ``positions`` (T,) are the places of the targets in the
    flattened batch, ``labels`` (T,) their tokens and ``weights`` (T,) what each counts in the loss.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``."""
        return Batch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def empty(self) -> "Batch":
        """Return the same inputs with weight zero, for a process that has nothing left to do in a step."""
        return Batch(
            self.input_ids, self.attention_mask, self.positions, self.labels, torch.zeros_like(self.weights)
        )


class Objective(Protocol):
    """Makes batches of windows."""

    def batch(self, windows: list[Window]) -> Batch:
        """Return the batch of these windows; a function of the windows alone."""
        ...


@dataclass
class MaskedObjective:
    """Hidden runs of letters are to be predicted (Devlin et al. 2019, arXiv:1810.04805, in letters)."""

    split: TokenSplit
    codec: KmerCodec
    masking: MaskingConfig
    seed: int
    hidden: int = 0
    letters: int = 0
    runs: np.ndarray = field(default_factory=lambda: np.zeros(3, int))

    def _window(self, window: Window):
        codes = self.codec.codes_of_track(self.split.slice(window.record, window.start, window.length))
        if window.reverse:
            codes = np.where(codes < 4, 3 - codes, codes)[::-1]
        key = (MASKS, self.seed, window.epoch, window.record, window.start, int(window.reverse))
        masked = mask_window(codes, self.codec, self.masking, generator(*key))
        self.hidden += int(masked.hidden.sum())
        self.letters += window.length
        self.runs += masked.runs
        return masked

    def batch(self, windows: list[Window]) -> Batch:
        """Return the windows masked, framed by special tokens and padded."""
        pieces = [self._window(window) for window in windows]
        width = max(len(piece.ids) for piece in pieces) + 2
        ids = np.full((len(pieces), width), self.codec.special("pad"), np.int64)
        labels = np.full((len(pieces), width), IGNORED, np.int64)
        ids[:, 0] = self.codec.special("cls")
        for row, piece in enumerate(pieces):
            n = len(piece.ids)
            ids[row, 1 : n + 1], labels[row, 1 : n + 1] = piece.ids, piece.labels
            ids[row, n + 1] = self.codec.special("eos")
        positions = np.flatnonzero(labels.ravel() != IGNORED)
        return _tensors(
            ids,
            ids != self.codec.special("pad"),
            positions,
            labels.ravel()[positions],
            np.ones(len(positions)),
        )

    def shares(self) -> dict[str, float]:
        """Return the share of letters hidden so far, and of runs masked, replaced and kept."""
        masked, replaced, kept = self.runs / max(1, self.runs.sum())
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
    codec: KmerCodec
    row_weights: np.ndarray

    def batch(self, windows: list[Window]) -> Batch:
        """Return whole rows, each counting as much as its weight."""
        ids = np.stack([self.split.slice(w.record, 0, w.length) for w in windows]).astype(np.int64)
        real = self.codec.codes_of_track(ids) < self.codec.n_real
        weights = np.repeat(self.row_weights[[w.record for w in windows]], ids.shape[1])
        positions = np.flatnonzero(real.ravel())
        return _tensors(ids, np.ones_like(ids), positions, ids.ravel()[positions], weights[positions])


def _tensors(ids, attention_mask, positions, labels, weights) -> Batch:
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(attention_mask.astype(np.int64)),
        torch.from_numpy(positions),
        torch.from_numpy(labels),
        torch.from_numpy(weights.astype(np.float32)),
    )
