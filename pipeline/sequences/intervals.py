"""Windows of a genome around the intervals of BED, narrowPeak, GFF3, GTF and VCF files, on their strand.

All coordinates that leave this module are 0-based and half-open, as in BED; those of GFF3, GTF and VCF, which
count from 1, are converted. The interval files are read twice: once to check every line
and name before any window is cut, once to cut. The genome is copied, letter for letter, into a temporary
folder (TMPDIR says where: one byte for every base), one line for every record, and pyfaidx reads the windows
out of that copy. So whatever the readers know will do as a genome, uneven lines and any compression included,
nothing is written beside the user's file, and memory holds the names of the intervals and one window.

Formats: BED and narrowPeak, genome.ucsc.edu/FAQ/FAQformat; GFF3, specification 1.26 of the Sequence Ontology;
VCF, specification 4.5 (the interval is the reference allele, which has to be what the genome has there).
"""

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TextIO
from urllib.parse import unquote

from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.files import INTERVALS as FORMATS
from pipeline.sequences.files import extension, find_files, opened
from pipeline.sequences.readers import read_files
from pipeline.sequences.records import SHOWN, Notes, Record

if TYPE_CHECKING:
    from pyfaidx import Faidx

Anchor = Literal["start", "end", "center"]
COLUMNS = ("chromosome", "window_start", "window_end", "strand")
PIECE = 1 << 24
LISTED = 8
_BED = ["name", "score", "strand", "thickStart", "thickEnd", "itemRgb"]
_BED += ["blockCount", "blockSizes", "blockStarts"]
_NARROWPEAK = ["name", "score", "strand", "signalValue", "pValue", "qValue", "peak"]
_STRANDS = {"+": "+", "-": "-", ".": "+", "?": "+"}
_BROWSER = re.compile(r"(track|browser)\s")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_GFF3_ATTRIBUTES = re.compile(r'[^\s=;"]+=')
_GTF_ATTRIBUTE = re.compile(r'([^\s;"]+)\s+(?:"([^"]*)"|([^";]+))')
_AFFIXES = re.compile(r"^(chromosome|chrom|chr)[_ ]?|\.[0-9]+$")
_MITOCHONDRION = {"mt": "m", "mito": "m", "mtdna": "m"}


class UnusableError(UserError):
    """Why an interval cannot be used, and what it is counted as if it is skipped."""

    def __init__(self, text: str, reason: str = "bad_records"):
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Interval:
    """What one line says: 0-based, half-open; ``summit`` is a base of the chromosome."""

    chromosome: str
    start: int
    end: int
    strand: str
    name: str
    fields: dict[str, str]
    summit: int | None = None
    reference: str | None = None


Handler = Callable[[Path, int, UnusableError], None]


@dataclass
class _Survey:
    """What the intervals of one file name: chromosomes, themselves, fields."""

    path: Path
    chromosomes: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    fields: dict[str, None] = field(default_factory=dict)


def interval_format(path: Path) -> str | None:
    """Return bed, narrowpeak, gff3, gtf or vcf as the file's name says, compressed or not; else None."""
    return FORMATS.get(extension(path))


def read_intervals(
    paths: Sequence[Path],
    genome: Path,
    *,
    feature: str | None = None,
    anchor: Anchor | None = None,
    upstream: int = 0,
    downstream: int = 0,
    circular: Sequence[str] = (),
    on_bad: Literal["error", "skip"] = "error",
    notes: Notes | None = None,
    keep: Sequence[str] = (),
) -> Iterator[Record]:
    """Yield one record for every interval: the letters of its window, case kept, on its strand.

    Without an anchor the window is the interval (of BED12: introns included), ``upstream`` bases before it
    and ``downstream`` bases after it. With one it has ``upstream`` + 1 + ``downstream`` bases, the anchor at
    index ``upstream``. Start, end, before and after go along the strand: on "-" the start is the last base in
    genome coordinates. A strand of "." or "?" is read as "+". The center is the summit of a narrowPeak that
    gives one (0 or more in its last column), or else the middle base; of two, the one nearer to the end.

    On circular records windows may cross the origin: ``window_end`` is then larger than the record's length,
    and stands for ``window_end`` - length. So may the intervals, written in the same way (as GFF3 has it).

    A record's id is the interval's name (BED: column 4; GFF3: ID or Name; GTF: the id of its type, such as
    exon_id, or else transcript_id or gene_id; VCF: ID) where no other interval has it, else
    ``chromosome:start-end(strand)`` of the window, followed by ``_2``, ``_3`` and so on where that is taken.
    ``line`` and ``path`` are the interval's.

    Args:
        paths: BED, narrowPeak, GFF3, GTF or VCF files, told apart by extension, plain or compressed; or
            folders or globs of them.
        genome: FASTA or any other sequence file that `read_files` reads.
        feature: use only features of this type (GFF3, GTF).
        anchor: base that windows are cut around.
        upstream: bases before the interval or anchor.
        downstream: bases after the interval or anchor.
        circular: names of the genome's records whose ends join; "*" stands for all.
        on_bad: whether an interval that cannot be used is an error or skipped.
        notes: where ``renamed_ids`` are counted and, if skipped, ``bad_records`` (lines that are no interval
            of the genome), ``unknown_chromosome``, ``outside_genome`` (windows that leave their record),
            ``reference_mismatch`` and ``bad_letters`` (without a complement); what was met in the genome is
            counted as ``genome_...``.
        keep: fields wanted in ``Record.columns`` beside "chromosome", "window_start", "window_end" and
            "strand". BED, narrowPeak: name, score and the columns after the strand; GFF3, GTF: source,
            type, score, phase and the attributes; VCF: ref, alt, qual, filter and info. A field that a line
            lacks is empty.

    Raises:
        UserError: a file that cannot be read or has no usable interval; an interval that cannot be used,
            unless skipped; no chromosome in common with the genome; unknown names in ``keep`` or
            ``circular``.
    """
    assert upstream >= 0
    assert downstream >= 0
    notes = Notes() if notes is None else notes
    paths = find_files(paths, notes, FORMATS)
    surveys = [_survey(path, feature, keep, _handler(on_bad, None)) for path in paths]
    with open_indexed(genome, notes) as index:
        known = index.index.keys()
        for survey in surveys:
            _check_names(survey, genome, known, on_bad, notes)
        cut = _Cutter(index, _joined(circular, genome, known), anchor, upstream, downstream)
        ids = _Ids(surveys, notes)
        for path in paths:
            yield from _records(path, feature, keep, cut, ids, _handler(on_bad, notes))


def _handler(on_bad: str, notes: Notes | None) -> Handler:
    """Return what is done about an interval that cannot be used: stop, count and tell it, or nothing yet."""

    def handle(path: Path, line: int, fault: UnusableError) -> None:
        text = f"{path}: line {line}: {fault}"
        if on_bad == "error":
            raise UserError(f"{text}; correct it, or leave such intervals out (--on-bad-record skip)")
        if notes is not None:
            notes.warn(fault.reason, f"{text}; skipped")

    return handle


def _survey(path: Path, feature: str | None, keep: Sequence[str], handle: Handler) -> _Survey:
    """Check the lines of a file, the feature and the fields to keep, and count what the intervals name."""
    survey = _Survey(path)
    for _, interval in _read(path, feature, handle):
        survey.chromosomes[interval.chromosome] += 1
        survey.fields.update(dict.fromkeys(interval.fields))
        if interval.name:
            survey.names[interval.name] += 1
    if not survey.chromosomes:
        others = _read(path, None, handle) if feature else ()
        types = dict.fromkeys(interval.fields["type"] for _, interval in others)
        wanted = f"of type {feature!r}; the types are {listed(types)}" if types else "in it; nothing to read"
        raise UserError(f"{path}: no usable interval {wanted}")
    for name in keep:
        if name in COLUMNS:
            raise UserError(f"{path}: {name!r} is kept of every interval; leave it out of keep_columns")
        if name not in survey.fields:
            raise UserError(f"{path}: no field {name!r} to keep; the fields are {listed(survey.fields)}")
    return survey


def _records(
    path: Path, feature: str | None, keep: Sequence[str], cut: "_Cutter", ids: "_Ids", handle: Handler
) -> Iterator[Record]:
    usable = 0
    for line, interval in _read(path, feature, handle):
        if interval.chromosome not in cut.index.index:
            continue
        try:
            start, end, letters = cut(interval)
        except UnusableError as fault:
            handle(path, line, fault)
            continue
        usable += 1
        name = ids.name(path, line, interval, f"{interval.chromosome}:{start}-{end}({interval.strand})")
        place = (interval.chromosome, str(start), str(end), interval.strand)
        columns = {key: interval.fields.get(key, "") for key in keep} | dict(zip(COLUMNS, place, strict=True))
        yield Record(name, letters, line, path, columns)
    if not usable:
        raise UserError(f"{path}: no usable interval in it; nothing to read")


class _Ids:
    """Gives every interval an id of its own."""

    def __init__(self, surveys: list[_Survey], notes: Notes):
        self.names = sum((survey.names for survey in surveys), Counter[str]())
        self.notes = notes
        self.given: set[str] = set()
        self.copies: Counter[str] = Counter()

    def name(self, path: Path, line: int, interval: _Interval, place: str) -> str:
        """Return the interval's name if no other has it, or else its place, numbered if that was given."""
        if self.names[interval.name] == 1:
            return interval.name
        name = place
        while name in self.given or name in self.names:
            self.copies[place] += 1
            name = f"{place}_{self.copies[place] + 1}"
        self.given.add(name)
        if interval.name or name != place:
            taken = interval.name or place
            self.notes.warn("renamed_ids", f"{path}: line {line}: id {taken!r} is not unique, renamed {name}")
        return name


class _Cutter:
    """Cuts the windows of intervals out of an indexed genome."""

    def __init__(
        self, index: "Faidx", joined: set[str], anchor: Anchor | None, upstream: int, downstream: int
    ):
        self.index = index
        self.joined = joined
        self.anchor = anchor
        self.flanks = {"+": (upstream, downstream), "-": (downstream, upstream)}

    def __call__(self, interval: _Interval) -> tuple[int, int, bytes]:
        """Return where the window starts and ends, and its letters on the interval's strand.

        Raises:
            UnusableError: the interval or its window leaves the record, or a letter has no complement.
        """
        start, end = self._place(interval)
        letters = self._fetch(interval.chromosome, start, end)
        if interval.strand == "+":
            return start, end, letters
        try:
            return start, end, reverse_complement(letters)
        except UserError as error:
            raise UnusableError(str(error), "bad_letters") from None

    def _place(self, interval: _Interval) -> tuple[int, int]:
        """Return the window with its start on the record."""
        name = interval.chromosome
        length, circular = self.index.index[name].rlen, name in self.joined
        if interval.end > length and not (circular and interval.start < length):
            raise UnusableError(f"the interval ends at {interval.end}, but {name!r} has {length} bases")
        if interval.reference:
            self._check_reference(interval, interval.reference)
        start, end = self._window(interval)
        if circular and max(end - start, interval.end - interval.start) <= length:
            return start % length, start % length + end - start
        if circular or start < 0 or end > length:
            hint = "and may not meet itself" if circular else "and is linear (if its ends join: --circular)"
            text = f"the window {start} to {end} leaves {name!r}, which has {length} bases {hint}"
            raise UnusableError(text, "outside_genome")
        return start, end

    def _check_reference(self, interval: _Interval, reference: str) -> None:
        found = self._fetch(interval.chromosome, interval.start, interval.end).decode()
        if found.upper() != reference.upper():
            place = f"base {interval.start + 1} of {interval.chromosome!r}"
            text = f"the reference allele is {reference!r}, but the genome has {found!r} from {place} on"
            raise UnusableError(f"{text}; is it the genome that was called?", "reference_mismatch")

    def _window(self, interval: _Interval) -> tuple[int, int]:
        start, end, reverse = interval.start, interval.end, interval.strand == "-"
        before, after = self.flanks[interval.strand]
        if not self.anchor:
            return start - before, end + after
        if self.anchor == "center":
            base = (start + end - reverse) // 2 if interval.summit is None else interval.summit
        else:
            base = start if (self.anchor == "start") != reverse else end - 1
        return base - before, base + 1 + after

    def _fetch(self, name: str, start: int, end: int) -> bytes:
        length = self.index.index[name].rlen
        spans = [(start, end)] if end <= length else [(start, length), (0, end - length)]
        letters = "".join(str(self.index.fetch(name, first + 1, last)) for first, last in spans)
        assert len(letters) == end - start
        return letters.encode()


@contextmanager
def open_indexed(genome: Path, notes: Notes) -> Iterator["Faidx"]:
    """Copy a genome into a temporary folder, one line for every record, and index the copy."""
    from pyfaidx import Faidx

    met = Notes()
    with tempfile.TemporaryDirectory(prefix="strandlm-") as folder:
        copy, index = Path(folder, "genome.fa"), Path(folder, "genome.fa.fai")
        try:
            with index.open("w", encoding="utf-8") as lines, copy.open("wb") as letters:
                _copy(genome, letters, lines, met)
        except OSError as error:
            text = f"{genome}: cannot be copied into {folder}: {error.strerror}"
            raise UserError(f"{text}; set TMPDIR to a folder with room for it") from None
        notes.update({f"genome_{reason}": count for reason, count in met.items()})
        with Faidx(copy, indexname=index, rebuild=False, as_raw=True) as faidx:
            yield faidx


def _copy(genome: Path, letters: BinaryIO, lines: TextIO, notes: Notes) -> None:
    """Write the letters of a genome, and of each record: name, length, offset, bases and bytes of a line."""
    offset = length = 0
    for piece in read_files([genome], notes=notes, piece=PIECE):
        if not piece.sequence.isascii():
            raise UserError(f"{piece.where()}: holds bytes that are no letters; is it the genome?")
        letters.write(piece.sequence)
        length += len(piece.sequence)
        if piece.last:
            letters.write(b"\n")
            lines.write(f"{piece.id}\t{length}\t{offset}\t{length}\t{length + 1}\n")
            offset, length = offset + length + 1, 0


def _joined(circular: Sequence[str], genome: Path, known: KeysView[str]) -> set[str]:
    if "*" in circular:
        return set(known)
    for name in circular:
        if name not in known:
            raise UserError(f"{genome}: no record {name!r} to be circular; the records are {listed(known)}")
    return set(circular)


def _check_names(survey: _Survey, genome: Path, known: KeysView[str], on_bad: str, notes: Notes) -> None:
    """Compare the chromosomes of the intervals with those of the genome; what is lost is told and counted."""
    unknown = [name for name in survey.chromosomes if name not in known]
    if not unknown:
        return
    lost = sum(survey.chromosomes[name] for name in unknown)
    text = (
        f"{survey.path}: {lost} of {survey.chromosomes.total()} intervals are on chromosomes that {genome} "
        f"does not have: {listed(unknown)}; it has {listed(known)}; {suggestion(unknown, known)}"
    )
    if len(unknown) == len(survey.chromosomes):
        raise UserError(text)
    if on_bad == "error":
        raise UserError(f"{text}, or leave these intervals out (--on-bad-record skip)")
    notes["unknown_chromosome"] += lost
    say(f"{text}; skipped")


def suggestion(unknown: list[str], known: KeysView[str]) -> str:
    """Return what to do about names of chromosomes that the genome does not have."""
    plain = {_plain(name): name for name in known}
    pairs = [f"{plain[_plain(name)]!r} for {name!r}" for name in unknown if _plain(name) in plain]
    if not pairs:
        return "give the genome that the intervals were made for"
    return f"write {', '.join(pairs[:SHOWN])}{' and so on' if len(pairs) > SHOWN else ''}"


def _plain(name: str) -> str:
    """Return what a chromosome's name is without prefix, version and leading zeros."""
    plain = _AFFIXES.sub("", name.lower()).lstrip("0")
    return _MITOCHONDRION.get(plain, plain)


def listed(names: Iterable[str]) -> str:
    """Return names for a message, the first few of many."""
    shown = [repr(name) for name in names]
    rest = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return ", ".join(shown[:LISTED]) + rest


def _read(path: Path, feature: str | None, handle: Handler) -> Iterator[tuple[int, _Interval]]:
    """Yield the intervals of one file with their lines, and give those that are unusable to ``handle``."""
    form = interval_format(path)
    if form is None:
        raise UserError(f"{path}: not an interval file by its name; they end in {', '.join(FORMATS)}")
    bed = form in ("bed", "narrowpeak")
    if form not in ("gff3", "gtf") and feature:
        raise UserError(f"{path}: {form} has no types of features; leave out feature {feature!r}")
    parse = parse_vcf if form == "vcf" else partial(_parse_bed, form=form)
    if form in ("gff3", "gtf"):
        parse = partial(_parse_gff, feature=feature)
    for number, line in numbered_lines(path, bed):
        try:
            interval = parse(line)
        except UnusableError as fault:
            handle(path, number, fault)
        else:
            if interval:
                yield number, interval


def numbered_lines(path: Path, bed: bool) -> Iterator[tuple[int, str]]:
    """Yield the lines that should hold an interval, with their numbers."""
    number = 0
    try:
        with opened(path) as file:
            for number, raw in enumerate(file, 1):
                line = raw.decode().strip(" \r\n")
                if not bed and line.startswith((">", "##FASTA")):
                    return
                if line and not line.startswith("#") and not (bed and _BROWSER.match(line)):
                    yield number, line
    except UnicodeDecodeError:
        raise UserError(f"{path}: line {number}: not UTF-8 text; save the file as UTF-8") from None


def _parse_bed(line: str, form: str) -> _Interval:
    cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
    names = _BED if form == "bed" else _NARROWPEAK
    least = 3 if form == "bed" else 10
    if not least <= len(cells) <= 3 + len(names):
        raise UnusableError(f"{len(cells)} columns; {form} has {'3 to 12' if form == 'bed' else '10'}")
    fields = dict(zip(names, cells[3:], strict=False))
    strand = _strand(fields.pop("strand", "."))
    start, end = _span(cells[1], cells[2], first=0)
    peak = _number(fields.get("peak", "-1"))
    if peak >= end - start:
        raise UnusableError(f"the summit, {peak} after the start, is not in the interval {start} to {end}")
    name = fields.get("name", "")
    name = "" if name == "." else name
    return _Interval(cells[0], start, end, strand, name, fields, start + peak if peak >= 0 else None)


def _parse_gff(line: str, feature: str | None) -> _Interval | None:
    """Return the feature of a line, unless it is of another type than the one wanted."""
    cells = [cell.strip() for cell in line.split("\t")]
    if len(cells) != 9:
        raise UnusableError(f"{len(cells)} columns; GFF and GTF have 9, separated by tabs")
    chromosome, source, kind, first, last, score, strand, phase, text = cells
    if feature and kind != feature:
        return None
    start, end = _span(first, last, first=1)
    attributes = _attributes(text)
    keys = ("ID", "Name", f"{kind}_id", "transcript_id", "gene_id")
    name = next((attributes[key] for key in keys if attributes.get(key)), "")
    fields = attributes | {"source": source, "type": kind, "score": score, "phase": phase}
    return _Interval(chromosome, start, end, _strand(strand), name, fields)


def parse_vcf(line: str) -> _Interval:
    """Return the bases of the reference allele of a variant."""
    cells = line.split("\t")
    if len(cells) < 8:
        raise UnusableError(f"{len(cells)} columns; VCF has 8 or more, separated by tabs")
    chromosome, position, name, reference, *rest = cells[:8]
    start = _number(position) - 1
    if start < 0:
        raise UnusableError(f"the position {position} is before the first base, which is 1")
    if not reference.isalpha():
        raise UnusableError(f"the reference allele is {reference!r}, which are no bases")
    names = ["ref", "alt", "qual", "filter", "info"]
    fields = dict(zip(names, [reference, *rest], strict=True))
    name = "" if name == "." else name
    return _Interval(chromosome, start, start + len(reference), "+", name, fields, reference=reference)


def _attributes(text: str) -> dict[str, str]:
    """Return the last column of GFF3 (key=value;) or GTF (key "value";); commas join the values of a key."""
    if _GFF3_ATTRIBUTES.match(text):
        pairs = [part.strip().partition("=")[::2] for part in text.split(";")]
        pairs = [(unquote(key), unquote(value)) for key, value in pairs if key]
    else:
        pairs = [(key, quoted or bare.strip()) for key, quoted, bare in _GTF_ATTRIBUTE.findall(text)]
    attributes: dict[str, str] = {}
    for key, value in pairs:
        attributes[key] = f"{attributes[key]},{value}" if key in attributes else value
    return attributes


def _span(start: str, end: str, first: int) -> tuple[int, int]:
    """Return an interval, 0-based and half-open, from one whose first base has the number ``first``."""
    span = _number(start) - first, _number(end)
    if span[0] < 0:
        raise UnusableError(f"the start {start} is before the first base, which is {first}")
    if span[0] >= span[1]:
        raise UnusableError(f"no base from {start} to {end}; the start comes first")
    return span


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise UnusableError(f"{text!r} is not a whole number")
    return int(text)


def _strand(text: str) -> str:
    if text not in _STRANDS:
        raise UnusableError(f"the strand is {text!r}, not + or - (or . for none)")
    return _STRANDS[text]
