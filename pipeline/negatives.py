"""Stage ``negatives``: sequences that are none of the positives, made as was asked for."""

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import NegativesConfig
from pipeline.errors import UserError
from pipeline.keyed import generator
from pipeline.log import say
from pipeline.sequences.alphabets import BadSequenceError, clean
from pipeline.sequences.files import FORMATS, INTERVALS, find_files
from pipeline.sequences.genomes import GenomeInMemory, locate
from pipeline.sequences.intervals import COLUMNS as PLACE
from pipeline.sequences.intervals import interval_format, read_intervals
from pipeline.sequences.negatives import (
    PIECES,
    ROUNDING,
    Negative,
    Positive,
    dinucleotide_shuffle,
    gc_share,
    genome_windows,
    partly_shuffled,
    seeds,
)
from pipeline.sequences.places import Place, Places, place_of, read_places, strata
from pipeline.sequences.readers import read_files
from pipeline.sequences.records import Notes, Record, listed

COLUMNS = ("id", "sequence", "kind", "positive", *PLACE, "gc")
OF_GENOME = ("annotation", "starts", "where", "away", "gc_tolerance", "repeat_tolerance", "tries")
OF_INTERVALS = ("anchor", "upstream", "downstream")
OF_SEQUENCES = ("sequence_column", "id_column", "duplicate_ids")
TYPED = ("gff3", "gtf")

Sources = dict[str, Notes]  # what was met in each of the files


def run(config: NegativesConfig) -> Result:
    """Write negatives.fa, negatives.tsv and, for windows of a genome, negatives.bed.

    Ids are negative_1, negative_2, ... in the order of the positives, ``ratio`` for each. The table has the
    columns id, sequence, kind, positive (its id), chromosome, window_start, window_end (0-based, half-open),
    strand, gc (share of G and C) and, with an annotation, stratum (coding, antisense, intergenic or edge);
    shuffled ones have no place. What is drawn for a positive does not depend on the order of the input.

    Raises:
        UserError: settings that contradict each other, a file that cannot be read, a bad record (unless
            ``on_bad_record`` is skip), or a genome that has no room for the windows.
    """
    notes: Sources = defaultdict(Notes)
    files = find_files(config.positives, notes["positives"], FORMATS | INTERVALS)
    _check_settings(config, files)
    named = {"genome": config.genome, "annotation": config.annotation, "starts": config.starts}
    inputs = {name: path for name, path in named.items() if path}
    inputs |= {f"positives{i}": path for i, path in enumerate(files)}
    return produce("negatives", config, inputs, lambda space: _build(config, files, notes, space))


def _check_settings(config: NegativesConfig, files: list[Path]) -> None:
    """Refuse settings that contradict each other, and those that would not be heeded."""
    forms = {interval_format(path) is not None for path in files}
    if len(forms) > 1:
        raise UserError("negatives: positives are sequences or intervals, not both; give one kind of files")
    needed = "positives that are intervals" if True in forms else "kind: genome"
    if not config.genome and (True in forms or config.kind == "genome"):
        raise UserError(f"negatives: {needed} need the genome; give genome")
    if config.where != "any" and not config.annotation:
        raise UserError(f"negatives: where: {config.where} needs to know the genes; give annotation")
    if True in forms:
        _refuse_set(config, OF_SEQUENCES, "for positives that are sequences")
    else:
        _refuse_set(config, OF_INTERVALS, "for positives that are intervals")
    given = [*files, *(path for path in (config.annotation, config.starts) if path)]
    if not any(interval_format(path) in TYPED for path in given):
        _refuse_set(config, ("feature",), "for GFF and GTF files")
    if config.kind != "genome":
        _refuse_set(config, OF_GENOME, "for kind: genome")
        if True not in forms:
            _refuse_set(config, ("genome", "circular"), "for kind: genome, or positives that are intervals")


def _refuse_set(config: NegativesConfig, names: tuple[str, ...], why: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value != NegativesConfig.model_fields[name].default:
            raise UserError(f"negatives: {name}: {value}: only {why}; leave it out")


@dataclass
class _Made:
    """A negative, as it is written."""

    sequence: str
    positive: str
    place: Place | None = None
    stratum: str = ""

    @property
    def description(self) -> str:
        """What its FASTA header says beside the id."""
        return str(self.place) if self.place else " ".join(self.positive.split())


@dataclass
class _Positives:
    """The positives, and what was changed in them."""

    records: list[Positive] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)


def _build(config: NegativesConfig, files: list[Path], notes: Sources, workspace: Workspace) -> None:
    read = _Positives()
    for record in _records(config, files, notes):
        _take(config, record, read, notes["positives"])
    if not read.records:
        raise UserError(f"{', '.join(map(str, files))}: no usable record in it; correct the records")
    counts: dict[str, Any] = {"positives": len(read.records), "changed": dict(read.changed)}
    make = _windows if config.kind == "genome" else _shuffles
    made = make(config, read.records, notes, counts)
    counts |= {"negatives": len(made), "noted": {name: dict(of) for name, of in notes.items() if of}}
    counts["gc"] = {"positives": _summary(gc_share(p.sequence) for p in read.records)}
    counts["gc"]["negatives"] = _summary(gc_share(n.sequence) for n in made)
    _write(config, made, workspace.path)
    workspace.counts |= counts
    _report(counts)


def _records(config: NegativesConfig, files: list[Path], notes: Sources) -> Iterator[Record]:
    """Yield the positives as they are read."""
    if config.genome and interval_format(files[0]):
        typed = any(interval_format(path) in TYPED for path in files)
        window = {name: getattr(config, name) for name in (*OF_INTERVALS, "circular")}
        window |= {"feature": config.feature if typed else None, "on_bad": config.on_bad_record}
        return read_intervals(files, config.genome, **window, notes=notes["positives"])
    return read_files(
        files,
        sequence_column=config.sequence_column,
        id_column=config.id_column,
        duplicate_ids=config.duplicate_ids,
        on_bad=config.on_bad_record,
        notes=notes["positives"],
    )


def _take(config: NegativesConfig, record: Record, read: _Positives, notes: Notes) -> None:
    """Clean a positive and keep it, or refuse it."""
    try:
        cleaned = clean(record.sequence, "dna")
        sequence = cleaned.sequence.decode()
        if not set("ACGT") & set(sequence):
            raise BadSequenceError("no A, C, G or T in it")
        if config.kind == "partly_shuffled" and len(sequence) < PIECES:
            raise BadSequenceError(f"{len(sequence)} bases; partly_shuffled needs {PIECES} or more")
    except BadSequenceError as error:
        if config.on_bad_record == "error":
            raise UserError(f"{record.where()}: {error}; correct it, or use --on-bad-record skip") from None
        notes.warn("unusable", f"{record.where()}: {error}, skipped", len(record.sequence))
        return
    read.changed += cleaned.changed
    places = [place_of(record.columns)] if "window_start" in record.columns else []
    read.records.append(Positive(record.id, sequence, places))


def _shuffles(
    config: NegativesConfig, positives: list[Positive], _: Sources, counts: dict[str, Any]
) -> list[_Made]:
    shuffle: Callable[[str, np.random.Generator], str]
    shuffle = dinucleotide_shuffle if config.kind == "shuffled" else partly_shuffled
    made = [
        _Made(shuffle(positive.sequence, generator(config.seed, *key, copy)), positive.id)
        for positive, key in zip(positives, seeds(positives), strict=True)
        for copy in range(config.ratio)
    ]
    known = {positive.sequence for positive in positives}
    counts["same_as_a_positive"] = sum(each.sequence in known for each in made)
    return made


def _windows(
    config: NegativesConfig, positives: list[Positive], notes: Sources, counts: dict[str, Any]
) -> list[_Made]:
    assert config.genome
    genome = GenomeInMemory.read(config.genome, config.circular, notes["genome"])
    if not any(positive.places for positive in positives):
        positives = _located(genome, positives, counts)
    features = _places(config, config.annotation, notes["annotation"])
    starts = _places(config, config.starts, notes["starts"]) or features
    if starts is None:
        say("no starts are given (annotation or starts): windows keep away from the positives alone")
    names = ("where", "away", "ratio", "gc_tolerance", "repeat_tolerance", "tries", "seed")
    negatives = genome_windows(
        genome,
        positives,
        features=features and genome.unrolled(features),
        starts=starts and starts.starts(),
        **{name: getattr(config, name) for name in names},
    )
    counts |= _matches(config, negatives, genome)
    made = [_Made(each.sequence, positives[each.positive].id, each.place) for each in negatives]
    if features:
        kinds = strata(Places.of(each.place for each in negatives), genome.unrolled(features)).tolist()
        for each, stratum in zip(made, kinds, strict=True):
            each.stratum = stratum
        counts["strata"] = dict(sorted(Counter(kinds).items()))
    return made


def _places(config: NegativesConfig, path: Path | None, notes: Notes) -> Places | None:
    if path is None or config.genome is None:
        return None
    how = {"feature": config.feature, "circular": config.circular, "on_bad": config.on_bad_record}
    return read_places(path, config.genome, **how, notes=notes)


def _located(genome: GenomeInMemory, positives: list[Positive], counts: dict[str, Any]) -> list[Positive]:
    """Return the positives with their places in the genome, and count these."""
    found = locate(genome, [positive.sequence for positive in positives])
    number = {"none": 0, "one": 0, "several": 0}
    for places in found:
        spots = {place[:3] for place in places}  # a palindrome lies on both strands
        number["none" if not spots else "one" if len(spots) == 1 else "several"] += 1
    counts["places_in_genome"] = number
    if number["none"]:
        say(f"warning: {number['none']} of {len(found)} positives are not in the genome, letter for letter")
    return [Positive(p.id, p.sequence, places) for p, places in zip(positives, found, strict=True)]


def _matches(config: NegativesConfig, negatives: list[Negative], genome: GenomeInMemory) -> dict[str, Any]:
    """Return how well the windows match their positives."""
    gc = [each.gc_difference for each in negatives]
    matches = {"gc_difference": _matched(gc, config.gc_tolerance)}
    repeats = [each.repeat_difference for each in negatives if each.repeat_difference is not None]
    if genome.masked:
        matches["repeat_difference"] = _matched(repeats, config.repeat_tolerance)
        matches["repeat_difference"]["not_matched"] = len(negatives) - len(repeats)
    else:
        say("the genome is not soft-masked (letters of one case only): repeats are not matched")
    return matches


def _matched(differences: list[float], tolerance: float) -> dict[str, Any]:
    beyond = sum(difference > tolerance + ROUNDING for difference in differences)
    return {"within": len(differences) - beyond, "beyond": beyond, **_summary(differences)}


def _summary(values: Iterable[float]) -> dict[str, float]:
    """Return mean, standard deviation and largest, rounded; nothing of nothing."""
    value_N = np.array(list(values))
    if not len(value_N):
        return {}
    kinds = {"mean": value_N.mean(), "sd": value_N.std(), "largest": value_N.max()}
    return {name: round(float(value), 4) for name, value in kinds.items()}


def _write(config: NegativesConfig, made: list[_Made], folder: Path) -> None:
    stratum = ["stratum"] if config.annotation else []
    with (folder / "negatives.fa").open("w") as fasta, (folder / "negatives.tsv").open("w") as table:
        rows = csv.writer(table, delimiter="\t", lineterminator="\n")
        rows.writerow([*COLUMNS, *stratum])
        for number, each in enumerate(made, 1):
            name = f"negative_{number}"
            fasta.write(f">{name} {each.description}\n{each.sequence}\n")
            cells = [name, each.sequence, config.kind, each.positive, *(each.place or [""] * len(PLACE))]
            rows.writerow([*cells, f"{gc_share(each.sequence):.4f}", *([each.stratum] if stratum else [])])
    if config.kind == "genome":
        places = [(number, each.place) for number, each in enumerate(made, 1) if each.place]
        lines = (f"{p.chromosome}\t{p.start}\t{p.end}\tnegative_{n}\t0\t{p.strand}\n" for n, p in places)
        (folder / "negatives.bed").write_text("".join(lines))


def _report(counts: dict[str, Any]) -> None:
    for source, noted in counts["noted"].items():
        say(f"{source}: " + listed(noted))
    if counts["changed"]:
        say("changed letters of the positives: " + listed(counts["changed"]))
    gc = {name: f"{values['mean']:.3f} +- {values['sd']:.3f}" for name, values in counts["gc"].items()}
    say(f"{counts['negatives']} negatives of {counts['positives']} positives")
    say(f"share of G and C: positives {gc['positives']}, negatives {gc['negatives']}")
    for name in ("gc_difference", "repeat_difference"):
        of = counts.get(name)
        if of and (of["within"] or of["beyond"]):
            text = f"{of['within']} windows within the tolerance, {of['beyond']} beyond"
            say(f"{name.replace('_', ' ')}: {text}, {of['largest']} at most")
    if counts.get("same_as_a_positive"):
        say(f"warning: {counts['same_as_a_positive']} negatives are the same as a positive; drop them")
    if "strata" in counts:
        say("strata: " + listed(counts["strata"]))


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="negatives")
