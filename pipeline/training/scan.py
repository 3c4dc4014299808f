"""Scores of all windows of a genome, chunk by chunk: resumable, in bounded memory, divisible among processes.

What scores is any function of letters and window starts (`Scorer`): a classifier, or something simpler to
compare with. Scores of a chunk of windows are a file that appears complete or not at all, and a chunk that
has one is not read again.

Shapes: N windows, L letters, T tokens of a window, B windows of a batch, C classes; 2 strands, + and -.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from pipeline.artifacts import read_json, write_json
from pipeline.errors import UserError
from pipeline.log import say, track
from pipeline.sequences.targets import Letters, Target
from pipeline.tokens.kmers import Codec, KmerCodec
from pipeline.training.classifier import frame, pad

CHUNK = 16_384  # windows
LONGEST_CHUNK = 1 << 22  # letters
STRANDS = (1, -1)


class Scorer(Protocol):
    """What gives windows scores."""

    size: int

    def __call__(self, letters: bytes, start_N: np.ndarray) -> np.ndarray:
        """Return the scores (2, N) of windows of both strands, NaN where not all letters are ACGT."""
        ...


def unread(letter_L: np.ndarray, start_N: np.ndarray, size: int) -> np.ndarray:
    """Return which windows (N,) hold letters other than ACGT, whose codes are above 3."""
    others = np.concatenate(([0], np.cumsum(letter_L > 3)))
    return others[start_N + size] > others[start_N]


@dataclass(frozen=True)
class Tokenizer:
    """Tokens of windows of one size, of ACGT alone, as slices of the track of a record.

    Attributes:
        codec: codec of k-mers, codons or single letters.
        size: letters of a window.
    """

    codec: KmerCodec
    size: int

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in a window its k-mers begin, and where letters stand that are tokens by themselves."""
        k, stride = self.codec.k, self.codec.stride
        kmers = np.arange(0, self.size - k + 1, stride)
        end = kmers[-1] + k if len(kmers) else 0
        return kmers, np.arange(end, self.size)

    @property
    def tokens(self) -> int:
        """Tokens of a window, T."""
        return sum(map(len, self._places))

    def ids(self, track_L: np.ndarray, code_L: np.ndarray, start_B: np.ndarray) -> np.ndarray:
        """Return the ids (B, T), without specials, of windows of a record with that track and those codes."""
        kmers, singles = (start_B[:, None] + places for places in self._places)
        return np.concatenate((track_L[kmers], self.codec.single_ids[code_L[singles]]), 1)


class Classifier:
    """Log-odds of one class of a classifier against the others.

    Args:
        model: the network, in evaluation mode, on its device.
        codec: codec of its tokenizer.
        positive: number of the class.
        size: letters of a window.
        batch_size: windows read at once.
        strandless: give both strands their mean.
    """

    def __init__(self, model, codec: Codec, positive: int, size: int, batch_size: int, strandless: bool):
        self.model, self.codec, self.positive = model, codec, positive
        self.size, self.batch_size, self.strandless = size, batch_size, strandless

    def __call__(self, letters: bytes, start_N: np.ndarray) -> np.ndarray:
        """Return the log-odds (2, N), float32: of windows as they are, and of their reverse complements."""
        code_L = self.codec.codes(letters)
        read_N = np.flatnonzero(~unread(code_L, start_N, self.size))
        odds_2N = np.full((2, len(start_N)), np.nan, np.float32)
        other_L = np.where(code_L > 3, code_L, 3 - code_L)[::-1]
        odds_2N[0, read_N] = self._read(code_L, start_N[read_N])
        odds_2N[1, read_N] = self._read(other_L, len(code_L) - self.size - start_N[read_N])
        return np.tile(odds_2N.mean(0), (2, 1)) if self.strandless else odds_2N

    @torch.inference_mode()
    def _read(self, code_L: np.ndarray, start_N: np.ndarray) -> np.ndarray:
        odds_N = np.empty(len(start_N), np.float32)
        device, done = next(self.model.parameters()).device, 0
        for inputs in self._batches(code_L, start_N):
            inputs = {name: value.to(device) for name, value in inputs.items()}
            logits_BC = self.model(**inputs).logits.float()
            others_BC = logits_BC.clone()
            others_BC[:, self.positive] = -torch.inf
            odds_B = logits_BC[:, self.positive] - others_BC.logsumexp(1)
            odds_N[done : done + len(odds_B)] = odds_B.cpu().numpy()
            done += len(odds_B)
        return odds_N

    def _batches(self, code_L: np.ndarray, start_N: np.ndarray) -> Iterator[dict[str, torch.Tensor]]:
        """Yield inputs of the network: those of k-mers are equally long, so that nothing is padded."""
        starts = (start_N[i : i + self.batch_size] for i in range(0, len(start_N), self.batch_size))
        if not isinstance(self.codec, KmerCodec):
            yield from (self._padded(code_L, start_B) for start_B in starts)
            return
        tokenizer, track_L = Tokenizer(self.codec, self.size), self.codec.track(code_L)
        for start_B in starts:
            ids_BT = np.empty((len(start_B), tokenizer.tokens + 2), np.int64)
            ids_BT[:, 0], ids_BT[:, -1] = self.codec.special("cls"), self.codec.special("eos")
            ids_BT[:, 1:-1] = tokenizer.ids(track_L, code_L, start_B)
            yield {"input_ids": torch.from_numpy(ids_BT)}

    def _padded(self, code_L: np.ndarray, start_B: np.ndarray) -> dict[str, torch.Tensor]:
        pieces = [frame(self.codec.tokens(code_L[s : s + self.size]).ids, self.codec) for s in start_B]
        longest, context = max(map(len, pieces)), self.model.config.max_position_embeddings
        if longest > context:
            raise UserError(
                f"scan.window: {self.size} bases are {longest} tokens, more than the classifier's {context}; "
                "pass a smaller --scan.window"
            )
        return pad(pieces, self.codec)


class AtContent:
    """Share of A and T of windows, the same for both strands.

    Args:
        size: letters of a window.
    """

    def __init__(self, size: int):
        self.size = size

    def __call__(self, letters: bytes, start_N: np.ndarray) -> np.ndarray:
        """Return the shares (2, N)."""
        letter_L = np.frombuffer(letters, np.uint8)
        weak = np.concatenate(([0], np.cumsum(np.isin(letter_L, list(b"AT")))))
        strange_L = np.where(np.isin(letter_L, list(b"ACGT")), 0, 4)
        share_N = (weak[start_N + self.size] - weak[start_N]) / np.float32(self.size)
        share_N[unread(strange_L, start_N, self.size)] = np.nan
        return np.tile(share_N.astype(np.float32), (2, 1))


@dataclass(frozen=True)
class Chunk:
    """Windows of a record that are scored together: those that start in [first, last)."""

    target: Target
    first: int
    last: int
    path: Path

    def starts(self, size: int, stride: int) -> np.ndarray:
        """Return where the windows start (N,)."""
        return self.target.starts(size, stride, self.first, self.last)


def chunks_of(number: int, target: Target, stride: int, folder: Path) -> list[Chunk]:
    """Return the chunks of a record, which is the ``number``-th, in order; some may have no window."""
    span = min(CHUNK * stride, LONGEST_CHUNK)
    firsts = range(0, target.length, span)
    return [
        Chunk(target, at, min(at + span, target.length), folder / f"{number:07d}-{i:07d}.npy")
        for i, at in enumerate(firsts)
    ]


def scan(
    scorer: Scorer,
    letters: Letters,
    targets: Sequence[Target],
    stride: int,
    folder: Path,
    what: str,
    process: int = 0,
    processes: int = 1,
) -> None:
    """Score the windows of all targets; what ``folder`` holds of an earlier scan is not read again.

    Args:
        scorer: gives the scores.
        letters: where the letters are.
        targets: what is read.
        stride: letters from one window to the next.
        folder: where scores are kept, until `load` is done with them.
        what: what is being scored, for the log.
        process: number of this process: it takes every so-manieth chunk.
        processes: how many there are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    every = [chunk for i, target in enumerate(targets) for chunk in chunks_of(i, target, stride, folder)]
    todo = [chunk for chunk in every[process::processes] if not chunk.path.exists()]
    done = sum(chunk.path.exists() for chunk in every)
    if done and not process:
        say(f"{what}: {done} of {len(every)} chunks are there already")
    for chunk in track(todo, len(todo), what):
        start_N = chunk.starts(scorer.size, stride)
        scores_2N = np.empty((2, 0), np.float32)
        if len(start_N):
            first, last = int(start_N[0]), int(start_N[-1]) + scorer.size
            scores_2N = scorer(letters.fetch(chunk.target.name, first, last), start_N - first)
        _save(chunk.path, scores_2N)


def keep_scores(folder: Path, settings: dict[str, Any]) -> None:
    """Make a folder for scores, or keep the scores that are there if they were made with these settings."""
    path = folder / "settings.json"
    if folder.exists() and not _made_with(path, settings):
        say("the scores of an unfinished scan are of other inputs or settings; they are thrown away")
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    write_json(path, settings)


def _made_with(path: Path, settings: dict[str, Any]) -> bool:
    """Return whether a file holds these settings; one that cannot be read does not."""
    try:
        return read_json(path) == settings
    except UserError:
        return False


def _save(path: Path, scores_2N: np.ndarray) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, scores_2N)
    partial.replace(path)


def load(number: int, target: Target, size: int, stride: int, folder: Path) -> tuple[np.ndarray, Any]:
    """Return where the windows of a target start (N,), and their scores (2, N), float32.

    Raises:
        UserError: a file of scores is damaged.
    """
    chunks = chunks_of(number, target, stride, folder)
    start_N = np.concatenate([chunk.starts(size, stride) for chunk in chunks])
    return start_N, np.concatenate([_read(chunk.path) for chunk in chunks], 1)


def _read(path: Path) -> np.ndarray:
    try:
        return np.load(path)
    except (ValueError, EOFError):
        raise UserError(f"{path}: no array of scores; delete the file to have it made again") from None


@dataclass(frozen=True)
class Windows:
    """How windows lie on a genome: ``offset`` letters of a window come before its start site."""

    size: int
    offset: int
    stride: int

    def sites(self, start_N: np.ndarray, strand: int, length: int) -> np.ndarray:
        """Return where the start sites of windows are (N,); past the end of a record they begin again."""
        before = self.offset if strand >= 0 else self.size - 1 - self.offset
        return (start_N + before) % length
