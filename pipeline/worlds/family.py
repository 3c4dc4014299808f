"""A simulated protein family: a Potts model with planted contacts, evolved along a random tree.

Shapes: L sites, Q = 20 residues, D = 3 contacts of a site at most, N sequences.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.worlds import RESIDUES

MAX_DEGREE = 3
MIN_SEPARATION = 6
# Strengths of the model and lengths of the tree's branches (updates per site), chosen so that corrected
# mutual information finds most, not all, of the contacts.
FIELD_SCALE = 0.8
COUPLING_RANGE = (0.3, 1.8)
BRANCH = 0.06
BURN_IN = 50


@dataclass(frozen=True)
class Potts:
    """P(s) proportional to exp(sum of fields[i, s_i] + sum over contacts of couplings[s_i, s_j]).

    Attributes:
        fields: preference of each site for each residue, [L, Q].
        neighbours: partner of each contact of a site, [L, D]; unused places hold the site itself.
        couplings: coupling of the site's residue with the partner's, [L, D, Q, Q]; 0 in unused places.
    """

    fields: np.ndarray
    neighbours: np.ndarray
    couplings: np.ndarray


def _ladder(length: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return the pairs of two strands or helices side by side, antiparallel or parallel."""
    rungs = int(rng.integers(4, 9))
    i = int(rng.integers(0, length - MIN_SEPARATION))
    j = int(rng.integers(i + MIN_SEPARATION, length))
    step = -1 if rng.random() < 0.7 else 1
    pairs = [(i + n, j + step * n) for n in range(rungs)]
    return [(a, b) for a, b in pairs if b < length and b - a >= MIN_SEPARATION]


def sample_contacts(length: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw at least ``length`` contacts, sorted, 0-based, i < j, |i - j| >= 6, with 1 to 3 at every site."""
    contacts: set[tuple[int, int]] = set()
    degree = np.zeros(length, int)

    def add(pair: tuple[int, int]) -> None:
        if pair not in contacts and degree[list(pair)].max() < MAX_DEGREE:
            contacts.add(pair)
            degree[list(pair)] += 1

    for _ in range(100 * length):
        if len(contacts) >= length:
            break
        for pair in _ladder(length, rng):
            add(pair)
    for site in range(length):
        far = [other for other in range(length) if abs(site - other) >= MIN_SEPARATION]
        for other in rng.permutation(far):
            if degree[site] == 0:
                add((min(site, int(other)), max(site, int(other))))
    return sorted(contacts)


def sample_potts(length: int, contacts: list[tuple[int, int]], rng: np.random.Generator) -> Potts:
    """Draw fields and, for every contact, Gaussian couplings of its own strength."""
    size = len(RESIDUES)
    common = rng.normal(0, FIELD_SCALE, size)
    fields = common + rng.normal(0, FIELD_SCALE, (length, size))
    neighbours = np.repeat(np.arange(length)[:, None], MAX_DEGREE, axis=1)
    couplings = np.zeros((length, MAX_DEGREE, size, size))
    used = np.zeros(length, int)
    for i, j in contacts:
        coupling = rng.normal(0, rng.uniform(*COUPLING_RANGE), (size, size))
        for site, partner, matrix in ((i, j, coupling), (j, i, coupling.T)):
            neighbours[site, used[site]] = partner
            couplings[site, used[site]] = matrix
            used[site] += 1
    return Potts(fields, neighbours, couplings)


def substitute(states_NL: np.ndarray, updates_N: np.ndarray, potts: Potts, rng: np.random.Generator) -> None:
    """Redraw ``updates_N`` random sites of each sequence in place, each given all others (Gibbs sampling)."""
    for step in range(int(updates_N.max())):
        rows = np.flatnonzero(updates_N > step)
        sites = rng.integers(0, states_NL.shape[1], len(rows))
        logits = potts.fields[sites].copy()
        for d in range(potts.neighbours.shape[1]):
            partner = states_NL[rows, potts.neighbours[sites, d]]
            logits += potts.couplings[sites, d, :, partner]
        states_NL[rows, sites] = (logits + rng.gumbel(size=logits.shape)).argmax(1)


def evolve(count: int, potts: Potts, rng: np.random.Generator) -> np.ndarray:
    """Draw the leaves [N, L] of a random bifurcating tree, sequences changing along its branches.

    The tree's shape is that of Yule's process, in which the number of leaves on the left of a node is uniform
    (Harding 1971, doi 10.2307/1426329); all nodes of one depth are treated together.
    """
    length = len(potts.fields)
    states = rng.integers(0, potts.fields.shape[1], (1, length))
    substitute(states, np.array([BURN_IN * length]), potts, rng)
    leaves_below, finished = np.array([count]), []
    while len(states):
        finished.append(states[leaves_below == 1])
        states, leaves_below = states[leaves_below > 1], leaves_below[leaves_below > 1]
        left = 1 + np.floor(rng.random(len(states)) * (leaves_below - 1)).astype(int)
        states, leaves_below = np.tile(states, (2, 1)), np.concatenate([left, leaves_below - left])
        if len(states):
            substitute(states, _branch_updates(leaves_below, length, rng), potts, rng)
    return rng.permutation(np.concatenate(finished))


def _branch_updates(leaves_below: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Return how many sites are redrawn on each branch; branches to a leaf are longer."""
    mean = length * BRANCH * np.where(leaves_below == 1, 4.0, 1.0)
    return 1 + rng.poisson(rng.gamma(2.0, mean / 2))


def median_identity(states_NL: np.ndarray, rng: np.random.Generator, pairs: int = 5000) -> float:
    """Return the median share of equal residues over random pairs of sequences."""
    a, b = rng.integers(0, len(states_NL), (2, pairs))
    same = (states_NL[a] == states_NL[b]).mean(1)
    return float(np.median(same[a != b]))
