"""The categorical Jacobian: what every single substitution does to a language model's logits elsewhere.

Shapes: T tokens of a sequence with its special tokens, L residues of it, C columns of an alignment, R residue
tokens, B mutants read at a time, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

TOKENS = 4096

Logits = Callable[[torch.Tensor], torch.Tensor]


class Row(NamedTuple):
    """A sequence as a model reads it.

    Attributes:
        ids: its tokens (T,), specials included.
        positions: places of its residues among these, (L,).
        columns: columns of the alignment that the residues stand in, (L,).
    """

    ids: np.ndarray
    positions: np.ndarray
    columns: np.ndarray


def logits_of(model) -> Logits:
    """Return a function from tokens (B, T) to the logits (B, T, V) of a masked language model.

    For any model of transformers that takes ``input_ids``, ours and ESM among them; dropout is turned off.
    """
    model.eval()

    def read(ids_BT: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids_BT.to(model.device)).logits

    return read


def categorical_jacobian(
    logits: Logits,
    ids_T: np.ndarray,
    positions_L: np.ndarray,
    residue_ids: Sequence[int],
    tokens: int = TOKENS,
) -> np.ndarray:
    """Return the Jacobian (L, L, R, R) of one sequence, in float32.

    Element [i, j, a, b] is how much the logit of residue b at j changes when the residue at i becomes a; no
    token is masked (Zhang et al. 2024, Protein language models learn evolutionary statistics of interacting
    sequence motifs, doi:10.1101/2024.01.30.577970). `couplings.coupling_scores` makes a contact map of it,
    centring it over both alphabets. 20 residues take 1600 L^2 bytes and 19 L readings of the sequence.

    Args:
        logits: tokens (B, T) to logits (B, T, V).
        ids_T: the sequence's tokens, specials included.
        positions_L: places of its residues among these.
        residue_ids: tokens of the R residues.
        tokens: read at a time, at most; one mutant at least.
    """
    positions_L = np.asarray(positions_L)
    row = Row(ids_T, positions_L, np.arange(len(positions_L)))
    return mean_jacobian(logits, [row], len(positions_L), residue_ids, tokens)


def mean_jacobian(
    logits: Logits,
    rows: Iterable[Row],
    width: int,
    residue_ids: Sequence[int],
    tokens: int = TOKENS,
) -> np.ndarray:
    """Return the mean Jacobian (C, C, R, R) of aligned sequences, float32; see `categorical_jacobian`.

    Each pair of columns has the mean over the rows with a residue in both; without such a row it is 0.

    Args:
        logits: tokens (B, T) to logits (B, T, V).
        rows: the sequences, read without gaps.
        width: C.
        residue_ids: tokens of the R residues.
        tokens: read at a time, at most; one mutant at least.

    Raises:
        ValueError: a row with more or fewer residues than columns, or with a column twice.
    """
    R = len(residue_ids)
    total = torch.zeros(width, width, R, R)
    seen = torch.zeros(width, width)
    for number, row in enumerate(rows):
        if len(row.positions) != len(row.columns) or len(set(np.asarray(row.columns).tolist())) < len(
            row.columns
        ):
            raise ValueError(f"row {number}: {len(row.positions)} residues need as many different columns")
        _add(total, logits, row, torch.tensor(residue_ids), tokens)
        seen[np.ix_(row.columns, row.columns)] += 1
    for i in range(width):
        total[i] /= seen[i].clamp(min=1)[:, None, None]
    return total.numpy()


@torch.inference_mode()
def _add(total_CCRR: torch.Tensor, logits: Logits, row: Row, residues_R: torch.Tensor, tokens: int) -> None:
    """Add the Jacobian of one sequence, a batch of mutants at a time."""
    ids_T, positions, columns = (torch.as_tensor(np.asarray(part, np.int64)) for part in row)

    def read(ids_BT: torch.Tensor) -> torch.Tensor:
        return logits(ids_BT)[:, positions][..., residues_R].float().cpu()

    original_LR = read(ids_T[None])[0]
    i_M, a_M = torch.nonzero(ids_T[positions][:, None] != residues_R, as_tuple=True)
    batch = max(1, tokens // len(ids_T))
    for i_B, a_B in zip(i_M.split(batch), a_M.split(batch), strict=True):
        mutants_BT = ids_T.repeat(len(i_B), 1)
        mutants_BT[torch.arange(len(i_B)), positions[i_B]] = residues_R[a_B]
        changes_BLR = read(mutants_BT) - original_LR
        total_CCRR[columns[i_B][:, None], columns, a_B[:, None]] += changes_BLR
