"""How the calls of a scan agree with annotated start sites and genes, beside simpler ways to call.

Shapes: N sites of windows, S start sites, I intervals.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.keyed import generator
from pipeline.log import say
from pipeline.sequences.annotation import Annotation
from pipeline.sequences.calls import (
    WITHIN,
    Axis,
    Calls,
    Comparison,
    Scored,
    against_starts,
    distances,
    downstream_agreement,
)
from pipeline.sequences.places import without
from pipeline.training.genome_scan import OURS, WORK, GenomeScan


def _within_reach(scan: GenomeScan, starts: Calls, work: Path, counts: dict[str, Any], axis: Axis) -> Calls:
    """Return the start sites at which there is a scored window; others are counted.

    Raises:
        UserError: there is none.
    """
    reach_S = np.full(len(starts), np.inf)
    for target, strand, _, site_N, _ in scan.placed(OURS, work):
        on_N = axis.begin(target.name) + site_N
        to_site_S = distances(starts.position, starts.strand, on_N, np.full(len(on_N), strand))
        reach_S = np.minimum(reach_S, to_site_S)
    near_S = reach_S <= max(WITHIN, scan.windows.stride)
    counts |= {"starts": int(near_S.sum()), "starts_not_scanned": int((~near_S).sum())}
    if counts["starts_not_scanned"]:
        say(f"{counts['starts_not_scanned']} start sites are where no window is scored; left out")
    if not counts["starts"]:
        raise UserError(f"scan.starts: {scan.config.scan.starts}: no start site is where windows are scored")
    return starts.where(near_S)


def compare(
    scan: GenomeScan,
    ours: Scored,
    others: Mapping[str, Scored],
    threshold: float,
    annotation: Annotation,
    work: Path,
    counts: dict[str, Any],
) -> dict[str, Any]:
    """Return what metrics.json holds, and say it.

    Args:
        scan: what was scanned.
        ours: what the classifier found.
        others: what simpler ways of scoring found, by name.
        threshold: log-odds above which the classifier's maxima are calls.
        annotation: what calls are compared with.
        work: where scores are kept.
        counts: takes how many start sites could be found at all.
    """
    axis = Axis(scan.genome.lengths)
    rng = generator(scan.config.seed, len(WORK))
    genes, intergenic = annotation.genes, _intergenic(scan, axis, annotation)
    comparison = Comparison(ours, others, intergenic, rng)
    rate = float((ours.null > threshold).sum()) / ours.null_kilobases

    def choose(scored: Scored) -> Calls:
        return ours.maxima.above(threshold) if scored is ours else scored.at_rate(rate)

    metrics = {}
    if annotation.starts is not None:
        starts = _within_reach(scan, annotation.starts, work, counts, axis)
        metrics["recall"] = comparison.against(choose, lambda c: against_starts(c, starts, ours.kilobases))
        metrics |= comparison.recall(starts)
    if genes is not None and 0 not in scan.strands:
        metrics["strand_agreement"] = comparison.against(choose, lambda c: downstream_agreement(c, genes))
    for name, metric in metrics.items():
        say(_in_words(name, metric))
    return metrics


def _intergenic(scan: GenomeScan, axis: Axis, annotation: Annotation) -> np.ndarray | None:
    """Return the intervals (I, 2) of the axis that are read and that no gene covers, if genes are known."""
    if annotation.covered is None:
        return None
    parts = [axis.begin(target.name) + np.minimum(target.intervals, target.length) for target in scan.targets]
    read_I2 = np.concatenate(parts)
    return np.stack(without((read_I2[:, 0], read_I2[:, 1]), annotation.covered), 1)


def _in_words(name: str, metric: dict[str, Any]) -> str:
    """Return a metric in a line, beside its controls."""

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:.3f}"

    text = f"{name}: {number(metric['value'])} ({number(metric['low'])} to {number(metric['high'])})"
    controls = [f"{key} {number(each['value'])}" for key, each in metric["controls"].items()]
    more = [f"{key} {metric[key]:.3g}" for key in ("calls_per_kb", "outside_per_kb") if key in metric]
    return "; ".join([text, *more, ", ".join(controls)])
