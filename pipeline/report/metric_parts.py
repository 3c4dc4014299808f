"""What the page says of a metric: all of its numbers, and what each control rules out."""

from html import escape
from typing import Any

from pipeline.report.markup import nested, shown, table
from pipeline.report.texts import (
    CRITERION,
    GROUPS_NOTE,
    INTERVAL_CRITERION,
    MOTIF_CRITERION,
    OPTIMUM,
    control_name,
    is_number,
    kind_of,
    label_of,
)

MARKS = {"value": "●", "untrained": "▲", "baseline": "◆", "random": "■", "optimum": "★"}
COMPARED = {"mcc": "MCC", "auroc": "AUROC", "auprc": "AUPRC", "accuracy": "accuracy"}
AGAINST = {"mcc": "MCC", "auroc": "AUROC", "false_positive_rate": "false positive rate"}
OF_RANGE = {
    "at_l": "at L",
    "at_l2": "at L/2",
    "at_l5": "at L/5",
    "ceiling_at_l": "best possible at L",
    "random": "random pairs",
    "auc": "AUC",
}
CRITERIA = {"motifs": MOTIF_CRITERION, "found": MOTIF_CRITERION}


def metric_part(key: str, metric: dict[str, Any], controls: list[dict[str, Any]]) -> str:
    """Return all numbers of a metric, and for each control what it rules out (`texts.rule_out`)."""
    return _numbers(key, metric) + _controls(key, metric, controls)


def _numbers(key: str, metric: dict[str, Any]) -> str:
    """Return a classifier beside its controls, contacts by range, other numbers, groups."""
    tables, held = _compared(key, metric), {"by_group", "ranges", "above"}
    if tables:
        held |= {"at_threshold", "macro", "controls", "other_negatives", "intervals", "sd"}
    content = _in_words(key, {name: value for name, value in metric.items() if name not in held})
    if isinstance(errors := content.get("calibration"), dict):
        content["calibration"] = {n: value for n, value in errors.items() if not n.startswith("reliability")}
    if isinstance(content.get("controls"), dict):
        content["controls"] = {control_name(key, name): run for name, run in content["controls"].items()}
    groups = {group: _in_words(key, inner) for group, inner in (metric.get("by_group") or {}).items()}
    tables += nested(content | ({"group": groups} if groups else {}), label_of(key))
    return tables + (_ranges(key, metric["ranges"]) if metric.get("ranges") else "")


def _ranges(key: str, ranges: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table of how contacts are found in each range of |i - j|, by this run and by its controls."""
    ours = ("value", "regression")
    order = sorted(ranges, key=lambda route: route not in ours)
    rows = [
        ["this run" if route in ours else control_name(key, route), name, found["pairs"], found["contacts"]]
        + [_in_range(found, column) for column in OF_RANGE]
        for route in order
        for name, found in ranges[route].items()
    ]
    head = ["score", "range of |i - j|", "pairs", "contacts", *OF_RANGE.values()]
    return table(head, rows, f"{label_of(key)}: by range", sortable=True)


def _in_range(found: dict[str, Any], column: str) -> Any:
    interval, value = found.get("intervals", {}).get(column), found.get(column)
    if interval is None or value is None:
        return value
    return f"{shown(value)} ({shown(interval[0])} to {shown(interval[1])})"


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
    paired = any(control["interval"] for control in controls)
    criterion = INTERVAL_CRITERION if paired else CRITERIA.get(kind_of(key), CRITERION)
    heading = f'<h4>What the controls rule out</h4><p class="meaning">{criterion}</p>'
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
    if interval := control["interval"]:
        noise = f", 95 % of resampled means lie between {shown(interval[0])} and {shown(interval[1])}"
    return (
        f'<span class="{"out" if out else "open"}">{mark}</span> that {escape(control["claim"])}: '
        f"the run is {size}{noise}."
    )
