"""What fine-tuning learns besides classes: values, several labels at once, or a class for every letter.

A task reads its targets from columns of a corpus, says how they are shown to the network, and judges what was
predicted. Shapes: N rows, T targets, L letters, K tokens with special ones, B batch, C classes, U units that
are resampled, R resamples, F features.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.config import FinetuneConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.corpus import RESERVED
from pipeline.tokens.kmers import Codec
from pipeline.training.answers import HALF, unread_mark
from pipeline.training.classifier import check_finite, class_logits, encode_all, outputs_of, softmax
from pipeline.training.controls import (
    STRENGTHS,
    USUAL,
    Rows,
    control_logits,
    feature_choices,
    rows_of,
    why_not,
)
from pipeline.training.correlation import RESAMPLES, pearson, rmse, spearman
from pipeline.training.folds import clusters_of
from pipeline.training.metrics import MEASURES, Resampled, against_rest, bootstrap, of_confusion
from pipeline.training.probes import r_squared
from pipeline.training.resampling import interval

PROBLEMS = {"values": "regression", "labels": "multi_label_classification"}  # transformers' names
OF_CLASSES = (
    "positive",
    "group_column",
    "reference_column",
    "class_weights",
    "best_by",
    "seeds",
    "folds",
    "fold_by",
    "other_negatives",
    "start_site",
)
OF_SEQUENCES = ("pooling", "reverse_complement")
NO_SPREAD = 1e-3  # of the standard deviation of a target: values that vary less are all the same
IGNORED = -100  # label of tokens without a class
BATCH = 256
WORDS = {"spearman": "Spearman", "pearson": "Pearson", "r2": "R2", "rmse": "RMSE", "auroc": "AUROC"}
WORDS |= {"auprc": "AUPRC", "mcc": "MCC", "accuracy": "accuracy", "f1": "macro F1"}

Metric = dict[str, Any]  # value, low, high (95 %) and n


def check_settings(config: FinetuneConfig) -> None:
    """Refuse settings that do not go with the task; a setting equal to its default counts as left out.

    Raises:
        UserError: names the setting.
    """
    default = FinetuneConfig(output=config.output, checkpoint=config.checkpoint, data=config.data)
    if config.task == "classes":
        if config.targets:
            raise UserError("targets: task classes learns the labels of the corpus; drop it, or pass --task")
        return
    if not config.targets or len(set(config.targets)) < len(config.targets):
        raise UserError(f"targets: task {config.task} needs columns of the corpus, each once; pass --targets")
    if config.task != "letters" and (taken := sorted(RESERVED.intersection(config.targets))):
        raise UserError(
            f"targets: {taken[0]!r} is a column of every table of scores; rename that of the target"
        )
    unheeded = [*OF_CLASSES]
    if config.task == "letters":
        unheeded += OF_SEQUENCES
        if len(config.targets) > 1:
            raise UserError(f"targets: task letters learns one column, not {len(config.targets)}; pass one")
    if config.task == "values":
        unheeded.append("cluster_column")
    for key in unheeded:
        if getattr(config, key) != getattr(default, key):
            raise UserError(f"{key}: is not for task {config.task}; leave it out")


def stack(labels: Sequence[Any]) -> torch.Tensor:
    """Return the labels of a batch: classes (B,), numbers (B, T), or classes of tokens (B, K), padded."""
    if np.ndim(labels[0]) == 0:
        return torch.tensor(labels)
    if labels[0].dtype.kind == "f":
        return torch.from_numpy(np.stack(labels))
    rows = [torch.from_numpy(row_K) for row_K in labels]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)


def task_of(config: FinetuneConfig, codec: Codec, splits) -> "Values | Labels | Letters":
    """Return the task that the settings name, its targets read.

    Raises:
        UserError: a column is missing, or a target is not what the task learns; names the record.
    """
    known = splits["train"].column_names
    for name in config.targets:
        if name not in known:
            raise UserError(
                f"targets: {name!r} is no column of {config.data}; its columns: {', '.join(known)}; "
                "prepare keeps those in --keep-columns"
            )
    return {"values": Values, "labels": Labels, "letters": Letters}[config.task](config, codec, splits)


class Task:
    """Targets of a corpus; ``names`` says what the logits are of, ``scored`` which split is judged.

    Args:
        config: settings of the stage.
        codec: codec of the checkpoint's tokenizer.
        splits: rows, as train and test or validation.
    """

    names: list[str]
    simple: tuple[str, ...] = ()  # controls that there are for it

    def __init__(self, config: FinetuneConfig, codec: Codec, splits):
        self.config, self.codec, self.splits = config, codec, splits
        self.scored = "test" if "test" in splits else "validation"
        self.used = {name: rows for name, rows in splits.items() if name in ("train", "validation", "test")}

    def _refuse(self, split: str, row: int, what: str, way_out: str) -> UserError:
        record = self.splits[split]["id"][row]
        return UserError(f"targets: {self.config.data}: record {record!r} of {split}: {what}; {way_out}")

    def records(self, split: str) -> list[tuple[str, str]]:
        """Return id and sequence of every row of a split."""
        rows = self.splits[split]
        return list(zip(rows["id"][:], rows["sequence"][:], strict=True))

    def shown(self) -> dict[str, dict[str, Any]]:
        """Return what the network learns from: ``sequence`` and ``label`` of train and validation."""
        names = [name for name in ("train", "validation") if name in self.splits]
        return {n: {"sequence": self.splits[n]["sequence"][:], "label": self.learnt(n)} for n in names}

    def learnt(self, split: str) -> list[np.ndarray]:
        """Return what the network is to say of each row."""
        raise NotImplementedError

    def finish(self, model) -> None:
        """Make a trained network one that says what the columns hold."""
        if hasattr(model.config, "decision"):  # of the classifier that it was trained from
            del model.config.decision

    def clusters(self) -> np.ndarray | None:
        """Return the cluster (N,) of each scored row, where the corpus has clusters."""
        return clusters_of(self.splits[self.scored], self.config.cluster_column)

    def sequences(self, split: str) -> list[str]:
        """Return the sequences of a split."""
        return list(self.splits[split]["sequence"])

    def rows(self) -> dict[str, Rows]:
        """Return the letters of all rows, for controls, with their numbers as labels.

        Of training rows there are both strands, where the labels are of both.
        """
        return {
            split: rows_of(
                self.codec,
                self.sequences(split),
                np.arange(len(rows)),
                both_strands=self.config.reverse_complement and split == "train",
            )
            for split, rows in self.used.items()
        }

    def control(self, name: str, rows: Mapping[str, Rows]) -> Any:
        """Return what a simple control, trained on the same rows, says of the scored ones."""
        raise NotImplementedError


class Columns(Task):
    """One number for each target and row: ``truth`` is (N, T) by split."""

    def __init__(self, config: FinetuneConfig, codec: Codec, splits):
        super().__init__(config, codec, splits)
        self.names = list(config.targets)
        self.truth = {
            split: np.stack([self._numbers(split, name) for name in self.names], 1) for split in self.used
        }

    def _numbers(self, split: str, name: str) -> np.ndarray:
        """Return a column as numbers (N,)."""
        found = []
        for row, cell in enumerate(self.splits[split][name]):
            try:
                number = math.nan if cell is None else float(cell)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                what = f"{name} is empty" if cell in (None, "") else f"{name} {cell!r} is not a number"
                raise self._refuse(split, row, what, "correct it, or leave the row out of the corpus")
            found.append(number)
        return np.array(found)

    def _check_varied(self, split: str) -> None:
        for name, truth_N in zip(self.names, self.truth[split].T, strict=True):
            if len(np.unique(truth_N)) < 2:
                raise UserError(
                    f"targets: {self.config.data}: {name} is {truth_N[0]:g} in every row of {split}; "
                    "drop it from --targets, or prepare the corpus with other splits"
                )

    def _logits(self, model) -> np.ndarray:
        logits_NT = class_logits(model, self.codec, self.sequences(self.scored), BATCH).astype(float)
        return check_finite(logits_NT, self.config.learning_rate)

    def same(self, said_NT: np.ndarray) -> str | None:
        """Return in words that all rows are told the same, or None."""
        same = len(said_NT) > 1 and self._same(said_NT)
        return f"every {self.scored} sequence is told the same" if same else None

    def _same(self, said_NT: np.ndarray) -> bool:
        raise NotImplementedError

    def columns(self, said: Mapping[str, np.ndarray]) -> Iterator[tuple[str, Any]]:
        """Yield the columns of scores.tsv after the id: truth, prediction, and what controls say."""
        for t, name in enumerate(self.names):
            yield f"truth_{name}", self.truth[self.scored][:, t]
            for which, said_NT in said.items():
                yield f"{'predicted' if which == 'ours' else which}_{name}", said_NT[:, t]

    def counts(self) -> dict[str, Any]:
        """Return what the manifest says of the scored split."""
        return {"rows": len(self.truth[self.scored])}


class Values(Columns):
    """Measured numbers, learnt by squared error on a scale of mean 0 and variance 1 in the training rows."""

    simple = ("gc", "kmers", "positions")

    def __init__(self, config: FinetuneConfig, codec: Codec, splits):
        super().__init__(config, codec, splits)
        for split in ("train", self.scored):
            self._check_varied(split)
        self.mean_T, self.sd_T = self.truth["train"].mean(0), self.truth["train"].std(0)
        if self.clusters() is not None:
            say("intervals draw rows one by one, though rows of one cluster are alike: they are too narrow")

    def _scaled(self, split: str) -> np.ndarray:
        return (self.truth[split] - self.mean_T) / self.sd_T

    def learnt(self, split: str) -> list[np.ndarray]:
        """Return the values of each row, (T,) float32, on that scale."""
        return list(self._scaled(split).astype(np.float32))

    def finish(self, model) -> None:
        """Fold the scale into the last layer, so that logits are in the units of the columns."""
        super().finish(model)
        last = model.classifier
        mean_T, sd_T = (torch.from_numpy(each).to(last.weight) for each in (self.mean_T, self.sd_T))
        with torch.no_grad():
            last.weight.mul_(sd_T[:, None])
            last.bias.mul_(sd_T).add_(mean_T)

    def _same(self, said_NT: np.ndarray) -> bool:
        """Tell whether no target varies by more than a thousandth of what it does in the training rows."""
        return bool((np.ptp(said_NT, axis=0) <= NO_SPREAD * self.sd_T).all())

    def predict(self, model) -> np.ndarray:
        """Return the values (N, T) that a finished network predicts for the scored rows."""
        return self._logits(model)

    def control(self, name: str, rows: Mapping[str, Rows]) -> np.ndarray:
        """Return what ridge regression on simple features predicts, (N, T).

        Features and penalty are those that do best on validation, or usual ones without validation rows.
        """
        tried = []
        strengths = STRENGTHS if "validation" in rows else USUAL[1:]
        learnt_NT = self._scaled("train")[rows["train"].labels]
        for features in feature_choices(name, self.codec, "validation" in rows):
            seen = {split: features(each.codes) for split, each in rows.items()}
            for strength in strengths:
                ridge = _ridge(seen["train"], learnt_NT, strength)
                loss = 0.0
                if "validation" in rows:
                    said_NT = _said(ridge, seen["validation"], len(self.names))
                    loss = float(((said_NT - self._scaled("validation")) ** 2).mean())
                tried.append((loss, _said(ridge, seen[self.scored], len(self.names))))
        return min(tried, key=lambda each: each[0])[1] * self.sd_T + self.mean_T

    def judge(self, said: Mapping[str, np.ndarray]) -> dict[str, Metric]:
        """Return every measure of every target, those of controls beside it: the object for metrics.json."""
        judged = {}
        for t, name in enumerate(self.names):
            truth_N = self.truth[self.scored][:, t]
            found = {which: self._measure(said_NT[:, t], truth_N) for which, said_NT in said.items()}
            judged |= beside({which: _named(each, name) for which, each in found.items()})
        return judged

    def _measure(self, said_N: np.ndarray, truth_N: np.ndarray) -> dict[str, Metric]:
        seed, n = self.config.seed, {"n": len(truth_N)}
        found = {"r2": r_squared(said_N, truth_N, seed) | n, "rmse": rmse(said_N, truth_N, seed)}
        none: Metric = {"value": None, "low": None, "high": None, **n}  # what is the same for all has no rank
        constant = np.ptp(said_N) == 0
        for measure, of in (("spearman", spearman), ("pearson", pearson)):
            found[measure] = none if constant else of(said_N, truth_N, seed)
        return found


def _ridge(seen_NF: Any, target_NT: np.ndarray, strength: float):
    """Return a ridge regression on features of one scale (places are on one, and stay sparse)."""
    from scipy.sparse import issparse
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scale = [] if issparse(seen_NF) else [StandardScaler()]
    return make_pipeline(*scale, Ridge(alpha=1 / strength, tol=1e-8)).fit(seen_NF, target_NT)


def _said(ridge, seen_NF: Any, targets: int) -> np.ndarray:
    return np.asarray(ridge.predict(seen_NF)).reshape(-1, targets)


class Labels(Columns):
    """Labels that a sequence has (1) or has not (0), independently of each other."""

    simple = ("gc", "kmers", "positions", "pwm", "cnn")

    def __init__(self, config: FinetuneConfig, codec: Codec, splits):
        super().__init__(config, codec, splits)
        for split, truth_NT in self.truth.items():
            for row, t in np.argwhere((truth_NT != 0) & (truth_NT != 1))[:1]:
                what = f"{self.names[t]} is {truth_NT[row, t]:g}, not 0 or 1"
                raise self._refuse(split, int(row), what, "or pass --task values")
        self._check_varied("train")
        truth_NT = self.truth[self.scored]
        self.judged = [t for t in range(len(self.names)) if len(np.unique(truth_NT[:, t])) == 2]
        for t in sorted(set(range(len(self.names))) - set(self.judged)):
            say(f"{self.names[t]} is {truth_NT[0, t]:g} in every row of {self.scored}: it cannot be judged")
        if not self.judged:
            self._check_varied(self.scored)

    def learnt(self, split: str) -> list[np.ndarray]:
        """Return the labels of each row, (T,) float32."""
        return list(self.truth[split].astype(np.float32))

    def _same(self, said_NT: np.ndarray) -> bool:
        """Tell whether each label is called for all rows or for none, and none is told better than by chance.

        Labels that are few may be below a half everywhere, and yet be ranked well.
        """
        called_NT = said_NT > HALF
        if (called_NT != called_NT[0]).any():
            return False
        intervals = [self._bootstrapped(said_NT, t).summary()["intervals"]["auroc"] for t in self.judged]
        return all(interval is None or interval[0] <= HALF for interval in intervals)

    def predict(self, model) -> np.ndarray:
        """Return the probabilities (N, T) that a network gives the labels of the scored rows."""
        return 1 / (1 + np.exp(-self._logits(model)))

    def control(self, name: str, rows: Mapping[str, Rows]) -> np.ndarray:
        """Return the probabilities (N, T) of a control of classes, trained on each label by itself."""
        said = []
        for t in range(len(self.names)):
            known = {
                split: Rows(each.codes, self.truth[split][each.labels, t].astype(int))
                for split, each in rows.items()
            }
            logits = control_logits(name, self.codec, known, self.config.seed)
            said.append(softmax(logits[self.scored])[:, 1])
        return np.stack(said, 1)

    def judge(self, said: Mapping[str, np.ndarray]) -> dict[str, Metric]:
        """Return measures of every label and their means over labels, those of controls beside them."""
        found = {which: self._measure(said_NT) for which, said_NT in said.items()}
        return beside(found)

    def _measure(self, said_NT: np.ndarray) -> dict[str, Metric]:
        metrics, each_T = {}, [self._bootstrapped(said_NT, t) for t in self.judged]
        for t, each in zip(self.judged, each_T, strict=True):
            metrics |= _named(_of_label(each, len(said_NT)), self.names[t])
        mean = Resampled(
            {name: float(np.mean([each.point[name] for each in each_T])) for name in MEASURES},
            {name: np.mean([each.draws[name] for each in each_T], 0) for name in MEASURES},
        )
        macro = _of_label(mean, len(said_NT))
        return {name: each | {"labels": len(each_T)} for name, each in macro.items()} | metrics

    def _bootstrapped(self, said_NT: np.ndarray, t: int) -> Resampled:
        """Return what the probabilities of a label measure."""
        score_NC = np.stack([1 - said_NT[:, t], said_NT[:, t]], 1)
        judged = against_rest(self.truth[self.scored][:, t], score_NC, 1)
        return bootstrap(judged, self.clusters(), self.config.seed)


def _of_label(resampled: Resampled, size: int) -> dict[str, Metric]:
    summary, found = resampled.summary(), {}
    for name in ("auroc", "auprc", "mcc"):
        low, high = summary["intervals"][name] or (None, None)
        found[name] = {"value": summary[name], "low": low, "high": high, "n": size}
    return found


class Letters(Task):
    """A class for each letter: a column with texts as long as the sequences, each character a class.

    A token has the class of its first letter; letters that begin no token are neither learnt nor called.
    ``truth`` holds the classes (L,) of each row by split.
    """

    def __init__(self, config: FinetuneConfig, codec: Codec, splits):
        super().__init__(config, codec, splits)
        if codec.k > 1 and not codec.overlapping:
            raise UserError(
                f"task: letters needs a token for each letter, which {config.checkpoint} has not; pass a "
                "checkpoint of overlapping k-mers or of single letters"
            )
        texts = {split: self._texts(split) for split in self.used}
        self.names = sorted(set().union(*texts["train"]))
        if len(self.names) < 2:
            raise UserError(f"targets: {config.data}: {config.targets[0]} has one class, {self.names[0]!r}")
        self.truth = {split: self._classes(split, each) for split, each in texts.items()}
        self.unread = unread_mark(self.names)

    def _texts(self, split: str) -> list[str]:
        name, found = self.config.targets[0], []
        pairs = zip(self.splits[split][name], self.sequences(split), strict=True)
        for row, (cell, letters) in enumerate(pairs):
            if cell is None or isinstance(cell, float):
                what = f"{name} is empty" if cell is None else f"{name} was read as the number {cell!r}"
                raise self._refuse(split, row, what, "write classes as letters, one for each of the sequence")
            if len(text := str(cell)) != len(letters):
                what = f"{name} has {len(text)} letters, its sequence {len(letters)}"
                raise self._refuse(split, row, what, "correct it, or leave the row out of the corpus")
            found.append(text)
        return found

    def _classes(self, split: str, texts: Sequence[str]) -> list[np.ndarray]:
        number, found = {name: i for i, name in enumerate(self.names)}, []
        for row, text in enumerate(texts):
            codes_L = np.array([number.get(letter, -1) for letter in text])
            if (codes_L < 0).any():
                at = int(np.argmax(codes_L < 0))
                what = f"class {text[at]!r} of letter {at + 1} is in no row of train"
                raise self._refuse(split, row, what, "prepare the corpus with other splits")
            found.append(codes_L)
        return found

    def _firsts(self, split: str) -> list[np.ndarray]:
        """Return the letter that each token begins with, from 0; -1 for special tokens."""
        batch = self.codec.batch([self.codec.codes(text) for text in self.sequences(split)])
        found = []
        for row, (begin, size) in enumerate(zip(batch.begins, batch.sizes, strict=True)):
            first_K = batch.starts[batch.offsets[row] : batch.offsets[row + 1]] - begin
            found.append(np.where((first_K >= 0) & (first_K < size), first_K, -1))
        return found

    def learnt(self, split: str) -> list[np.ndarray]:
        """Return the class (K,) of each token of each row."""
        rows = zip(self._firsts(split), self.truth[split], strict=True)
        return [np.where(first_K < 0, IGNORED, truth_L[first_K]) for first_K, truth_L in rows]

    def predict(self, model) -> list[np.ndarray]:
        """Return the class (L,) that a network calls for each letter of each scored row, -1 where none."""
        firsts = self._firsts(self.scored)
        found = [np.full(len(truth_L), -1) for truth_L in self.truth[self.scored]]
        windows = [framed[1:-1] for framed in encode_all(self.sequences(self.scored), self.codec)]
        for batch, outputs in outputs_of(model, self.codec, windows, BATCH):
            logits_BKC = check_finite(outputs.logits.float().cpu().numpy(), self.config.learning_rate)
            for row, logits_KC in zip(batch, logits_BKC, strict=True):
                first_K = firsts[row][1:-1]
                found[row][first_K] = logits_KC[1 : len(first_K) + 1].argmax(1)
        return found

    def same(self, said: Sequence[np.ndarray]) -> str | None:
        """Return in words that all letters are called one class, or None: they are not."""
        called = np.unique(np.concatenate(said))
        called = called[called >= 0]
        several = len(np.unique(np.concatenate(self.truth[self.scored]))) > 1
        one = len(called) == 1 and several
        return f"every letter of {self.scored} is called {self.names[called[0]]!r}" if one else None

    def judge(self, said: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Metric]:
        """Return the measures over letters; intervals draw sequences, or clusters of them."""
        return beside({which: self._measure(each) for which, each in said.items()})

    def _measure(self, said: Sequence[np.ndarray]) -> dict[str, Metric]:
        confusion_UX, present = self._confusion(said), np.unique(np.concatenate(self.truth[self.scored]))
        C, units, found = len(self.names), len(confusion_UX), {}

        def measured(name: str) -> Callable[[np.ndarray], np.ndarray]:
            def of_units(rows_RU: np.ndarray) -> np.ndarray:
                at_RU = rows_RU + np.arange(len(rows_RU))[:, None] * units
                weights_RU = np.bincount(at_RU.ravel(), minlength=at_RU.size).reshape(at_RU.shape)
                return of_confusion((weights_RU @ confusion_UX).reshape(-1, C, C), list(present))[name]

            return of_units

        for name in ("accuracy", "mcc", "f1"):
            of = measured(name)
            value = float(of(np.arange(units)[None])[0])
            defined = not math.isnan(value)
            low, high = interval(of, units, RESAMPLES, self.config.seed) if defined else (None, None)
            size = {"n": int(confusion_UX.sum()), "sequences": len(said)}
            found[name] = {"value": value if defined else None, "low": low, "high": high, **size}
        return found

    def _confusion(self, said: Sequence[np.ndarray]) -> np.ndarray:
        """Return the confusion matrices (U, C x C) of what is resampled: sequences, or clusters of them."""
        cluster_N, C = self.clusters(), len(self.names)
        unit_N = np.arange(len(said)) if cluster_N is None else np.unique(cluster_N, return_inverse=True)[1]
        confusion_UX = np.zeros((unit_N.max() + 1, C * C))
        for unit, said_L, truth_L in zip(unit_N, said, self.truth[self.scored], strict=True):
            read_L = said_L >= 0
            confusion_UX[unit] += np.bincount((truth_L * C + said_L)[read_L], minlength=C * C)
        return confusion_UX

    def columns(self, said: Mapping[str, Sequence[np.ndarray]]) -> Iterator[tuple[str, Any]]:
        """Yield the columns of scores.tsv after the id: texts of classes, as long as the sequences."""
        name, letters_C = self.config.targets[0], np.array([*self.names, self.unread])
        yield f"truth_{name}", ["".join(letters_C[truth_L]) for truth_L in self.truth[self.scored]]
        for which, each in said.items():
            texts = ["".join(letters_C[said_L]) for said_L in each]
            yield f"{'predicted' if which == 'ours' else which}_{name}", texts

    def counts(self) -> dict[str, Any]:
        """Return what the manifest says of the scored split; say how many letters have no call."""
        firsts = self._firsts(self.scored)
        read, letters = (sum(int(n) for n in each) for each in zip(*self._sizes(firsts), strict=True))
        if letters > read:
            say(
                f"{letters - read} of {letters} letters of {self.scored} begin no token and have no call "
                f"({self.unread!r} in scores.tsv)"
            )
        return {"rows": len(firsts), "letters": letters, "letters_not_called": letters - read}

    def _sizes(self, firsts: Sequence[np.ndarray]) -> Iterator[tuple[int, int]]:
        for first_K, truth_L in zip(firsts, self.truth[self.scored], strict=True):
            yield int((first_K >= 0).sum()), len(truth_L)


# -- controls and what is said


def simple_controls(task: Values | Labels | Letters) -> Iterator[tuple[str, Any]]:
    """Yield the controls asked for, each with what it says; say which are left out, and why."""
    rows = task.rows() if task.simple else {}
    for name in task.config.controls:
        reason = f"there is none for task {task.config.task}"
        if name in task.simple:
            reason = why_not(name, task.codec, rows)
        if reason:
            say(f"control {name} is left out: {reason}")
            continue
        say(f"control: {name}")
        yield name, task.control(name, rows)


def beside(found: Mapping[str, Mapping[str, Metric]]) -> dict[str, Metric]:
    """Return the measures of ours, each with those of the others under ``controls``."""
    return {
        measure: {**metric, "controls": {which: found[which][measure] for which in found if which != "ours"}}
        for measure, metric in found["ours"].items()
    }


def _named(metrics: Mapping[str, Metric], target: str) -> dict[str, Metric]:
    return {f"{measure}:{target}": metric for measure, metric in metrics.items()}


def in_lines(metrics: Mapping[str, Metric]) -> Iterator[str]:
    """Yield a line for every measure: its value, its interval, and the controls."""
    for key, metric in metrics.items():
        measure, _, target = key.partition(":")
        controls = [f"{which} {_number(each['value'])}" for which, each in metric["controls"].items()]
        line = f"{WORDS[measure]}{f' of {target}' if target else ''} {_number(metric['value'])}"
        if metric["low"] is not None:
            line += f" ({_number(metric['low'])} to {_number(metric['high'])})"
        yield f"{line}; controls: {', '.join(controls)}" if controls else line


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}" if abs(value) >= 1 else f"{value:.3f}"
