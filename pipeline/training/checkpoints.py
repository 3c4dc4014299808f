"""Checkpoints: renamed when complete, checked before use, the same for any number of processes."""

import errno
import json
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pipeline.artifacts import hash_file, write_json
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.training.optimizer import load_state_by_name, state_by_name
from pipeline.training.sharding import like, whole_model

CHECKSUMS, OPTIMIZER, TRAINER = "checksums.json", "optimizer.safetensors", "trainer.json"
NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    ``step`` and ``letters`` are steps taken and letters seen in them. ``skipped`` steps of the plan were
    passed over because they were not finite, ``in_a_row`` of them since the last good one. ``best`` is the
    lowest validation score, ``best_step`` where it was. ``changes`` says which settings were changed when.
    """

    step: int = 0
    letters: int = 0
    skipped: int = 0
    in_a_row: int = 0
    best: float | None = None
    best_step: int = 0
    changes: list[str] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The place in the batch plan."""
        return self.step + self.skipped


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: where it lies, how far it had come, the settings it was made with."""

    path: Path
    progress: Progress
    settings: dict[str, Any]


def name_of(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step:06d}"


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints of a folder, oldest first; anything else in it is ignored."""
    if not folder.is_dir():
        return []
    matches = ((NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def save(
    folder: Path,
    model,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
    settings: dict[str, Any],
    keep: int,
    keep_also: Collection[int] = (),
    main: bool = True,
) -> None:
    """Write the checkpoint of this step, then delete all but the newest ``keep`` (-1: all) and some others.

    Kept are also the best and the steps of ``keep_also``; checkpoints of later steps are of a future that
    this one replaces. Where processes have divided the weights, all call this to put them together, and the
    ``main`` one writes.
    """
    undivided = whole_model(model, main)  # first: lets go of weights that forward passes have put together
    state = state_by_name(model, optimizers, main)
    if main:
        _write(folder, undivided, state, progress, settings)
        _delete_old(folder, progress, keep, {*keep_also, progress.best_step})


def _write(
    folder: Path, model, state: dict[str, torch.Tensor], progress: Progress, settings: dict[str, Any]
) -> None:
    path = folder / name_of(progress.step)
    partial = path.with_suffix(".partial")
    for stale in folder.glob("*.partial"):
        shutil.rmtree(stale)
    try:
        model.save_pretrained(partial)
        save_file(state, partial / OPTIMIZER)
        write_json(partial / TRAINER, asdict(progress) | {"settings": settings})
        write_json(partial / CHECKSUMS, {p.name: hash_file(p) for p in sorted(partial.iterdir())})
        _delete(path)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _delete_old(folder: Path, progress: Progress, keep: int, keep_also: set[int]) -> None:
    numbered = _numbered(folder)
    past = [number for number, _ in numbered if number <= progress.step]
    kept = keep_also | set(past if keep < 0 else past[-max(keep, 1) :])
    for number, old in numbered:
        if number not in kept or number > progress.step:
            _delete(old)


def _delete(path: Path) -> None:
    """Delete a checkpoint so that what a kill leaves of it does not look like one."""
    if path.is_dir():
        shutil.rmtree(path.rename(path.with_suffix(".deleted.partial")))


@contextmanager
def enough_disk(folder: Path) -> Iterator[None]:
    """Tell in a line that the disk is full.

    Raises:
        UserError: it is; names the newest complete checkpoint under ``folder``.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) and "os error 28" not in str(
            error
        ):
            raise
        last = next(complete(folder / "checkpoints"), None)
        raise UserError(
            f"{folder}: the disk is full; free some space and run again, to go on from "
            f"{last.path.name if last else 'the start'}"
        ) from None


def damage(path: Path) -> str | None:
    """Return which file of a checkpoint is not what it was when written, or None."""
    try:
        checksums = json.loads((path / CHECKSUMS).read_text())
    except (OSError, ValueError):
        return f"{CHECKSUMS} is missing or damaged"
    for name, expected in checksums.items():
        if not (path / name).is_file() or hash_file(path / name) != expected:
            return f"{name} is missing or damaged"
    return None


def read(path: Path) -> Saved:
    """Return what an undamaged checkpoint says about itself."""
    content = json.loads((path / TRAINER).read_text())
    settings = content.pop("settings", {})
    return Saved(path, Progress(**content), settings)


def complete(folder: Path) -> Iterator[Saved]:
    """Yield the complete checkpoints, newest first, saying which damaged ones are passed over."""
    for _, path in reversed(_numbered(folder)):
        if (problem := damage(path)) is None:
            yield read(path)
        else:
            say(f"{path}: passed over: {problem}")


def restore_weights(path: Path, model: torch.nn.Module) -> None:
    """Put a checkpoint's weights into ``model``.

    Raises:
        UserError: they are those of another network.
    """
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    ours, theirs = model.state_dict(), load_file(path / "model.safetensors")
    try:
        divided = {name: like(tensor, ours.get(name, tensor)) for name, tensor in theirs.items()}
        missing, unexpected = model.load_state_dict(divided, strict=False)
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        raise UserError(f"resume: {path} holds another network: {problem}") from None
    if names := [*unexpected, *sorted(set(missing) - tied)]:
        raise UserError(f"resume: {path} holds another network: {names[0]} is in one of the two only")


def load(saved: Saved, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> Progress:
    """Put a checkpoint's weights and optimizer state into ``model`` and ``optimizers``."""
    restore_weights(saved.path, model)
    load_state_by_name(model, optimizers, load_file(saved.path / OPTIMIZER))
    return saved.progress
