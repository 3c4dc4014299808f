"""Bits per hidden letter of a network beside those of simpler models, for the stages that report them."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import PretrainConfig
from pipeline.log import say
from pipeline.tokens.bits import Bits, HiddenText, can_hide_one, hidden_text, score, single_letters
from pipeline.tokens.counts import CountModel, composition_bits
from pipeline.tokens.kmers import Codec, codec_of
from pipeline.tokens.store import TokenSplit

FEW = 1000  # hidden letters, fewer of which are said to be few
WINDOWS = "windows.tsv"
MODELS = ("value", "untrained", "baseline", "random")  # whose bits have a column there


def metric_name(alphabet: str) -> str:
    """Return what the bits are called in metrics.json."""
    return "bits_per_hidden_base" if alphabet == "dna" else "bits_per_hidden_residue"


def load_language_model(checkpoint: Path):
    """Return a masked language model in evaluation mode, on the GPU if there is one, and its codec.

    Raises:
        UserError: the checkpoint holds no strand model, or one without a head that predicts tokens.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    from pipeline.training.classifier import load_model

    lacks = "predicts no tokens; pass a folder written by pretrain"
    model = load_model(AutoModelForMaskedLM, checkpoint, "pretrain", lacks)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device), codec_of(checkpoint)


def network_bits(model, codec: Codec, text: HiddenText) -> tuple[dict[str, Bits], dict[str, Any]]:
    """Return what hidden text costs a network, and what is to be known before it is compared.

    The bits are ``value``, ``joint`` (of whole runs), ``single`` (of bases hidden alone, for tokenizers that
    can do that), and ``soft_masked`` and ``other``, the two parts of value, where soft-masked letters are
    known.
    """
    scored = score(model, codec, text)
    bits = {"value": scored.main}
    if scored.joint is not None:
        bits["joint"] = scored.joint
    if text.run > 1 and can_hide_one(codec):
        singles = score(model, codec, single_letters(text, codec.n_real)).letters
        assert singles is not None
        bits["single"] = singles
    if scored.letters is not None and text.soft_masked is not None:
        bits["soft_masked"] = scored.letters.where(text.soft_masked)
        bits["other"] = scored.letters.where(~text.soft_masked)
    facts = {"comparable": scored.comparable, "unseen_letters": scored.unseen, "not_scored": text.not_scored}
    return bits, facts


def reference_bits(
    train: TokenSplit, codec: Codec, text: HiddenText, tuning: HiddenText | None
) -> dict[str, Bits]:
    """Return what the same hidden text costs models that read the training split alone.

    These are ``random``, the composition, and, with text for ``tuning``, ``baseline``, the two-sided count
    model, and ``single_baseline``, the same for bases hidden alone. A text for tuning in which no letter can
    be hidden is replaced by the hidden text itself, which favours the count model a little.
    """
    bits = {"random": text.bits(composition_bits(train, codec, text))}
    if tuning is None:
        return bits
    bits["baseline"] = _counted(train, codec, text, tuning)
    if text.run > 1:
        alone = [single_letters(each, codec.n_real) for each in (text, tuning)]
        bits["single_baseline"] = _counted(train, codec, *alone)
    return bits


def _counted(train: TokenSplit, codec: Codec, text: HiddenText, tuning: HiddenText) -> Bits:
    if not len(text.truth):
        return text.bits(np.empty(0))
    tuning = tuning if len(tuning.truth) else text
    return text.bits(CountModel(codec, text.run).fit(train, codec).tune(tuning).bits(text))


def summary(bits: dict[str, Bits], keep_W: np.ndarray | None = None) -> dict[str, float]:
    """Return the mean of each kind of bits, in all windows or in those kept; what has no letters is left out.

    ``standard_error`` is that of the value over windows, ``gap_closed`` how far it lies from composition to
    counting; left out where counting is not better by more than the standard error of their difference.
    """
    if keep_W is not None:
        bits = {name: each.where(keep_W[each.window]) for name, each in bits.items()}
    scores: dict[str, float] = {name: each.per_letter for name, each in bits.items() if each.total}
    scores["hidden_letters"] = bits["value"].total
    if bits["value"].total and np.isfinite(error := bits["value"].standard_error):
        scores["standard_error"] = error
    if {"value", "baseline", "random"} <= scores.keys():
        gap = bits["random"].above(bits["baseline"])
        if gap.per_letter > gap.standard_error:
            scores["gap_closed"] = (scores["random"] - scores["value"]) / gap.per_letter
    return scores


def say_if_few(hidden_letters: int, split: str) -> None:
    """Say that a score rests on few letters, if it does."""
    if hidden_letters < FEW:
        say(f"warning: the score rests on {hidden_letters} hidden letters of the {split} split alone")


class Scores:
    """Scores of a run: the network's on validation text as it trains, all models' on test text."""

    def __init__(self, config: PretrainConfig, splits: dict[str, TokenSplit], codec: Codec):
        self.splits, self.codec, self.name = splits, codec, metric_name(codec.alphabet)
        self.texts: dict[str, HiddenText] = {}
        self.tested: dict[str, Bits] = {}
        for split in ("validation", "test"):
            if config.model.architecture == "strand" and split in splits:
                text = hidden_text(splits[split], codec, config.window, config.evaluation_bases)
                self.texts |= {split: text} if text.windows else {}

    def during(self, model) -> dict[str, float]:
        """Return the validation score, if there is a validation split."""
        if "validation" not in self.texts:
            return {}
        scored = score(model, self.codec, self.texts["validation"])
        return {f"validation_{self.name}": scored.main.per_letter}

    def final(self, model, untrained, count_model: bool) -> dict[str, Any]:
        """Return the object for metrics.json: the network beside an untrained one and beside counting.

        ``tested`` then holds the bits that it sums up.
        """
        if "test" not in self.texts:
            why = "no letters of the test split can be hidden" if "test" in self.splits else "no test split"
            say(f"{why}, so no final score")
            return {}
        text = self.texts["test"]
        tuning = self.texts.get("validation", text) if count_model else None
        bits, facts = network_bits(model, self.codec, text)
        bits |= reference_bits(self.splits["train"], self.codec, text, tuning)
        bits["untrained"] = score(untrained, self.codec, text).main
        self.tested = bits
        say_if_few(bits["value"].total, "test")
        return {self.name: summary(bits) | facts}

    def windows(self) -> Iterator[dict[str, Any]]:
        """Yield what each window of test text cost each model in ``final``: sums over its hidden letters.

        ``hidden`` is the same for the same letters, hidden at the same places.
        """
        text = self.texts.get("test")
        if text is None or not self.tested:
            return
        size = len(text.windows)
        letters_W = np.bincount(self.tested["value"].window, self.tested["value"].letters, size)
        sums = {n: np.bincount(b.window, b.bits, size) for n, b in self.tested.items() if n in MODELS}
        for window, (codes, starts) in enumerate(zip(text.windows, text.starts, strict=True)):
            shown = codes.astype(np.uint8).tobytes() + starts.astype("<i8").tobytes() + bytes([text.run])
            hidden = hashlib.blake2b(shown, digest_size=8).hexdigest()
            yield {"hidden": hidden, "letters": int(letters_W[window])} | {n: sums[n][window] for n in sums}


def write_windows(folder: Path, scores: Mapping[str, Scores]) -> None:
    """Write windows.tsv, one row for each window of each data set's test text, for runs to be compared by.

    Columns: ``data_set``, ``hidden`` and ``letters`` (how many are hidden) of a window, and the sum of their
    bits under the network (``value``), an untrained one, counting (``baseline``), composition (``random``).
    """
    import pandas as pd

    rows = [{"data_set": name, **row} for name, one in scores.items() for row in one.windows()]
    if rows:
        table = pd.DataFrame(rows, columns=["data_set", "hidden", "letters", *MODELS])
        table.to_csv(folder / WINDOWS, sep="\t", index=False, float_format="%.9g")
