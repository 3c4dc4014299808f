"""The report as one HTML file that asks for nothing outside of it; its one script is named by its hash."""

import base64
import hashlib
from html import escape
from pathlib import Path
from typing import Any

from pipeline.report.figures import Picture
from pipeline.report.markup import figure, listing, nested, shown, table
from pipeline.report.metric_parts import MARKS, metric_part
from pipeline.report.motif_cards import motif_part
from pipeline.report.texts import MEANINGS, control_name, is_number, kind_of, label_of

STYLE = Path(__file__).with_name("page.css")
SCRIPT = Path(__file__).with_name("page.js")
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'"
)
PARTS = {
    "Data": ("simulate", "prepare", "tokenize", "build-tokenizer"),
    "Language model": ("pretrain",),
    "Classifier": ("finetune",),
    "Motifs": ("motifs",),
    "Contacts": ("contacts", "contact-head"),
}
OTHERS = "Other stages"
FIRST_COUNTS = ("read", "kept", "dropped", "changed")
DIGEST = 12

Pictures = dict[str, dict[str, Picture]]


def render(report: dict[str, Any], pictures: Pictures, extras: dict[str, str]) -> str:
    """Return the page.

    Args:
        report: content of report.json.
        pictures: of each stage, by its name.
        extras: HTML by stage name, what its files add: viewers and downloads.
    """
    simulated, script = report["simulated"], SCRIPT.read_text(encoding="utf-8")
    policy = POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    title = escape(report["title"]) + (" (simulated data)" if simulated else "")
    parts = _parts(report, pictures, extras)
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in parts)
    banner = '<p class="banner" role="note"><strong>SIMULATED DATA</strong> {}</p>'.format(
        "Sequences, labels and contacts on this page were made by a program. They are of no organism."
    )
    sections = "".join(
        f'<section id="{_anchor(name)}"><h2>{name}</h2>{content}</section>' for name, content in parts.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{title}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style></head>\n"
        f"<body>{banner if simulated else ''}<header><h1>{title}</h1>"
        f'<nav aria-label="Parts of the report">{links}</nav></header>\n'
        f"<main>{_headlines(report)}{sections}</main>\n<script>{script}</script></body></html>\n"
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _parts(report: dict[str, Any], pictures: Pictures, extras: dict[str, str]) -> dict[str, str]:
    known = [kind for kinds in PARTS.values() for kind in kinds]
    others = tuple(entry["stage"] for entry in report["stages"] if entry["stage"] not in known)
    parts = {}
    for name, kinds in {**PARTS, OTHERS: others}.items():
        entries = [entry for entry in report["stages"] if entry["stage"] in kinds]
        content = "".join(
            _stage(entry, report, pictures.get(entry["name"], {}), extras.get(entry["name"], ""))
            for entry in entries
        )
        if content:
            parts[name] = content + "\n"
    return parts | {"Provenance": _provenance(report["stages"])}


def _headlines(report: dict[str, Any]) -> str:
    keys = [
        key for entry in report["stages"] for key in entry["metrics"] if is_number(report[key].get("value"))
    ]
    cards = "".join(_card(key, report[key]) for key in keys)
    heading = '<h2 class="hidden">Results</h2>'
    return f'<section id="results" class="cards">{heading}{cards}</section>\n' if cards else ""


def _card(key: str, metric: dict[str, Any]) -> str:
    """Return one headline number above a dot plot of it and of what it is compared with."""
    compared = {name: metric[name] for name in MARKS if is_number(metric.get(name))}
    low, high = _scale(kind_of(key), metric, list(compared.values()))
    here = _percent(metric["value"], low, high)
    rows = "".join(
        f'<tr class="{name}"><th scope="row"><span class="mark" aria-hidden="true">{MARKS[name]}</span> '
        f"{escape('this run' if name == 'value' else control_name(key, name))}</th>"
        f'<td class="number">{escape(shown(value))}</td><td aria-hidden="true"><div class="track">'
        f'<span class="here" style="left:{here}"></span>'
        f'<span class="mark" style="left:{_percent(value, low, high)}">{MARKS[name]}</span></div></td></tr>'
        for name, value in compared.items()
    )
    of = f" <small>of {escape(shown(metric['of']))}</small>" if is_number(metric.get("of")) else ""
    label = escape(label_of(key))
    return (
        f'<article class="card"><h3>{label}</h3>'
        f'<p class="big">{escape(shown(metric["value"]))}{of}</p>'
        f'<p class="meaning">{MEANINGS[kind_of(key)]}</p>'
        f'<table><caption class="hidden">{label} beside its controls</caption><tbody>{rows}</tbody>'
        f'<tfoot aria-hidden="true"><tr><td></td><td></td><td><div class="ends"><span>{low:.3g}</span>'
        f"<span>{high:.3g}</span></div></td></tr></tfoot></table></article>"
    )


def _scale(kind: str, metric: dict[str, Any], values: list[float]) -> tuple[float, float]:
    """Return the ends of a metric's axis: the possible range, or the numbers' own where there is none."""
    low, high = min(values), max(values)
    if is_number(metric.get("of")):
        return 0, max(metric["of"], high)
    if kind == "auroc":
        return min(0.5, low), 1.0
    if kind != "bits" and low >= 0 and high <= 1:
        return 0.0, 1.0
    room = 0.1 * (high - low) or 0.1
    return low - room, high + room


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * (value - low) / ((high - low) or 1):.1f}%"


def _stage(entry: dict[str, Any], report: dict[str, Any], pictures: dict[str, Picture], extra: str) -> str:
    of_motifs = {name for name in pictures if ":" in name}
    figures = "".join(figure(pictures[name]) for name in pictures if name not in of_motifs)
    content = [f'<div class="figures">{figures}</div>' if figures else ""]
    for key in entry["metrics"]:
        content.append(metric_part(key, report[key], entry["controls"][key]))
    if "motifs" in entry:
        content.append(motif_part(entry, pictures))
    counts = sorted(entry["counts"].items(), key=lambda item: _place(item[0]))
    content += [extra, nested(dict(counts), "Counts")]
    if "truth" in entry:
        content.append(_truth(entry["truth"]))
    command = "" if entry["name"] == entry["stage"] else f" <small>{escape(entry['stage'])}</small>"
    return f"<article><h3>{escape(entry['name'])}{command}</h3>{''.join(content)}</article>"


def _place(key: str) -> int:
    return FIRST_COUNTS.index(key) if key in FIRST_COUNTS else len(FIRST_COUNTS)


def _truth(truth: dict[str, Any]) -> str:
    """Return what was planted, without matrices."""
    facts = {key: value for key, value in truth.items() if key not in ("simulated", "note", "boxes")}
    return listing(facts, "The truth that was simulated")


def _provenance(stages: list[dict[str, Any]]) -> str:
    rows = [[s["name"], s["stage"], s["content"][:DIGEST], s["seed"]] for s in stages]
    runs: dict[str, dict[str, list[str]]] = {}
    for entry in stages:
        for package, version in entry["versions"].items():
            runs.setdefault(package, {}).setdefault(version, []).append(entry["name"])
    versions = [[package, _versions(found, len(stages))] for package, found in sorted(runs.items())]
    return table(["folder", "stage", "content (SHA-256)", "seed"], rows, "Stages of this run") + (
        table(["package", "version"], versions, "Versions they ran with") if versions else ""
    )


def _versions(found: dict[str, list[str]], stages: int) -> str:
    one = len(found) == 1 and len(next(iter(found.values()))) == stages
    return next(iter(found)) if one else "; ".join(f"{v} ({', '.join(names)})" for v, names in found.items())
