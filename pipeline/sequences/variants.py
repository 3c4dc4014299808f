"""Variants of a genome (VCF) with the letters around them, and substitutions in proteins (A24G).

VCF, specification 4.5: positions count from 1, and every alternative allele of a line is a variant of its
own. Only alleles written as bases have letters: ``*``, symbolic ones (``<DEL>``), breakends and ``.`` are
named and left without a score. What both alleles begin or end with is no change and is taken off, the end
first (as Tan et al. 2015, doi:10.1093/bioinformatics/btv112, do before they move a variant; here none is).
Substitutions are written as wild-type letter, place from 1, new letter; several in one protein are joined by
colons, as in ProteinGym (Notin et al. 2023, doi:10.1101/2023.12.07.570727).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import UserError
from pipeline.sequences.alphabets import RESIDUES, reverse_complement
from pipeline.sequences.files import FORMATS, extension, opened
from pipeline.sequences.genomes import IndexedGenome
from pipeline.sequences.intervals import (
    UnusableError,
    interval_format,
    listed,
    numbered_lines,
    parse_vcf,
    suggestion,
)
from pipeline.sequences.records import Notes, Source
from pipeline.sequences.tables import DELIMITERS, table_rows

BASES = set("ACGT")
SUBSTITUTION = re.compile(r"([A-Z])([0-9]{1,9})([A-Z])")


class UnscorableError(UserError):
    """Why a variant or substitution has no score."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One alternative allele of a line of a VCF file, as the file has it; ``position`` counts from 1.

    ``fault`` says why it can have no score, or nothing.
    """

    line: int
    chromosome: str = ""
    position: int | None = None
    name: str = ""
    reference: str = ""
    alternative: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Alleles:
    """Two alleles without what they have in common, between the letters on both sides, on one strand."""

    left: str
    reference: str
    alternative: str
    right: str

    @property
    def substitution(self) -> bool:
        """Whether both alleles are equally long."""
        return len(self.reference) == len(self.alternative)

    def reverse_complement(self) -> "Alleles":
        """Return the same on the other strand."""
        parts = (self.right, self.reference, self.alternative, self.left)
        return Alleles(*map(reverse_complement, parts))

    def middle(self, size: int) -> int:
        """Return how many letters are left of the change in windows of a size that have it in the middle.

        Near an end of the record the windows are moved, and are shorter only if the record is.
        """
        shorter, longer = sorted((len(self.reference), len(self.alternative)))
        missing = size - shorter - len(self.right)
        middle = min((size - len(self.reference)) // 2, size - longer)
        return min(max(middle, missing, 0), len(self.left))

    def windows(self, size: int, before: int) -> tuple[str, str]:
        """Return both alleles in windows of ``size`` letters at most, ``before`` of them left of the change.

        Behind an insertion or a deletion they go on for fewer or more letters, so both are equally long.

        Raises:
            UnscorableError: an allele does not fit.
        """
        longer = max(len(self.reference), len(self.alternative))
        if before + longer > size:
            raise UnscorableError(f"an allele of {longer} bases does not fit into a window of {size}")
        start = self.left[len(self.left) - before :]
        pair = [(start + allele + self.right)[:size] for allele in (self.reference, self.alternative)]
        return pair[0], pair[1]

    def placed(self, size: int, offsets: Iterable[int], strand: str) -> "Iterator[Placed]":
        """Yield both alleles in whole windows of a strand, at each offset that there can be.

        Args:
            size: letters of a window.
            offsets: letters before the first one that changes, along the strand.
            strand: "+" or "-".
        """
        sided = self.reverse_complement() if strand == "-" else self
        longer = max(len(self.reference), len(self.alternative))
        for offset in offsets:
            if offset <= len(sided.left) and offset + longer <= size:
                old, new = sided.windows(size, offset)
                if len(old) == len(new) == size:
                    yield Placed(strand, offset, old, new)


@dataclass(frozen=True, slots=True)
class Placed:
    """Windows with the reference (old) and the alternative allele, ``offset`` letters before the change."""

    strand: str
    offset: int
    old: str
    new: str


def alleles_of(variant: Variant, genome: IndexedGenome, reach: int) -> Alleles:
    """Return both alleles of a variant with ``reach`` letters on both sides, or what there is of them.

    Raises:
        UnscorableError: the variant has a fault, the genome has no such record, place or reference allele
            there, or letters that are no bases.
    """
    if variant.fault:
        raise UnscorableError(variant.fault)
    _check(variant, genome)
    assert variant.position is not None
    reference, alternative = variant.reference.upper(), variant.alternative.upper()
    before, after = _common(reference, alternative)
    start = variant.position - 1 + before
    end = variant.position - 1 + len(reference) - after
    name, length = variant.chromosome, genome.lengths[variant.chromosome]
    try:
        left = genome.fetch(name, max(0, start - reach), start).decode()
        right = genome.fetch(name, end, min(end + reach, length)).decode()
    except UserError as error:
        raise UnscorableError(str(error)) from None
    old, new = (allele[before : len(allele) - after] for allele in (reference, alternative))
    return Alleles(left, old, new, right)


def _check(variant: Variant, genome: IndexedGenome) -> None:
    """Refuse a variant that the genome does not have, or whose reference allele is not made of bases."""
    name, start = variant.chromosome, (variant.position or 0) - 1
    if name not in genome.lengths:
        hint = suggestion([name], genome.lengths.keys())
        raise UnscorableError(f"{genome.path} has no record {name!r}; {hint}")
    end = start + len(variant.reference)
    if end > genome.lengths[name]:
        raise UnscorableError(f"the reference allele ends at {end}, but {name!r} has {genome.lengths[name]}")
    found = genome.raw(name, start, end).decode().upper()
    if found != variant.reference.upper():
        place = f"from base {start + 1} of {name!r} on"
        text = f"the reference allele is {variant.reference!r}, but the genome has {found!r} {place}"
        raise UnscorableError(f"{text}; is it the genome that was called?")
    if not set(found) <= BASES:
        raise UnscorableError(f"the reference allele {found!r} holds letters other than A, C, G and T")


def _common(first: str, second: str) -> tuple[int, int]:
    """Return how many letters two different alleles have in common at the beginning and at the end."""
    shorter = min(len(first), len(second))
    after = next((n for n in range(shorter) if first[-1 - n] != second[-1 - n]), shorter)
    before = next((n for n in range(shorter - after) if first[n] != second[n]), shorter - after)
    return before, after


def read_variants(path: Path) -> list[Variant]:
    """Return the alternative alleles of a VCF file, plain or compressed, in order; bad lines have a fault.

    Raises:
        UserError: the file is no VCF by its name, cannot be read, or has no variants.
    """
    if interval_format(path) != "vcf":
        raise UserError(
            f"variants: {path}: not a VCF file by its name; give one that ends in .vcf or .vcf.gz"
        )
    found = [
        variant for number, line in numbered_lines(path, bed=False) for variant in _of_line(number, line)
    ]
    if not found:
        raise UserError(f"variants: {path}: no variants in it; nothing to score")
    return found


def _of_line(number: int, line: str) -> Iterator[Variant]:
    try:
        row = parse_vcf(line)
    except UnusableError as fault:
        yield Variant(number, *_places(line), fault=str(fault))
        return
    reference = row.fields["ref"]
    for allele in row.fields["alt"].split(","):
        fault = _fault(reference, allele)
        yield Variant(number, row.chromosome, row.start + 1, row.name, reference, allele, fault)


def _places(line: str) -> tuple[str, int | None, str, str, str]:
    """Return what can be told of a bad line: chromosome, position, name and alleles."""
    cells = [*line.split("\t")[:5], *[""] * 5]
    return cells[0], int(cells[1]) if cells[1].isdecimal() else None, cells[2].strip("."), cells[3], cells[4]


def _fault(reference: str, allele: str) -> str:
    """Return why an alternative allele has no letters to score, or nothing."""
    if allele == ".":
        return "no alternative allele ('.')"
    if allele == "*":
        return "the allele '*' is a deletion that another line describes"
    if set(allele) & set("<>[].*"):
        return f"the allele {allele!r} is symbolic; only alleles written as bases are scored"
    if not set(allele.upper()) <= BASES:
        return f"the allele {allele!r} holds letters other than A, C, G and T"
    return "both alleles are the same" if allele.upper() == reference.upper() else ""


def check_names(variants: list[Variant], path: Path, genome: IndexedGenome) -> None:
    """Refuse variants none of which is on a record of the genome, before anything is scored.

    Raises:
        UserError: names records of both files, and how to write them alike.
    """
    names = list(dict.fromkeys(variant.chromosome for variant in variants if variant.position))
    if names and not set(names) & genome.lengths.keys():
        raise UserError(
            f"variants: {path}: its chromosomes, {listed(names)}, are none of {genome.path}, which has "
            f"{listed(genome.lengths)}; {suggestion(names, genome.lengths.keys())}"
        )


# -- proteins


@dataclass(frozen=True, slots=True)
class Substitution:
    """One residue instead of another; ``place`` counts from 0."""

    wild_type: str
    place: int
    mutant: str


def parse_substitutions(text: str, protein: str) -> list[Substitution]:
    """Return the substitutions of a cell, by place, such as ``A24G`` or ``A24G:L30P``.

    Args:
        text: wild-type letter, place from 1, new letter; colons between several.
        protein: the wild type's residues, upper case.

    Raises:
        UnscorableError: it is none, lies outside of the protein, has another wild type, names a place twice,
            or a letter that is none of the 20 residues.
    """
    found = [_substitution(part.strip().upper(), protein) for part in text.split(":")]
    if len({each.place for each in found}) < len(found):
        raise UnscorableError(f"{text!r} names a place twice")
    return sorted(found, key=lambda each: each.place)


def _substitution(text: str, protein: str) -> Substitution:
    match = SUBSTITUTION.fullmatch(text)
    if match is None:
        raise UnscorableError(f"{text!r} is no substitution; write A24G, or A24G:L30P for several at once")
    old, place, new = match[1], int(match[2]) - 1, match[3]
    if not 0 <= place < len(protein):
        raise UnscorableError(f"{text!r}: the protein has residues 1 to {len(protein)}")
    if protein[place] != old:
        raise UnscorableError(f"{text!r}: residue {place + 1} of the protein is {protein[place]}, not {old}")
    for letter in (old, new):
        if letter not in RESIDUES:
            raise UnscorableError(f"{text!r}: {letter} is none of the 20 residues, which alone are scored")
    return Substitution(old, place, new)


def read_rows(path: Path, columns: list[str], key: str) -> list[tuple[int, dict[str, str]]]:
    """Return line (Parquet: row) and cells, blanks around them taken off, of every row of a table.

    Args:
        path: CSV, TSV (plain or compressed) or Parquet, told apart by extension.
        columns: those that are needed.
        key: the setting that names the table, for messages.

    Raises:
        UserError: the file cannot be read as such a table, or lacks a column.
    """
    kind = FORMATS.get(extension(path))
    if kind not in (*DELIMITERS, "parquet"):
        raise UserError(f"{key}: {path}: not a table by its name; give a .csv, .tsv or .parquet file")
    with opened(path) as file:
        source = Source(path, "", "", (), "error", Notes(), None)
        rows = _parquet_rows(path, file) if kind == "parquet" else table_rows(source, file, DELIMITERS[kind])
        header = [name.strip() for name in next(rows, (1, []))[1]]
        if not header:
            raise UserError(f"{key}: {path}: no rows in it; nothing to score")
        _check_header(header, columns, f"{key}: {path}")
        table = [(line, _cells(cells, header, columns, f"{path}: line {line}")) for line, cells in rows]
    if not table:
        raise UserError(f"{key}: {path}: no rows in it; nothing to score")
    return table


def _check_header(header: list[str], columns: list[str], where: str) -> None:
    for name in columns:
        if header.count(name) != 1:
            number = "no column" if name not in header else "more than one column"
            raise UserError(f"{where}: {number} {name!r}; the columns are {listed(header)}")


def _cells(cells: list[str], header: list[str], columns: list[str], where: str) -> dict[str, str]:
    if len(cells) != len(header):
        raise UserError(f"{where}: {len(cells)} cells under {len(header)} columns; correct the row")
    return {name: cells[header.index(name)].strip() for name in columns}


def _parquet_rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except pa.ArrowException as error:
        raise UserError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    yield 0, table.column_names
    for number, row in enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True), 1):
        yield number, ["" if cell is None else str(cell) for cell in row]
