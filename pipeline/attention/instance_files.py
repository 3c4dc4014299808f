"""Instances of motifs as files: BED6, GFF3 and a table with the columns of FIMO.

Coordinates are those of the genome where the rows have a place in one, else those of the record. BED counts
from 0, half-open; GFF3 and FIMO's table count from 1, both ends included.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.attention.halves import Frame
from pipeline.attention.instances import Windows
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.places import Place

FIMO = "motif_id motif_alt_id sequence_name start stop strand score p-value q-value matched_sequence"
UNSAFE = re.compile(r"[^A-Za-z0-9.:^*$@!+_?|-]")  # letters that GFF3 wants to be encoded
BEST = 1000  # largest score of BED


class Instance(NamedTuple):
    """A site of a motif, and what stands there on its strand."""

    motif: str
    consensus: str
    row: str
    place: Place
    score: float
    p_value: float
    q_value: float
    letters: str


def instances(
    found: Mapping[str, Windows],
    consensus: Mapping[str, str],
    ids: Sequence[str],
    sequences: Sequence[str],
    frames: Sequence[Frame],
) -> Iterator[Instance]:
    """Yield the windows of every motif, in the order given, with their places.

    Args:
        found: by motif, windows of N sequences.
        consensus: of each motif.
        ids: of the sequences.
        sequences: letters.
        frames: where they lie.
    """
    for name, windows in found.items():
        columns = windows.sequence, windows.start, windows.strand
        values = windows.score, windows.p_value, windows.q_value
        for i, start, strand, score, p, q in zip(*(c.tolist() for c in columns + values), strict=True):
            stop = start + windows.width
            letters = str(sequences[i][start:stop])
            letters = letters if strand == 1 else reverse_complement(letters)
            place, row = frames[i].span(start, stop, strand), str(ids[i])
            yield Instance(name, consensus[name], row, place, score, p, q, letters)


def write_instances(folder: Path, found: Iterable[Instance]) -> int:
    """Write instances.bed, instances.gff3 and instances.tsv; return how many there are.

    BED and GFF3 score 1000 at most: -10 log10 of the p-value, as FIMO does (Grant et al. 2011).
    """
    number = 0
    with (
        (folder / "instances.bed").open("w", encoding="utf-8", newline="\n") as bed,
        (folder / "instances.gff3").open("w", encoding="utf-8", newline="\n") as gff,
        (folder / "instances.tsv").open("w", encoding="utf-8", newline="\n") as tsv,
    ):
        gff.write("##gff-version 3\n")
        tsv.write("\t".join(FIMO.split()) + "\n")
        for number, one in enumerate(found, 1):
            bed.write(_bed(one))
            gff.write(_gff(one, number))
            tsv.write(_fimo(one))
    return number


def _strength(p_value: float) -> float:
    return min(BEST, -10 * math.log10(max(p_value, 1e-300)))


def _plain(text: str) -> str:
    """Return text without what would break a line or a column, percent-encoded."""
    return re.sub(r"[\x00-\x1f\x7f]", lambda match: f"%{ord(match[0]):02X}", text)


def _encoded(text: str) -> str:
    """Return text as GFF3 wants it."""
    return UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text)


def _bed(one: Instance) -> str:
    chromosome, start, stop, strand = one.place
    return f"{_plain(chromosome)}\t{start}\t{stop}\t{one.motif}\t{round(_strength(one.p_value))}\t{strand}\n"


def _gff(one: Instance, number: int) -> str:
    chromosome, start, stop, strand = one.place
    about = f"ID={one.motif}.{number};Name={one.motif};row={_encoded(one.row)};pvalue={one.p_value:.3g};"
    about += f"qvalue={one.q_value:.3g};sequence={one.letters}"
    kind, strength = "strandlm\tnucleotide_motif", f"{_strength(one.p_value):.3g}"
    return f"{_encoded(chromosome)}\t{kind}\t{start + 1}\t{stop}\t{strength}\t{strand}\t.\t{about}\n"


def _fimo(one: Instance) -> str:
    chromosome, start, stop, strand = one.place
    place = f"{_plain(chromosome)}\t{start + 1}\t{stop}\t{strand}"
    values = f"{one.score:.3f}\t{one.p_value:.3g}\t{one.q_value:.3g}"
    return f"{one.motif}\t{one.consensus}\t{place}\t{values}\t{one.letters}\n"
