"""Contact maps as matrices: symmetrising, correcting, scoring; sequence weights; mutual information.

Shapes: N sequences, L columns (or residues), Q letters; square matrices may have leading axes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

CHUNK = 1024
RESAMPLES = 2000
# Of Rao et al. 2020 (bioRxiv 2020.12.15.422761): smallest and largest |i - j|, and shares of L.
RANGES = {"short": (6, 11), "medium": (12, 23), "long": (24, None)}
FRACTIONS = {"at_l": 1.0, "at_l2": 0.5, "at_l5": 0.2}
NEIGHBOURS, QUIET = 0.1, 0.5  # as in model/modeling_factored.py, a file that travels alone


def symmetrise(a: np.ndarray) -> np.ndarray:
    """Return a + its transpose, over the last two axes."""
    return a + np.swapaxes(a, -1, -2)


def average_product_correction(a: np.ndarray) -> np.ndarray:
    """Return a - (row sums x column sums) / total, over the last two axes.

    It takes away what a position shares with all others (Dunn et al. 2008,
    doi:10.1093/bioinformatics/btm604), with sums where they have means, as ESM does (Rao et al. 2020, bioRxiv
    2020.12.15.422761). A matrix of total 0 is returned as it is.
    """
    rows, columns = a.sum(-1, keepdims=True), a.sum(-2, keepdims=True)
    total = a.sum((-1, -2), keepdims=True)
    return a - np.divide(rows * columns, total, out=np.zeros_like(a, dtype=float), where=total != 0)


def in_context(scores_LL: np.ndarray) -> np.ndarray:
    """Return corrected scores of couplings as the map of a family has them, (L, L); the diagonal is 0.

    A pair has its score and a tenth of those of the eight pairs around it: helices and strands side by side
    touch at several residues in a row, so that a pair is likelier to touch where those around it are coupled
    (patterns in maps of couplings: Muscat et al. 2020, doi:10.1371/journal.pcbi.1007621). The diagonal and
    pairs outside of the map count 0. As scores of some columns vary more than those of others, whatever they
    touch, each is divided by the geometric mean of the sizes of its two columns: the root mean square of a
    column's scores and half the mean of that over columns, which keeps the noise of quiet columns small.
    """
    from scipy.ndimage import convolve

    kernel = np.full((3, 3), NEIGHBOURS)
    kernel[1, 1] = 1
    apart = 1 - np.eye(len(scores_LL))
    found_LL = convolve(scores_LL * apart, kernel, mode="constant") * apart
    sizes_L = np.sqrt((found_LL**2).mean(1))
    sizes_L = np.sqrt(np.maximum(sizes_L + QUIET * sizes_L.mean(), np.finfo(np.float32).tiny))
    return found_LL / (sizes_L[:, None] * sizes_L)


def scored_pairs(
    known: np.ndarray, min_separation: int = 6, max_separation: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return i and j of the known pairs with min_separation <= j - i <= max_separation."""
    i, j = np.nonzero(np.triu(known, min_separation))
    near = np.full(len(i), True) if max_separation is None else j - i <= max_separation
    return i[near], j[near]


def precision_at(
    scores: np.ndarray,
    contacts: np.ndarray,
    known: np.ndarray,
    length_fraction: float = 1.0,
    min_separation: int = 6,
    max_separation: int | None = None,
) -> float:
    """Return the share of contacts among the best-scored L x length_fraction pairs.

    L is the number of resolved residues: those whose own pair is known. Where fewer pairs can be scored, all
    of them are taken. Ties go to the earlier pair. The protocol is that of Rao et al. 2020 (bioRxiv
    2020.12.15.422761).

    Args:
        scores: (L, L), read above the diagonal.
        contacts: (L, L) bool.
        known: (L, L) bool, False where the structure does not tell.
        length_fraction: 1 for precision at L, 0.5 at L/2, 0.2 at L/5.
        min_separation: smallest j - i.
        max_separation: largest j - i, or None.

    Returns:
        A share between 0 and 1; NaN if no pair can be scored.

    Raises:
        ValueError: a score is NaN.
    """
    i, j = scored_pairs(known, min_separation, max_separation)
    if not len(i):
        return float("nan")
    values = scores[i, j]
    if np.isnan(values).any():
        raise ValueError("a contact score is not a number")
    top = max(1, int(known.diagonal().sum() * length_fraction))
    best = np.argsort(-values, kind="stable")[:top]
    return float(contacts[i[best], j[best]].mean())


def random_precision(
    contacts: np.ndarray, known: np.ndarray, min_separation: int = 6, max_separation: int | None = None
) -> float:
    """Return the precision expected of random scores: the share of contacts among scored pairs."""
    i, j = scored_pairs(known, min_separation, max_separation)
    return float(contacts[i, j].mean()) if len(i) else float("nan")


def score_ranges(
    scores: np.ndarray, contacts: np.ndarray, known: np.ndarray, min_separation: int = 6
) -> dict[str, dict[str, Any]]:
    """Return how well scores find contacts in each range of |i - j|: all, short, medium and long.

    Args:
        scores: (L, L), read above the diagonal.
        contacts: (L, L) bool.
        known: (L, L) bool, False where the structure does not tell.
        min_separation: smallest j - i of the range ``all``; the others are those of `RANGES`.

    Returns:
        for each range ``pairs`` and ``contacts``, their numbers; ``at_l``, ``at_l2`` and ``at_l5``, the
        precision at L, L/2 and L/5; ``ceiling_at_l`` and so on, what perfect scores would reach; ``random``,
        what random scores would; ``auc``, the area under the ROC curve. None where it is not defined.
    """
    ranges = {"all": (min_separation, None), **RANGES}
    return {name: _score(scores, contacts, known, *limits) for name, limits in ranges.items()}


def _score(scores, contacts, known, low: int, high: int | None) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    i, j = scored_pairs(known, low, high)
    right = contacts[i, j]
    found: dict[str, Any] = {"pairs": len(i), "contacts": int(right.sum())}
    for name, fraction in FRACTIONS.items():
        for key, values in ((name, scores), (f"ceiling_{name}", contacts.astype(float))):
            found[key] = precision_at(values, contacts, known, fraction, low, high) if len(i) else None
    found["random"] = float(right.mean()) if len(i) else None
    found["auc"] = float(roc_auc_score(right, scores[i, j])) if 0 < right.sum() < len(right) else None
    return found


def mean_ranges(proteins: Sequence[dict[str, dict[str, Any]]], seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return the means over proteins of what `score_ranges` returns, and the sums of pairs and contacts.

    ``intervals`` holds what 95 % of the means of resampled proteins lie between, ``proteins`` how many have
    pairs in the range. A protein without a value is left out of that mean.
    """
    return {name: _mean([protein[name] for protein in proteins], seed) for name in proteins[0]}


def _mean(scores: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    from pipeline.training.resampling import interval

    means: dict[str, Any] = {key: sum(score[key] for score in scores) for key in ("pairs", "contacts")}
    means |= {"proteins": sum(score["pairs"] > 0 for score in scores), "intervals": {}}
    for key in sorted(scores[0].keys() - {"pairs", "contacts"}):
        values = np.array([score[key] for score in scores if score[key] is not None])
        means[key] = float(values.mean()) if len(values) else None
        if len(values) > 1:
            spread = interval(lambda draw, values=values: values[draw].mean(1), len(values), RESAMPLES, seed)
            means["intervals"][key] = spread
    return means


def _one_hot(codes_NL: np.ndarray, letters: int) -> np.ndarray:
    return np.eye(letters, dtype=np.float32)[codes_NL].reshape(len(codes_NL), -1)


def sequence_weights(codes_NL: np.ndarray, identity: float = 0.8) -> np.ndarray:
    """Return 1 / (number of rows at least so identical to the row, itself included), [N].

    Identity is the share of columns with the same letter, a gap being a letter like others (Morcos et al.
    2011, doi:10.1073/pnas.1111471108). Time grows with N squared.

    Args:
        codes_NL: small non-negative integers, one for each letter and one for the gap.
        identity: threshold, between 0 and 1.
    """
    N, L = codes_NL.shape
    letters = int(codes_NL.max(initial=0)) + 1
    needed = np.float32(identity * L - 1e-3)
    neighbours = np.ones(N)
    for start in range(0, N, CHUNK):
        block = _one_hot(codes_NL[start : start + CHUNK], letters)
        for other in range(start, N, CHUNK):
            close = block @ _one_hot(codes_NL[other : other + CHUNK], letters).T >= needed
            if other == start:
                neighbours[start : start + len(block)] += close.sum(1) - 1
            else:
                neighbours[start : start + len(block)] += close.sum(1)
                neighbours[other : other + close.shape[1]] += close.sum(0)
    return 1 / neighbours


def mutual_information(codes_NL: np.ndarray, weights_N: np.ndarray | None = None) -> np.ndarray:
    """Return the mutual information of each pair of columns in nats, [L, L], diagonal 0.

    Gaps are a letter like others (on eight Pfam domains leaving them out made contacts harder to find). It is
    not corrected: see `average_product_correction`.

    Args:
        codes_NL: small non-negative integers, one for each letter and one for the gap.
        weights_N: what each row counts; 1 if not given.
    """
    N, L = codes_NL.shape
    Q = int(codes_NL.max(initial=0)) + 1
    weights = np.ones(N) if weights_N is None else weights_N
    counts = np.zeros((L * Q, L * Q))
    for start in range(0, N, CHUNK):
        seen = _one_hot(codes_NL[start : start + CHUNK], Q)
        counts += seen.T @ (seen * weights[start : start + CHUNK, None].astype(np.float32))
    joint = counts.reshape(L, Q, L, Q).transpose(0, 2, 1, 3) / weights.sum()
    single_LQ = np.einsum("iiaa->ia", joint)
    expected = single_LQ[:, None, :, None] * single_LQ[None, :, None, :]
    ratio = np.divide(joint, expected, out=np.ones_like(joint), where=joint > 0)
    information_LL = (joint * np.log(ratio)).sum((2, 3))
    np.fill_diagonal(information_LL, 0)
    return information_LL
