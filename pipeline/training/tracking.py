"""What a run says about itself: metrics.jsonl, TensorBoard events, and lines for people."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.log import say
from pipeline.training.checkpoints import Progress

Span = tuple[str, int, int]  # name of a record, first letter (from 0), letter after the last


class Tracker:
    """Writes the numbers of a run on its main process; silent on the others."""

    def __init__(self, folder: Path, steps: int, every: int, begin: Progress, main: bool):
        self.steps, self.every, self.main = steps, every, main
        self.began, self.first_step, self.letters = time.monotonic(), begin.step, 0
        self.bar = None
        if not main:
            return
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        self._forget_after(begin)
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=begin.step)
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self.bar = progress.Progress(console=Console(stderr=True))
            self.task = self.bar.add_task("training", total=steps, completed=begin.step)
            self.bar.start()

    def _forget_after(self, begin: Progress) -> None:
        """Drop the lines of an interrupted run that this one will write again: those after its checkpoint."""

        def known(line: dict[str, Any]) -> bool:
            return line["step"] <= begin.step or line.get("skipped", math.inf) <= begin.skipped

        lines = self.path.read_text().splitlines() if begin.position and self.path.exists() else []
        kept = [line for line in lines if line.endswith("}") and known(json.loads(line))]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(f"{line}\n" for line in kept))
        partial.replace(self.path)

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def record(self, step: int, **numbers: float) -> None:
        """Add a line to metrics.jsonl and points to TensorBoard."""
        if not self.main:
            return
        self._write({"step": step, **numbers})
        for name, value in numbers.items():
            self.board.add_scalar(name, value, step)

    def skip(self, progress: Progress, loss: float, norm: float, records: list[Span]) -> None:
        """Put on record that a step was passed over, and of which letters of which records it was."""
        if self.main:
            problem = f"loss {loss:g}, gradient norm {norm:g}"
            line = {"step": progress.step + 1, "skipped": progress.skipped, "problem": problem}
            self._write(line | {"records": records})
            say(f"step {progress.step + 1}: {problem}: passed over ({progress.skipped} so far)")

    def step(self, step: int, letters: int, loss: float, rate: float, norm: float) -> None:
        """Count a finished step; every so often record it and say how it goes."""
        self.letters += letters
        if self.bar:
            self.bar.update(self.task, completed=step, description=f"training, loss {loss:.3f}")
        if step % self.every and step != self.steps:
            return
        seconds = time.monotonic() - self.began
        speed = self.letters / seconds
        left = seconds / max(1, step - self.first_step) * (self.steps - step)
        self.record(step, loss=loss, learning_rate=rate, gradient_norm=norm, tokens_per_second=speed)
        if self.main and not self.bar:
            say(f"step {step}/{self.steps}: loss {loss:.4f}, {speed:,.0f} tokens/s, {left:.0f} s left")

    def close(self) -> None:
        """Close files and the progress bar."""
        if self.main:
            self.board.close()
        if self.bar:
            self.bar.stop()
