"""Bits per hidden base (or residue): one score for every tokenizer.

The hidden runs are fixed in base coordinates, before any tokenizer is looked at, and shown as mask only. The
bits of a base come from the token that begins with it, or else from the one that covers it, summed over all
tokens that have the same letter there (a marginal). Random DNA scores 2.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.config import MaskingConfig
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.masking import generator, touched
from pipeline.tokens.store import TokenSplit

DNA_RUN = 6
EVALUATION = 0x5EED


@dataclass(frozen=True)
class HiddenText:
    """Windows of letter codes, and which letters of each are hidden and scored."""

    windows: list[np.ndarray]
    hidden: list[np.ndarray]

    @property
    def truth(self) -> np.ndarray:
        """(N,) codes of all hidden letters in order."""
        return np.concatenate([w[h] for w, h in zip(self.windows, self.hidden, strict=True)])


def hide_runs(codes_L: np.ndarray, run: int, n_real: int, fraction: float, rng) -> np.ndarray:
    """Return (L,) the letters to hide: runs aligned to the window's frame, never two next to one another."""
    blocks = max(1, len(codes_L) // run)
    number = min(max(1, round(blocks * fraction)), (blocks + 1) // 2)
    first = np.sort(rng.choice(blocks - number + 1, number, replace=False)) + np.arange(number)
    hidden = np.zeros(len(codes_L), bool)
    for block in first:
        hidden[block * run : (block + 1) * run] = True
    return hidden & (codes_L < n_real)


def hidden_text(split: TokenSplit, codec: KmerCodec, window: int, letters: int) -> HiddenText:
    """Return the fixed validation set of a split: consecutive windows, at most ``letters`` in all.

    It depends on the text and the window alone, not on tokenizer, seed or batch.
    """
    run = DNA_RUN if codec.alphabet == "dna" else 1
    fraction = MaskingConfig().fraction
    text = HiddenText([], [])
    seen = 0
    for record, length in enumerate(split.lengths):
        for start in range(0, int(length), window):
            if seen >= letters:
                return text
            codes = codec.codes_of_track(split.slice(record, start, min(window, int(length) - start)))
            hidden = hide_runs(codes, run, codec.n_real, fraction, generator(EVALUATION, record, start))
            if hidden.any():
                text.windows.append(codes)
                text.hidden.append(hidden)
                seen += len(codes)
    return text


@dataclass(frozen=True)
class _Question:
    ids: np.ndarray
    token: np.ndarray
    offset: np.ndarray


def _ask(codes_L: np.ndarray, hidden_L: np.ndarray, codec: KmerCodec) -> _Question:
    """Mask all tokens that touch a hidden letter, and say where each hidden letter is to be read."""
    tokens = codec.tokens(codes_L)
    ids = np.where(touched(tokens, hidden_L), codec.special("mask"), tokens.ids)
    places = np.flatnonzero(hidden_L)
    token = np.searchsorted(tokens.starts, places, side="right") - 1
    framed = np.concatenate(([codec.special("cls")], ids, [codec.special("eos")]))
    return _Question(framed, token + 1, places - tokens.starts[token])


def _batches(questions: list[_Question], budget: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for i in np.argsort([len(q.ids) for q in questions], kind="stable"):
        if batch and (len(batch) + 1) * len(questions[i].ids) > budget:
            yield batch
            batch = []
        batch.append(int(i))
    if batch:
        yield batch


@torch.no_grad()
def bits_per_letter(model, codec: KmerCodec, text: HiddenText, budget: int = 16_384) -> np.ndarray:
    """Return (N,) bits of every hidden letter, in the order of ``text.truth``."""
    model.eval()
    device = next(model.parameters()).device
    readers = _letter_readers(codec, device)
    questions = [_ask(w, h, codec) for w, h in zip(text.windows, text.hidden, strict=True)]
    bits: list[np.ndarray] = [np.empty(0)] * len(questions)
    for batch in _batches(questions, budget):
        width = max(len(questions[i].ids) for i in batch)
        ids = np.full((len(batch), width), codec.special("pad"), np.int64)
        for row, i in enumerate(batch):
            ids[row, : len(questions[i].ids)] = questions[i].ids
        flat = np.concatenate([row * width + questions[i].token for row, i in enumerate(batch)])
        inputs = torch.from_numpy(ids).to(device)
        logits_TV = model(
            input_ids=inputs,
            attention_mask=(inputs != codec.special("pad")).long(),
            target_positions=torch.from_numpy(flat).to(device),
        ).logits.float()
        offsets = np.concatenate([questions[i].offset for i in batch])
        truth = np.concatenate([text.windows[i][text.hidden[i]] for i in batch])
        scored = _marginal_bits(logits_TV, readers, offsets, truth)
        cuts = np.cumsum([len(questions[i].token) for i in batch])[:-1]
        for i, part in zip(batch, np.split(scored, cuts), strict=True):
            bits[i] = part
    return np.concatenate(bits)


def _letter_readers(codec: KmerCodec, device) -> torch.Tensor:
    """Return (k, V, letters) ones where token v has that real letter at that offset."""
    letters = torch.from_numpy(codec.letter_at.astype(np.int64))
    return (letters[..., None] == torch.arange(codec.n_real)).float().to(device)


def _marginal_bits(logits_TV, readers, offsets: np.ndarray, truth: np.ndarray) -> np.ndarray:
    bits = np.empty(len(truth))
    probabilities_TV = logits_TV.softmax(-1)
    for offset in np.unique(offsets):
        rows = np.flatnonzero(offsets == offset)
        letters = probabilities_TV[rows] @ readers[offset]
        letters = letters / letters.sum(-1, keepdim=True)
        answer = torch.from_numpy(truth[rows].astype(np.int64)).to(letters.device)
        likelihood = letters.gather(1, answer[:, None])[:, 0].clamp_min(1e-30)
        bits[rows] = -np.log2(likelihood.cpu().numpy())
    return bits
