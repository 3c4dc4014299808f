"""How much of what MMseqs2 finds the built-in clusters of proteins hold together, by identity.

    python benchmarks/clustering.py proteins.fasta.gz --pairs pairs.tsv

MMseqs2 aligns all against all (-s 7.5, identity >= 0.5, coverage of both >= 0.8); ``--pairs`` keeps its table
for another time. One thread each.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.sequences.readers import read_files
from pipeline.sequences.similarity import equal_rows, link, protein_links

IDENTITY, COVERAGE, K = 0.5, 0.8, 5
BINS = [0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0]


def search(program: str, proteins: list[bytes], table: Path) -> None:
    """Write MMseqs2's pairs of row numbers and their identity."""
    with tempfile.TemporaryDirectory() as folder:
        fasta = Path(folder, "rows.fasta")
        fasta.write_bytes(b"".join(b">%d\n%s\n" % row for row in enumerate(proteins)))
        limits = f"--min-seq-id {IDENTITY} -c {COVERAGE} --cov-mode 0 -s 7.5 -e 0.001 --max-seqs 1000"
        shown = "--alignment-mode 3 --threads 1 --format-output query,target,fident"
        command = [program, "easy-search", fasta, fasta, table, Path(folder, "scratch")]
        subprocess.run([*command, *limits.split(), *shown.split()], check=True, stdout=subprocess.DEVNULL)


def read_pairs(table: Path) -> pd.DataFrame:
    """Return every pair once, with the higher of its two identities."""
    hits = pd.read_csv(table, sep="\t", header=None, names=["query", "target", "identity"])
    hits = hits[hits["query"] != hits["target"]]
    hits["one"], hits["other"] = hits[["query", "target"]].min(axis=1), hits[["query", "target"]].max(axis=1)
    return hits.groupby(["one", "other"], as_index=False)["identity"].max()


def pairs_within(*clusters: np.ndarray) -> int:
    """Return how many pairs of rows share a cluster in each of the given clusterings."""
    sizes = np.unique(np.stack(clusters), axis=1, return_counts=True)[1]
    return int((sizes * (sizes - 1) // 2).sum())


def compare(sequences: pa.ChunkedArray, pairs: pd.DataFrame) -> dict[str, object]:
    """Cluster, print the recall by identity, and return all numbers."""
    began = time.process_time()
    equal_N = equal_rows(sequences)
    links = protein_links(sequences, equal_N, IDENTITY, COVERAGE, K)
    ours_N = link(equal_N, *links)
    seconds = time.process_time() - began
    one, other = pairs["one"].to_numpy(), pairs["other"].to_numpy()
    theirs_N = link(np.arange(len(sequences)), one, other)
    found = pd.Series(ours_N[one] == ours_N[other])
    by = found.groupby(pd.cut(pairs["identity"], BINS, include_lowest=True), observed=True)
    curve = by.agg(["size", "mean"])
    print("| identity | MMseqs2's pairs | in one cluster |\n|---|---|---|")
    for interval, size, mean in curve.itertuples():
        print(f"| {max(interval.left, IDENTITY):.2f}-{interval.right:.2f} | {size} | {mean:.2%} |")
    print(f"| all | {len(pairs)} | {found.mean():.2%} |\n")
    linked = pd.MultiIndex.from_arrays(np.sort(np.stack(links), axis=0))
    return {
        "proteins": len(sequences),
        "cpu_seconds": round(seconds, 1),
        "mmseqs_pairs": len(pairs),
        "recall": round(float(found.mean()), 4),
        "recall_by_identity": {f"{i.right:.2f}": round(float(m), 4) for i, _, m in curve.itertuples()},
        "links": len(linked),
        "links_without_mmseqs_pair": int((~linked.isin(pd.MultiIndex.from_arrays([one, other]))).sum()),
        "clusters": int(ours_N.max()) + 1,
        "clusters_of_mmseqs_pairs": int(theirs_N.max()) + 1,
        "largest_cluster": int(np.bincount(ours_N).max()),
        "largest_cluster_of_mmseqs_pairs": int(np.bincount(theirs_N).max()),
        "pairs_within_clusters": pairs_within(ours_N),
        "pairs_within_clusters_of_mmseqs_pairs": pairs_within(theirs_N),
        "pairs_within_both": pairs_within(ours_N, theirs_N),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fasta", type=Path)
    parser.add_argument("--pairs", type=Path, help="MMseqs2's table: read if it is there, else written")
    options = parser.parse_args()
    program = shutil.which("mmseqs")
    if not program and not (options.pairs and options.pairs.exists()):
        print("skipped: no program mmseqs on the PATH (Debian package mmseqs2)")
        return
    proteins = [record.sequence.upper() for record in read_files([options.fasta])]
    with tempfile.TemporaryDirectory() as folder:
        table = options.pairs or Path(folder, "pairs.tsv")
        if not table.exists():
            search(str(program), proteins, table)
        pairs = read_pairs(table)
    print(json.dumps(compare(pa.chunked_array([pa.array(proteins, pa.string())]), pairs)))


if __name__ == "__main__":
    main()
