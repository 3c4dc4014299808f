"""ESM's contact regression: fitted on proteins of known structure, and judged on proteins it has not seen.

The protocol of Rao et al. 2020 (bioRxiv 2020.12.15.422761): L1 logistic regression over the corrected maps of
all heads, on pairs of resolved residues at least 6 apart, a contact being a C-beta distance below 8 angstrom.
Here C-beta is the observed one (C-alpha for glycine), where ESM imputes it.

Shapes: n residues of a protein, P pairs, N features (layers x heads).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from pipeline.attention.contacts import RESAMPLES, score_ranges, scored_pairs
from pipeline.errors import UserError
from pipeline.sequences.structure import Structure, contact_map, expectation
from pipeline.training.resampling import interval


@dataclass(frozen=True)
class Protein:
    """A structure with its name, its truth (n, n), and the family that it is held out with."""

    name: str
    structure: Structure
    contacts: np.ndarray
    known: np.ndarray
    separation: int
    family: str = ""

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return i and j of the pairs that are fitted and scored, (P,), (P,)."""
        return scored_pairs(self.known, self.separation)

    @property
    def labels(self) -> np.ndarray:
        """Return which of the pairs touch, (P,) bool."""
        return self.contacts[self.pairs]

    def unfold(self, values_P: np.ndarray) -> np.ndarray:
        """Return values of the pairs as a map (n, n), 0 elsewhere."""
        map_nn = np.zeros(self.contacts.shape)
        map_nn[self.pairs] = values_P
        return map_nn


def protein(name: str, structure: Structure, separation: int, distance: float) -> Protein:
    """Return a structure with its contacts.

    Raises:
        UserError: no pair of its residues can be scored.
    """
    found = Protein(name, structure, *contact_map(structure, distance), separation)
    if not len(found.labels):
        raise UserError(f"{name}: no residue pair with |i - j| >= {separation} is resolved; leave it out")
    return found


@dataclass(frozen=True)
class Regression:
    """A fitted logistic regression: weights (N,) and the intercept."""

    weights: np.ndarray
    bias: float

    def probabilities(self, features_PN: np.ndarray) -> np.ndarray:
        """Return (P,) the probability of contact."""
        from scipy.special import expit

        return expit(features_PN @ self.weights + self.bias)


def fit(features: Sequence[np.ndarray], labels: Sequence[np.ndarray], strength: float = 0.15) -> Regression:
    """Fit ESM's regression: scikit-learn's liblinear with an L1 penalty.

    Args:
        features: of each protein, (P, N).
        labels: of each protein, (P,) bool.
        strength: scikit-learn's C, the inverse of the penalty's weight.

    Raises:
        UserError: no pair touches, or all do.
    """
    from sklearn.linear_model import LogisticRegression

    seen, right = np.concatenate(list(features)), np.concatenate(list(labels))
    if right.all() or not right.any():
        raise UserError(f"structures: {right.sum()} of {len(right)} residue pairs are contacts; give others")
    model = LogisticRegression(l1_ratio=1, C=strength, solver="liblinear", random_state=0, max_iter=1000)
    return _fitted(model.fit(seen, right))


def fit_separation(separations: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> Regression:
    """Fit a logistic regression on |i - j| alone, as logarithm and its square: see `separation_features`."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e3, max_iter=1000)
    return _fitted(model.fit(np.concatenate(list(separations)), np.concatenate(list(labels))))


def _fitted(model: Any) -> Regression:
    return Regression(model.coef_[0], float(model.intercept_[0]))


def separation_features(found: Protein) -> np.ndarray:
    """Return (P, 2) the logarithm of |i - j| and its square."""
    i, j = found.pairs
    logarithm_P = np.log(j - i)
    return np.stack([logarithm_P, logarithm_P**2], 1)


def held_out(
    proteins: Sequence[Protein],
    features: Sequence[np.ndarray],
    fitter: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], Regression],
    most: int | None = None,
    seed: int = 0,
) -> list[np.ndarray]:
    """Return of each protein the map (n, n) that a regression gives which saw none of its family.

    Args:
        proteins: with their families.
        features: of each protein, (P, N).
        fitter: fits features and labels of proteins.
        most: proteins fitted on at most, drawn by the seed.
        seed: of that draw.
    """
    order = np.random.default_rng(seed).permutation(len(proteins))
    regressions: dict[str, Regression] = {}
    for family in dict.fromkeys(one.family for one in proteins):
        others = sorted([n for n in order if proteins[n].family != family][:most])
        regressions[family] = fitter([features[n] for n in others], [proteins[n].labels for n in others])
    return [
        one.unfold(regressions[one.family].probabilities(seen))
        for one, seen in zip(proteins, features, strict=True)
    ]


def judge(proteins: Sequence[Protein], maps: Sequence[np.ndarray]) -> list[dict[str, dict[str, Any]]]:
    """Return of each protein how well its map finds contacts: see `contacts.score_ranges`."""
    return [
        score_ranges(map_nn, one.contacts, one.known, one.separation)
        for one, map_nn in zip(proteins, maps, strict=True)
    ]


def above(
    ours: Sequence[dict[str, dict[str, Any]]], theirs: Sequence[dict[str, dict[str, Any]]], seed: int
) -> dict[str, Any]:
    """Return by how much the precision at L of all pairs is higher, in the mean over proteins.

    ``interval`` is what 95 % of the mean differences of resampled proteins lie between (None for one).
    """
    differences = np.array([a["all"]["at_l"] - b["all"]["at_l"] for a, b in zip(ours, theirs, strict=True)])
    n = len(differences)
    spread = interval(lambda draw: differences[draw].mean(1), n, RESAMPLES, seed) if n > 1 else None
    return {"difference": float(differences.mean()), "interval": spread}


def group(sequences: Mapping[str, str], least: float) -> dict[str, str]:
    """Return the family of each protein, named by its first member.

    Proteins whose best local alignment has an E-value below ``least`` are in one family, and so are chains of
    such pairs; see `structure.expectation`.
    """
    order, family = list(sequences), {name: name for name in sequences}
    for one, other in combinations(sequences, 2):
        if family[one] != family[other] and expectation(sequences[one], sequences[other]) < least:
            kept, merged = sorted((family[one], family[other]), key=order.index)
            family = {name: kept if of == merged else of for name, of in family.items()}
    return family
