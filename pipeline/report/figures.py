"""The figures of the report, as bytes that are the same whenever the numbers are."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.report.collect import FinishedStage, positive_class, read_scores
from pipeline.report.texts import control_name, kind_of, label_of

SIZE = (4.8, 3.5)
STRIP = 26
COLOURS = {
    "value": "#0b63a5",
    "untrained": "#b45309",
    "baseline": "#a0438f",
    "random": "#6b7280",
    "optimum": "#0f7a5a",
}
MARKERS = {"value": "o", "untrained": "^", "baseline": "D", "random": "s", "optimum": "*"}
STYLE = {
    "svg.hashsalt": "strandlm",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@dataclass(frozen=True)
class Picture:
    """An image of the page: its title, what it shows in words, its media type and its bytes."""

    title: str
    text: str
    media_type: str
    content: bytes
    wide: bool = False


def draw_figures(stage: FinishedStage, report: dict[str, Any]) -> dict[str, Picture]:
    """Return a stage's pictures by name; a motif's have its name after ``logo:`` and ``positions:``."""
    entry = next(entry for entry in report["stages"] if entry["name"] == stage.name)
    prefix = "Simulated data: " if report["simulated"] else ""
    pictures: dict[str, Picture] = {}
    if entry.get("history"):
        pictures |= _training(stage, entry["history"], prefix)
    pictures |= _classifier(stage, prefix)
    pictures |= _logos(stage, entry.get("motifs") or [], prefix)
    if (stage.folder / "map.png").is_file():
        content = (stage.folder / "map.png").read_bytes()
        text = "Map of residue pairs: scores of the model, beside the true contacts where they are known."
        pictures["map"] = _png(f"{prefix}contact map", text, content, bool(prefix), wide=True)
    return pictures


def as_svg(draw: Callable[[Any], None], title: str, text: str, size: tuple[float, float] = SIZE) -> Picture:
    """Draw on new axes and return the picture as SVG, with letters as outlines and without a date."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]  its keys are names of settings
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title, parse_math=False)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(title, text, "image/svg+xml", buffer.getvalue())


def _png(title: str, text: str, content: bytes, simulated: bool, wide: bool = False) -> Picture:
    return Picture(title, text, "image/png", stamp(content) if simulated else content, wide)


def stamp(content: bytes, text: str = "SIMULATED DATA") -> bytes:
    """Return a PNG with a line of text above it, so that the picture says it also where the page is not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    pixels_HWC = imread(io.BytesIO(content), format="png")
    height, width = pixels_HWC.shape[:2]
    figure = Figure(figsize=(width / 100, (height + STRIP) / 100), dpi=100)
    FigureCanvasAgg(figure)
    figure.figimage(pixels_HWC)
    figure.text(
        0.5, 1 - STRIP / 2 / (height + STRIP), text, ha="center", va="center", fontsize=10, color="#7c2d12"
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _training(stage: FinishedStage, history: list[dict[str, Any]], prefix: str) -> dict[str, Picture]:
    """Draw the training loss, and the validations beside the controls of the same metric on test text."""
    pictures = {}
    names = sorted({name for line in history for name in line if name != "step"})
    for name in names:
        points = [(line["step"], line[name]) for line in history if line.get(name) is not None]
        if not points:
            continue
        metric_name = name.removeprefix("validation_")
        key = next((k for k in stage.metrics if k.split(":")[0] == metric_name), metric_name)
        label = "training loss (nats per target)" if name == "loss" else label_of(metric_name).lower()
        title = prefix + ("training loss" if name == "loss" else "validation while training")
        first, last = (f"{value:.3f} at step {step}" for step, value in (points[0], points[-1]))
        text = f"Line of {label} from {first} to {last}."

        def draw(axes, points=points, key=key, label=label) -> None:
            axes.plot(*zip(*points, strict=True), color=COLOURS["value"], label="this run")
            controls = _controls(stage.metrics.get(key, {}))
            for control, value in controls.items():
                name = f"{control_name(key, control)} (test)"
                axes.axhline(value, color=COLOURS[control], linestyle="--", linewidth=1.2, label=name)
            axes.set(xlabel="step", ylabel=label)
            if controls:
                axes.legend()

        pictures[name] = as_svg(draw, title, text)
    return pictures


def _controls(metric: dict[str, Any]) -> dict[str, float]:
    return {c: metric[c] for c in MARKERS if c != "value" and metric.get(c) is not None}


def _classifier(stage: FinishedStage, prefix: str) -> dict[str, Picture]:
    from pipeline.report.classifier_figures import draw_classifier

    key = next((key for key in stage.metrics if kind_of(key) == "auroc"), None)
    found = read_scores(stage)
    if key is None or found is None:
        return {}
    metric, name = stage.metrics[key], positive_class(stage)
    pictures = draw_classifier(*found, {**metric, "positive": name}, prefix)
    groups = {n: g for n, g in (metric.get("by_group") or {}).items() if g.get("value") is not None}
    if groups:
        pictures["groups"] = _groups(groups, f"{prefix}{name} against each group")
    return pictures


def _groups(groups: dict[str, dict[str, Any]], title: str) -> Picture:
    kinds = [kind for kind in MARKERS if any(group.get(kind) is not None for group in groups.values())]

    def draw(axes) -> None:
        for kind in kinds:
            points = [(g[kind], n) for n, g in enumerate(groups.values()) if g.get(kind) is not None]
            name = "this run" if kind == "value" else control_name("_auroc", kind)
            axes.plot(
                *zip(*points, strict=True),
                MARKERS[kind],
                color=COLOURS[kind],
                markersize=8,
                label=name,
                zorder=3,
            )
        axes.axvline(0.5, color=COLOURS["random"], linestyle=":", label="coin")
        axes.set_yticks(range(len(groups)), [name.replace("_", " ") for name in groups], parse_math=False)
        axes.set(xlabel="AUROC", ylim=(len(groups) - 0.5, -0.5))
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.17), ncols=2)

    values = ", ".join(f"{name} {group['value']:.3f}" for name, group in groups.items())
    size = (SIZE[0], 1.8 + 0.35 * len(groups))
    return as_svg(draw, title, f"AUROC of the class against each group of negatives: {values}.", size)


def _logos(stage: FinishedStage, motifs: list[dict[str, Any]], prefix: str) -> dict[str, Picture]:
    files = {path.stem: path for path in (stage.folder / "logos").glob("*.png")}
    drawn = {path.stem: path for path in (stage.folder / "figures").glob("*.svg")}
    pictures = {}
    for motif in motifs:
        name = motif["name"]
        if name in files:
            text = f"Sequence logo of {motif.get('consensus', name)}, height in bits."
            title = f"{prefix}logo of {name}"
            pictures[f"logo:{name}"] = _png(title, text, files[name].read_bytes(), bool(prefix))
        if path := drawn.get(f"positions-{name}"):
            text = f"How many sites of {name} begin at each position; shaded: where chance explains least."
            content = stamp_svg(path.read_bytes()) if prefix else path.read_bytes()
            title = f"{prefix}positions of {name}"
            pictures[f"positions:{name}"] = Picture(title, text, "image/svg+xml", content)
    return pictures


def stamp_svg(content: bytes, text: str = "SIMULATED DATA") -> bytes:
    """Return an SVG of matplotlib's with a line of text above it, in its own units."""
    tag = re.search(rb"<svg[^>]*>", content)
    assert tag, "no SVG"
    box = re.search(rb'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', tag[0])
    assert box, "matplotlib gives every picture a viewBox"
    width, height = float(box[1]), float(box[2]) + STRIP
    higher = tag[0].replace(box[0], f'viewBox="0 {-STRIP} {width:g} {height:g}"'.encode())
    higher = re.sub(rb' height="[^"]*"', f' height="{height:g}pt"'.encode(), higher)
    line = f'<text x="{width / 2:g}" y="{-STRIP / 3:.1f}" text-anchor="middle" font-size="10" fill="#7c2d12">'
    return content.replace(tag[0], higher + f"{line}{text}</text>".encode(), 1)
