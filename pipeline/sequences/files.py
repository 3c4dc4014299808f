"""Files of sequences: which ones are meant, how they are opened, and what format they are in."""

import glob
import io
import lzma
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from backports.zstd import ZstdError
from xopen import xopen

from pipeline.errors import UserError
from pipeline.sequences.records import Notes

COMPRESSED = {".gz", ".bgz", ".bgzf", ".zst", ".bz2", ".xz"}
FORMATS = {
    **dict.fromkeys((".fa", ".fasta", ".fna", ".faa", ".ffn", ".frn", ".fas", ".afa", ".a3m"), "fasta"),
    **dict.fromkeys((".fastq", ".fq"), "fastq"),
    **dict.fromkeys((".gb", ".gbk", ".gbff", ".gpff", ".genbank"), "genbank"),
    ".embl": "embl",
    **dict.fromkeys((".sto", ".stk", ".stockholm"), "stockholm"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".csv": "csv",
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
}
INTERVALS = {".bed": "bed", ".narrowpeak": "narrowpeak", ".vcf": "vcf"}
INTERVALS |= {".gff": "gff3", ".gff3": "gff3", ".gtf": "gtf"}
STARTS = {
    b">": "fasta",
    b";": "fasta",
    b"@": "fastq",
    b"LOCUS ": "genbank",
    b"ID   ": "embl",
    b"# STOCKHOLM": "stockholm",
    b"PAR1": "parquet",
}
BOM = b"\xef\xbb\xbf"
BUFFER = 1 << 20


def extension(path: Path) -> str:
    """Return a file's extension in lower case, that of its compression left out."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSED), "")


def is_a3m(path: Path) -> bool:
    """Tell whether a file's name says A3M, where lower-case letters are insertions."""
    return extension(path) == ".a3m"


def find_files(paths: Sequence[Path], notes: Notes, known: Container[str] = FORMATS) -> list[Path]:
    """Return the files that are meant: folders and globs give theirs, sorted by name.

    A folder gives those with a known extension; the others in it are named and counted (``files_not_read``).

    Raises:
        UserError: a folder or glob that gives no file.
    """
    return [file for path in paths for file in _expand(path, notes, known)]


def _expand(path: Path, notes: Notes, known: Container[str]) -> list[Path]:
    if path.is_dir():
        inside = sorted(path.iterdir())
        files = [file for file in inside if file.is_file() and extension(file) in known]
        fault = "no file with a known extension in this folder"
    elif glob.has_magic(str(path)) and not path.exists():
        inside = sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207  absolute patterns, too
        files = [file for file in inside if file.is_file()]
        fault = "matches no file"
    else:
        return [path]
    for other in inside:
        if other not in files:
            kind = "a folder" if other.is_dir() else f"unknown extension {extension(other)!r}"
            notes.warn("files_not_read", f"{other}: {kind}, not read")
    if not files:
        raise UserError(f"{path}: {fault}; give sequence files, a folder of them, or a glob")
    return files


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a plain or compressed file for bytes, byte order mark skipped.

    The compression (gzip, BGZF, Zstandard, bzip2, xz) is told by the extension, or else by the content.

    Raises:
        UserError: the file is missing, damaged or incomplete; also while it is read.
    """
    try:
        with xopen(path, "rb", threads=0) as stream:
            file = io.BufferedReader(cast(Any, stream), BUFFER)
            if file.peek(len(BOM)).startswith(BOM):
                file.read(len(BOM))
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ZstdError) as error:
        reason = getattr(error, "strerror", None) or f"damaged, incomplete or not compressed at all ({error})"
        raise UserError(f"{path}: cannot be read: {reason}") from None


def format_of(path: Path, file: io.BufferedReader) -> str:
    """Return the format of an opened file, told by the extension, or else by the content (else FASTA).

    Raises:
        UserError: the file holds intervals, by its name, and no sequences.
    """
    if extension(path) in INTERVALS:
        raise UserError(
            f"{path}: holds intervals, not sequences; intervals need --genome, out of which strandlm prepare "
            "cuts them"
        )
    known = FORMATS.get(extension(path))
    if known:
        return known
    start = file.peek(1).lstrip()
    line = start.splitlines()[0] if start else b""
    for sign, kind in STARTS.items():
        if line.startswith(sign):
            return kind
    return "tsv" if b"\t" in line else "csv" if b"," in line else "fasta"
