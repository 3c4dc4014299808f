"""What a run says about itself: metrics.jsonl, TensorBoard events, other trackers, and lines for people."""

import json
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.training.checkpoints import Progress

Span = tuple[str, int, int]  # name of a record, first letter (from 0), letter after the last
FORETELL = 20  # steps after which the time of the whole run is told
RECENT = 50  # steps whose median is the speed


class Other(Protocol):
    """A tracker of Accelerate's (``accelerate.tracking.GeneralTracker``), or one like it."""

    def log(self, values: dict, step: int | None) -> None:
        """Take the numbers of a step."""
        ...

    def finish(self) -> None:
        """Send what was taken."""
        ...


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers that Accelerate does not know (its own and registered ones) or that are not installed.

    Raises:
        UserError: with the names that can be used.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    known = LOGGER_TYPE_TO_CLASS.keys() - {"tensorboard"}
    absent = set(LoggerType.list()) - {found.value for found in get_available_trackers()}
    for name in names:
        if name == "tensorboard":
            raise UserError("trackers: tensorboard is always written, beside metrics.jsonl; leave it out")
        if name not in known:
            raise UserError(f"trackers: Accelerate knows no {name!r}; known: {', '.join(sorted(known))}")
        if name in absent:
            raise UserError(f"trackers: {name} is not installed; install it, or leave it out")


def start_trackers(accelerator: Any, config: PretrainConfig) -> Sequence[Other]:
    """Open the trackers that an Accelerator was made with (``log_with``); give them the run's settings."""
    if accelerator.log_with:
        settings = _flat(config.model_dump(mode="json"))
        accelerator.init_trackers("strandlm", config=settings)
    return accelerator.trackers


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, int | float | str]:
    """Return settings by dotted key; what is neither text nor a number as text."""
    flat: dict[str, int | float | str] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, int | float | str) else str(value)
    return flat


def duration(seconds: float) -> str:
    """Return a time for people, in the two units that say most."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


class Tracker:
    """Writes the numbers of a run on its main process; silent on the others.

    Args:
        folder: where metrics.jsonl and tensorboard/ go.
        steps: how many steps the run has.
        every: steps between lines.
        begin: where it begins.
        main: whether this is the main process.
        tokens_per_letter: tokens of a letter: steps are counted in letters, the speed in tokens.
        flops_per_token: work of a token, for the share of peak.
        peak: FLOP/s that all devices together can do; None: the share is not known.
        others: open trackers, which get the same numbers.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        every: int,
        begin: Progress,
        main: bool,
        *,
        tokens_per_letter: float = 1.0,
        flops_per_token: float | None = None,
        peak: float | None = None,
        others: Sequence[Other] = (),
    ):
        self.steps, self.every, self.main, self.others = steps, every, main, others
        self.tokens_per_letter = tokens_per_letter
        self.share_of_token = flops_per_token / peak if flops_per_token and peak else None
        self.began = self.last = time.monotonic()
        self.first_step, self.validation = begin.step, math.nan
        self.speeds: deque[float] = deque(maxlen=RECENT)
        self.bar = None
        if not main:
            return
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        self._forget_after(begin)
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=begin.step)
        if sys.stderr.isatty():
            self._start_bar()

    def _start_bar(self) -> None:
        from rich import progress
        from rich.console import Console

        texts = (progress.TextColumn(text) for text in ("{task.description}", "{task.fields[how]}"))
        done = (progress.BarColumn(), progress.MofNCompleteColumn())
        self.bar = progress.Progress(next(texts), *done, *texts, console=Console(stderr=True))
        self.task = self.bar.add_task("step", total=self.steps, completed=self.first_step, how="")
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
        """Add a line to metrics.jsonl, points to TensorBoard, and numbers to other trackers.

        The first ``validation_...`` among them is the score that progress shows. One of the step that this
        process begins with comes before its first step: only from then on is the time taken.
        """
        scores = [value for name, value in numbers.items() if name.startswith("validation_")]
        self.validation = next(iter(scores), self.validation)
        if step == self.first_step:
            self.began = self.last = time.monotonic()
        if not self.main:
            return
        self._write({"step": step, **numbers})
        for name, value in numbers.items():
            self.board.add_scalar(name, value, step)
        for other in self.others:
            other.log(numbers, step=step)

    def skip(self, progress: Progress, loss: float, norm: float, records: list[Span]) -> None:
        """Put on record that a step was passed over, and of which letters of which records it was."""
        if self.main:
            problem = f"loss {loss:g}, gradient norm {norm:g}"
            line = {"step": progress.step + 1, "skipped": progress.skipped, "problem": problem}
            self._write(line | {"records": records})
            say(f"step {progress.step + 1}: {problem}: passed over ({progress.skipped} so far)")

    def step(self, step: int, letters: int, loss: float, rate: float, norm: float) -> None:
        """Count a finished step; every so often record it and say how it goes."""
        now = time.monotonic()
        self.speeds.append(letters * self.tokens_per_letter / max(now - self.last, 1e-9))
        self.last = now
        told = step % self.every == 0 or step == self.steps
        if not told and not self.bar and step - self.first_step != FORETELL:
            return
        speeds = self._speeds()
        how = self._in_words(loss, speeds, self._left(step, now))
        if self.bar:
            self.bar.update(self.task, completed=step, how=how)
        if told:
            self.record(step, loss=loss, learning_rate=rate, gradient_norm=norm, **speeds)
        if told and self.main and not self.bar:
            say(f"step {step}/{self.steps}: {how}")
        if step - self.first_step == FORETELL and step < self.steps and self.main:
            self._foretell(now, self._left(step, now))

    def _speeds(self) -> dict[str, float]:
        """Return the median of recent steps, as some have a validation or a checkpoint before them."""
        speed = statistics.median(self.speeds)
        share = {"peak_share": speed * self.share_of_token} if self.share_of_token else {}
        return {"tokens_per_second": speed, **share}

    def _left(self, step: int, now: float) -> float:
        """Return the seconds that the other steps take if they take as long as those of this process."""
        return (now - self.began) / (step - self.first_step) * (self.steps - step)

    def _in_words(self, loss: float, speeds: dict[str, float], left: float) -> str:
        score = "" if math.isnan(self.validation) else f", validation {self.validation:.4f} bits"
        share = f", {speeds['peak_share']:.1%} of peak" if "peak_share" in speeds else ""
        speed = f"{speeds['tokens_per_second']:,.0f} tokens/s"
        return f"loss {loss:.4f}{score}, {speed}{share}, {duration(left)} left"

    def _foretell(self, now: float, left: float) -> None:
        since = f" from step {self.first_step} on" if self.first_step else ""
        whole = duration(now - self.began + left)
        say(f"expected time{since}: {whole}, {duration(left)} of it still to come (after {FORETELL} steps)")

    def close(self) -> None:
        """Close files, other trackers and the progress bar."""
        if self.main:
            self.board.close()
        for other in self.others if self.main else ():
            other.finish()
        if self.bar:
            self.bar.stop()
