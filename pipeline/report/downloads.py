"""The files of a stage as links that hold them, so that the page alone hands them on."""

import base64
import re
from html import escape
from pathlib import Path

from pipeline.report.collect import FinishedStage

# Browsers take addresses of up to 2 MiB, and base64 adds a third.
LARGEST = 1_500_000
SUFFIXES = {".tsv", ".csv", ".meme", ".jaspar", ".bed", ".gff3", ".bedgraph", ".rr", ".pb", ".pml"}
SUFFIXES |= {".npz", ".png", ".svg"}
FOLDERS = ("", "logos", "figures")
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def downloads(stage: FinishedStage, simulated: bool) -> str:
    """Return links to the stage's tables, matrices, arrays and pictures, those up to 1.5 MB in the page.

    Args:
        stage: a finished stage.
        simulated: whether the files' names say that the data are simulated.
    """
    files = [
        path for folder in FOLDERS for path in sorted((stage.folder / folder).glob("*")) if _wanted(path)
    ]
    if not files:
        return ""
    lines = "".join(f"<li>{_line(stage, path, simulated)}</li>" for path in files)
    title = f"Downloads ({len(files)} files)"
    return f'<details class="downloads"><summary>{title}</summary><ul>{lines}</ul></details>'


def _wanted(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES


def _line(stage: FinishedStage, path: Path, simulated: bool) -> str:
    name, size = path.relative_to(stage.folder).as_posix(), path.stat().st_size
    shown = f"{escape(name)} <small>{_size(size)}</small>"
    if size > LARGEST:
        return (
            f"{shown}: too large for this page; it is {escape(stage.name)}/{escape(name)} in the run's folder"
        )
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    to = UNSAFE.sub("-", f"{'simulated-' if simulated else ''}{stage.name}-{name}")
    return f'<a download="{to}" href="data:application/octet-stream;base64,{data}">{shown}</a>'


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} MB" if number >= 1e6 else f"{number / 1e3:.1f} kB"
