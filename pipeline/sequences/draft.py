"""A corpus before it is written: which of the rows that were read are kept, and in which split."""

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.config import PrepareConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.duplicates import conflicting, joined, numbered, repeated
from pipeline.sequences.records import SHOWN, Notes
from pipeline.sequences.rows import Row
from pipeline.sequences.similarity import close_to, mmseqs_clusters, protein_clusters, shared_kmer_clusters
from pipeline.sequences.splits import SPLITS, assign_splits, group_ids, named_splits, trim_buffers
from pipeline.sequences.spool import RowFile, Spool

TRAIN, VALIDATION, TEST = range(len(SPLITS))
CLUSTER_KMER, PROTEIN_KMER = 30, 5


class Draft:
    """All rows, and what is decided about each.

    Attributes:
        table: the rows as spooled, on disk; `trim` appends the shortened ones.
        row_N: where each row is in the table.
        split_N: int8, its split, or -1 if it is dropped.
        cluster_N: number of its cluster (split_by cluster), or None.
        letters_N: its length.
    """

    def __init__(self, config: PrepareConfig, spool: Spool, notes: Notes):
        self.config, self.notes = config, notes
        self.table, facts = spool.close(), spool.facts
        self.sequence_N = numbered(facts["canonical" if config.strandless else "exact"])
        self.canonical_N = numbered(facts["canonical"])
        self.digest_N = np.ascontiguousarray(facts["canonical"]).view(np.uint64)[::2]
        self.start_N, self.letters_N = facts["start"].astype(np.int64), facts["letters"].astype(np.int64)
        self.label_N, self.record_N = facts["label"].astype(np.int64), facts["record"].astype(np.int64)
        self.split_N = np.where(facts["kept"], facts["split"], -1).astype(np.int8)
        self.row_N = np.arange(len(facts))
        self.cluster_N: np.ndarray | None = None
        self.digest = spool.digest.digest()

    @property
    def split_by(self) -> str:
        """What stays together."""
        return split_by(self.config)

    @property
    def labelled(self) -> bool:
        """Whether rows have labels."""
        return bool((self.label_N >= 0).any())

    @property
    def kept(self) -> np.ndarray:
        """(N,) whether a row is kept."""
        return self.split_N >= 0

    def sequences(self) -> pa.ChunkedArray:
        """Return the text of all rows, kept or not; it stays on disk."""
        return self.table.column("sequence")

    def deduplicate(self) -> None:
        """Drop all rows of sequences that have two labels, and all but one row of every other sequence."""
        kept = np.flatnonzero(self.kept)
        sequence_K, label_K = self.sequence_N[kept], self.label_N[kept]
        conflict_K = conflicting(sequence_K, label_K)
        self._name_conflicts(kept[conflict_K])
        if not self.config.deduplicate:
            if conflict_K.any():
                say(f"{conflict_K.sum()} rows hold sequences that have more than one label; kept, as asked")
            return
        repeated_K = repeated(sequence_K, self.split_N[kept]) & ~conflict_K
        self.drop(kept[conflict_K], "conflicting_labels")
        self.drop(kept[repeated_K], "duplicates")

    def drop(self, rows: np.ndarray, reason: str) -> None:
        """Drop rows, given by their numbers, and count them and their letters."""
        self.split_N[rows] = -1
        self.notes[reason] += len(rows)
        self.notes.letters[reason] += int(self.letters_N[rows].sum())

    def _name_conflicts(self, rows: np.ndarray) -> None:
        """Say which rows the first few sequences with several labels are in."""
        for sequence in np.unique(self.sequence_N[rows])[:SHOWN]:
            of_it = rows[self.sequence_N[rows] == sequence]
            other = of_it[self.label_N[of_it] != self.label_N[of_it[0]]][0]
            first, second = (self.table.column("id")[int(row)].as_py() for row in (of_it[0], other))
            say(f"records {first!r} and {second!r}: the same sequence, but another label")

    def records_cut(self) -> int:
        """Return how many records gave several rows."""
        return int((np.unique_counts(self.record_N).counts > 1).sum())

    @cached_property
    def similar(self) -> np.ndarray:
        """(N,) number of the cluster of similar rows (of blocks: that share a repeat) each is in."""
        config, dna = self.config, self.config.alphabet == "dna"
        if self.split_by == "block":
            return shared_kmer_clusters(self.sequences(), config.repeat, both_strands=dna)
        if config.cluster_with == "mmseqs2":
            return mmseqs_clusters(self.sequences(), config.alphabet, config.identity, config.coverage)
        if dna:
            return shared_kmer_clusters(
                self.sequences(), config.cluster_kmer or CLUSTER_KMER, both_strands=True
            )
        return protein_clusters(
            self.sequences(), config.identity, config.coverage, config.cluster_kmer or PROTEIN_KMER
        )

    def clear_test(self) -> None:
        """Drop the rows of the input that share a stretch of bases, or a cluster, with one of the tests."""
        config, input_N, test_N = self.config, self.split_N == TRAIN, self.split_N == TEST
        group_N = self.canonical_N
        if self.split_by == "cluster" or config.alphabet == "protein":
            group_N = joined([group_N, self.similar])
        close_N = input_N & np.isin(group_N, group_N[test_N])
        if config.alphabet == "dna":
            k = config.repeat if self.split_by == "block" else config.cluster_kmer or CLUSTER_KMER
            close_N |= close_to(self.sequences(), input_N, test_N, k, both_strands=True)
        self.drop(np.flatnonzero(close_N), "too_close_to_test")
        if not (self.split_N == TRAIN).any():
            raise UserError(
                "prepare: all that could be learnt from is too close to test_input; nothing is left"
            )

    def assign(self) -> None:
        """Give every kept row that is not in the test split already a split: by name, or groups at random."""
        free_N, shares = self.split_N == TRAIN, drawn_shares(self.config)
        named = self.config.validation_names, self.config.test_names
        if any(named):
            names = self.table["id" if self.split_by == "record" else "chromosome"].to_pylist()
            self.split_N[free_N] = named_splits(names, *named)[free_N]
            free_N &= self.split_N == TRAIN
        if any(shares):
            key_F = group_ids(self._groups()[free_N], self.digest_N[free_N])
            weights_F = self.letters_N[free_N]
            self.split_N[free_N] = assign_splits(key_F, *shares, self.config.seed, weights_F)
        if self.split_by == "cluster":
            self.cluster_N = self._cluster_numbers()

    def _groups(self) -> np.ndarray:
        """Return (N,) the number of what each row has to stay together with."""
        if self.split_by == "record":
            return self.record_N
        if self.split_by == "chromosome":
            return np.unique(self.table["chromosome"].to_numpy(), return_inverse=True)[1]
        whole_records = [] if self.config.block else [self.record_N]
        similar = [self.similar] if self.split_by in ("block", "cluster") else []
        return joined([self.canonical_N, *whole_records, *similar])

    def _cluster_numbers(self) -> np.ndarray:
        """Return (N,) numbers from 0 that do not depend on the order of the rows; -1 for dropped ones."""
        kept_N = self.kept
        number_N = np.full(len(kept_N), -1)
        key_K = group_ids(self._groups()[kept_N], self.digest_N[kept_N])
        number_N[kept_N] = np.unique(key_K, return_inverse=True)[1]
        return number_N

    def trim(self, path: Path) -> None:
        """Cut off the letters of blocks within ``buffer`` of another split, and count them (``buffers``).

        Blocks that this leaves shorter than ``min_length`` are dropped, with all their letters. The
        shortened rows are written to ``path``, a temporary file, and appended to the table.

        Raises:
            UserError: no row is left for training.
        """
        places = self.record_N, self.start_N, self.letters_N
        left_N, right_N = trim_buffers(*places, self.split_N, self.config.buffer)
        cut_N = (left_N + right_N > 0) & self.kept
        rest_N = self.letters_N - left_N - right_N
        gone_N = cut_N & (rest_N < self.config.min_length)
        self.notes["buffers"] += int((left_N + right_N)[cut_N & ~gone_N].sum())
        self.drop(np.flatnonzero(gone_N), "within_buffers")
        if not (self.split_N == TRAIN).any():
            raise UserError(
                f"prepare: buffers of {self.config.buffer} letters leave nothing to train on; give larger or "
                "more blocks, or a smaller buffer"
            )
        self._replace(np.flatnonzero(cut_N & ~gone_N), left_N, right_N, path)

    def _replace(self, rows: np.ndarray, left_N: np.ndarray, right_N: np.ndarray, path: Path) -> None:
        file = RowFile(path, self.table.schema)
        for row in rows.tolist():
            id, whole, texts = self._read(row)
            part = whole.part(int(left_N[row]), len(whole.sequence) - int(right_N[row]))
            self.start_N[row], self.letters_N[row] = part.start, len(part.sequence)
            file.add(id, part, texts)
        self.row_N[rows] = len(self.table) + np.arange(len(rows))
        self.table = pa.concat_tables([self.table, file.close()])
        self.digest += file.digest.digest()

    def _read(self, row: int) -> tuple[str, Row, list[str]]:
        cells = {name: self.table[name][row] for name in self.table.column_names}
        id, start, sequence = (cells.pop(name) for name in ("id", "start", "sequence"))
        flat = cells.pop("gaps").as_py() if "gaps" in cells else []
        gaps = list(zip(flat[::2], flat[1::2], strict=True))
        row_ = Row(start.as_py(), sequence.as_buffer().to_pybytes(), gaps)
        return id.as_py(), row_, [cell.as_py() for cell in cells.values()]

    def in_table(self, value_N: np.ndarray, filling: int) -> np.ndarray:
        """Return (rows of the table,) the values of the rows, and ``filling`` where a row was replaced."""
        value_T = np.full(len(self.table), filling, value_N.dtype)
        value_T[self.row_N] = value_N
        return value_T


def split_by(config: PrepareConfig) -> str:
    """Return what stays together, auto resolved."""
    by = config.split_by
    return by if by != "auto" else "block" if config.block else "sequence"


def splits_given(config: PrepareConfig) -> bool:
    """Return whether a column or the files' names say which split every record is for."""
    return bool(config.split_column) or config.split_by == "file"


def drawn_shares(config: PrepareConfig) -> tuple[float, float]:
    """Return the shares of validation and test that are drawn at random: none of a split that is given."""
    if splits_given(config):
        return 0.0, 0.0
    given = config.test_input or config.test_names
    return 0.0 if config.validation_names else config.validation, 0.0 if given else config.test
