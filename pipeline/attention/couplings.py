"""Couplings of an aligned family without a network: mean-field inference and pseudo-likelihood.

Shapes: N rows, L columns, Q letters, R residues. Rows are codes (N, L): 0 to R - 1 for residues, and R for
gaps and whatever else is no residue.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.attention.contacts import average_product_correction

RESIDUES = 20
CHUNK = 1024
# Penalties of fields, and of couplings per column (Seemayer et al. 2014, doi:10.1093/bioinformatics/btu500).
FIELD_DECAY, COUPLING_DECAY = 0.01, 0.2
ITERATIONS, HISTORY, TOLERANCE = 100, 8, 1e-4


def coupling_scores(couplings_LLQQ: np.ndarray, residues: int = RESIDUES) -> np.ndarray:
    """Return contact scores (L, L) of couplings: larger means more strongly coupled, the diagonal is 0.

    Couplings are averaged over their two directions and centred over all Q letters of both columns (the
    zero-sum gauge); the Frobenius norm is that of the residues' part, so that gaps do not count, and the
    average-product correction follows (Ekeberg et al. 2013, doi:10.1103/PhysRevE.87.012707).

    Args:
        couplings_LLQQ: (L, L, Q, Q), [i, j, a, b] couples letter a of column i with b of column j.
        residues: the letters that count are the first so many.
    """
    L = len(couplings_LLQQ)
    norms_LL = np.zeros((L, L))
    for i in range(L):
        pairs = (couplings_LLQQ[i] + couplings_LLQQ[:, i].swapaxes(1, 2)).astype(float) / 2
        pairs -= pairs.mean(1, keepdims=True)
        pairs -= pairs.mean(2, keepdims=True)
        norms_LL[i] = np.sqrt(np.square(pairs[:, :residues, :residues]).sum((1, 2)))
    np.fill_diagonal(norms_LL, 0)
    scores_LL = average_product_correction(norms_LL)
    np.fill_diagonal(scores_LL, 0)
    return scores_LL


def _blocks(codes_NL: np.ndarray, letters: int, chunk: int = CHUNK) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield rows and their letters as zeros and ones (n, L * letters); codes beyond are zeros."""
    ones = torch.eye(letters + 1)[:, :letters]
    for begin in range(0, len(codes_NL), chunk):
        rows = slice(begin, begin + chunk)
        yield rows, ones[torch.from_numpy(codes_NL[rows].astype(np.int64))].flatten(1)


def frequencies(
    codes_NL: np.ndarray, weights_N: np.ndarray, pseudocount: float, residues: int = RESIDUES
) -> tuple[np.ndarray, np.ndarray]:
    """Return the frequencies (L, Q) of letters and (L, Q, L, Q) of pairs, gaps being letter Q - 1.

    Args:
        codes_NL: see the module.
        weights_N: what each row counts.
        pseudocount: share of the frequencies that is uniform.
        residues: R.
    """
    L, Q = codes_NL.shape[1], residues + 1
    counts = torch.zeros(L * Q, L * Q, dtype=torch.double)
    weights = torch.from_numpy(np.asarray(weights_N, np.float32))
    for rows, seen in _blocks(codes_NL, Q):
        counts += seen.T @ (seen * weights[rows, None])
    pairs = (1 - pseudocount) * counts.numpy() / np.sum(weights_N) + pseudocount / Q**2
    pairs = pairs.reshape(L, Q, L, Q)
    single_LQ = (1 - pseudocount) * np.einsum("iaia->ia", counts.numpy().reshape(L, Q, L, Q))
    single_LQ = single_LQ / np.sum(weights_N) + pseudocount / Q
    here = np.arange(L)
    pairs[here, :, here] = single_LQ[:, :, None] * np.eye(Q)
    return single_LQ, pairs


def mean_field(
    codes_NL: np.ndarray, weights_N: np.ndarray, pseudocount: float = 0.5, residues: int = RESIDUES
) -> np.ndarray:
    """Return couplings (L, L, Q, Q) of mean-field direct-coupling analysis (Morcos et al. 2011).

    They are minus the inverse of the covariances of all letters but the gap, whose couplings are 0
    (doi:10.1073/pnas.1111471108).

    Args:
        codes_NL: see the module.
        weights_N: what each row counts.
        pseudocount: share of the frequencies that is uniform, above 0.
        residues: R; Q = R + 1.
    """
    L, Q = codes_NL.shape[1], residues + 1
    single_LQ, pairs = frequencies(codes_NL, weights_N, pseudocount, residues)
    covariances = pairs - single_LQ[:, :, None, None] * single_LQ
    kept = covariances[:, :residues, :, :residues].reshape(L * residues, L * residues)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(torch.from_numpy(np.ascontiguousarray(kept))))
    couplings = np.zeros((L, L, Q, Q))
    couplings[:, :, :residues, :residues] = -inverse.numpy().reshape(L, residues, L, residues).swapaxes(1, 2)
    couplings[np.arange(L), np.arange(L)] = 0
    return couplings


@dataclass
class PseudoLikelihood:
    """The penalised negative log pseudo-likelihood of a Potts model, and its gradient.

    The sum over rows and columns of -weight x log P(residue | the row's other residues), plus ``field_decay``
    times the squares of the fields and ``coupling_decay`` times those of the couplings, each pair of columns
    counted once (Ekeberg et al. 2013, doi:10.1103/PhysRevE.87.012707, with one symmetric set of couplings).
    Gaps are neither predicted nor do they tell anything.
    """

    codes: np.ndarray
    weights: np.ndarray
    field_decay: float
    coupling_decay: float
    residues: int = RESIDUES

    def __call__(self, fields: torch.Tensor, couplings: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the value (double) and its gradients.

        Args:
            fields: (L * R).
            couplings: (L * R, L * R), symmetric, 0 within a column; so is the gradient, which is that by all
                elements, as though they were free, made symmetric.
        """
        value = self.field_decay * fields.square().sum() + self.coupling_decay / 2 * couplings.square().sum()
        value = value.double()
        by_field, by_coupling = 2 * self.field_decay * fields, torch.zeros_like(couplings)
        for rows, seen in _blocks(self.codes, self.residues):
            loss, error = self._errors(rows, seen.to(fields.dtype), fields, couplings)
            value, by_field = value + loss, by_field + error.sum(0)
            by_coupling.addmm_(seen.to(fields.dtype).T, error)
        by_coupling = (by_coupling + by_coupling.T) / 2
        own = by_coupling.view(-1, self.residues, self.codes.shape[1], self.residues)
        own.diagonal(dim1=0, dim2=2).zero_()
        return value, by_field, by_coupling.add_(couplings, alpha=self.coupling_decay)

    def _errors(
        self, rows: slice, seen: torch.Tensor, fields: torch.Tensor, couplings: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the rows' losses and its gradient by their logits (n, L * R)."""
        shape = (len(seen), -1, self.residues)
        logs = torch.addmm(fields, seen, couplings).view(shape).log_softmax(-1)
        weights = torch.from_numpy(np.asarray(self.weights[rows])).to(seen.dtype)[:, None, None]
        targets = seen.view(shape) * weights
        error = logs.exp() * targets.sum(-1, keepdim=True) - targets
        return -(logs * targets).sum(dtype=torch.double), error.flatten(1)


def pseudo_likelihood(
    codes_NL: np.ndarray,
    weights_N: np.ndarray,
    field_decay: float = FIELD_DECAY,
    coupling_decay: float | None = None,
    iterations: int = ITERATIONS,
    residues: int = RESIDUES,
) -> np.ndarray:
    """Return the couplings (L, L, R, R) that maximise the pseudo-likelihood; see PseudoLikelihood.

    L-BFGS from no couplings, in float32, until nothing changes or for so many iterations.

    Args:
        codes_NL: see the module.
        weights_N: what each row counts.
        field_decay: penalty of fields.
        coupling_decay: penalty of couplings; by default 0.2 x (L - 1), as in CCMpred.
        iterations: of L-BFGS, at most.
        residues: R.
    """
    L = codes_NL.shape[1]
    decay = COUPLING_DECAY * (L - 1) if coupling_decay is None else coupling_decay
    objective = PseudoLikelihood(codes_NL, weights_N, field_decay, decay, residues)
    fields, couplings = torch.zeros(L * residues), torch.zeros(L * residues, L * residues)
    optimizer = torch.optim.LBFGS(
        [fields, couplings],
        max_iter=iterations,
        history_size=HISTORY,
        tolerance_grad=TOLERANCE,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        value, fields.grad, couplings.grad = objective(fields, couplings)
        return float(value)

    with torch.no_grad():
        optimizer.step(closure)  # pyright: ignore[reportArgumentType]
    return couplings.view(L, residues, L, residues).transpose(1, 2).numpy()
