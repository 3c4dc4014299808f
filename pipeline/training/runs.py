"""Classifiers trained with several seeds and folds, one after the other, each with its controls beside it.

A run is kept in a folder, complete or absent, until all are done; so work that was stopped goes on after the
last complete run. Shapes: N rows, C classes.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts import write_json
from pipeline.config import FinetuneConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.tokens.kmers import Codec
from pipeline.training.classifier import (
    calibrate,
    called,
    check_finite,
    check_lengths,
    class_logits,
    softmax,
)
from pipeline.training.controls import control_logits, rows_of, why_not
from pipeline.training.evaluation import Evaluation, Predicted, validated
from pipeline.training.folds import Division
from pipeline.training.metrics import one_class, temperature
from pipeline.training.unseen import Negatives

OURS, UNTRAINED = "ours", "untrained"
BY_CHANCE = ("cnn",)  # simple controls that begin from random weights
FACTS, SCORES, MODEL = "run.json", "scores.npz", "model"
OTHER = "against "


@dataclass(frozen=True)
class Run:
    """A training: its number from 1, its seed, and the fold that is the test split, if there are any."""

    number: int
    seed: int
    fold: int | None

    def __str__(self) -> str:
        fold = "" if self.fold is None else f", fold {self.fold}"
        return f"seed {self.seed}{fold}"


@dataclass(frozen=True)
class Answers:
    """What a classifier of one run says: probabilities (N, C) by name of the rows, and how it decides."""

    scores: dict[str, np.ndarray]
    threshold: float
    temperature: float


@dataclass(frozen=True)
class Done:
    """A complete run: what each classifier says, which controls are left out and why, how ours validated."""

    run: Run
    answers: dict[str, Answers]
    left_out: dict[str, str]
    validation: dict[str, float] | None
    collapsed: bool


@dataclass(frozen=True)
class Runs:
    """All trainings of a stage; ``facts`` are what the checkpoint's decision records besides."""

    config: FinetuneConfig
    division: Division
    evaluation: Evaluation
    others: Mapping[str, Negatives]
    codec: Codec
    facts: Mapping[str, int]

    @cached_property
    def plan(self) -> list[Run]:
        """Return every run, all folds of one seed after the other."""
        pairs = [(s, fold) for s in range(self.config.seeds) for fold in self.division.folds]
        return [Run(number, self.config.seed + s, fold) for number, (s, fold) in enumerate(pairs, 1)]

    def train(self, folder: Path) -> list[Done]:
        """Train what is not complete yet in ``folder``; return every run.

        Of the networks only that of the best run so far is kept, in ``model`` of its folder.

        Raises:
            UserError: a sequence does not fit into the model, or training diverged or collapsed.
        """
        places = [place_of(folder, run) for run in self.plan]
        if before := sum(place.exists() for place in places):
            say(f"{before} of {len(places)} runs were complete before")
        done: list[Done] = []
        for run, place in zip(self.plan, places, strict=True):
            if not place.exists():
                if len(self.plan) > 1:
                    say(f"run {run.number} of {len(self.plan)}: {run}")
                partial = place.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                self._one(run, partial)
                partial.rename(place)
            done.append(_read(place))
            kept = best(done, self.config.best_by)
            for other in places[: run.number]:
                if other != places[kept.run.number - 1]:
                    shutil.rmtree(other / MODEL, ignore_errors=True)
        return done

    # -- one run

    def _one(self, run: Run, folder: Path) -> None:
        """Train the classifier and its controls; write what they say and the classifier."""
        config = self.config.model_copy(update={"seed": run.seed})
        splits = self.division.of(run.fold)
        names = ["validation"] if "validation" in splits else []
        names += [self.division.scored] if self.division.scored not in names else []
        texts = {name: _records(splits[name]) for name in ["train", *names]}
        texts |= {OTHER + name: other.of(run.fold) for name, other in self.others.items()}
        texts = {name: records for name, records in texts.items() if records}
        model, ours = self._network(config, splits, texts, folder, pretrained=True)
        collapsed = self._decide(run, model, ours, splits)
        model.save_pretrained(folder / MODEL)
        answers = {OURS: ours}
        if config.untrained_control:
            answers[UNTRAINED] = self._network(config, splits, texts, folder, pretrained=False)[1]
        simple, left_out = self._simple(run, config, splits, texts)
        label_V = labels_of(splits).get("validation")
        validation = None if label_V is None else validated(label_V, ours.scores["validation"])
        _write(folder, Done(run, answers | simple, left_out, validation, collapsed))

    def _network(self, config: FinetuneConfig, splits, texts, folder: Path, pretrained: bool):
        """Return a trained network, calibrated on validation rows, and what it says."""
        from pipeline.training.tuning import fit, new_model

        say("from the checkpoint" if pretrained else "control: the same network from random weights")
        model = new_model(config, self.evaluation.names, self.codec, pretrained)
        for records in texts.values():
            check_lengths(records, self.codec, model.config.max_position_embeddings)
        fit(config, model, self.codec, splits, folder / "trainer")
        divisor, label_V = 1.0, labels_of(splits).get("validation")
        if label_V is not None:
            divisor = temperature(self._logits(config, model, texts["validation"]), label_V)
            calibrate(model, divisor)
        logits = {n: self._logits(config, model, texts[n]) for n in texts if n != "train"}
        return model, self._answers(logits, label_V, divisor)

    def _answers(
        self, logits: Mapping[str, np.ndarray], label_V: np.ndarray | None, divisor: float = 1.0
    ) -> Answers:
        scores = {name: softmax(logits_NC.astype(float)) for name, logits_NC in logits.items()}
        return Answers(scores, self.evaluation.threshold(label_V, scores.get("validation")), divisor)

    def _logits(self, config: FinetuneConfig, model, records: Sequence[tuple[str, str]]) -> np.ndarray:
        sequences = [sequence for _, sequence in records]
        logits_NC = class_logits(model, self.codec, sequences, 256).astype(float)
        return check_finite(logits_NC, config.learning_rate)

    def _decide(self, run: Run, model, ours: Answers, splits) -> bool:
        """Write into the model's config how it calls classes; return whether it calls but one of them.

        Raises:
            UserError: it does, and ``allow_collapse`` is false.
        """
        names = self.evaluation.names
        decision = {"temperature": ours.temperature, "positive": names[self.evaluation.positive]}
        if len(names) == 2:
            decision["threshold"] = ours.threshold
        model.config.decision = {**decision, **self.facts}
        for split, label_N in labels_of(splits).items():
            if split not in ours.scores:
                continue
            called_N = called(model, ours.scores[split])
            only = one_class(label_N, ours.scores[split], called_N, run.seed)
            if only is not None:
                what = f"the classifier calls every {split} sequence {names[only]!r}"
                if len(np.unique(called_N)) > 1:
                    what += " at a threshold of 0.5, and is no better than chance at the one it has"
                accept_collapse(self.config, what, f" ({run})" if len(self.plan) > 1 else "")
                return True
        return False

    def _simple(
        self, run: Run, config: FinetuneConfig, splits, texts
    ) -> tuple[dict[str, Answers], dict[str, str]]:
        """Return what simple controls say, and why others are left out; without chance, but for one seed."""
        labels, answers, left_out = labels_of(splits), {}, {}
        rows = {
            name: rows_of(
                self.codec,
                [sequence for _, sequence in records],
                labels.get(name, np.zeros(len(records), int)),
                both_strands=config.reverse_complement and name == "train",
            )
            for name, records in texts.items()
        }
        known = {name: each for name, each in rows.items() if name in labels}
        for name in config.controls:
            if name not in BY_CHANCE and run.seed != self.config.seed:
                continue
            if reason := why_not(name, self.codec, known):
                left_out[name] = reason
                say(f"control {name} is left out: {reason}")
                continue
            say(f"control: {name}")
            chosen = known | {
                other: each
                for other, each in rows.items()
                if other not in known and not why_not(name, self.codec, {**known, other: each})
            }
            for other in rows.keys() - chosen.keys():
                say(f"control {name} cannot score {other.removeprefix(OTHER)}, whose lengths are others")
            logits = control_logits(name, self.codec, chosen, config.seed)
            answers[name] = self._answers(logits, labels.get("validation"))
        return answers, left_out

    # -- all runs together

    def predicted(self, done: list[Done], name: str, other: str | None = None) -> Predicted | None:
        """Return what a classifier says of all scored rows, or of other negatives; None if not of all.

        Args:
            done: every run.
            name: of the classifier.
            other: name of the negatives.
        """
        fold_N = self.division.numbers if other is None else self.others[other].folds
        size = len(self.evaluation.labels) if other is None else len(self.others[other].sequences)
        rows = self.division.scored if other is None else OTHER + other
        seeds = list(dict.fromkeys(each.run.seed for each in done if name in each.answers))
        found: list[tuple[np.ndarray, ...]] = []
        for seed in seeds:
            scores = np.full((size, len(self.evaluation.names)), np.nan)
            threshold_N, temperature_N = np.full(size, np.nan), np.full(size, np.nan)
            for each in done:
                if each.run.seed == seed and name in each.answers and rows in each.answers[name].scores:
                    answers = each.answers[name]
                    place_N = np.ones(size, bool) if fold_N is None else fold_N == each.run.fold
                    scores[place_N] = answers.scores[rows]
                    threshold_N[place_N], temperature_N[place_N] = answers.threshold, answers.temperature
            found.append((scores, threshold_N, temperature_N))
        if not found or any(np.isnan(scores).any() for scores, *_ in found):
            return None
        return Predicted(*(list(each) for each in zip(*found, strict=True)))


def accept_collapse(config: FinetuneConfig, what: str, which: str = "") -> None:
    """Warn of a network that says the same of all, or stop.

    Raises:
        UserError: ``allow_collapse`` is false.
    """
    what = f"training collapsed{which}: {what}"
    if not config.allow_collapse:
        raise UserError(
            f"{what}; pass another --learning-rate, more --epochs, or --allow-collapse true to keep it"
        )
    say(f"warning: {what}")


def labels_of(splits) -> dict[str, np.ndarray]:
    """Return the classes (N,) of the rows of each split."""
    return {name: np.array(rows["label"][:]) for name, rows in splits.items()}


def _records(rows) -> list[tuple[str, str]]:
    return list(zip(rows["id"][:], rows["sequence"][:], strict=True))


def best(done: Sequence[Done], by: str) -> Done:
    """Return the run that validated best; of equal ones, or without validation, the first."""
    sign = -1 if by == "loss" else 1

    def rank(each: Done) -> float:
        return -np.inf if each.validation is None else sign * each.validation[by]

    return max(done, key=rank)


# -- on disk


def place_of(folder: Path, run: Run) -> Path:
    """Return where a complete run is."""
    return folder / f"run-{run.number:04d}"


def _write(folder: Path, done: Done) -> None:
    arrays = {f"{n}/{rows}": s for n, answers in done.answers.items() for rows, s in answers.scores.items()}
    np.savez(folder / SCORES, allow_pickle=False, **arrays)
    facts = asdict(done)
    for answers in facts["answers"].values():
        answers["scores"] = list(answers["scores"])
    write_json(folder / FACTS, facts)


def _read(folder: Path) -> Done:
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    with np.load(folder / SCORES, allow_pickle=False) as arrays:
        answers = {
            name: Answers(**each | {"scores": {rows: arrays[f"{name}/{rows}"] for rows in each["scores"]}})
            for name, each in facts["answers"].items()
        }
    return Done(**facts | {"run": Run(**facts["run"]), "answers": answers})
