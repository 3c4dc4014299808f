"""Sequence files -> corpus: records checked, cleaned, deduplicated and split, every change counted.

Rows go through a file on disk, so memory holds the longest record and about 100 bytes for every row.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.artifacts import Result, Workspace, hash_file, produce
from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.alphabets import BadSequenceError, case_separates, clean, is_unknown
from pipeline.sequences.readers import Notes, Record, is_a3m, read_files
from pipeline.sequences.splits import (
    SPLITS,
    assign_splits,
    check_fractions,
    count_shared,
    digest,
    group_digest,
)

COLUMNS = ("id", "start", "sequence", "label")
DROPPED = ("empty", "bad_letters", "too_short", "all_unknown", "duplicates", "conflicting_labels")
SPOOL_ROWS = 10_000
SPOOL_LETTERS = 1 << 25
LONGEST_ROW = 2**31 - 1


@dataclass
class _Spool:
    """Rows on disk, and in memory what choosing among them takes."""

    path: Path
    keep: list[str]
    exact: array = field(default_factory=lambda: array("Q"))
    group: array = field(default_factory=lambda: array("Q"))
    letters: array = field(default_factory=lambda: array("q"))
    label: array = field(default_factory=lambda: array("q"))
    split: array = field(default_factory=lambda: array("b"))
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    waiting: int = 0

    def __post_init__(self):
        texts = [(name, pa.string()) for name in self.keep]
        types = [("id", pa.string()), ("start", pa.int64()), ("sequence", pa.string()), *texts]
        self.schema = pa.schema(types)
        self.writer = pa.ipc.new_stream(str(self.path), self.schema)

    def add(self, row: tuple[Any, ...], alphabet: Any, label: int, split: int) -> None:
        sequence = row[2]
        self.exact.append(digest(sequence))
        self.group.append(group_digest(sequence, alphabet))
        self.letters.append(len(sequence))
        self.label.append(label)
        self.split.append(split)
        if self.waiting + len(sequence) > SPOOL_LETTERS or len(self.rows) == SPOOL_ROWS:
            self.flush()
        self.rows.append(row)
        self.waiting += len(sequence)

    def flush(self) -> None:
        if self.rows:
            columns = zip(zip(*self.rows, strict=True), self.schema.types, strict=True)
            arrays = [pa.array(column, kind) for column, kind in columns]
            self.writer.write_batch(pa.record_batch(arrays, schema=self.schema))
        self.rows, self.waiting = [], 0

    def close(self) -> pa.Table:
        """Finish the file and return it as a table that stays on disk."""
        self.flush()
        self.writer.close()
        return _on_disk(self.path)


@dataclass
class _Tally:
    """What happened to the records, and the letter case of labelled ones."""

    notes: Notes = field(default_factory=Notes)
    changed: Counter[str] = field(default_factory=Counter)
    labels: dict[str, int] = field(default_factory=dict)
    records: int = 0
    letters: int = 0
    columns: int | None = None
    case: list[tuple[int, float]] = field(default_factory=list)


def run(config: PrepareConfig) -> Result:
    """Write the corpus: a ``DatasetDict`` with columns id, start, sequence, label (if any) and those kept.

    ``start`` is the 0-based offset of the row in its record; ``label`` is a ``ClassLabel``. The manifest's
    counts say what was read (records), kept (rows: records or their blocks), changed and dropped (by reason),
    and what each split holds. Of exact duplicates one stays (with given splits: one in test, else in
    validation, else in train), of sequences that have two labels none.

    Raises:
        UserError: settings that contradict each other, a file that cannot be read, a bad record (unless
            ``on_bad_record`` is skip), or nothing left to write.
    """
    _check(config)
    if config.classes:
        inputs = {f"class{i}:{name}": path for i, (name, path) in enumerate(config.classes.items())}
    else:
        inputs = {f"input{i}": path for i, path in enumerate(config.input)}
    return produce("prepare", config, inputs, lambda workspace: _build(config, workspace))


def _check(config: PrepareConfig) -> None:
    if bool(config.input) == bool(config.classes):
        raise UserError("prepare: give sequence files either as input or as classes (name: FASTA file)")
    if config.classes and (config.label_column or config.split_column or config.keep_columns):
        raise UserError("prepare: classes are FASTA files, without columns; drop the column settings")
    if len(set(config.classes.values())) < len(config.classes):
        raise UserError("prepare: one file is given for two classes; every class needs its own")
    if config.aligned and config.block:
        raise UserError("prepare: an alignment cannot be cut into blocks; give either aligned or block")
    reserved = [name for name in config.keep_columns if name in COLUMNS]
    if reserved:
        raise UserError(f"prepare: keep_columns: {reserved[0]!r} is a column of every corpus; rename yours")
    if not config.split_column:
        check_fractions(config.validation, config.test)


def _build(config: PrepareConfig, workspace: Workspace) -> None:
    tally = _Tally(labels={name: code for code, name in enumerate(config.classes)})
    spool = _Spool(workspace.path / ".rows.arrow", list(dict.fromkeys(config.keep_columns)))
    inputs = config.input or list(config.classes.values())
    for record in _records(inputs, config, tally):
        _take(record, config, tally, spool)
    table = spool.close()
    kept_N = _choose(config, spool, tally.notes)
    if not kept_N.any():
        raise UserError(f"{', '.join(map(str, inputs))}: no usable record; {_drops(tally.notes)}")
    split_N, group_N = np.array(spool.split), np.array(spool.group)
    if not config.split_column:
        split_N[kept_N] = assign_splits(group_N[kept_N], config.validation, config.test, config.seed)
    names = _class_names(config, tally.labels)
    code_N = np.array([names.index(name) for name in tally.labels] or [0])[np.array(spool.label)]
    table = _with_types(table, spool.keep, code_N if names else None)
    _save(table, names, [kept_N & (split_N == code) for code in range(len(SPLITS))], workspace.path)
    spool.path.unlink()
    workspace.counts.update(_counts(config, spool, tally, names, code_N, np.where(kept_N, split_N, -1)))
    _report(workspace.counts, tally.notes)


def _records(inputs: list[Path], config: PrepareConfig, tally: _Tally) -> Iterator[Record]:
    columns = [config.label_column, config.split_column, *config.keep_columns]
    return read_files(
        inputs,
        sequence_column=config.sequence_column,
        id_column=config.id_column,
        keep=list(dict.fromkeys(name for name in columns if name)),
        duplicate_ids=config.duplicate_ids,
        notes=tally.notes,
    )


def _take(record: Record, config: PrepareConfig, tally: _Tally, spool: _Spool) -> None:
    """Clean one record and spool its rows."""
    tally.records += 1
    tally.letters += len(record.sequence)
    label, split = _label(record, config, tally), _split(record, config)
    sequence = _clean(record, config, tally, label)
    if sequence is None:
        return
    kept = [record.columns[name] for name in spool.keep]
    for start in range(0, len(sequence), config.block) if config.block else [0]:
        piece = sequence[start : start + config.block] if config.block else sequence
        if _usable(piece, record, start, config, tally.notes):
            spool.add((record.id, start, piece, *kept), config.alphabet, label, split)


def _clean(record: Record, config: PrepareConfig, tally: _Tally, label: int) -> str | None:
    try:
        sequence, changed = clean(
            record.sequence,
            config.alphabet,
            aligned=config.aligned,
            insertions=config.aligned and is_a3m(record.path),
        )
    except BadSequenceError as error:
        if config.on_bad_record == "error":
            raise UserError(f"{record.where()}: {error}; correct it, or use --on-bad-record skip") from None
        tally.notes.warn("bad_letters", f"{record.where()}: {error}, skipped")
        return None
    tally.changed += changed
    if label >= 0:
        tally.case.append((label, changed["lower_case_folded"] / len(record.sequence)))
    if config.aligned and len(sequence) != (tally.columns or len(sequence)):
        raise UserError(
            f"{record.where()}: {len(sequence)} columns where the first record has {tally.columns}; the "
            "rows of an alignment are equally long"
        )
    tally.columns = len(sequence)
    return sequence


def _usable(piece: str, record: Record, start: int, config: PrepareConfig, notes: Notes) -> bool:
    where = f"{record.where()}, from letter {start + 1}" if config.block else record.where()
    if len(piece) < config.min_length:
        notes.warn("too_short", f"{where}: {len(piece)} letters, fewer than {config.min_length}, dropped")
    elif is_unknown(piece, config.alphabet):
        notes.warn("all_unknown", f"{where}: nothing but unknown letters, dropped")
    elif len(piece) > LONGEST_ROW:
        raise UserError(f"{where}: {len(piece)} letters are too long for one row; cut it with --block")
    else:
        return True
    return False


def _label(record: Record, config: PrepareConfig, tally: _Tally) -> int:
    """Return the number of the record's class in order of appearance, or -1."""
    if config.classes:
        return next(code for code, path in enumerate(config.classes.values()) if path == record.path)
    if not config.label_column:
        return -1
    name = record.columns[config.label_column]
    if not name:
        raise UserError(
            f"{record.where()}: no label in column {config.label_column!r}; complete or remove the row"
        )
    return tally.labels.setdefault(name, len(tally.labels))


def _split(record: Record, config: PrepareConfig) -> int:
    if not config.split_column:
        return 0
    name = record.columns[config.split_column]
    if name not in SPLITS:
        raise UserError(
            f"{record.where()}: {name!r} in column {config.split_column!r}; use train, validation or test"
        )
    return SPLITS.index(name)


def _class_names(config: PrepareConfig, labels: dict[str, int]) -> list[str]:
    """Return the classes in the order of their codes: as configured, or sorted (numbers by value)."""
    if config.classes:
        return list(labels)
    return sorted(labels, key=int if all(name.isdecimal() for name in labels) else None)


def _choose(config: PrepareConfig, spool: _Spool, notes: Notes) -> np.ndarray:
    """Return which rows stay: one of each sequence, none of those with two labels."""
    exact_N, label_N = np.array(spool.exact, dtype=np.uint64), np.array(spool.label, dtype=np.int64)
    kept_N = np.ones(len(exact_N), dtype=bool)
    sequence_N = np.unique(exact_N, return_inverse=True)[1]
    low_S = np.full(len(exact_N), np.iinfo(np.int64).max)
    high_S = np.full(len(exact_N), -1)
    np.minimum.at(low_S, sequence_N, label_N)
    np.maximum.at(high_S, sequence_N, label_N)
    conflict_N = (low_S != high_S)[sequence_N]
    if not config.deduplicate:
        if conflict_N.any():
            say(f"{conflict_N.sum()} rows hold sequences that have more than one label; kept, as asked")
        return kept_N
    order_N = np.lexsort((np.arange(len(exact_N)), -np.array(spool.split, dtype=np.int8), sequence_N))
    again = np.flatnonzero(np.diff(sequence_N[order_N]) == 0) + 1
    kept_N[order_N[again]] = False
    kept_N &= ~conflict_N
    notes["conflicting_labels"] = int(conflict_N.sum())
    notes["duplicates"] = int((~kept_N & ~conflict_N).sum())
    return kept_N


def _with_types(table: pa.Table, keep: list[str], code_N: np.ndarray | None) -> pa.Table:
    columns = {name: table[name] for name in COLUMNS[:3]}
    if code_N is not None:
        columns["label"] = pa.chunked_array([pa.array(code_N, pa.int64())])
    return pa.table({**columns, **{name: _typed(table[name]) for name in keep}})


def _typed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as int64 or float64 (empty cells are nulls) if that loses nothing, or as it is."""
    values = pc.call_function("if_else", [pc.call_function("equal", [texts, ""]), None, texts])
    if values.null_count == len(values):
        return texts
    try:
        whole = values.cast(pa.int64())
        return whole if whole.cast(pa.string()).equals(values) else texts
    except pa.ArrowInvalid:
        pass
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        return texts


def _on_disk(path: Path) -> pa.Table:
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


def _save(table: pa.Table, names: list[str], chosen: list[np.ndarray], folder: Path) -> None:
    """Write the splits that have rows; the same rows give the same bytes."""
    from datasets import (
        ClassLabel,
        Dataset,
        DatasetDict,
        DatasetInfo,
        Features,
        NamedSplit,
        disable_progress_bars,
    )

    disable_progress_bars()
    features = Features.from_arrow_schema(table.schema)
    if names:
        features["label"] = ClassLabel(names=names)
    splits, files = {}, []
    for name, chosen_N in zip(SPLITS, chosen, strict=True):
        if chosen_N.any():
            path = folder / f".{name}.arrow"
            _route(table, chosen_N, path)
            info = DatasetInfo(features=features)
            splits[name] = Dataset(_on_disk(path), info, NamedSplit(name), fingerprint=hash_file(path)[:16])
            files.append(path)
    DatasetDict(splits).save_to_disk(folder)
    for path in files:
        path.unlink()


def _route(table: pa.Table, chosen_N: np.ndarray, path: Path) -> None:
    """Copy the chosen rows to a file, batch by batch."""
    begin = 0
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch.filter(pa.array(chosen_N[begin : begin + len(batch)])))
            begin += len(batch)


def _counts(
    config: PrepareConfig,
    spool: _Spool,
    tally: _Tally,
    names: list[str],
    code_N: np.ndarray,
    split_N: np.ndarray,
) -> dict[str, Any]:
    """Return the manifest's counts; ``split_N`` is -1 for dropped rows."""
    letters_N, notes = np.array(spool.letters), tally.notes
    counts = {
        "read": {"records": tally.records + notes["empty"], "letters": tally.letters},
        "kept": {"rows": int((split_N >= 0).sum()), "letters": int(letters_N[split_N >= 0].sum())},
        "dropped": {reason: notes[reason] for reason in DROPPED if notes[reason]},
        "changed": dict(sorted(tally.changed.items())),
        "generated_ids": notes["generated_ids"],
        "renamed_ids": notes["renamed_ids"],
        "soft_masked_fraction": round(tally.changed["lower_case_folded"] / max(tally.letters, 1), 6),
        "splits": {},
    }
    for code, split in enumerate(SPLITS):
        of_N = split_N == code
        if of_N.any():
            counts["splits"][split] = {"rows": int(of_N.sum()), "letters": int(letters_N[of_N].sum())}
            if names:
                labels = np.bincount(code_N[of_N], minlength=len(names)).tolist()
                counts["splits"][split]["labels"] = dict(zip(names, labels, strict=True))
    if names:
        counts["case_separates_labels"] = case_separates(*zip(*tally.case, strict=True))
    if config.split_column:
        counts["sequences_in_several_splits"] = count_shared(np.array(spool.group), split_N)
    return counts


def _drops(notes: Notes) -> str:
    parts = [f"{notes[reason]} {reason.replace('_', ' ')}" for reason in DROPPED if notes[reason]]
    return "dropped: " + ", ".join(parts) if parts else ""


def _report(counts: dict[str, Any], notes: Notes) -> None:
    read, kept = counts["read"], counts["kept"]
    say(f"read {read['records']} records, {read['letters']} letters")
    say(f"kept {kept['rows']} rows, {kept['letters']} letters")
    changed = [f"{number} {kind.replace('_', ' ')}" for kind, number in counts["changed"].items()]
    if changed:
        say("changed letters: " + ", ".join(changed))
    if _drops(notes):
        say(_drops(notes))
    say(
        "; ".join(
            f"{name}: {of['rows']} rows, {of['letters']} letters" for name, of in counts["splits"].items()
        )
    )
    if counts.get("case_separates_labels"):
        say("warning: letter case alone tells the classes apart in the input; the corpus is all upper case")
    shared = counts.get("sequences_in_several_splits")
    if shared:
        say(f"warning: {shared} sequences or their other strands are in several splits: scores will flatter")


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="prepare")
