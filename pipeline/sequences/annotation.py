"""Start sites and genes of a genome, out of BED, GFF and GTF files, on one axis with calls.

Suffixes: N places, S start sites.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.log import say
from pipeline.sequences.calls import REACH, Axis, Calls, Genes
from pipeline.sequences.places import Places, Spans, read_places
from pipeline.settings.sections import ScanConfig


@dataclass(frozen=True)
class Annotation:
    """What calls are compared with, on their axis; None where no file is given.

    Attributes:
        starts: start sites (S,), all with score 0.
        genes: whole genes. Those near the origin of a circular record are there once more, as they lie beyond
            its ends, so that a gene downstream of a call may be on the other side of the origin.
        covered: bases that genes of either strand cover; all others are intergenic, as in `strata`.
    """

    starts: Calls | None
    genes: Genes | None
    covered: Spans | None


def read_annotation(settings: ScanConfig, genome: Path, axis: Axis) -> Annotation:
    """Read start sites and genes; of a site that is given several times, one stays, and this is said.

    Raises:
        UserError: a file cannot be read, or has an interval that the genome does not have.
    """
    starts = genes = covered = None
    if settings.starts:
        found = read_places(
            settings.starts, genome, feature=settings.feature, circular=settings.circular
        ).starts()
        starts = _sites(found.unrolled(axis.lengths, settings.circular), axis, settings)
    if settings.genes:
        found = read_places(settings.genes, genome, feature="gene", circular=settings.circular)
        genes = _genes(_repeated(found, axis, settings.circular), axis)
        inside = _genes(found.unrolled(axis.lengths, settings.circular), axis)
        covered = inside.start, inside.end
    return Annotation(starts, genes, covered)


def _sites(found: Places, axis: Axis, settings: ScanConfig) -> Calls:
    """Return each start site once."""
    given = _genes(found, axis)
    strand_N = np.zeros_like(given.strand) if settings.strandless else given.strand
    position_S, strand_S = np.unique(np.stack((given.start, strand_N)), axis=1)
    if len(position_S) < len(found):
        again = len(found) - len(position_S)
        say(f"{settings.starts}: {again} start sites given more than once, counted once")
    return Calls(position_S, strand_S, np.zeros(len(position_S)))


def _genes(places: Places, axis: Axis) -> Genes:
    """Return places on the axis."""
    begin_N = np.array([axis.begin(name) for name in places.chromosome.tolist()], np.int64)
    return Genes(begin_N + places.start, begin_N + places.end, np.where(places.strand == "-", -1, 1))


def _repeated(places: Places, axis: Axis, circular: Collection[str]) -> Places:
    """Return places, and of circular records also those within `REACH` of an end, beyond the other end."""
    names = places.chromosome.tolist()
    length_N = np.array([axis.lengths[name] for name in names], np.int64)
    circular_N = np.array(["*" in circular or name in circular for name in names], bool)
    copies = [places]
    for turn in (-1, 1):
        start_N, end_N = places.start + turn * length_N, places.end + turn * length_N
        near_N = circular_N & (start_N >= -REACH) & (end_N <= length_N + REACH)
        copies.append(Places(places.chromosome, start_N, end_N, places.strand).chosen(near_N))
    return Places.join(copies)
