"""Where a run begins: at step 0, or at the checkpoint that leads to what an uninterrupted run would give."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.training.checkpoints import Saved, complete, damage, read
from pipeline.training.optimizer import shared_steps

GROUPS = {"model", "mixture", "masking", "optimizer"}
LENGTHS = {"steps", "window", "window_warmup", "tokens_per_step"}
SETTINGS = {*GROUPS, *LENGTHS, "seed", "precision", "evaluation_bases"}


def settings_of(config: PretrainConfig, inputs: dict[str, str]) -> dict[str, Any]:
    """Return by dotted key what the weights of a run depend on; ``inputs`` are hashes of what it reads.

    The number of processes, ``micro_batch_tokens`` and how often something is written are not among them.
    """
    chosen = config.model_dump(mode="json", include=SETTINGS)
    flat = {f"{group}.{key}": value for group in GROUPS for key, value in chosen.pop(group).items()}
    return flat | chosen | {"start_from": None} | inputs | {"strandlm": __version__}


def _changes(saved: Saved, settings: dict[str, Any]) -> dict[str, str]:
    """Return the keys that differ, with both values."""
    old = saved.settings
    keys = sorted(key for key in old.keys() | settings.keys() if old.get(key) != settings.get(key))
    return {key: f"{key} {_short(old.get(key))} -> {_short(settings.get(key))}" for key in keys}


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else str(value)


def find_start(folder: Path, config: PretrainConfig, settings: dict[str, Any]) -> Saved | None:
    """Return the checkpoint that a run goes on from, or None: it starts afresh.

    A run with another number of ``steps`` than its newest checkpoint goes on from the newest one up to which
    both have the same learning rates, and is then the longer run exactly. Where there is none (cosine and
    linear schedules differ from the end of the warm-up on) it goes on from the newest: that is said, and kept
    on record.

    Raises:
        UserError: the checkpoint that was asked for is damaged, other settings changed, or too many steps
            are behind it.
    """
    if config.resume == "never":
        shutil.rmtree(folder, ignore_errors=True)
        return None
    saved = complete(folder) if config.resume == "auto" else iter([_given(Path(config.resume))])
    newest = next(saved, None)
    changes = _changes(newest, settings) if newest else {}
    if newest is None or not changes:
        return newest
    if changes.keys() != {"steps"} and not config.resume_changed:
        raise UserError(
            f"resume: {newest.path} was made with other settings: {', '.join(changes.values())}; set them "
            "back, go on with --resume-changed true, or start over with --resume never"
        )
    return _with_changes(newest, saved, changes, config)


def _given(path: Path) -> Saved:
    problem = damage(path)
    if problem:
        raise UserError(f"resume: {path}: {problem}; give a complete folder step-... of a run's checkpoints")
    return read(path)


def _with_changes(
    newest: Saved, older: Iterator[Saved], changes: dict[str, str], config: PretrainConfig
) -> Saved:
    if changes.keys() == {"steps"}:
        for saved in chain([newest], older):
            if saved.progress.step <= _shared(saved, config):
                return saved
    step = newest.progress.step
    if step > config.steps:
        raise UserError(
            f"resume: {newest.path} is beyond steps: {config.steps}; raise steps, or start over with "
            "--resume never"
        )
    what = ", ".join(changes.values())
    if "steps" in changes:
        rates = f"its rates are others from step {_shared(newest, config) + 1} on"
        what += f" (the {config.optimizer.schedule} schedule is drawn anew: {rates})"
    say(f"{newest.path.name}: goes on with {what}; not the run that these settings give from the start")
    changed = [*newest.progress.changes, f"step {step}: {what}"]
    return replace(newest, progress=replace(newest.progress, changes=changed))


def _shared(saved: Saved, config: PretrainConfig) -> int:
    return shared_steps(saved.settings["steps"], config.steps, config.optimizer)


def take_over(finished: Path, folder: Path, config: PretrainConfig, settings: dict[str, Any]) -> None:
    """Give a run that only lengthens a finished one the finished one's checkpoints and log.

    Does nothing where there is none, or where it was made with other settings: that is said.
    """
    newest = next(complete(finished / "checkpoints"), None)
    changes = _changes(newest, settings) if newest else {}
    if newest is None or not changes:
        return
    if changes.keys() != {"steps"} and not config.resume_changed:
        say(f"{finished}: made with other settings ({', '.join(changes.values())}): starts over")
        return
    if newest.progress.step >= config.steps:
        return
    shutil.copy2(finished / "metrics.jsonl", folder)
    shutil.copytree(finished / "tensorboard", folder / "tensorboard", dirs_exist_ok=True)
    copies = folder / "checkpoints.partial"
    shutil.rmtree(copies, ignore_errors=True)
    shutil.copytree(finished / "checkpoints", copies, copy_function=_link)
    copies.rename(folder / "checkpoints")


def _link(source: str, target: str) -> None:
    """Give a file a second name, or copy it where that cannot be done; checkpoints are never modified."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
