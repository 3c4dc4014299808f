"""Bits per hidden base (or residue): one score for every tokenizer.

The hidden runs are fixed in base coordinates, before any tokenizer is looked at, and shown as mask only. They
are six bases long and lie in the window's frame, so that k-mers of every k that divides six hide a run and no
base beside it: the network reads the same visible bases whatever its tokens. The bits of a base come from the
token that begins with it, or else from the one that covers it, summed over all tokens that have the same
letter there (a marginal); the joint bits of a run from its tokens one after the other. Random DNA scores 2.

Shapes: L letters of a window, R hidden runs, N scores, T tokens, V vocabulary, W windows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from pipeline.config import MaskingConfig
from pipeline.keyed import generator
from pipeline.tokens.kmers import Codec, KmerCodec, Tokens
from pipeline.tokens.masking import touched
from pipeline.tokens.store import TokenSplit

DNA_RUN = 6
EVALUATION = 0x5EED
LOGITS = 1 << 26  # in memory at once


@dataclass(frozen=True)
class Bits:
    """What hidden text costs a model.

    Entry n says that ``letters[n]`` letters of window ``window[n]`` cost ``bits[n]``; all are (N,).
    """

    bits: np.ndarray
    letters: np.ndarray
    window: np.ndarray

    def where(self, keep_N: np.ndarray) -> "Bits":
        """Return the entries kept."""
        return Bits(self.bits[keep_N], self.letters[keep_N], self.window[keep_N])

    def above(self, other: "Bits") -> "Bits":
        """Return what each letter costs more than under another model of the same letters."""
        return Bits(self.bits - other.bits, self.letters, self.window)

    @property
    def total(self) -> int:
        """Number of letters."""
        return int(self.letters.sum())

    @property
    def per_letter(self) -> float:
        """Mean bits of a letter; not a number if there is none."""
        return float(self.bits.sum() / self.total) if self.total else float("nan")

    @property
    def standard_error(self) -> float:
        """Standard error of ``per_letter`` over windows, as letters of one window are alike.

        It is that of a ratio of two sums (Cochran 1977, Sampling Techniques, 2.11); not a number for fewer
        than two windows.
        """
        letters_W = np.bincount(self.window, self.letters)
        rest_W = (np.bincount(self.window, self.bits) - self.per_letter * letters_W)[letters_W > 0]
        n = len(rest_W)
        return float((n / (n - 1) * (rest_W**2).sum()) ** 0.5 / self.total) if n > 1 else float("nan")


@dataclass(frozen=True)
class HiddenText:
    """Windows of letter codes, and which letters of each are hidden and scored.

    ``starts`` holds the first letter of each hidden run of a window, (R,) in order; ``records`` (W,) the row
    of the split that a window is from; ``soft`` (L,) marks soft-masked letters, where the split knows them.
    ``not_scored`` counts the real letters of all windows that no run comparable between tokenizers can hold.
    """

    run: int
    windows: list[np.ndarray]
    starts: list[np.ndarray]
    records: np.ndarray
    soft: list[np.ndarray] | None = None
    not_scored: int = 0

    @cached_property
    def places(self) -> list[np.ndarray]:
        """For each window the hidden letters, in order."""
        return [(starts[:, None] + np.arange(self.run)).ravel() for starts in self.starts]

    @cached_property
    def truth(self) -> np.ndarray:
        """(N,) codes of all hidden letters in order."""
        return np.concatenate([w[p] for w, p in zip(self.windows, self.places, strict=True)])

    @cached_property
    def window_of(self) -> np.ndarray:
        """(N,) the window of every hidden letter."""
        return np.repeat(np.arange(len(self.windows)), [len(places) for places in self.places])

    @cached_property
    def soft_masked(self) -> np.ndarray | None:
        """(N,) whether each hidden letter is soft-masked, or None where that is not known."""
        if self.soft is None:
            return None
        return np.concatenate([soft[p] for soft, p in zip(self.soft, self.places, strict=True)])

    def bits(self, bits_N: np.ndarray) -> Bits:
        """Return what every hidden letter costs, in the order of ``truth``, with the windows they lie in."""
        return Bits(bits_N, np.ones(len(bits_N), int), self.window_of)

    def hidden(self, window: int) -> np.ndarray:
        """Return (L,) whether each letter of a window is hidden."""
        hidden_L = np.zeros(len(self.windows[window]), bool)
        hidden_L[self.places[window]] = True
        return hidden_L


def whole_runs(codes_L: np.ndarray, run: int, n_real: int) -> np.ndarray:
    """Return where the runs in a window's frame begin that k-mers of every k that divides ``run`` hide alone.

    Non-overlapping k-mers start anew after each letter that is not real, codons do not: the real letters
    around the run must begin in the window's frame. Overlapping k-mers show up to k - 1 letters at the
    window's end only together with those before: the run must not be the last one there if letters follow it.
    """
    size = len(codes_L)
    other = np.where(codes_L < n_real, 0, np.arange(1, size + 1))
    begins = np.maximum.accumulate(other)  # of the stretch of real letters that a letter is in, if it is real
    starts = np.arange(0, size - run + 1, run)
    fits = (begins[starts + run - 1] <= starts) & (begins[starts] % run == 0)
    if size % run and len(starts):
        fits[-1] &= begins[-1] > starts[-1]
    return starts[fits]


def hide_runs(codes_L: np.ndarray, run: int, n_real: int, fraction: float, rng) -> np.ndarray:
    """Return (R,) the first letters of runs to hide, never two next to one another."""
    starts = whole_runs(codes_L, run, n_real)
    if not len(starts):
        return starts
    number = min(max(1, round(len(starts) * fraction)), (len(starts) + 1) // 2)
    first = np.sort(rng.choice(len(starts) - number + 1, number, replace=False))
    return starts[first + np.arange(number)]


def _sample(lengths: np.ndarray, window: int, letters: int) -> np.ndarray:
    """Return record, first letter and size (W, 3) of windows from all over a split, ``letters`` at most."""
    counts = -(-lengths // window)
    records = np.repeat(np.arange(len(lengths)), counts)
    firsts = (np.arange(len(records)) - np.repeat(np.cumsum(counts) - counts, counts)) * window
    sizes = np.minimum(window, lengths[records] - firsts)
    order = generator(EVALUATION, len(records)).permutation(len(records))
    some = np.sort(order[np.cumsum(sizes[order]) <= letters]) if len(order) > 1 else order
    return np.stack((records, firsts, sizes), 1)[some]


def hidden_text(split: TokenSplit, codec: Codec, window: int, letters: int) -> HiddenText:
    """Return the fixed validation set of a split: windows from all over it, at most ``letters`` in all.

    It depends on the text and the window alone, not on tokenizer, seed or batch.
    """
    run = DNA_RUN if codec.alphabet == "dna" else 1
    windows, starts, records, soft, not_scored = [], [], [], [], 0
    for record, first, size in _sample(split.lengths, window, letters).tolist():
        codes = codec.codes_of_track(split.slice(record, first, size))
        rng = generator(EVALUATION, record, first)
        hidden = hide_runs(codes, run, codec.n_real, MaskingConfig().fraction, rng)
        real = int((codes < codec.n_real).sum())
        not_scored += real - run * len(whole_runs(codes, run, codec.n_real))
        if len(hidden):
            windows.append(codes)
            starts.append(hidden)
            records.append(record)
            soft.append(split.soft_letters(record, first, size))
    known = soft if split.soft_mask is not None else None
    return HiddenText(run, windows, starts, np.array(records, int), known, not_scored)


def single_letters(text: HiddenText, n_real: int) -> HiddenText:
    """Return the same windows with one letter hidden of each run that has as many real letters on both sides.

    Which of its letters changes from run to run, so that all codon positions occur.
    """
    singles = []
    for codes, starts in zip(text.windows, text.starts, strict=True):
        around = starts[:, None] + np.arange(-text.run, 2 * text.run)
        inside = (around >= 0) & (around < len(codes))
        real = inside & (codes[np.clip(around, 0, len(codes) - 1)] < n_real)
        singles.append((starts + starts // text.run % text.run)[real.all(1)])
    return HiddenText(1, text.windows, singles, text.records, text.soft)


def can_hide_one(codec: Codec) -> bool:
    """Tell whether single bases can be hidden under a tokenizer without hiding their neighbours."""
    return isinstance(codec, KmerCodec) and codec.stride == 1 and codec.k <= DNA_RUN


@dataclass(frozen=True)
class Question:
    """A window as it is shown, ``ids`` (T,), and what is asked about it.

    Entry n of the others, (N,), asks for the letter ``letter[n]`` at place ``offset[n]`` of the token at
    ``token[n]``, whose id is ``answer[n]`` and which covers ``span[n]`` letters. ``joint`` marks the tokens
    whose probabilities are multiplied. ``unseen`` letters were to be shown, and no visible token covers them.
    """

    ids: np.ndarray
    token: np.ndarray
    answer: np.ndarray
    span: np.ndarray
    letter: np.ndarray
    offset: np.ndarray
    joint: np.ndarray
    unseen: int


def _ask(text: HiddenText, window: int, codec: Codec) -> Question:
    """Mask all tokens that touch a hidden letter, and say where each hidden letter is to be read."""
    codes_L, places, hidden_L = text.windows[window], text.places[window], text.hidden(window)
    tokens = codec.tokens(codes_L)
    masked_T = touched(tokens, hidden_L)
    if isinstance(codec, KmerCodec):
        token = np.searchsorted(tokens.starts, places, side="right") - 1
        joint = (np.arange(len(places)) % codec.k == 0) & (text.run % codec.k == 0)
    else:
        token = np.flatnonzero(masked_T)
        places, joint = tokens.starts[token], np.ones(len(token), bool)
    ids = np.where(masked_T, codec.special("mask"), tokens.ids)
    return Question(
        ids=np.concatenate(([codec.special("cls")], ids, [codec.special("eos")])),
        token=token + 1,
        answer=tokens.ids[token].astype(np.int64),
        span=tokens.spans[token],
        letter=codes_L[places].astype(np.int64),
        offset=places - tokens.starts[token],
        joint=joint,
        unseen=int((uncovered(tokens, masked_T, len(codes_L)) & ~hidden_L).sum()),
    )


def uncovered(tokens: Tokens, masked_T: np.ndarray, size: int) -> np.ndarray:
    """Return (size,) whether no visible token covers a letter."""
    shown = np.zeros(size + 1, int)
    np.add.at(shown, tokens.starts[~masked_T], 1)
    np.add.at(shown, (tokens.starts + tokens.spans)[~masked_T], -1)
    return np.cumsum(shown)[:-1] == 0


def _joined(questions: list[Question], name: str) -> np.ndarray:
    return np.concatenate([getattr(question, name) for question in questions])


def question_batches(questions: list[Question], budget: int) -> Iterator[list[int]]:
    """Yield which questions to ask together: of similar length, ``budget`` tokens at most, or one."""
    batch: list[int] = []
    for i in np.argsort([len(q.ids) for q in questions], kind="stable"):
        if batch and (len(batch) + 1) * len(questions[i].ids) > budget:
            yield batch
            batch = []
        batch.append(int(i))
    if batch:
        yield batch


def question_logits(model, codec: Codec, questions: list[Question]) -> torch.Tensor:
    """Return the logits (N, V) of all tokens asked for."""
    width = max(len(question.ids) for question in questions)
    ids = np.full((len(questions), width), codec.special("pad"), np.int64)
    for row, question in enumerate(questions):
        ids[row, : len(question.ids)] = question.ids
    flat = np.concatenate([row * width + question.token for row, question in enumerate(questions)])
    device = next(model.parameters()).device
    inputs = torch.from_numpy(ids).to(device)
    logits_NV = model(
        input_ids=inputs,
        attention_mask=(inputs != codec.special("pad")).long(),
        target_positions=torch.from_numpy(flat).to(device),
    ).logits
    return logits_NV[:, : len(codec.vocabulary)].float()  # some networks have room for more tokens


def bits_of_letters(logits_NV: torch.Tensor, questions: list[Question], codec: KmerCodec) -> np.ndarray:
    """Return (N,) the bits of each letter, summed over the tokens that have it at the same place."""
    offset, letter = _joined(questions, "offset"), _joined(questions, "letter")
    bits = np.empty(len(letter))
    probabilities_NV = logits_NV.softmax(-1)
    real = torch.arange(codec.n_real)
    for o in np.unique(offset):
        rows = np.flatnonzero(offset == o)
        has_VA = torch.from_numpy(codec.letter_at[o].astype(np.int64))[:, None] == real
        letters_NA = probabilities_NV[rows] @ has_VA.float().to(logits_NV.device)
        bits[rows] = _bits((letters_NA / letters_NA.sum(-1, keepdim=True)), letter[rows])
    return bits


def bits_of_tokens(logits_NV: torch.Tensor, questions: list[Question], real_V: np.ndarray) -> np.ndarray:
    """Return the bits of the tokens of ``joint``, among all tokens ``real_V`` that could stand there."""
    rows = np.flatnonzero(_joined(questions, "joint"))
    column = np.cumsum(real_V) - 1
    answer = column[_joined(questions, "answer")[rows]]
    keep = torch.from_numpy(np.flatnonzero(real_V)).to(logits_NV.device)
    return _bits(logits_NV[rows][:, keep].softmax(-1), answer)


def _bits(probabilities_NA: torch.Tensor, answer_N: np.ndarray) -> np.ndarray:
    index = torch.from_numpy(answer_N).to(probabilities_NA.device)
    chosen = probabilities_NA.gather(1, index[:, None])[:, 0].clamp_min(1e-30)
    return -np.log2(chosen.double().cpu().numpy())


def real_tokens(codec: Codec) -> np.ndarray:
    """Return (V,) which tokens hidden text is made of: k-mers of real letters, or pieces of any length."""
    letters = set(codec.letters[: codec.n_real])
    real_V = np.zeros(len(codec.vocabulary), bool)
    for token, i in codec.vocabulary.items():
        whole = not isinstance(codec, KmerCodec) or len(token) == codec.k
        real_V[i] = whole and set(token) <= letters
    return real_V


@dataclass(frozen=True)
class Scored:
    """What a network says of hidden text.

    ``letters`` has an entry for every hidden letter, in the order of the text's ``truth``; None for byte
    pairs, whose letters cannot be told apart. ``joint`` has one for every run, or for every hidden byte pair;
    None where runs are single letters, or tokens do not divide them. ``unseen`` counts letters that were
    hidden with the runs although they should have been shown: where it is not 0, the question was harder than
    that put to other tokenizers.
    """

    letters: Bits | None
    joint: Bits | None
    unseen: int

    @property
    def main(self) -> Bits:
        """The bits that a tokenizer is judged by: marginal ones; joint ones for byte pairs."""
        found = self.letters or self.joint
        assert found is not None
        return found

    @property
    def comparable(self) -> bool:
        """Whether other tokenizers answer the same questions from the same visible letters."""
        return self.letters is not None and self.unseen == 0


@torch.no_grad()
def score(model, codec: Codec, text: HiddenText, budget: int = 16_384) -> Scored:
    """Return what a network says of hidden text, shown in batches of at most ``budget`` tokens."""
    model.eval()
    questions = [_ask(text, window, codec) for window in range(len(text.windows))]
    real_V = real_tokens(codec)
    letter_bits, token_bits, order = [], [], []
    for batch in question_batches(questions, min(budget, LOGITS // len(codec.vocabulary))):
        chosen = [questions[i] for i in batch]
        logits_NV = question_logits(model, codec, chosen)
        order += batch
        token_bits.append(bits_of_tokens(logits_NV, chosen, real_V))
        if isinstance(codec, KmerCodec):
            letter_bits.append(bits_of_letters(logits_NV, chosen, codec))
    joint_of = np.repeat(order, [questions[i].joint.sum() for i in order])
    joint = np.concatenate(token_bits)[np.argsort(joint_of, kind="stable")]
    unseen = sum(question.unseen for question in questions)
    if not isinstance(codec, KmerCodec):
        return Scored(None, Bits(joint, _joined(questions, "span"), np.sort(joint_of)), unseen)
    letter_of = np.repeat(order, [len(questions[i].token) for i in order])
    letters = text.bits(np.concatenate(letter_bits)[np.argsort(letter_of, kind="stable")])
    return Scored(letters, _run_bits(joint, text, codec) if text.run > 1 else None, unseen)


def _run_bits(joint: np.ndarray, text: HiddenText, codec: KmerCodec) -> Bits | None:
    """Return the bits of runs, given those of their tokens; None where tokens do not divide runs."""
    if text.run % codec.k:
        return None
    bits = joint.reshape(-1, text.run // codec.k).sum(1)
    return Bits(bits, np.full(len(bits), text.run), text.window_of[:: text.run])


def bits_per_letter(model, codec: Codec, text: HiddenText, budget: int = 16_384) -> np.ndarray:
    """Return (N,) bits of every hidden letter, in the order of ``text.truth``."""
    letters = score(model, codec, text, budget).letters
    assert letters is not None, "byte pairs have no bits of single letters"
    return letters.bits
