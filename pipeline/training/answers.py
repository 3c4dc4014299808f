"""What a fine-tuned network says of records, whatever it was trained for, as the columns of a table.

A record is read in one window or in several (`Reading`). Shapes: N records, W windows, C classes or targets,
T tokens of a record.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.sequences.corpus import RESERVED
from pipeline.tokens.kmers import Codec
from pipeline.tokens.windows import Reading, stitch
from pipeline.training.classifier import called, class_names, outputs_of, softmax, window_logits

Columns = dict[str, Any]
HALF = 0.5  # probability above which a record is said to have a label
UNREAD = "-.?_* "  # what stands for a letter without a call, the first that is no class


def unread_mark(names: Sequence[str]) -> str:
    """Return what stands for a letter without a call where the classes have these names."""
    return next(letter for letter in UNREAD if letter not in names)


class Answers:
    """What a network says of records.

    Args:
        model: the network, in evaluation mode.
        codec: codec of its tokenizer.
        batch_size: windows read at once.

    Raises:
        UserError: a class or target has the name of another column.
    """

    def __init__(self, model, codec: Codec, batch_size: int):
        self.model, self.codec, self.batch_size = model, codec, batch_size
        self.names = class_names(model)
        if taken := sorted(RESERVED.intersection(self.names)):
            raise UserError(
                f"checkpoint: it says {taken[0]!r}, which is a column of scores.tsv; rename the class"
            )

    def columns(self, readings: Sequence[Reading], lengths: Sequence[int]) -> Columns:
        """Return the columns after the id; empty cells and NaN where there is no window.

        Args:
            readings: what is read of each record.
            lengths: letters of each record.
        """
        raise NotImplementedError

    def counts(self, columns: Any) -> dict[str, Any]:
        """Return what the manifest says of the columns of all records, given as a table."""
        raise NotImplementedError

    def _means(self, readings: Sequence[Reading], link) -> np.ndarray:
        """Return what is said of records (N, C): means over their windows, which all weigh the same.

        Args:
            readings: what is read of each record.
            link: makes what is said (W, C) of the logits (W, C).
        """
        counts_N = np.array([len(reading.windows) for reading in readings])
        windows = [window for reading in readings for window in reading.windows]
        sums_NC = np.zeros((len(readings), self.model.config.num_labels))
        owner_W = np.repeat(np.arange(len(readings)), counts_N)
        np.add.at(sums_NC, owner_W, link(window_logits(self.model, self.codec, windows, self.batch_size)))
        return np.where(counts_N[:, None], sums_NC / np.maximum(counts_N, 1)[:, None], np.nan)


class OfClasses(Answers):
    """The probability of each class, and the ``label``: the class called."""

    def columns(self, readings: Sequence[Reading], lengths: Sequence[int]) -> Columns:
        """Return a column for each class, and the call."""
        probabilities_NC = self._means(readings, softmax)
        calls = [self.names[i] for i in called(self.model, probabilities_NC)]
        calls = [call if reading.windows else "" for reading, call in zip(readings, calls, strict=True)]
        return {**dict(zip(self.names, probabilities_NC.T, strict=True)), "label": calls}

    def counts(self, columns: Any) -> dict[str, Any]:
        """Return how many records each class is called for."""
        found = Counter(columns["label"])
        return {"labels": {name: found[name] for name in self.names}}


class OfValues(Answers):
    """The value of each target, in its units."""

    def columns(self, readings: Sequence[Reading], lengths: Sequence[int]) -> Columns:
        """Return a column for each target."""
        values_NC = self._means(readings, lambda logits_WC: logits_WC.astype(float))
        return dict(zip(self.names, values_NC.T, strict=True))

    def counts(self, columns: Any) -> dict[str, Any]:
        """Return nothing: values are not counted."""
        return {}


class OfLabels(Answers):
    """The probability of each label, and ``labels``: those likelier than not, with commas between."""

    def columns(self, readings: Sequence[Reading], lengths: Sequence[int]) -> Columns:
        """Return a column for each label, and the likely ones."""
        said_NC = self._means(readings, lambda logits_WC: 1 / (1 + np.exp(-logits_WC.astype(float))))
        names = np.array(self.names, object)
        likely = [",".join(names[said_C > HALF]) for said_C in said_NC]
        return {**dict(zip(self.names, said_NC.T, strict=True)), "labels": likely}

    def counts(self, columns: Any) -> dict[str, Any]:
        """Return how many records are said to have each label."""
        return {"labels": {name: int((np.asarray(columns[name]) > HALF).sum()) for name in self.names}}


class OfLetters(Answers):
    """The class of each letter, as a text as long as the record: column ``letters``.

    A token has the class of its first letter. Letters that begin no token, and those that are not read, have
    no class; a mark that is no class stands for them.
    """

    def columns(self, readings: Sequence[Reading], lengths: Sequence[int]) -> Columns:
        """Return the text of each record."""
        logits = self._logits(readings)
        names, mark = np.array(self.names), unread_mark(self.names)
        texts = []
        for reading, logits_TC, length in zip(readings, logits, lengths, strict=True):
            letters = np.full(length, mark)
            letters[reading.tokens.starts[: len(logits_TC)]] = names[logits_TC.argmax(1)]
            texts.append("".join(letters) if reading.windows else "")
        return {"letters": texts}

    def counts(self, columns: Any) -> dict[str, Any]:
        """Return how many letters each class is called for, and how many have no call."""
        found = Counter("".join(columns["letters"]))
        return {"letters": {name: found[name] for name in [*self.names, unread_mark(self.names)]}}

    def _logits(self, readings: Sequence[Reading]) -> list[np.ndarray]:
        """Return the logits (T, C) of the tokens of each record; windows hand over where they overlap."""
        windows = [window for reading in readings for window in reading.windows]
        found: list[np.ndarray] = [np.empty(0)] * len(windows)
        for batch, outputs in outputs_of(self.model, self.codec, windows, self.batch_size):
            for window, logits_KC in zip(batch, outputs.logits.float().cpu().numpy(), strict=True):
                found[window] = logits_KC[1 : len(windows[window]) + 1]
        ends = np.cumsum([len(reading.windows) for reading in readings]).tolist()
        parts = [found[end - len(reading.windows) : end] for reading, end in zip(readings, ends, strict=True)]
        none = np.empty((0, len(self.names)))
        return [
            stitch(part, reading.bounds) if part else none
            for reading, part in zip(readings, parts, strict=True)
        ]


KINDS: dict[str, type[Answers]] = {
    "classes": OfClasses,
    "values": OfValues,
    "labels": OfLabels,
    "letters": OfLetters,
}
