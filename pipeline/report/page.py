"""The report as one HTML file that needs no network and no scripts."""

from html import escape
from pathlib import Path
from typing import Any

from pipeline.report.figures import Picture
from pipeline.report.markup import image, listing, nested, shown, table
from pipeline.report.texts import (
    CRITERION,
    GROUPS_NOTE,
    MEANINGS,
    OPTIMUM,
    control_name,
    is_number,
    kind_of,
    label_of,
)

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
MARKS = {"value": "●", "untrained": "▲", "baseline": "◆", "random": "■", "optimum": "★"}
PARTS = {
    "Data": ("simulate", "prepare", "tokenize", "build-tokenizer"),
    "Language model": ("pretrain",),
    "Classifier": ("finetune",),
    "Motifs": ("motifs",),
    "Contacts": ("contacts",),
}
OTHERS = "Other stages"
COMPARED = {"mcc": "MCC", "auroc": "AUROC", "auprc": "AUPRC", "accuracy": "accuracy"}
AGAINST = {"mcc": "MCC", "auroc": "AUROC", "false_positive_rate": "false positive rate"}
FIRST_COUNTS = ("read", "kept", "dropped", "changed")
DIGEST = 12

Pictures = dict[str, dict[str, Picture]]


def render(report: dict[str, Any], pictures: Pictures) -> str:
    """Return the page for the content of report.json and the pictures of each stage, by stage name."""
    simulated = report["simulated"]
    title = escape(report["title"]) + (" (simulated data)" if simulated else "")
    parts = _parts(report, pictures)
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in parts)
    banner = '<p class="banner" role="note"><strong>SIMULATED DATA</strong> {}</p>'.format(
        "Sequences, labels and contacts on this page were made by a program. They are of no organism."
    )
    sections = "".join(
        f'<section id="{_anchor(name)}"><h2>{name}</h2>{content}</section>' for name, content in parts.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{title}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style></head>\n"
        f"<body>{banner if simulated else ''}<header><h1>{title}</h1>"
        f'<nav aria-label="Parts of the report">{links}</nav></header>\n'
        f"<main>{_headlines(report)}{sections}</main></body></html>\n"
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _parts(report: dict[str, Any], pictures: Pictures) -> dict[str, str]:
    known = [kind for kinds in PARTS.values() for kind in kinds]
    others = tuple(entry["stage"] for entry in report["stages"] if entry["stage"] not in known)
    parts = {}
    for name, kinds in {**PARTS, OTHERS: others}.items():
        entries = [entry for entry in report["stages"] if entry["stage"] in kinds]
        content = "".join(_stage(entry, report, pictures.get(entry["name"], {})) for entry in entries)
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


def _stage(entry: dict[str, Any], report: dict[str, Any], pictures: dict[str, Picture]) -> str:
    of_logos = {name for name in pictures if name.startswith("logo:")}
    figures = "".join(_figure(pictures[name]) for name in pictures if name not in of_logos)
    content = [f'<div class="figures">{figures}</div>' if figures else ""]
    for key in entry["metrics"]:
        content.append(_metric(key, report[key]) + _controls(key, report[key], entry["controls"][key]))
    if "motifs" in entry:
        content.append(_motifs(entry["motifs"], pictures))
    counts = sorted(entry["counts"].items(), key=lambda item: _place(item[0]))
    content.append(nested(dict(counts), "Counts"))
    if "truth" in entry:
        content.append(_truth(entry["truth"]))
    command = "" if entry["name"] == entry["stage"] else f" <small>{escape(entry['stage'])}</small>"
    return f"<article><h3>{escape(entry['name'])}{command}</h3>{''.join(content)}</article>"


def _place(key: str) -> int:
    return FIRST_COUNTS.index(key) if key in FIRST_COUNTS else len(FIRST_COUNTS)


def _figure(picture: Picture) -> str:
    kind = ' class="wide"' if picture.wide else ""
    content = image(picture.content, picture.media_type, picture.title)
    title = picture.title[:1].upper() + picture.title[1:]
    caption = f"<strong>{escape(title)}.</strong> {escape(picture.text)}"
    return f"<figure{kind}><div>{content}</div><figcaption>{caption}</figcaption></figure>"


def _metric(key: str, metric: dict[str, Any]) -> str:
    """Return everything a metric holds: a classifier beside its controls, other numbers, groups."""
    tables, held = _compared(key, metric), {"by_group"}
    if tables:
        held |= {"at_threshold", "macro", "controls", "other_negatives", "intervals", "sd"}
    content = _in_words(key, {name: value for name, value in metric.items() if name not in held})
    if isinstance(errors := content.get("calibration"), dict):
        content["calibration"] = {n: value for n, value in errors.items() if not n.startswith("reliability")}
    groups = {group: _in_words(key, inner) for group, inner in (metric.get("by_group") or {}).items()}
    return tables + nested(content | ({"group": groups} if groups else {}), label_of(key))


def _compared(key: str, metric: dict[str, Any]) -> str:
    """Return a classifier and its controls in a table, and what they make of other negatives in another."""
    chosen = metric.get("at_threshold") or metric.get("macro")
    if not chosen or "controls" not in metric:
        return ""
    rows = [["this run", *(_with_interval(chosen, name) for name in COMPARED), None, None]]
    for control, figures in metric["controls"].items():
        ahead = [_ahead(figures["ours_minus_it"][name]) for name in ("mcc", "auroc")]
        rows.append([control, *(_with_interval(figures, name) for name in COMPARED), *ahead])
    head = ["classifier", *COMPARED.values(), "this run is ahead: MCC", "AUROC"]
    found = table(head, rows, f"{label_of(key)}: beside the controls (95 % intervals)")
    others = [
        [name, "this run" if which is None else which, other["n"], *(_with_interval(f, n) for n in AGAINST)]
        for name, other in metric.get("other_negatives", {}).items()
        for which, f in [(None, other), *other["controls"].items()]
    ]
    if others:
        head = ["negatives", "classifier", "n", *AGAINST.values()]
        found += table(head, others, f"{label_of(key)}: against negatives that none was trained on")
    return found


def _with_interval(figures: dict[str, Any], name: str) -> str | None:
    value, interval = figures.get(name), figures["intervals"].get(name)
    if value is None or interval is None:
        return None
    spread = f" \N{PLUS-MINUS SIGN} {shown(figures['sd'][name])}" if name in figures.get("sd", {}) else ""
    return f"{shown(value)}{spread} ({shown(interval[0])} to {shown(interval[1])})"


def _ahead(difference: dict[str, Any]) -> str | None:
    return _with_interval({"by": difference["difference"], "intervals": {"by": difference["interval"]}}, "by")


def _in_words(key: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """Return a metric's numbers under the names of the page, the value and its controls first."""
    order = [name for name in MARKS if name in numbers] + [name for name in numbers if name not in MARKS]
    named = {name: control_name(key, name) for name in MARKS} | {"value": "this run"}
    return {named.get(name, name): numbers[name] for name in order}


def _controls(key: str, metric: dict[str, Any], controls: list[dict[str, Any]]) -> str:
    """Say for each control what it rules out, and where it does not."""
    groups = [_control(key, c) for c in controls if c["control"].startswith("group ")]
    others = [_control(key, c) for c in controls if not c["control"].startswith("group ")]
    if is_number(metric.get("optimum")):
        others.append(f"<li><strong>{escape(control_name(key, 'optimum'))}.</strong> {OPTIMUM}</li>")
    if not controls:
        return ""
    heading = f'<h4>What the controls rule out</h4><p class="meaning">{CRITERION}</p>'
    lists = [f'<ul class="controls">{"".join(others)}</ul>' if others else ""]
    if groups:
        lists.append(f'<p class="meaning">{GROUPS_NOTE}</p><ul class="controls">{"".join(groups)}</ul>')
    return heading + "".join(lists)


def _control(key: str, control: dict[str, Any]) -> str:
    name, about = escape(control_name(key, control["control"])), escape(control["about"])
    return f"<li><strong>{name}.</strong> {about} {_verdict(control)}</li>"


def _verdict(control: dict[str, Any]) -> str:
    out, difference, error = control["ruled_out"], control["difference"], control["standard_error"]
    mark = "Ruled out" if out else "Not ruled out"
    how = "better" if difference > 0 else "worse" if difference < 0 else "the same"
    size = f"{how} by {shown(abs(difference))}" if difference else how
    noise = f", standard error {shown(error)}" if error else ""
    return (
        f'<span class="{"out" if out else "open"}">{mark}</span> that {escape(control["claim"])}: '
        f"the run is {size}{noise}."
    )


def _motifs(motifs: list[dict[str, Any]], pictures: dict[str, Picture]) -> str:
    if not motifs:
        return "<p>No motif was found.</p>"
    cards = []
    for motif in motifs:
        logo = pictures.get(f"logo:{motif['name']}")
        facts = {key: value for key, value in motif.items() if key not in ("name", "consensus", "matrix")}
        cards.append(
            f'<article class="motif"><h4>{escape(motif["name"])} '
            f"<code>{escape(shown(motif.get('consensus')))}</code></h4>"
            f"{_figure(logo) if logo else ''}{nested(facts, 'Where it comes from')}</article>"
        )
    return f'<div class="motifs">{"".join(cards)}</div>'


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
