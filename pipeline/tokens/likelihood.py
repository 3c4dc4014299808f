"""Log-likelihoods out of a masked language model: of text as it is, and of other letters in its places.

The pseudo-log-likelihood of a text is the sum of the logarithms of the probabilities that the model gives its
letters, each hidden once and the rest shown (Besag 1975, doi:10.2307/2987782; Salazar et al. 2020,
arXiv:1910.14659). Tokens that begin at every letter (residues, single bases, overlapping k-mers) hide one
letter at a time; other k-mers, codons and byte pairs can only be hidden whole, and the probability is then
the token's, that of its letters together. Letters and tokens are read as in `bits`: a letter is the sum over
all tokens that have it at the place; what is not made of real letters (N, X) is neither hidden nor predicted.

The masked marginal of a change is the logarithm of the ratio of the probabilities of the new and of the old
letters, all places that change hidden at once (Meier et al. 2021, doi:10.1101/2021.07.09.450648). Of a token
that can only be hidden whole the other letters stay, so its ratio is that of the changed letters given them.

Shapes: L letters of a window, T its tokens, P hidden letters, A choices of letters for them, M tokens that
are asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch

from pipeline.tokens.bits import (
    LOGITS,
    Question,
    bits_of_letters,
    bits_of_tokens,
    question_batches,
    question_logits,
    real_tokens,
    uncovered,
)
from pipeline.tokens.kmers import Codec, KmerCodec, Tokens
from pipeline.tokens.masking import touched
from pipeline.tokens.windows import Reading, stitch

QUESTIONS = 4096  # in memory at once


@dataclass(frozen=True)
class Asked:
    """A window with letters hidden, and what may stand in their places.

    Attributes:
        tokens: the window's tokens, without specials.
        codes: (L,) its letter codes.
        places: (P,) the hidden letters, real ones, in order.
        choices: (A, P) codes of real letters; for byte pairs the true ones alone.
    """

    tokens: Tokens
    codes: np.ndarray
    places: np.ndarray
    choices: np.ndarray

    @classmethod
    def truth(cls, tokens: Tokens, codes: np.ndarray, places: np.ndarray) -> "Asked":
        """Ask for the letters that do stand there."""
        return cls(tokens, codes, places, codes[None, places])


def hides_letters(codec: Codec) -> bool:
    """Tell whether single letters can be hidden under a tokenizer, and not only whole tokens."""
    return isinstance(codec, KmerCodec) and codec.stride == 1


def log_probabilities(model, codec: Codec, asked: Sequence[Asked], budget: int) -> list[np.ndarray]:
    """Return for each window (A,) the log-probability, in nats, of each choice of its hidden letters.

    It is the sum over the hidden letters, or over the hidden tokens, all from one pass of the model.

    Args:
        model: a masked language model of ours.
        codec: codec of its tokenizer.
        asked: the windows; what each is given does not depend on the others.
        budget: tokens read at once, at most, but for a window that is longer.
    """
    return [nats_A for nats_A, _ in _answers(model, codec, asked, budget)]


def _answers(model, codec: Codec, asked: Sequence[Asked], budget: int) -> Iterator[tuple[np.ndarray, bool]]:
    """Yield the log-probabilities (A,) of each window, and whether other letters were hidden, too."""
    for begin in range(0, len(asked), QUESTIONS):
        some = asked[begin : begin + QUESTIONS]
        questions = [_question(each, codec) for each in some]
        bits = _entry_bits(model, codec, questions, budget)
        for each, question, bits_E in zip(some, questions, bits, strict=True):
            yield -log(2) * bits_E.reshape(len(each.choices), -1).sum(1), question.unseen > 0


def _question(asked: Asked, codec: Codec) -> Question:
    """Mask all tokens that touch a hidden letter; every choice asks for the same M tokens, one after another.

    Hidden tokens of one letter, where k-mers do not overlap, are read as single letters.
    """
    tokens, choices_AP = asked.tokens, asked.choices
    hidden_L = np.zeros(len(asked.codes), bool)
    hidden_L[asked.places] = True
    masked_T = touched(tokens, hidden_L)
    if hides_letters(codec):
        places = asked.places
        token_M = np.searchsorted(tokens.starts, places, side="right") - 1
        letters_AM, answers_AM = choices_AP, np.zeros_like(choices_AP)
        joint_M = np.zeros(len(places), bool)
    else:
        token_M = np.flatnonzero(masked_T)
        places = tokens.starts[token_M]
        joint_M = (tokens.spans[token_M] > 1) | (not isinstance(codec, KmerCodec))
        letters_AM, answers_AM = _chosen(asked, token_M, codec)
    A = len(choices_AP)
    shown = np.where(masked_T, codec.special("mask"), tokens.ids)
    unseen_L = uncovered(tokens, masked_T, len(asked.codes)) & ~hidden_L
    return Question(
        ids=np.concatenate(([codec.special("cls")], shown, [codec.special("eos")])),
        token=np.tile(token_M + 1, A),
        answer=answers_AM.astype(np.int64).ravel(),
        span=np.tile(tokens.spans[token_M], A),
        letter=letters_AM.astype(np.int64).ravel(),
        offset=np.tile(places - tokens.starts[token_M], A),
        joint=np.tile(joint_M, A),
        unseen=int(unseen_L.sum()),
    )


def _chosen(asked: Asked, token_M: np.ndarray, codec: Codec) -> tuple[np.ndarray, np.ndarray]:
    """Return the first letter and the id (A, M) that the hidden tokens have with each choice."""
    tokens = asked.tokens
    starts, spans = tokens.starts[token_M], tokens.spans[token_M]
    letters, answers = [], []
    for choice in asked.choices:
        codes_L = asked.codes.copy()
        codes_L[asked.places] = choice
        letters.append(codes_L[starts])
        same = np.array_equal(codes_L, asked.codes)
        assert same or isinstance(codec, KmerCodec), "other letters are other byte pairs"
        answers.append(tokens.ids[token_M] if same else codec.reencode(codes_L, starts, spans))
    return np.stack(letters), np.stack(answers)


@torch.no_grad()
def _entry_bits(model, codec: Codec, questions: list[Question], budget: int) -> list[np.ndarray]:
    """Return the bits of every entry of each question."""
    model.eval()
    real_V = real_tokens(codec)
    found = [np.empty(0)] * len(questions)
    for batch in question_batches(questions, min(budget, LOGITS // len(codec.vocabulary))):
        chosen = [questions[i] for i in batch]
        logits_NV = question_logits(model, codec, chosen)
        joint_N = np.concatenate([question.joint for question in chosen])
        bits_N = np.empty(len(joint_N))
        if not joint_N.all():
            assert isinstance(codec, KmerCodec)
            bits_N = bits_of_letters(logits_NV, chosen, codec)
        bits_N[joint_N] = bits_of_tokens(logits_NV, chosen, real_V)
        ends = np.cumsum([len(question.token) for question in chosen])
        for i, bits in zip(batch, np.split(bits_N, ends[:-1]), strict=True):
            found[i] = bits
    return found


# -- whole texts


@dataclass(frozen=True)
class Likelihood:
    """The pseudo-log-likelihood of a text.

    Attributes:
        nats: the sum of the log-probabilities of its letters (or tokens).
        scored: letters that it is the sum over.
        not_scored: letters that are no real ones, or were not read.
        joined: hidden letters that could not be hidden without others, beside those of their own token:
            overlapping k-mers show up to k - 1 letters at either end of real text only together.
    """

    nats: float
    scored: int
    not_scored: int
    joined: int

    @property
    def bits_per_letter(self) -> float:
        """Mean bits that a letter costs; not a number if there is none."""
        return -self.nats / log(2) / self.scored if self.scored else float("nan")


def pseudo_log_likelihoods(
    model, codec: Codec, readings: Sequence[tuple[Reading, np.ndarray]], budget: int
) -> list[Likelihood]:
    """Return the pseudo-log-likelihood of each text; a letter of a long one is hidden in one window alone.

    That is the window in which its token (the one that begins with it) is farthest from an edge.

    Args:
        model: a masked language model of ours.
        codec: codec of its tokenizer.
        readings: what the model reads of each text, and the letter codes (L,) of the whole text.
        budget: tokens read at once, at most.
    """
    asked = [_all_letters(reading, codes_L, codec) for reading, codes_L in readings]
    answers = _answers(model, codec, [one for each in asked for one in each], budget)
    likelihoods = []
    for (_, codes_L), each in zip(readings, asked, strict=True):
        own = [next(answers) for _ in each]
        nats, joined = sum(float(nats_A[0]) for nats_A, _ in own), sum(together for _, together in own)
        scored = sum(len(one.places) for one in each)
        likelihoods.append(Likelihood(nats, scored, len(codes_L) - scored, joined))
    return likelihoods


def _all_letters(reading: Reading, codes_L: np.ndarray, codec: Codec) -> list[Asked]:
    """Return a question for every letter that can be hidden, or for every token."""
    owner_T = stitch(
        [np.full(stop - first, w) for w, (first, stop) in enumerate(reading.bounds)], reading.bounds
    )
    windows = [window(reading.tokens, codes_L, *bounds) for bounds in reading.bounds.tolist()]
    asked = []
    for places in _units(reading.tokens, codes_L, codec):
        tokens, codes, begin = windows[owner_T[_token_of(places[0], reading.tokens)]]
        asked.append(Asked.truth(tokens, codes, places - begin))
    return asked


def _token_of(place: int, tokens: Tokens) -> int:
    """Return the token that begins with a letter, or the last one, which covers it."""
    return int(np.searchsorted(tokens.starts, place, side="right")) - 1


def _units(tokens: Tokens, codes_L: np.ndarray, codec: Codec) -> list[np.ndarray]:
    """Return the real letters that are hidden together."""
    other_L = codes_L >= codec.n_real
    if hides_letters(codec):
        covered = int((tokens.starts + tokens.spans).max(initial=0))
        return [np.array([place]) for place in np.flatnonzero(~other_L[:covered])]
    real_T = ~touched(tokens, other_L)
    pairs = zip(tokens.starts[real_T], tokens.spans[real_T], strict=True)
    return [np.arange(start, start + span) for start, span in pairs]


def window(tokens: Tokens, codes_L: np.ndarray, first: int, stop: int) -> tuple[Tokens, np.ndarray, int]:
    """Return tokens [first, stop) of a text, and their letters, counted from the first, and which that is."""
    starts, spans = tokens.starts[first:stop], tokens.spans[first:stop]
    begin, end = int(starts[0]), int((starts + spans).max())
    return Tokens(tokens.ids[first:stop], starts - begin, spans), codes_L[begin:end], begin


def window_around(
    tokens: Tokens, codes_L: np.ndarray, places: np.ndarray, size: int
) -> tuple[Tokens, np.ndarray, int] | None:
    """Return the window of ``size`` tokens with letters in its middle, as `window`; None if they do not fit.

    At the ends of a text the window is moved, so that it is no shorter.
    """
    covering = np.flatnonzero((tokens.starts <= places[-1]) & (tokens.starts + tokens.spans > places[0]))
    first, stop = int(covering[0]), int(covering[-1]) + 1
    if stop - first > size:
        return None
    begin = min(max(0, (first + stop - size) // 2), max(0, len(tokens.ids) - size))
    return window(tokens, codes_L, begin, min(begin + size, len(tokens.ids)))


def text_likelihoods(
    model, codec: Codec, texts: Sequence[str], size: int, budget: int
) -> dict[str, Likelihood]:
    """Return the pseudo-log-likelihoods of those clean texts that have ``size`` tokens at most."""
    readings = {}
    for text in texts:
        codes_L = codec.codes(text)
        tokens = codec.tokens(codes_L)
        if len(tokens.ids) <= size:
            readings[text] = Reading(text, tokens, np.array([[0, len(tokens.ids)]])), codes_L
    found = pseudo_log_likelihoods(model, codec, list(readings.values()), budget)
    return dict(zip(readings, found, strict=True))


# -- changes of texts


Change = tuple[str, tuple[int, ...], str]


class Marginals:
    """Masked marginals of many changes; each text is shown once for every set of places that change in it.

    Args:
        codec: codec of the model's tokenizer, not one of byte pairs: other letters are other pairs.
        size: tokens of the model's context, without specials.
    """

    def __init__(self, codec: Codec, size: int):
        self.codec = codec
        self.size = size
        self._texts: dict[str, tuple[np.ndarray, Tokens]] = {}
        self._choices: dict[tuple[str, tuple[int, ...]], dict[str, int]] = {}

    def add(self, old: str, new: str) -> Change | None:
        """Take down a change and return the key of its answer; None if its places do not fit in one window.

        Args:
            old: clean letters; of a long text the model sees a window with the change in the middle.
            new: as many letters; those that differ are real ones in both.
        """
        assert old != new
        if old not in self._texts:
            codes_L = self.codec.codes(old)
            self._texts[old] = codes_L, self.codec.tokens(codes_L)
        places = tuple(i for i, (one, other) in enumerate(zip(old, new, strict=True)) if one != other)
        if (old, places) not in self._choices:
            if self._window(old, places) is None:
                return None
            self._choices[old, places] = {"".join(old[place] for place in places): 0}
        choices = self._choices[old, places]
        letters = "".join(new[place] for place in places)
        choices.setdefault(letters, len(choices))
        return old, places, letters

    def answers(self, model, budget: int) -> dict[Change, float]:
        """Return by key the masked marginals, in nats: below 0 where the old text is likelier."""
        asked = [self._asked(*key, list(choices)) for key, choices in self._choices.items()]
        found = log_probabilities(model, self.codec, asked, budget)
        return {
            (*key, letters): float(nats_A[row] - nats_A[0])
            for (key, choices), nats_A in zip(self._choices.items(), found, strict=True)
            for letters, row in choices.items()
        }

    def _window(self, text: str, places: tuple[int, ...]) -> tuple[Tokens, np.ndarray, int] | None:
        codes_L, tokens = self._texts[text]
        return window_around(tokens, codes_L, np.array(places), self.size)

    def _asked(self, text: str, places: tuple[int, ...], choices: list[str]) -> Asked:
        shown = self._window(text, places)
        assert shown is not None
        tokens, codes_L, begin = shown
        codes_AP = np.stack([self.codec.codes(letters) for letters in choices])
        return Asked(tokens, codes_L, np.array(places) - begin, codes_AP)
