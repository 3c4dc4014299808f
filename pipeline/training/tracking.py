"""What a run says about itself: metrics.jsonl, TensorBoard events, and lines for people."""

import json
import sys
import time
from pathlib import Path

from pipeline.log import say


class Tracker:
    """Writes the numbers of a run on its main process; silent on the others."""

    def __init__(self, folder: Path, steps: int, every: int, first_step: int, main: bool):
        self.steps, self.every, self.main = steps, every, main
        self.began, self.first_step, self.letters = time.monotonic(), first_step, 0
        self.bar = None
        if not main:
            return
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        self._forget_after(first_step)
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True))
            self.task = self.bar.add_task("training", total=steps, completed=first_step)
            self.bar.start()

    def _forget_after(self, step: int) -> None:
        """Drop the lines of an interrupted run that this one will write again: those after its checkpoint."""
        lines = self.path.read_text().splitlines() if step and self.path.exists() else []
        whole = [line for line in lines if line.endswith("}")]
        self.path.write_text("".join(f"{line}\n" for line in whole if json.loads(line)["step"] <= step))

    def record(self, step: int, **numbers: float) -> None:
        """Add a line to metrics.jsonl and points to TensorBoard."""
        if not self.main:
            return
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
        for name, value in numbers.items():
            self.board.add_scalar(name, value, step)

    def step(self, step: int, letters: int, loss: float, rate: float, norm: float) -> None:
        """Count a finished step; every so often record it and say how it goes."""
        self.letters += letters
        if self.bar:
            self.bar.update(self.task, completed=step, description=f"training, loss {loss:.3f}")
        if step % self.every and step != self.steps:
            return
        seconds = time.monotonic() - self.began
        speed = self.letters / seconds
        left = seconds / (step - self.first_step) * (self.steps - step)
        self.record(step, loss=loss, learning_rate=rate, gradient_norm=norm, tokens_per_second=speed)
        if self.main and not self.bar:
            say(f"step {step}/{self.steps}: loss {loss:.4f}, {speed:,.0f} tokens/s, {left:.0f} s left")

    def close(self) -> None:
        """Close files and the progress bar."""
        if self.main:
            self.board.close()
        if self.bar:
            self.bar.stop()
