"""Settings of prepare that do not go together, or that would have no effect."""

from pathlib import Path

from pydantic import BaseModel

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.sequences.draft import drawn_shares, split_by, splits_given
from pipeline.sequences.intervals import COLUMNS as PLACE
from pipeline.sequences.splits import check_fractions

COLUMNS = ("id", "start", "sequence", "label", "gaps", "cluster", "input_ids", "soft_mask")
OF_DNA, OF_PROTEINS = ("uracil", "ambiguous"), ("xle", "rare", "stops")


def check_settings(config: PrepareConfig) -> None:
    """Refuse settings that contradict each other, and those that would not be heeded.

    A setting equal to its default counts as left out: a run hands every setting to its stages.

    Raises:
        UserError: in one line, what does not go together and which to drop.
    """
    _check_inputs(config)
    _check_columns(config)
    _check_splits(config)
    if config.aligned and config.block:
        raise UserError("prepare: an alignment cannot be cut into blocks; give either aligned or block")
    if config.aligned and config.letters.gaps == "remove":
        raise UserError("prepare: an alignment keeps its gaps; give either aligned or letters.gaps: remove")
    if config.strandless and config.alphabet != "dna":
        raise UserError("prepare: proteins have no other strand; drop strandless")
    if config.aligned and config.alphabet == "dna":
        raise UserError("prepare: only proteins can be aligned; drop aligned, or give alphabet: protein")
    if config.genome and config.alphabet == "protein":
        raise UserError("prepare: windows of a genome are DNA; drop genome, or alphabet: protein")
    _check_heeded(config)
    _check_output(config.output)


def _check_inputs(config: PrepareConfig) -> None:
    if bool(config.input) == bool(config.classes):
        raise UserError("prepare: give sequence files either as input or as classes (name: file)")
    if len(set(config.classes.values())) < len(config.classes):
        raise UserError("prepare: one file is given for two classes; every class needs its own")
    if config.test_input and (config.classes or config.split_column or config.test_names):
        other = next(n for n in ("classes", "split_column", "test_names") if getattr(config, n))
        raise UserError(
            f"prepare: test_input and {other} both say what is tested or which class it is; drop one"
        )
    if not config.genome:
        for name in ("feature", "anchor", "upstream", "downstream", "circular"):
            if getattr(config, name):
                raise UserError(f"prepare: {name} is for intervals of a genome; give genome, or drop {name}")


def _check_columns(config: PrepareConfig) -> None:
    if config.classes and config.label_column:
        raise UserError("prepare: classes are the labels already; drop label_column")
    for name in config.keep_columns:
        if name in COLUMNS or (config.genome and name in PLACE):
            raise UserError(f"prepare: keep_columns: {name!r} is a column of the corpus itself; rename yours")


def _check_splits(config: PrepareConfig) -> None:
    by, named = config.split_by, [n for n in ("validation_names", "test_names") if getattr(config, n)]
    if config.split_column and (by != "auto" or named):
        raise UserError(f"prepare: split_column gives the splits; drop {named[0] if named else 'split_by'}")
    if by == "block" and not config.block:
        raise UserError("prepare: split_by: block needs block, the length of one")
    if by == "chromosome" and not config.genome and "chromosome" not in config.keep_columns:
        raise UserError(
            "prepare: split_by: chromosome needs intervals (genome) or a column chromosome (keep_columns); "
            "if the records are the chromosomes, use split_by: record"
        )
    if named and by not in ("record", "chromosome"):
        raise UserError(f"prepare: {named[0]} needs split_by: record or split_by: chromosome")
    both = set(config.validation_names) & set(config.test_names)
    if both:
        raise UserError(f"prepare: {min(both)!r} is in validation_names and in test_names; choose one")
    if not config.split_column:
        check_fractions(*drawn_shares(config))


def _check_heeded(config: PrepareConfig) -> None:
    """Refuse settings that would be read by nothing."""
    by, dna = split_by(config), config.alphabet == "dna"
    similar = by == "cluster" or (config.test_input and by != "block")
    if not similar:
        why = "for split_by: cluster, or beside test_input"
        _refuse_set(config, ("cluster_with", "cluster_kmer", "identity", "coverage"), why)
    if similar and dna and config.cluster_with == "kmers":
        _refuse_set(config, ("identity", "coverage"), "for proteins, or with cluster_with: mmseqs2")
    if by != "block" or config.split_column:
        _refuse_set(config, ("repeat", "buffer"), "for blocks that are split at random (block)")
    if splits_given(config):
        _refuse_set(config, ("validation", "test"), "for splits drawn at random, and here they are given")
    for name, share in (("validation_names", "validation"), ("test_names", "test"), ("test_input", "test")):
        if getattr(config, name):
            _refuse_set(config, (share,), f"for splits drawn at random, and {name} gives this one")
    others = OF_PROTEINS if dna else OF_DNA
    _refuse_set(config.letters, others, f"for {'proteins' if dna else 'DNA'} (alphabet)", "letters.")


def _refuse_set(section: BaseModel, names: tuple[str, ...], why: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(section, name)
        if value != type(section).model_fields[name].default:
            raise UserError(f"prepare: {prefix}{name}: {value}: only {why}; leave it out")


def _check_output(output: Path) -> None:
    """Refuse a folder inside a file."""
    file = next((parent for parent in output.parents if parent.is_file()), None)
    if file:
        raise UserError(f"{file}: Not a directory")
