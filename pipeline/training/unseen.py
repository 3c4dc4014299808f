"""Kinds of negatives that a classifier was not trained on: shuffled positives, and files of others.

Shapes: N scored rows, M negatives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipeline.config import Alphabet, FinetuneConfig, LettersConfig
from pipeline.errors import UserError
from pipeline.keyed import generator
from pipeline.log import say
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.leakage import KMER, stretches
from pipeline.sequences.negatives import PIECES, dinucleotide_shuffle, partly_shuffled
from pipeline.sequences.readers import load_sequences
from pipeline.sequences.similarity import shared_with
from pipeline.sequences.splits import digest
from pipeline.tokens.kmers import Codec, read_facts
from pipeline.training.evaluation import Evaluation
from pipeline.training.folds import Division, joined

DINUCLEOTIDE, PARTLY = "dinucleotide_shuffled", "partly_shuffled"
Shuffle = Callable[[str, np.random.Generator], str]
# Each with the fewest letters that it takes.
KINDS: list[tuple[str, Shuffle, int]] = [
    (DINUCLEOTIDE, dinucleotide_shuffle, 1),
    (PARTLY, partly_shuffled, PIECES),
]


@dataclass(frozen=True)
class Negatives:
    """Negatives that are scored.

    Attributes:
        sequences: (id, sequence) pairs (M,).
        folds: which fold's network scores each (M,).
        clusters: what is drawn together (M,).
        counts: of a file, how many sequences were ``given``, ``left_out`` as rows of the data, and
            ``share_kmer`` with a row that is learnt.
    """

    sequences: list[tuple[str, str]]
    folds: np.ndarray | None
    clusters: np.ndarray
    counts: dict[str, int] = field(default_factory=dict)

    def of(self, fold: int | None) -> list[tuple[str, str]]:
        """Return the sequences that are scored by the run in which a fold is the test split."""
        if self.folds is None:
            return self.sequences
        return [self.sequences[i] for i in np.flatnonzero(self.folds == fold)]


def other_negatives(
    config: FinetuneConfig, division: Division, evaluation: Evaluation, codec: Codec
) -> dict[str, Negatives]:
    """Return other negatives by name, for two classes.

    A shuffled positive is scored by the networks that scored the positive, and is in its cluster; sequences
    of files are dealt out to the folds in turn. Those that are rows of the data (DNA: on either strand) are
    left out.

    Raises:
        UserError: a file cannot be read, has a name that is taken, or nothing but rows of the data, or there
            are more classes than two.
    """
    if len(evaluation.names) > 2:
        if config.other_negatives:
            raise UserError("other_negatives: for two classes only; leave them out, or prepare two classes")
        return {}
    found = {}
    if config.shuffled_negatives and codec.alphabet == "dna":
        found |= dict(_shuffled(config, division, evaluation))
    letters = LettersConfig(**read_facts(config.checkpoint).get("letters", {}))
    rows = _rows(division, codec.alphabet) if config.other_negatives else set()
    for name, path in config.other_negatives.items():
        if name in (DINUCLEOTIDE, PARTLY):
            raise UserError(f"other_negatives: {name!r} is what shuffled positives are called; rename {path}")
        given = load_sequences([path], codec.alphabet, letters)
        records = [(record, text) for record, text in given if text not in rows]
        if not records:
            raise UserError(
                f"other_negatives: every sequence of {path} is a row of {config.data}; give others"
            )
        near = _near(records, division, codec.alphabet)
        counts = {"given": len(given), "left_out": len(given) - len(records), "share_kmer": near}
        for line in _in_words(name, counts, KMER[codec.alphabet]):
            say(line)
        number_M = np.arange(len(records))
        folds = len(division.folds)
        fold_M = None if division.numbers is None else number_M % folds + 1
        found[name] = Negatives(records, fold_M, len(evaluation.labels) + number_M, counts)
    return found


def _rows(division: Division, alphabet: Alphabet) -> set[str]:
    """Return the sequences of all rows of the data, upper case; of DNA, both strands."""
    rows = {text.upper() for text in joined(division.splits)["sequence"][:]}
    return rows | {reverse_complement(text) for text in rows} if alphabet == "dna" else rows


def _near(records: list[tuple[str, str]], division: Division, alphabet: Alphabet) -> int:
    """Count the sequences that share a stretch with a row that is learnt."""
    learnt = division.learnt["sequence"][:]
    group_N = np.repeat(np.array([1, 2], np.uint8), [len(records), len(learnt)])
    texts = pa.chunked_array([[text for _, text in records], learnt])
    return int((shared_with(texts, group_N, stretches(alphabet))[: len(records)] & 2 > 0).sum())


def _in_words(name: str, counts: dict[str, int], kmer: int) -> Iterator[str]:
    """Yield lines about what a file has in common with the data."""
    if counts["left_out"]:
        yield f"{name}: {counts['left_out']} of {counts['given']} sequences are rows of the data, left out"
    if near := counts["share_kmer"]:
        kept = counts["given"] - counts["left_out"]
        yield f"note: {near} of {kept} {name} share {kmer} letters in a row with rows that are learnt"


def _shuffled(
    config: FinetuneConfig, division: Division, evaluation: Evaluation
) -> Iterator[tuple[str, Negatives]]:
    """Yield shuffled copies of the scored positives: a function of their content and of the seed."""
    texts, names = division.rows["sequence"][:], division.rows["id"][:]
    positive_P = np.flatnonzero(evaluation.is_positive)
    for kind, shuffle, least in KINDS:
        long_M = np.array([row for row in positive_P if len(texts[row]) >= least], np.int64)
        if short := len(positive_P) - len(long_M):
            say(f"{kind}: {short} of {len(positive_P)} positives are left out, shorter than {least} letters")
        if len(long_M):
            made = [shuffle(texts[row], generator(config.seed, least, digest(texts[row]))) for row in long_M]
            fold_M = None if division.numbers is None else division.numbers[long_M]
            records = [(names[row], text) for row, text in zip(long_M, made, strict=True)]
            yield kind, Negatives(records, fold_M, evaluation.cluster_numbers()[long_M])
