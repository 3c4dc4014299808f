"""Checkpoints: renamed when complete, checked before use, the same for any number of processes."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from pipeline.artifacts import hash_file, write_json
from pipeline.log import say
from pipeline.training.optimizer import load_state_by_name, state_by_name

CHECKSUMS, OPTIMIZER, TRAINER = "checksums.json", "optimizer.safetensors", "trainer.json"
NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Progress:
    """How far a run has come: steps taken, letters seen."""

    step: int = 0
    letters: int = 0


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints of a folder, oldest first; anything else in it is ignored."""
    if not folder.is_dir():
        return []
    matches = ((NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def save(folder: Path, model, optimizer, progress: Progress, keep: int) -> None:
    """Write the checkpoint of this step, then delete all but the newest ``keep``."""
    path = folder / f"step-{progress.step:06d}"
    partial = path.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    save_file(state_by_name(model, optimizer), partial / OPTIMIZER)
    write_json(partial / TRAINER, {"step": progress.step, "letters": progress.letters})
    write_json(partial / CHECKSUMS, {p.name: hash_file(p) for p in sorted(partial.iterdir())})
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)
    for _, old in _numbered(folder)[:-keep]:
        shutil.rmtree(old)


def _damage(path: Path) -> str | None:
    try:
        checksums = json.loads((path / CHECKSUMS).read_text())
    except (OSError, ValueError):
        return f"{CHECKSUMS} is missing or damaged"
    for name, expected in checksums.items():
        if not (path / name).is_file() or hash_file(path / name) != expected:
            return f"{name} is missing or damaged"
    return None


def newest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, saying which damaged ones were passed over."""
    for _, path in reversed(_numbered(folder)):
        damage = _damage(path)
        if damage is None:
            return path
        say(f"{path}: passed over: {damage}")
    return None


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint's weights and optimizer state into ``model`` and ``optimizer``."""
    missing, unexpected = model.load_state_dict(load_file(path / "model.safetensors"), strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    assert not unexpected, unexpected
    assert set(missing) <= tied, missing
    load_state_by_name(model, optimizer, load_file(path / OPTIMIZER))
    return Progress(**json.loads((path / TRAINER).read_text()))
