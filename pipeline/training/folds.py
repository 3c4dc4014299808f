"""Which rows a classifier is trained on, chosen on and scored on: a corpus's own splits, or k folds.

Shapes: N rows, G groups of rows that stay together, K folds, C classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.config import Alphabet
from pipeline.errors import UserError
from pipeline.keyed import keys
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.corpus import read_manifest
from pipeline.sequences.leakage import KMER, stretches
from pipeline.sequences.similarity import shared_with
from pipeline.sequences.splits import SPLITS, digest, group_ids

if TYPE_CHECKING:
    from datasets import Dataset

CLUSTER = "cluster"  # column that prepare writes
CHROMOSOME = "chromosome"  # the same
BITS = 7  # folds looked at together; one more bit stands for all others
FoldBy = Literal["sequence", "cluster", "chromosome"]


@dataclass(frozen=True)
class Division:
    """Labelled rows, and which of them each run is trained, chosen and scored on.

    ``splits`` are a corpus's own. With ``numbers``, the fold (from 1) of every row of all splits, one after
    the other, each fold is the test split once, the next one (after the last: the first) is for validation,
    and the others are for training.
    """

    splits: Mapping[str, "Dataset"]
    numbers: np.ndarray | None = None

    @property
    def folds(self) -> list[int | None]:
        """Return the numbers of the folds; None alone stands for the corpus's own splits."""
        return [None] if self.numbers is None else list(range(1, int(self.numbers.max()) + 1))

    @property
    def scored(self) -> str:
        """Return the split that the figures are of."""
        return "test" if self.numbers is not None or "test" in self.splits else "validation"

    @property
    def learnt(self) -> "Dataset":
        """Return the rows that some run is trained on, each once."""
        return self.splits["train"] if self.numbers is None else self.rows

    @cached_property
    def rows(self) -> "Dataset":
        """Return the rows that are scored, each once."""
        return self.splits[self.scored] if self.numbers is None else joined(self.splits)

    def counts(self, names: list[str]) -> dict[str, Any]:
        """Return how many rows, and of which class, each fold has."""
        label_N, found = np.array(self.rows["label"][:]), {}
        for fold in self.folds:
            count_C = np.bincount(label_N[self.numbers == fold], minlength=len(names)).tolist()
            found[str(fold)] = {"rows": sum(count_C), "labels": dict(zip(names, count_C, strict=True))}
        return found

    def of(self, fold: int | None) -> Mapping[str, "Dataset"]:
        """Return the splits of the run in which a fold is the test split."""
        if self.numbers is None:
            return self.splits
        assert fold is not None
        last = int(self.numbers.max())
        chosen = self.numbers == fold, self.numbers == fold % last + 1
        places = {"test": chosen[0], "validation": chosen[1], "train": ~(chosen[0] | chosen[1])}
        return {name: self.rows.select(np.flatnonzero(places[name]), keep_in_memory=True) for name in SPLITS}


def joined(splits: Mapping[str, "Dataset"]) -> "Dataset":
    """Return the rows of all splits: train, validation, test."""
    from datasets import concatenate_datasets

    return concatenate_datasets([splits[name] for name in SPLITS if name in splits])


def clusters_of(rows: "Dataset", column: str | None) -> np.ndarray | None:
    """Return the cluster (N,) of each row: the column's value, or that of ``cluster``; None without it."""
    column = column or CLUSTER
    return np.array([str(value) for value in rows[column][:]]) if column in rows.column_names else None


def divide(
    splits: Mapping[str, "Dataset"], folder: Path, folds: int, by: FoldBy, seed: int, column: str | None
):
    """Return the division of a corpus into this many folds (0: its own splits).

    Args:
        splits: its rows, with a class under ``label``.
        folder: where it is, for messages and for its alphabet.
        folds: how many, at least 3.
        by: what stays together: equal sequences (of DNA, on either strand), clusters, or chromosomes
            (records, where there is no such column).
        seed: of the assignment.
        column: holds the clusters (default: ``cluster``).

    Raises:
        UserError: the column is not there, or has empty cells, or fewer values than there are folds.
    """
    if not folds:
        return Division(splits)
    rows = joined(splits)
    digest_N = np.array([digest(sequence) for sequence in rows["sequence"][:]], np.uint64)
    group_N = _groups(rows, folder, by, column or CLUSTER)
    if (found := len(np.unique(group_N))) < folds:
        raise UserError(
            f"fold_by: {by}: {folder} has only {found} values to divide into {folds} folds; "
            "pass fewer --folds, or another --fold-by"
        )
    return Division(splits, assign_folds(group_N, digest_N, np.array(rows["label"][:]), folds, seed))


def _groups(rows: "Dataset", folder: Path, by: FoldBy, column: str) -> np.ndarray:
    """Return (N,) the number of what each row has to stay together with."""
    if by == "sequence":
        return _sequence_numbers(rows, read_manifest(folder)["config"]["alphabet"])
    if by == "cluster" and column not in rows.column_names:
        raise UserError(
            f"fold_by: cluster: {folder} has no column {column!r}; prepare it with --split-by cluster, or "
            "name one as --cluster-column"
        )
    if by == "chromosome":
        column = CHROMOSOME if CHROMOSOME in rows.column_names else "id"
        if column == "id" and len(set(rows["id"][:])) == len(rows):
            raise UserError(
                f"fold_by: chromosome: {folder} has no column {CHROMOSOME!r}, and every row is a record of "
                "its own; prepare it with --keep-columns chromosome, or pass another --fold-by"
            )
    values = list(rows[column])
    if empty := sum(value in (None, "") for value in values):
        raise UserError(f"fold_by: {by}: {empty} rows of {folder} have no {column}; pass another --fold-by")
    return np.unique([str(value) for value in values], return_inverse=True)[1]


def _sequence_numbers(rows: "Dataset", alphabet: Alphabet) -> np.ndarray:
    """Return (N,) the number of each row's sequence in either case; both strands of DNA have the same."""
    texts = [text.upper() for text in rows["sequence"][:]]
    if alphabet == "dna":
        texts = [min(text, reverse_complement(text)) for text in texts]
    return np.unique([digest(text) for text in texts], return_inverse=True)[1]


def shared_by_folds(division: Division, alphabet: Alphabet) -> dict[str, int]:
    """Count the rows that are also in another fold (``equal``; DNA: on either strand), or share a stretch.

    Returns:
        ``equal``, ``shared_kmer`` and ``kmer``, the letters of such a stretch: 30 bases or 10 residues.
    """
    assert division.numbers is not None
    number_N = _sequence_numbers(division.rows, alphabet)
    pairs = np.unique(np.stack([number_N, division.numbers]), axis=1)
    equal = int((np.bincount(pairs[0])[number_N] > 1).sum())
    sequences = division.rows.with_format("arrow")[:]["sequence"]
    near_N, folds = np.zeros(len(number_N), bool), division.folds
    for begin in range(1, len(folds) + 1, BITS):
        place_N = division.numbers - begin
        own_N = (place_N >= 0) & (place_N < BITS)
        bit_N = np.where(own_N, 1 << np.where(own_N, place_N, 0), 1 << BITS).astype(np.uint8)
        near_N |= own_N & (shared_with(sequences, bit_N, stretches(alphabet)) & ~bit_N > 0)
    return {"equal": equal, "shared_kmer": int(near_N.sum()), "kmer": KMER[alphabet]}


def assign_folds(
    group_N: np.ndarray, digest_N: np.ndarray, label_N: np.ndarray, folds: int, seed: int
) -> np.ndarray:
    """Return the fold (N,) of every row, from 1; groups are whole, and folds alike in every class.

    The largest groups come first, those of one size in an order drawn by ``seed`` from their content; each
    goes where its classes are the least at home. So the result depends on neither the order of rows nor on
    what groups are called.

    Args:
        group_N: number of what each row stays together with.
        digest_N: uint64, stands for the content of each row.
        label_N: number of its class.
        folds: how many.
        seed: of the order.
    """
    key_N = keys(0, group_ids(group_N, digest_N))
    _, first_G, group_N = np.unique(key_N, return_index=True, return_inverse=True)
    count_GC = np.zeros((len(first_G), int(label_N.max()) + 1), np.int64)
    np.add.at(count_GC, (group_N, label_N), 1)
    order_G = np.lexsort((keys(seed, key_N[first_G]), -count_GC.sum(1)))
    share_C = 1 / np.maximum(count_GC.sum(0), 1) ** 2
    held_KC, fold_G = np.zeros((folds, count_GC.shape[1])), np.empty(len(order_G), np.int64)
    for group in order_G:
        crowd_K = (held_KC * (count_GC[group] * share_C)).sum(1)
        fold_G[group] = np.lexsort((held_KC.sum(1), crowd_K))[0]
        held_KC[fold_G[group]] += count_GC[group]
    return fold_G[group_N] + 1


def in_words(division: Division, names: list[str], shared: Mapping[str, int]) -> Iterator[str]:
    """Yield lines about the sizes of the folds, and about what they share.

    Args:
        division: has folds.
        names: of its classes.
        shared: what `shared_by_folds` counted.
    """
    assert division.numbers is not None
    counts = list(division.counts(names).values())
    sizes = [("rows", [count["rows"] for count in counts])]
    sizes += [(name, [count["labels"][name] for count in counts]) for name in names]
    held = ", ".join(f"{min(size)} to {max(size)} {name}" for name, size in sizes)
    given = ", ".join(name for name in SPLITS if name in division.splits)
    rows = len(division.numbers)
    yield f"{len(counts)} folds of all {rows} rows ({given} together), each with {held}"
    if shared["equal"]:
        yield (
            f"WARNING: {shared['equal']} of {rows} rows have their sequence (DNA: on either strand) in "
            "another fold: scores will flatter; pass --fold-by sequence or cluster, or drop the duplicates"
        )
    if shared["shared_kmer"]:
        yield (
            f"note: {shared['shared_kmer']} of {rows} rows ({shared['shared_kmer'] / rows:.1%}) share "
            f"{shared['kmer']} letters in a row with another fold; --fold-by cluster keeps them together"
        )
