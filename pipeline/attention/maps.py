"""Attention between the residues of proteins, as contact regressions take it.

ESM's protocol (Rao et al. 2020, bioRxiv 2020.12.15.422761): the rows and columns of special tokens are
removed, a map is added to its transpose, and average-product correction takes away what a residue shares with
all others. Maps are made and used a layer at a time; a weighted sum over heads needs no map of a single one.

Shape suffixes: B batch, Y layers, H heads, L tokens, Q queries, R residues of a protein, P pairs.
Features, N of them, are layers x heads, in this order.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from pipeline.attention.capture import Attention, capture, count_heads

Inputs = dict[str, torch.Tensor]
Residues = Sequence[np.ndarray]


def corrected(maps: torch.Tensor) -> torch.Tensor:
    """Return maps (..., R, R) added to their transposes and average-product corrected.

    The correction is that of `contacts.average_product_correction`: a map of total 0 is left as it is.
    """
    both = maps + maps.mT
    sums = both.sum(-1, keepdim=True)
    return both.addcmul_(sums, _shares(sums[..., 0]).unsqueeze(-2), value=-1)


def _shares(sums: torch.Tensor) -> torch.Tensor:
    """Return sums of rows (..., R) as shares of the total, 0 where it is 0."""
    total = sums.sum(-1, keepdim=True)
    return torch.where(total == 0, 0, sums / total)


def _raw_maps(attention: Attention, row: int, place_R: torch.Tensor) -> torch.Tensor:
    """Return the attention of all heads between the residues of one row (H, R, R)."""
    H, R = attention.shape[1], len(place_R)
    maps_HRR = attention.query.new_empty(H, R, R)
    heads = torch.arange(H, device=place_R.device)
    for _, h, q, part in attention.row(row).blocks(heads, place_R):
        maps_HRR[h, q] = _columns(part[0], place_R)
    return maps_HRR


def _columns(part_HQL: torch.Tensor, place_R: torch.Tensor) -> torch.Tensor:
    """Return the keys at these places (H, Q, R): a view where they follow one another."""
    first, last = int(place_R[0]), int(place_R[-1])
    together = bool((place_R.diff() == 1).all())
    return part_HQL[..., first : last + 1] if together else part_HQL[..., place_R]


def _use_maps(
    model, inputs: Inputs, residues: Residues, use: Callable[[int, int, torch.Tensor], None]
) -> None:
    """Call ``use`` with layer, row and corrected maps (H, R, R), for each in turn, while the model runs."""
    places = _places(model, inputs, residues)

    def reduce(layer: int, attention: Attention) -> None:
        for row, place_R in enumerate(places):
            use(layer, row, corrected(_raw_maps(attention, row, place_R)))

    capture(model, inputs, reduce)


def _places(model, inputs: Inputs, residues: Residues) -> list[torch.Tensor]:
    """Return the places of residues on the model's device.

    Raises:
        ValueError: there are not as many lists as rows, or padding is among the places.
    """
    real_BL = inputs["attention_mask"].bool()
    if len(residues) != len(real_BL):
        raise ValueError(f"residues: places of {len(residues)} proteins for {len(real_BL)} rows")
    places = [torch.as_tensor(place_R, dtype=torch.long) for place_R in residues]
    for row, (place_R, real_L) in enumerate(zip(places, real_BL.cpu(), strict=True)):
        if not len(place_R) or place_R.min() < 0 or place_R.max() >= len(real_L) or not real_L[place_R].all():
            raise ValueError(f"residues: row {row}: none, or padding, or no token is among them")
    return [place_R.to(model.device) for place_R in places]


def head_maps(model, inputs: Inputs, residues: Residues) -> Iterator[np.ndarray]:
    """Yield the corrected maps of all heads of one protein after the other, (N, R, R), float32.

    Each row of the batch is read when it is asked for, so that one protein's maps are held at a time.

    Args:
        model: see `capture`.
        inputs: ``input_ids`` and ``attention_mask`` (B, L), and what else the model takes, for each row.
        residues: for each row, the places (R,) of its residues among the tokens.

    Raises:
        ValueError: a place is none of a token, or see `capture`.
    """
    for row, place_R in enumerate(residues):
        maps: list[np.ndarray] = []
        own = {name: value[row : row + 1] for name, value in inputs.items()}
        _use_maps(
            model, own, [place_R], lambda _, __, found, maps=maps: maps.append(found.float().cpu().numpy())
        )
        yield np.concatenate(maps)


def pair_features(
    model, inputs: Inputs, residues: Residues, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Return for each row the corrected maps of all heads at pairs of residues, (P, N), float32.

    Args:
        model: see `capture`.
        inputs: ``input_ids`` and ``attention_mask`` (B, L), and what else the model takes.
        residues: for each row, the places (R,) of its residues among the tokens.
        pairs: for each row, i and j (P,), numbers of residues from 0.

    Raises:
        ValueError: a place is none of a token, or see `capture`.
    """
    Y, H = count_heads(model)
    features = [np.empty((len(i), Y * H), np.float32) for i, _ in pairs]

    def use(layer: int, row: int, maps_HRR: torch.Tensor) -> None:
        i, j = pairs[row]
        features[row][:, layer * H : (layer + 1) * H] = maps_HRR.cpu().numpy()[:, i, j].T

    _use_maps(model, inputs, residues, use)
    return features


class _WeightedSum:
    """The sum over heads of weight x corrected map, for one protein.

    A correction is a product of two vectors, so that only sums of rows are kept of a head. ``maps_RR`` is the
    weighted sum of maps, ``products_RR`` that of the products.
    """

    def __init__(self, place_R: torch.Tensor):
        R = len(place_R)
        self.place_R = place_R
        self.maps_RR, self.products_RR = torch.zeros(2, R, R, device=place_R.device)

    def add(self, attention: Attention, weights_H: torch.Tensor) -> None:
        """Add the heads of a layer; ``attention`` is that of one row."""
        heads = weights_H.nonzero()[:, 0]
        weights_H = weights_H[heads]
        sums_HR = self.maps_RR.new_zeros(len(heads), len(self.place_R))
        for _, h, q, part in attention.blocks(heads, self.place_R):
            part_HQR = _columns(part[0].float(), self.place_R)
            sums_HR[h, q] += part_HQR.sum(2)
            sums_HR[h] += part_HQR.sum(1)
            for weight, part_QR in zip(weights_H[h].tolist(), part_HQR, strict=True):
                self.maps_RR[q].add_(part_QR, alpha=weight)
        self.products_RR.addmm_(sums_HR.T, weights_H[:, None] * _shares(sums_HR))

    def result(self) -> np.ndarray:
        """Return (R, R), float32."""
        return (self.maps_RR + self.maps_RR.T - self.products_RR).cpu().numpy()


def weighted_maps(model, inputs: Inputs, residues: Residues, weights: np.ndarray) -> list[np.ndarray]:
    """Return for each row the sum over heads of weight x corrected map, (R, R), float32.

    Memory grows with R x R and with heads x R, not with heads x R x R; a head of weight 0 takes no time.

    Args:
        model: see `capture`.
        inputs: ``input_ids`` and ``attention_mask`` (B, L), and what else the model takes.
        residues: for each row, the places (R,) of its residues among the tokens.
        weights: of each head (N,).

    Raises:
        ValueError: a place is none of a token, there are not as many weights as heads, or see `capture`.
    """
    Y, H = count_heads(model)
    if np.shape(weights) != (Y * H,):
        raise ValueError(f"weights: shape {np.shape(weights)} for {Y} layers of {H} heads")
    weights_YH = torch.as_tensor(weights, dtype=torch.float32, device=model.device).view(Y, H)
    sums = [_WeightedSum(place_R) for place_R in _places(model, inputs, residues)]

    def reduce(layer: int, attention: Attention) -> None:
        for row, total in enumerate(sums):
            total.add(attention.row(row), weights_YH[layer])

    capture(model, inputs, reduce)
    return [total.result() for total in sums]
