"""Variants of a genome (VCF) with the letters around them, and substitutions in proteins (A24G).

VCF, specification 4.5: positions count from 1, and every alternative allele of a row is a variant of its own.
Only alleles written as bases have letters: ``*``, symbolic ones (``<DEL>``), breakends and ``.`` are named and
left without a score. What both alleles begin and end with is no change and is taken off (Tan et al. 2015,
doi:10.1093/bioinformatics/btv112, without moving the variant). Substitutions are written as wild-type letter,
place from 1, new letter; several of one protein are joined by colons (as ProteinGym has them, Notin et al. 2023,
doi:10.1101/2023.12.07.570727).
"""

import csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import LettersConfig
from pipeline.errors import UserError
from pipeline.sequences.alphabets import RESIDUES, BadSequenceError, clean, reverse_complement
from pipeline.sequences.files import extension, opened
from pipeline.sequences.intervals import (
    _indexed,
    _lines,
    _list,
    _parse_vcf,
    _suggestion,
    _UnusableError,
    interval_format,
)
from pipeline.sequences.records import Notes

BASES = set("ACGT")
SUBSTITUTION = re.compile(r"([A-Z])([0-9]{1,9})([A-Z])")
DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}


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
    """Two alleles without what they have in common, and the letters on both sides, upper case, on one strand."""

    left: str
    reference: str
    alternative: str
    right: str

    @property
    def changed(self) -> list[int] | None:
        """The letters that a substitution changes, from the first; None for insertions and deletions."""
        if len(self.reference) != len(self.alternative):
            return None
        pairs = zip(self.reference, self.alternative, strict=True)
        return [place for place, (old, new) in enumerate(pairs) if old != new]

    def reverse_complement(self) -> "Alleles":
        """Return the same on the other strand."""
        parts = (self.right, self.reference, self.alternative, self.left)
        return Alleles(*map(reverse_complement, parts))

    def middle(self, size: int) -> int:
        """Return how many letters are left of the change in windows of a size that have it in the middle.

        Near an end of the record the windows are moved, and are shorter only if the record is.
        """
        shorter = min(len(self.reference), len(self.alternative))
        missing = size - shorter - len(self.right)
        return min(max((size - len(self.reference)) // 2, missing, 0), len(self.left))

    def windows(self, size: int, before: int) -> tuple[str, str]:
        """Return both alleles in windows of ``size`` letters at most, ``before`` of them left of the change.

        After an insertion or deletion the windows go on for fewer or more letters, so that they are equally long.

        Raises:
            UnscorableError: an allele does not fit.
        """
        longer = max(len(self.reference), len(self.alternative))
        if before + longer > size:
            raise UnscorableError(f"an allele of {longer} bases does not fit into a window of {size}")
        start = self.left[len(self.left) - before :]
        pair = [(start + allele + self.right)[:size] for allele in (self.reference, self.alternative)]
        return pair[0], pair[1]


@dataclass(frozen=True)
class Genome:
    """The letters of an indexed genome, read as a tokenizer reads them."""

    path: Path
    index: object = field(repr=False)
    letters: LettersConfig

    @property
    def lengths(self) -> dict[str, int]:
        """Bases of every record."""
        return {name: entry.rlen for name, entry in self.index.index.items()}  # type: ignore[attr-defined]
