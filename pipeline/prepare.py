"""Sequence files -> corpus: records checked, cleaned, deduplicated and split, every change counted.

Records are read in pieces and rows go through a file on disk, so memory holds a few pieces and about 100
bytes for every row, however long the records are.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.accounts import corpus_counts, dropped_line
from pipeline.sequences.checks import check_settings
from pipeline.sequences.corpus import save_splits
from pipeline.sequences.draft import Draft, drawn_shares, splits_given
from pipeline.sequences.files import find_files
from pipeline.sequences.intake import Intake
from pipeline.sequences.intervals import COLUMNS as PLACE
from pipeline.sequences.intervals import FORMATS as INTERVALS
from pipeline.sequences.intervals import interval_format, read_intervals
from pipeline.sequences.leakage import leakage_report, say_leakage
from pipeline.sequences.readers import read_files
from pipeline.sequences.records import Notes, Record, listed
from pipeline.sequences.splits import SPLITS, file_split
from pipeline.sequences.spool import Spool

PIECE = 1 << 22
LONG_NUMBER = "^[+-]?[0-9]{16,}$"  # more digits than a float64 has for certain
_Seen = dict[str, tuple[Path, int]]


def run(config: PrepareConfig) -> Result:
    """Write the corpus, a ``DatasetDict``, and ``leakage.json``: what its splits have in common.

    Columns are id, start (0-based offset of the row in its record, in letters as read), sequence, label (a
    ``ClassLabel``, if there are classes), those kept; chromosome, window_start, window_end (0-based,
    half-open) and strand of intervals (empty or null in rows of sequence files beside them); cluster, if
    split by cluster; gaps (offset in the row, letters removed before it, offset, ...), if gaps are removed.
    Records longer than `LONGEST_ROW` letters become several rows, which share a split.

    The manifest's counts say what was read, kept, dropped (by reason), removed and changed, and what each
    split holds; they close exactly (`corpus_counts`). Of exact duplicates one stays (with given splits: one
    in test, else in validation, else in train), of sequences that have two labels none. A reverse complement
    is a duplicate only if ``strandless``, but shares a split with its other strand. With ``test_input`` the
    test split is that alone.

    Raises:
        UserError: settings that contradict each other, a file that cannot be read, a bad record (unless
            ``on_bad_record`` is skip), or nothing left to train on.
    """
    check_settings(config)
    notes = Notes()
    files = _Files(config, notes)
    return produce("prepare", config, files.named(), lambda space: _build(config, files, notes, space))


class _Files:
    """The input files, folders and globs looked up."""

    def __init__(self, config: PrepareConfig, notes: Notes):
        known = {"known": INTERVALS} if config.genome else {}
        inside = {name: find_files([path], notes, **known) for name, path in config.classes.items()}
        self.class_of = {file: name for name, files in inside.items() for file in files}
        self.input = [*find_files(config.input, notes, **known), *self.class_of]
        self.tests = find_files(config.test_input, notes, **known)
        self.genome = config.genome
        self.split_of = self._splits(config)
        self.intervals = self._intervals(config)
        classes = {f"class {name}": files for name, files in inside.items()}
        _check_twice(classes or {"input": self.input, "test_input": self.tests})

    def _splits(self, config: PrepareConfig) -> dict[Path, str]:
        """Return the split of every file whose records are for one."""
        if config.split_by != "file":
            return dict.fromkeys(self.tests, "test")
        if self.tests:
            raise UserError("prepare: split_by: file says what is tested, and so does test_input; drop one")
        return {path: file_split(path) for path in self.input if path.exists()}

    def _intervals(self, config: PrepareConfig) -> list[Path]:
        """Return the files that windows are cut for: with a genome all if none is one by its name."""
        files = [*self.input, *self.tests] if self.genome else []
        intervals = [path for path in files if interval_format(path)] or files
        others = [path for path in files if path not in intervals]
        if others and config.split_by == "chromosome":
            raise UserError(
                f"{others[0]}: holds no intervals, and split_by is chromosome; give intervals only, or split "
                "by sequence or cluster"
            )
        return intervals

    def named(self) -> dict[str, Path]:
        """Return all files under names that say what they are for, in their order."""
        names = {f"input{i}": path for i, path in enumerate(self.input)}
        if self.class_of:
            order = list(dict.fromkeys(self.class_of.values()))
            counted = enumerate(self.class_of.items())
            names = {f"class{order.index(name)}:{name}:{i}": path for i, (path, name) in counted}
        if self.split_of and not self.tests:
            names = {f"{name}:{self.split_of[path]}": path for name, path in names.items()}
        names |= {f"test{i}": path for i, path in enumerate(self.tests)}
        return names | ({"genome": self.genome} if self.genome else {})

    def read(self, config: PrepareConfig, notes: Notes) -> Iterator[Record]:
        """Yield the windows of intervals, then records, long ones in pieces: the input, then the tests."""
        columns = dict.fromkeys([*config.keep_columns, config.label_column, config.split_column])
        reading = {"keep": [c for c in columns if c], "on_bad": config.on_bad_record, "notes": notes}
        others = [path for path in [*self.input, *self.tests] if path not in self.intervals]
        seen: _Seen = {}
        for record in self._windows(config, reading):
            if others:
                seen[record.id] = record.path, record.line
            yield record
        nowhere = dict.fromkeys(PLACE, "") if self.genome else {}
        for record in self._records(config, others, seen, reading):
            yield replace(record, columns=record.columns | nowhere) if nowhere else record

    def _windows(self, config: PrepareConfig, reading: dict[str, Any]) -> Iterator[Record]:
        if not self.genome:
            return iter(())
        names = ("feature", "anchor", "upstream", "downstream", "circular")
        window = {name: getattr(config, name) for name in names}
        return read_intervals(self.intervals, self.genome, **window, **reading)

    def _records(
        self, config: PrepareConfig, files: list[Path], seen: _Seen, reading: dict[str, Any]
    ) -> Iterator[Record]:
        return read_files(
            files,
            sequence_column=config.sequence_column,
            id_column=config.id_column,
            header=config.header,
            duplicate_ids=config.duplicate_ids,
            seen=seen,
            piece=None if config.aligned else PIECE,
            **reading,
        )


def _check_twice(given: dict[str, list[Path]]) -> None:
    """Refuse a file that is given twice, by whatever path."""
    seen: dict[Path, str] = {}
    for key, file in ((key, file) for key, files in given.items() for file in files):
        place = file.resolve()
        if place in seen:
            both = f"given twice in {key}" if seen[place] == key else f"in {seen[place]} and in {key}"
            raise UserError(f"prepare: {file} is {both}; drop one")
        seen[place] = key


def _texts(config: PrepareConfig) -> list[str]:
    """Return the columns that are spooled as text."""
    return [*dict.fromkeys(config.keep_columns), *(PLACE if config.genome else ())]


def _build(config: PrepareConfig, files: _Files, notes: Notes, workspace: Workspace) -> None:
    gaps = config.letters.gaps == "remove"
    spool = Spool(workspace.path / ".rows.arrow", config.alphabet, _texts(config), gaps)
    intake = Intake(config, spool, notes, files.class_of, files.split_of)
    for record in files.read(config, notes):
        intake.take(record)
    draft = Draft(config, spool, notes)
    given = {"given": _leakage(draft)} if splits_given(config) else {}
    _decide(draft, workspace.path / ".shortened.arrow")
    names = _class_names(config, intake.labels)
    code_N = np.array([names.index(name) for name in intake.labels] or [0])[draft.label_N]
    _save(draft, names, code_N, workspace.path)
    leaks = {**given, "corpus": _leakage(draft)}
    workspace.write_json("leakage.json", leaks)
    workspace.counts.update(corpus_counts(draft, intake.tally, names, code_N))
    workspace.counts["leakage"] = {name: _summary(report) for name, report in leaks.items()}
    _report(workspace.counts, leaks, draft)
    if intake.tally.looks_like_dna:
        say(
            "warning: these proteins look like DNA (A C G T U N and hardly anything else); "
            "is --alphabet dna meant?"
        )
    for path in workspace.path.glob(".*.arrow"):
        path.unlink()


def _leakage(draft: Draft) -> dict[str, Any]:
    """Return what the splits have in common, as they are now.

    Blocks of different splits share no ``repeat``: they were not split. So there is nothing to look for.
    """
    config = draft.config
    apart = draft.split_by == "block" and not splits_given(config)
    return leakage_report(
        draft.sequences(),
        draft.in_table(draft.split_N, -1),
        config.alphabet,
        None if draft.cluster_N is None else draft.in_table(draft.cluster_N, -1),
        draft.in_table(draft.label_N, -1) if draft.labelled else None,
        kmer=config.repeat if apart else None,
        shared_kmers=not apart,
        strandless=config.strandless,
    )


def _summary(report: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a leakage report, shares left out."""
    pairs = {
        name: {kind: number for kind, number in pair.items() if not kind.endswith("_share")}
        for name, pair in report["pairs"].items()
    }
    largest = {"largest_cluster": report["largest_cluster"]["rows"]} if "largest_cluster" in report else {}
    return pairs | largest


def _decide(draft: Draft, path: Path) -> None:
    """Drop what is too close to the tests and what is there twice, and split the rest."""
    config, none_given = draft.config, not (draft.split_N == 0).any()
    given = splits_given(config)
    if config.test_input:
        draft.clear_test()
    draft.deduplicate()
    if not draft.kept.any():
        inputs = config.input or list(config.classes.values())
        raise UserError(f"{', '.join(map(str, inputs))}: no usable record; {dropped_line(draft.notes)}")
    if not given:
        draft.assign()
    if draft.split_by == "block" and config.buffer and not given:
        draft.trim(path)
    if given and none_given:
        say("note: no row is for train: the corpus can be evaluated, not trained on")
    else:
        _check_training(draft)


def _check_training(draft: Draft) -> None:
    """Refuse a corpus that has lost its rows to train on."""
    held = [f"{(draft.split_N == code).sum()} rows are for {SPLITS[code]}" for code in (1, 2)]
    if (draft.split_N == 0).any():
        return
    remedy = "leave fewer names to validation_names and test_names"
    if splits_given(draft.config):
        remedy = "give rows for train that validation and test do not hold"
    elif draft.config.test_input:
        remedy = "give input that is not in test_input"
    lost = f"; {dropped_line(draft.notes)}" if dropped_line(draft.notes) else ""
    raise UserError(f"prepare: no row is left to train on: {', '.join(held)}{lost}; {remedy}")


def _class_names(config: PrepareConfig, labels: dict[str, int]) -> list[str]:
    """Return the classes in the order of their codes: as configured, or sorted (numbers by value)."""
    if config.classes:
        return list(labels)
    return sorted(labels, key=int if all(name.isdecimal() for name in labels) else None)


def _save(draft: Draft, names: list[str], code_N: np.ndarray, folder: Path) -> None:
    """Write the splits that have rows; the same rows give the same bytes."""
    from datasets import ClassLabel, Features

    table = draft.table
    columns = {name: table[name] for name in ("id", "start", "sequence")}
    added = {"label": code_N if names else None, "cluster": draft.cluster_N}
    for name, value_N in added.items():
        if value_N is not None:
            columns[name] = pa.chunked_array([pa.array(draft.in_table(value_N, -1), pa.int64())])
    for name in table.column_names[3:]:
        columns[name] = _typed(name, table[name])
    typed = pa.table(columns)
    features = Features.from_arrow_schema(typed.schema)
    if names:
        features["label"] = ClassLabel(names=names)
    rows = {name: draft.row_N[draft.split_N == code] for code, name in enumerate(SPLITS)}
    save_splits(folder, dict.fromkeys(SPLITS, typed), features, draft.digest, rows)


def _typed(name: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as int64 or float64 (empty cells are nulls) if that loses nothing, or as it is.

    Chromosomes and strands are texts even if all look like numbers, and so are rows of more digits than
    numbers hold.
    """
    if name in ("chromosome", "strand", "gaps"):
        return texts
    values = pc.call_function("if_else", [pc.call_function("equal", [texts, ""]), None, texts])
    if values.null_count == len(values):
        return texts
    try:
        whole = values.cast(pa.int64())
        return whole if whole.cast(pa.string()).equals(values) else texts
    except pa.ArrowInvalid:
        pass
    long = pc.call_function("match_substring_regex", [values], pc.MatchSubstringOptions(LONG_NUMBER))
    if pc.call_function("any", [long]).as_py():
        return texts
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        return texts


def _report(counts: dict[str, Any], leaks: dict[str, dict[str, Any]], draft: Draft) -> None:
    read, kept = counts["read"], counts["kept"]
    say(f"read {read['records']} records, {read['letters']} letters")
    say(f"kept {kept['rows']} rows, {kept['letters']} letters")
    for done in ("changed", "removed"):
        if counts[done]:
            say(f"{done} letters: {listed(counts[done])}")
    if dropped_line(draft.notes):
        say(dropped_line(draft.notes))
    if counts.get("blanks_removed"):
        say(f"removed {counts['blanks_removed']} blanks inside sequences")
    splits = counts["splits"].items()
    say("; ".join(f"{name}: {of['rows']} rows, {of['letters']} letters" for name, of in splits))
    for name, share in zip(SPLITS[1:], drawn_shares(draft.config), strict=True):
        if share and name not in counts["splits"]:
            say(f"warning: no row is left for {name}; give more records or blocks, or a smaller buffer")
    if counts.get("case_separates_labels"):
        becomes = "is all upper case" if draft.config.letters.case == "fold" else "keeps it as soft mask"
        say(f"warning: letter case alone tells the classes apart in the input; the corpus {becomes}")
    for name, report in leaks.items():
        for line in say_leakage(report):
            say(line if name == "corpus" else f"splits as given: {line}")


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="prepare")
