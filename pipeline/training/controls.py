"""Simple classifiers trained on the rows that a network is fine-tuned on: what is had without it.

Shapes: N sequences, C classes, L letters of a sequence, A letters of the alphabet, F features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pipeline.sequences.alphabets import reverse_complement
from pipeline.tokens.kmers import Codec

LONGEST = 4  # k-mers
MOST_KMERS = 1024  # features
STRENGTHS = (0.01, 0.1, 1.0)  # C of scikit-learn: the inverse of the penalty
USUAL = 3, 0.1  # k and C where no validation rows choose them
PSEUDO_COUNT = 1.0  # letters at a place of a weight matrix
CHANNELS, WIDTH, EPOCHS, BATCH, RATE = 64, 9, 12, 64, 2e-3  # of the convolutional network
ALIGNED = ("positions", "pwm", "cnn")  # what needs sequences of one length


@dataclass(frozen=True)
class Rows:
    """Sequences as letter codes, each (L,) uint8, and their ``labels`` (N,)."""

    codes: Sequence[np.ndarray]
    labels: np.ndarray


def rows_of(codec: Codec, sequences: Sequence[str], labels_N: np.ndarray, both_strands: bool = False) -> Rows:
    """Return sequences as rows; with ``both_strands`` their reverse complements, labelled alike, follow."""
    strands = [sequences, [reverse_complement(text) for text in sequences]] if both_strands else [sequences]
    codes = [codec.codes(text) for strand in strands for text in strand]
    return Rows(codes, np.concatenate([labels_N] * len(strands)))


def why_not(name: str, codec: Codec, splits: Mapping[str, Rows]) -> str | None:
    """Return why a control cannot be had for this data, or None: it can."""
    if name == "gc" and codec.alphabet != "dna":
        return "proteins have no GC content"
    lengths = {len(codes_L) for rows in splits.values() for codes_L in rows.codes}
    if name in ALIGNED and len(lengths) > 1:
        return f"sequences are of {min(lengths)} to {max(lengths)} letters, not of one length"
    return None


def control_logits(name: str, codec: Codec, splits: Mapping[str, Rows], seed: int) -> dict[str, np.ndarray]:
    """Train a control on the train split; return logits (N, C) of the rows of all others.

    - ``gc``: logistic regression on the share of G and C, and its square.
    - ``kmers``: logistic regression on the shares of k-mers; k, 1 to 4, is chosen on validation.
    - ``positions``: logistic regression on the letter at each place.
    - ``pwm``: the log-odds of each class's position weight matrix against the composition of all training
      rows (Stormo 2000, doi:10.1093/bioinformatics/16.1.16), made probabilities by logistic regression.
    - ``cnn``: three convolutions with a learned value for every place; the epoch is chosen on validation.

    The penalty of the regressions is chosen on validation, too, by cross-entropy; every choice falls back on
    a usual value where there is no validation split. All letters but the alphabet's real ones (N, X) are
    left out of counts and matrices.

    Args:
        name: of the control.
        codec: tells letters.
        splits: train, in which every class has rows, and others.
        seed: of the weights and batches of ``cnn``.
    """
    if name == "cnn":
        return _network_logits(splits, codec.n_real, seed)
    if name == "pwm":
        return _regression_logits(splits, [weight_matrices(splits["train"], codec.n_real)])
    return _regression_logits(splits, feature_choices(name, codec, "validation" in splits))


def feature_choices(name: str, codec: Codec, chosen: bool) -> list[Callable]:
    """Return what makes features of letter codes for ``gc``, ``kmers`` or ``positions``.

    Of k-mers these are several if validation rows can choose among them (``chosen``).
    """
    choices = {"gc": [gc_content], "positions": [partial(one_hot, letters=codec.n_real)]}
    lengths = _word_lengths(codec.n_real, chosen)
    choices["kmers"] = [partial(kmer_shares, k=k, letters=codec.n_real) for k in lengths]
    return choices[name]


def _word_lengths(letters: int, chosen: bool) -> list[int]:
    fitting = [k for k in range(1, LONGEST + 1) if letters**k <= MOST_KMERS]
    return fitting if chosen else [min(USUAL[0], fitting[-1])]


# -- features


def gc_content(codes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the share (N, 2) of G and C among A, C, G and T, and its square; 0.5 without such letters."""
    counts = np.array([np.bincount(codes_L, minlength=4)[:4] for codes_L in codes])
    total_N = counts.sum(1)
    share_N = np.where(total_N, counts[:, 1:3].sum(1) / np.maximum(total_N, 1), 0.5)
    return np.stack([share_N, share_N**2], 1)


def kmer_shares(codes: Sequence[np.ndarray], k: int, letters: int) -> np.ndarray:
    """Return the share (N, letters^k) of each k-mer among those of real letters, in order of their codes."""
    shares_NF = np.zeros((len(codes), letters**k))
    for share_F, codes_L in zip(shares_NF, codes, strict=True):
        if len(codes_L) >= k:
            words_WK = np.lib.stride_tricks.sliding_window_view(codes_L, k)
            words_WK = words_WK[(words_WK < letters).all(1)].astype(np.int64)
            word_W = words_WK @ letters ** np.arange(k)[::-1]
            share_F += np.bincount(word_W, minlength=letters**k) / max(len(word_W), 1)
    return shares_NF


def one_hot(codes: Sequence[np.ndarray], letters: int) -> Any:
    """Return which letter is at each place as a sparse matrix (N, L x letters); others are at none."""
    from scipy.sparse import csr_matrix

    codes_NL = np.array(codes).astype(np.int64)
    row_E, place_E = np.nonzero(codes_NL < letters)
    column_E = place_E * letters + codes_NL[row_E, place_E]
    shape = len(codes), codes_NL.shape[1] * letters
    return csr_matrix((np.ones(len(row_E)), (row_E, column_E)), shape=shape)


def weight_matrices(train: Rows, letters: int) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """Return what scores sequences, (N, C), with a matrix of log-odds made of each class's rows."""
    seen_NF = one_hot(train.codes, letters)
    background_A = np.asarray(seen_NF.sum(0)).reshape(-1, letters).sum(0) + PSEUDO_COUNT / letters
    background_A /= background_A.sum()
    columns = []
    for label in np.unique(train.labels):
        counts_LA = np.asarray(seen_NF[train.labels == label].sum(0)).reshape(-1, letters)
        counts_LA = counts_LA + PSEUDO_COUNT * background_A
        columns.append(np.log(counts_LA / counts_LA.sum(1, keepdims=True) / background_A).ravel())
    return lambda codes: one_hot(codes, letters) @ np.stack(columns, 1)


# -- regressions


def _regression_logits(splits: Mapping[str, Rows], choices: list[Callable]) -> dict[str, np.ndarray]:
    """Return log-probabilities by those features and that penalty that do best on validation."""
    from sklearn.metrics import log_loss

    train, tuning = splits["train"], splits.get("validation")
    every_class = np.unique(train.labels)
    tried = []
    for features in choices:
        seen = {name: features(rows.codes) for name, rows in splits.items()}
        for strength in STRENGTHS if tuning is not None else [USUAL[1]]:
            model = _fit_regression(seen["train"], train.labels, strength)
            loss = 0.0
            if tuning is not None:
                loss = log_loss(tuning.labels, model.predict_proba(seen["validation"]), labels=every_class)
            found = {name: model.predict_log_proba(seen[name]) for name in splits if name != "train"}
            tried.append((loss, found))
    return min(tried, key=lambda each: each[0])[1]


def _fit_regression(seen_NF: Any, labels_N: np.ndarray, strength: float):
    """Return a logistic regression on features of one scale (places are on one, and stay sparse)."""
    from scipy.sparse import issparse
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = LogisticRegression(C=strength, max_iter=1000)
    scale = [] if issparse(seen_NF) else [StandardScaler()]
    return make_pipeline(*scale, regression).fit(seen_NF, labels_N)


# -- the convolutional network


def small_network(length: int, letters: int, classes: int):
    """Return three convolutions over letters (N, A, L) with a learned bias for each place, pooled."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv1d(letters, CHANNELS, WIDTH, padding=WIDTH // 2)
            self.place_CL = nn.Parameter(0.1 * torch.randn(CHANNELS, length))
            layers = (nn.Conv1d(CHANNELS, CHANNELS, WIDTH, padding=WIDTH // 2) for _ in range(2))
            self.others = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
            self.last = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * CHANNELS, classes))

        def forward(self, seen_NAL):
            states_NCL = self.others((self.first(seen_NAL) + self.place_CL).relu())
            return self.last(torch.cat([states_NCL.mean(2), states_NCL.amax(2)], 1))

    return Network()


def _network_logits(splits: Mapping[str, Rows], letters: int, seed: int) -> dict[str, np.ndarray]:
    """Train the network on the CPU; return logits at the epoch with the smallest validation loss."""
    import torch
    from torch.nn.functional import cross_entropy

    seen = {name: _network_input(rows, letters) for name, rows in splits.items()}
    labels = {name: torch.from_numpy(rows.labels.astype(np.int64)) for name, rows in splits.items()}
    best, found = np.inf, {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = small_network(seen["train"].shape[2], letters, int(labels["train"].max()) + 1)
        for _ in _epochs(network, seen["train"], labels["train"]):
            logits = {name: _network_output(network, seen[name]) for name in splits if name != "train"}
            loss = 0.0
            if "validation" in splits:
                loss = cross_entropy(logits["validation"], labels["validation"]).item()
            if loss < best or "validation" not in splits:
                best, found = loss, logits
    return {name: logits_NC.numpy() for name, logits_NC in found.items()}


def _epochs(network, seen_NAL, labels_N) -> Iterator[None]:
    """Train for an epoch between one step of the iteration and the next."""
    import torch
    from torch.nn.functional import cross_entropy

    steps = EPOCHS * -(-len(labels_N) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        network.train()
        for batch in torch.randperm(len(labels_N)).split(BATCH):
            loss = cross_entropy(network(seen_NAL[batch].float()), labels_N[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        yield


def _network_input(rows: Rows, letters: int):
    """Return letters (N, A, L) as bytes: 1 where a letter is."""
    import torch

    codes_NL = torch.from_numpy(np.array(rows.codes))
    return torch.stack([codes_NL == letter for letter in range(letters)], 1).to(torch.uint8)


def _network_output(network, seen_NAL):
    import torch

    network.eval()
    with torch.no_grad():
        return torch.cat([network(part_NAL.float()) for part_NAL in seen_NAL.split(1024)])
