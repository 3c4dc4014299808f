"""What the splits of a corpus have in common: equal sequences, other strands, shared stretches.

Scores on a held-out split flatter a model that has seen the same sequences in training.
"""

from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import Alphabet
from pipeline.sequences.alphabets import reverse_complement, without_case
from pipeline.sequences.similarity import RESIDUES, KmerHash, rows, shared_with
from pipeline.sequences.splits import SPLITS, digest

KMER = {"dna": 30, "protein": 10}


def leakage_report(
    sequences: pa.ChunkedArray,
    split_N: np.ndarray,
    alphabet: Alphabet,
    cluster_N: np.ndarray | None = None,
    labels_N: np.ndarray | None = None,
    kmer: int | None = None,
    shared_kmers: bool = True,
    strandless: bool = False,
) -> dict[str, Any]:
    """Count what the splits share, case folded.

    Args:
        sequences: rows.
        split_N: train (0), validation (1), test (2), or -1 for rows that are left out.
        alphabet: "dna" (stretches are compared on either strand) or "protein".
        cluster_N: number of the cluster of each row, if there are any.
        labels_N: class of each row, if there are any; -1 for none.
        kmer: letters of a shared stretch (default: 30 bases or 10 residues, which do not recur by chance).
        shared_kmers: false where splits share no k-mer by construction: none is looked for.
        strandless: a sequence and its reverse complement are the same thing, so their labels may conflict.

    Returns:
        ``kmer``, and ``kmer_counted``: false if none was looked for; ``splits``: by split its rows and those
        that repeat an earlier one of the same split;
        ``pairs``: by pair, as in "test in train", of the rows of the first how many are in the second as they
        are (``exact``), as their reverse complement (DNA) and with a shared k-mer (``shared_kmer``), each
        with its share, and as the same thing with another label (``conflicting_labels``);
        ``largest_cluster``: its share of the rows and of the letters.
    """
    kmer = kmer or KMER[alphabet]
    found = [split for split in range(len(SPLITS)) if (split_N == split).any()]
    strands = alphabet == "dna" and (strandless or len(found) > 1)
    digests_2N, length_N = _digests(sequences, split_N, strands)
    report: dict[str, Any] = {"kmer": kmer, "kmer_counted": shared_kmers, "splits": {}, "pairs": {}}
    for split in found:
        own = digests_2N[0, split_N == split]
        report["splits"][SPLITS[split]] = {"rows": len(own), "duplicates": len(own) - len(np.unique(own))}
    same_N = digests_2N.min(axis=0) if strandless else digests_2N[0]
    if len(found) > 1:
        nothing_N = np.zeros(len(split_N), np.uint8)
        seen_N = _seen(sequences, split_N, alphabet, kmer) if shared_kmers else nothing_N
        for earlier, later in combinations(found, 2):
            of_N, in_N = split_N == later, split_N == earlier
            pair = _shared(digests_2N[:, of_N], digests_2N[0, in_N], seen_N[of_N] >> earlier & 1, alphabet)
            if labels_N is not None:
                pair["conflicting_labels"] = _conflicts(same_N, labels_N, of_N, in_N)
            report["pairs"][f"{SPLITS[later]} in {SPLITS[earlier]}"] = pair
    if cluster_N is not None:
        report["largest_cluster"] = _largest(cluster_N[split_N >= 0], length_N[split_N >= 0])
    return report


def say_leakage(report: dict[str, Any]) -> list[str]:
    """Return the lines of a report that a person should see: warnings, and what is well."""
    lines = []
    for name, pair in report["pairs"].items():
        later, earlier = name.split(" in ")
        same = [f"{pair['exact']} {later} rows are in {earlier}"] if pair["exact"] else []
        if pair.get("reverse_complement"):
            same.append(f"the other strands of {pair['reverse_complement']} {later} rows are in {earlier}")
        if pair.get("conflicting_labels"):
            same.append(f"{pair['conflicting_labels']} of these have another label there")
        if same:
            lines.append(f"WARNING: {', and '.join(same)}: scores on {later} will flatter")
        if pair["shared_kmer"]:
            lines.append(
                f"note: {pair['shared_kmer']} of {report['splits'][later]['rows']} {later} rows "
                f"({pair['shared_kmer_share']:.1%}) share {report['kmer']} letters in a row with {earlier}; "
                "split by cluster to keep them together"
            )
    largest = report.get("largest_cluster")
    if largest:
        lines.append(
            f"largest cluster: {largest['rows']} rows ({largest['rows_share']:.1%} of them, "
            f"{largest['letters_share']:.1%} of the letters)"
        )
    return lines


def stretches(alphabet: Alphabet, kmer: int | None = None) -> KmerHash:
    """Return what tells apart the stretches that rows may share: of 30 bases or 10 residues, or so many."""
    kmer = kmer or KMER[alphabet]
    dna = alphabet == "dna"
    return KmerHash(kmer, both_strands=True) if dna else KmerHash(kmer, letters=RESIDUES)


def _digests(sequences: pa.ChunkedArray, split_N: np.ndarray, strands: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (2, N) uint64, digests of rows and (if wanted) other strands, and (N,) the rows' lengths."""
    digests_2N = np.zeros((2, len(split_N)), np.uint64)
    length_N = np.zeros(len(split_N), np.int64)
    for i, row in enumerate(rows(sequences)):
        if split_N[i] >= 0:
            digests_2N[0, i], length_N[i] = digest(without_case(row)), len(row)
            if strands:
                digests_2N[1, i] = digest(without_case(reverse_complement(row)))
    return digests_2N, length_N


def _seen(sequences: pa.ChunkedArray, split_N: np.ndarray, alphabet: Alphabet, kmer: int) -> np.ndarray:
    """Return (N,) uint8: a bit for every split that holds a k-mer of the row."""
    bit_N = np.where(split_N >= 0, 1 << np.maximum(split_N, 0), 0).astype(np.uint8)
    return shared_with(sequences, bit_N, stretches(alphabet, kmer))


def _shared(
    digests_2M: np.ndarray, earlier: np.ndarray, seen_M: np.ndarray, alphabet: Alphabet
) -> dict[str, Any]:
    """Count the rows of a later split that are, in one way or another, in an earlier one."""
    known = {"exact": np.isin(digests_2M[0], earlier)}
    if alphabet == "dna":
        known["reverse_complement"] = np.isin(digests_2M[1], earlier)
    known["shared_kmer"] = seen_M > 0
    counts = {}
    for kind, known_M in known.items():
        counts[kind], counts[f"{kind}_share"] = int(known_M.sum()), round(float(known_M.mean()), 6)
    return counts


def _conflicts(digest_N: np.ndarray, labels_N: np.ndarray, of_N: np.ndarray, in_N: np.ndarray) -> int:
    """Count the rows of one split that are in the other, there under a label which differs."""
    own, earlier = np.stack([digest_N, labels_N.astype(np.uint64)], axis=1)[of_N], digest_N[in_N]
    order = np.lexsort((labels_N[in_N], earlier))
    earlier, labels = earlier[order], labels_N[in_N][order].astype(np.uint64)
    begin, end = (np.searchsorted(earlier, own[:, 0], side=side) for side in ("left", "right"))
    own, begin, end = own[begin < end], begin[begin < end], end[begin < end]
    return int(((labels[begin] != own[:, 1]) | (labels[end - 1] != own[:, 1])).sum())


def _largest(cluster_N: np.ndarray, length_N: np.ndarray) -> dict[str, Any]:
    """Return rows and letters of the cluster with the most rows, and their shares."""
    _, cluster_N = np.unique(cluster_N, return_inverse=True)
    largest_N = cluster_N == np.bincount(cluster_N).argmax()
    letters = int(length_N[largest_N].sum())
    return {
        "rows": int(largest_N.sum()),
        "rows_share": round(float(largest_N.mean()), 6),
        "letters": letters,
        "letters_share": round(letters / max(int(length_N.sum()), 1), 6),
    }
