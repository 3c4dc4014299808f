"""Lines for people: to standard error, with the name of the stage when several run at once."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def say(text: str) -> None:
    """Print one line of progress."""
    stage = os.environ.get("STRANDLM_STAGE")
    print(f"[{stage}] {text}" if stage else text, file=sys.stderr, flush=True)


def announce(command: str) -> None:
    """Print that a stage of a run starts, with its place among the others; alone, a stage says nothing."""
    stage, step = os.environ.get("STRANDLM_STAGE"), os.environ.get("STRANDLM_STEP")
    if stage and step:
        print(f"[{step}] {stage}: {command}", file=sys.stderr, flush=True)


def track(items: Iterable[T], total: int, what: str, every: float = 10.0) -> Iterator[T]:
    """Yield ``items``, showing a bar on a terminal and a line every ``every`` seconds in a log."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, description=what, total=total, console=Console(stderr=True))
        return
    began = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= every and done < total:
            say(f"{what}: {done}/{total}, {(now - began) / done * (total - done):.0f} s left")
            last = now
