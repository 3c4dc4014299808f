"""The scan of a genome by a classifier: what is read, by what it is scored, and where the scores are kept.

Shapes: N windows; 2 strands, + and -.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import __version__
from pipeline.artifacts import hash_input
from pipeline.config import LettersConfig, PredictConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.genomes import IndexedGenome, open_genome
from pipeline.sequences.records import Notes, listed
from pipeline.sequences.targets import Letters, Shuffled, Target, find_targets
from pipeline.tokens.kmers import KmerCodec, read_facts
from pipeline.training import scan
from pipeline.training.classifier import (
    check_strandless,
    class_names,
    decision_of,
    enough_memory,
    load_classifier,
    positive_class,
)
from pipeline.training.scan import AtContent, Classifier, Tokenizer, Windows, keep_scores, load

WORK = ".scan"
OURS, NULL, AT, AT_NULL = "genome", "null", "at", "at_null"
NAMES = {OURS: "scanning", NULL: "scanning shuffled bases", AT: "AT content", AT_NULL: "its null"}


@dataclass(frozen=True)
class GenomeScan:
    """Everything that scanning a genome takes."""

    config: PredictConfig
    classifier: Classifier
    windows: Windows
    genome: IndexedGenome
    targets: list[Target]

    @property
    def strands(self) -> tuple[int, ...]:
        """Strands that are called."""
        return (0,) if self.config.scan.strandless else (1, -1)

    @property
    def compares(self) -> bool:
        """Whether calls are compared with start sites or genes, and with those of simpler scores."""
        return bool(self.config.scan.starts or self.config.scan.genes)

    @cached_property
    def sample(self) -> Shuffled | None:
        """The shuffled sample, if anything needs it."""
        if self.config.scan.threshold is not None and not self.compares:
            return None
        return Shuffled(self.genome, self.targets, self.windows.size, self.config.seed)

    def parts(self) -> dict[str, tuple[Any, Letters, list[Target]]]:
        """Return what is scored, by the name of its folder: with what, where the letters are, and which."""
        parts: dict[str, tuple[Any, Letters, list[Target]]] = {
            OURS: (self.classifier, self.genome, self.targets)
        }
        if self.sample:
            parts[NULL] = (self.classifier, self.sample, self.sample.targets())
            if self.compares:
                simple = AtContent(self.windows.size)
                parts[AT] = (simple, self.genome, self.targets)
                parts[AT_NULL] = (simple, self.sample, self.sample.targets())
        return parts

    def placed(
        self, part: str, work: Path
    ) -> Iterator[tuple[Target, int, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield target, strand, and of its scored windows, by site: starts, start sites and scores, (N,)."""
        for number, target in enumerate(self.parts()[part][2]):
            start_N, scores_2N = load(number, target, self.windows.size, self.windows.stride, work / part)
            for strand, score_N in zip(self.strands, scores_2N, strict=False):
                read_N = ~np.isnan(score_N)
                site_N = self.windows.sites(start_N[read_N], strand, target.length)
                order = np.argsort(site_N, kind="stable")
                yield target, strand, start_N[read_N][order], site_N[order], score_N[read_N][order]

    def survey(self, counts: dict[str, Any]) -> None:
        """Read all letters before any is scored; count those that are changed.

        Raises:
            UserError: a letter that is not one of DNA.
        """
        changed = self.genome.survey()
        counts |= {"bases": sum(self.genome.lengths.values()), **changed}
        if changed:
            say(f"{self.genome.path}: letters changed: {listed(changed)}")

    def score(self, work: Path, process: int, processes: int) -> None:
        """Score this process's share of all windows."""
        with enough_memory(self.config.batch_size):
            for part, (scorer, letters, targets) in self.parts().items():
                where, name, stride = work / part, NAMES.get(part, part), self.windows.stride
                scan.scan(scorer, letters, targets, stride, where, name, process, processes)

    def scores_folder(self, folder: Path, files: Mapping[str, Path]) -> Path:
        """Return where scores are kept; those of an unfinished scan stay if they are still right.

        Args:
            folder: in which they are kept.
            files: those that the scan reads, by key.
        """
        config = self.config
        settings = config.scan.model_dump(include={"stride", "strandless", "circular"})
        settings |= {"window": self.windows.size, "seed": config.seed, "strandlm": __version__}
        read = [key for key in ("checkpoint", "genome", "scan.regions") if key in files]
        for path in folder.glob("[!.]*"):
            path.unlink()
        keep_scores(folder / WORK, settings | {key: hash_input(files[key]) for key in read})
        return folder / WORK


@contextmanager
def open_scan(config: PredictConfig, device, notes: Notes) -> Iterator[GenomeScan]:
    """Load the classifier and open the genome.

    Raises:
        UserError: they cannot be read, or do not go together with each other or with the settings.
    """
    assert config.genome is not None
    model, codec = load_classifier(config.checkpoint)
    windows, positive = _of_classifier(config, model, codec)
    settings = config.scan
    if settings.strandless:
        check_strandless(model, config.checkpoint, "scan.strandless")
    classifier = Classifier(
        model.to(device), codec, positive, windows.size, config.batch_size, settings.strandless
    )
    letters = LettersConfig(**read_facts(config.checkpoint).get("letters", {}))
    with open_genome(config.genome, letters, notes) as genome:
        targets = find_targets(genome, windows.size, settings.circular, settings.regions, notes)
        yield GenomeScan(config, classifier, windows, genome, targets)


def _of_classifier(config: PredictConfig, model, codec) -> tuple[Windows, int]:
    """Return the windows that a classifier reads, and the number of the class that is scored.

    Raises:
        UserError: they are not known, do not fit, or contradict each other.
    """
    names = class_names(model)
    if codec.alphabet != "dna" or len(names) < 2:
        what = f"reads {codec.alphabet}" if codec.alphabet != "dna" else "tells no classes apart"
        raise UserError(f"checkpoint: {config.checkpoint} {what}; a genome needs a classifier of DNA")
    decision = decision_of(model)
    size, offset = (_agreed(config, key, decision.get(key)) for key in ("window", "offset"))
    if size is None:
        raise UserError(
            f"scan.window: {config.checkpoint} does not say how long the windows of its training were; pass "
            "--scan.window"
        )
    context = model.config.max_position_embeddings - 2
    if isinstance(codec, KmerCodec) and (need := Tokenizer(codec, size).tokens) > context:
        raise UserError(f"scan.window: {size} bases are {need} tokens, more than the classifier's {context}")
    if offset is None:
        offset = size // 2
        say(f"scan.offset: not known; the start site is taken to be the middle of a window, base {offset}")
    if offset >= size:
        raise UserError(f"scan.offset: {offset}: not in a window of {size} bases (counted from 0)")
    return Windows(size, offset, config.scan.stride), names.index(positive_class(model))


def _agreed(config: PredictConfig, key: str, known: int | None) -> int | None:
    """Return what the settings or the classifier say.

    Raises:
        UserError: they do not say the same.
    """
    given = getattr(config.scan, key)
    if given is not None and known is not None and given != known:
        raise UserError(f"scan.{key}: {given}: the classifier was trained with {known}; leave it out")
    return known if given is None else given
