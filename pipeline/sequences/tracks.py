"""Files for genome browsers: bedGraph, bigWig, BED and the lengths of chromosomes.

All positions are 0-based. A score belongs to one base, so an entry is one base long. Formats:
genome.ucsc.edu/FAQ/FAQformat; bigWig, Kent et al. 2010, doi:10.1093/bioinformatics/btq351.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.errors import UserError

AT_ONCE = 1 << 18  # entries written at once
TRACKS = {1: "plus", -1: "minus", 0: "both"}  # names of files, by strand
SIGNS = {1: "+", -1: "-", 0: "."}
CALLS = "name chromosome position strand probability false_calls_per_kb"
LONGEST = 2**32 - 1  # bases of a chromosome that the format can tell


class Site(NamedTuple):
    """One base of a chromosome (0-based), a strand (1, -1, or 0) and a probability."""

    chromosome: str
    position: int
    strand: int
    probability: float


class Track(Protocol):
    """Takes the scores (N,) of bases (N,) of one chromosome after the other, each in ascending order."""

    def __call__(self, chromosome: str, position_N: np.ndarray, score_N: np.ndarray) -> None:
        """Write them."""
        ...


def _pieces(position_N: np.ndarray, score_N: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    assert np.all(np.diff(position_N) > 0), "positions must ascend, or entries would overlap"
    for begin in range(0, len(position_N), AT_ONCE):
        yield position_N[begin : begin + AT_ONCE], score_N[begin : begin + AT_ONCE]


@contextmanager
def bedgraph(path: Path) -> Iterator[Track]:
    """Open a bedGraph file for writing."""
    with path.open("w", encoding="utf-8", newline="\n") as file:

        def write(chromosome: str, position_N: np.ndarray, score_N: np.ndarray) -> None:
            for positions, scores in _pieces(position_N, score_N):
                pairs = zip(positions.tolist(), scores.tolist(), strict=True)
                file.writelines(f"{chromosome}\t{at}\t{at + 1}\t{score:.6g}\n" for at, score in pairs)

        yield write


@contextmanager
def bigwig(path: Path, lengths: Mapping[str, int]) -> Iterator[Track]:
    """Open a bigWig file for writing; ``lengths`` are the bases of the chromosomes, in their order.

    Raises:
        UserError: a chromosome is longer than the format can tell.
    """
    import pyBigWig

    for name, length in lengths.items():
        if length > LONGEST:
            raise UserError(
                f"record {name!r}: {length} bases; a bigWig file has at most {LONGEST} in a record"
            )
    file = pyBigWig.open(str(path), "w")

    def write(chromosome: str, position_N: np.ndarray, score_N: np.ndarray) -> None:
        for positions, scores in _pieces(position_N, score_N):
            file.addEntries(chromosome, positions.astype(np.int64), values=scores.astype(np.float64), span=1)

    try:
        file.addHeader(list(lengths.items()))
        yield write
    finally:
        file.close()


@contextmanager
def tracks(
    folder: Path, lengths: Mapping[str, int], strands: Iterable[int]
) -> Iterator[dict[int, list[Track]]]:
    """Open a bedGraph and a bigWig file for each strand, and write chrom.sizes: names and lengths."""
    with ExitStack() as stack:
        yield {
            strand: [
                stack.enter_context(bedgraph(folder / f"{TRACKS[strand]}.bedgraph")),
                stack.enter_context(bigwig(folder / f"{TRACKS[strand]}.bw", lengths)),
            ]
            for strand in strands
        }
    sizes = "".join(f"{name}\t{length}\n" for name, length in lengths.items())
    (folder / "chrom.sizes").write_text(sizes, encoding="utf-8")


@contextmanager
def table(path: Path, columns: str) -> Iterator[Callable[[Iterable[str]], None]]:
    """Open a TSV file with a header of ``columns`` (between blanks), and give what writes rows into it."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("\t".join(columns.split()) + "\n")
        yield lambda rows: file.writelines(f"{row}\n" for row in rows)


def write_calls(folder: Path, sites: Iterable[Site], rates: Iterable[float | None]) -> None:
    """Write calls.bed and calls.tsv, calls named call_1, call_2, ... in both.

    Args:
        folder: where.
        sites: the calls, in the order of the files. In BED6 they are one base long, and their score is 1000
            times the probability, rounded down.
        rates: false calls per kilobase of those that score at least as much, if known.
    """
    with (
        (folder / "calls.bed").open("w", encoding="utf-8", newline="\n") as bed,
        table(folder / "calls.tsv", CALLS) as rows,
    ):
        for number, (site, rate) in enumerate(zip(sites, rates, strict=True), 1):
            name, sign, p = f"call_{number}", SIGNS[site.strand], site.probability
            place = f"{site.chromosome}\t{site.position}"
            bed.write(f"{place}\t{site.position + 1}\t{name}\t{int(1000 * p)}\t{sign}\n")
            rows([f"{name}\t{place}\t{sign}\t{p:.9g}\t{'' if rate is None else f'{rate:.6g}'}"])
