"""Calls of start sites out of the scores of a scan: the threshold, the calls, and the files with all of it.

Shapes: N windows or maxima.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit

from pipeline.artifacts import Workspace
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.sequences.annotation import Annotation
from pipeline.sequences.calls import Axis, Calls, Scored, false_calls, local_maxima, threshold_at
from pipeline.sequences.tracks import SIGNS, TRACKS, Site, table, tracks, write_calls
from pipeline.training.genome_scan import AT, AT_NULL, NULL, OURS, GenomeScan
from pipeline.training.site_agreement import compare


def collect(
    scan: GenomeScan, part: str, work: Path, axis: Axis, writers: Sequence = (), above: float = -np.inf
) -> tuple[Calls, float]:
    """Return the local maxima above a threshold, and the kilobases read; hand all scores to ``writers``.

    Raises:
        UserError: no window has a score.
    """
    found, sites = [], 0
    for target, strand, start_N, site_N, score_N in scan.placed(part, work):
        for write in writers:
            write(target.name, strand, start_N, site_N, score_N)
        joined = target.length if target.joined else None
        best = local_maxima(site_N, score_N, scan.config.scan.apart, joined)
        best = best[score_N[best] > above]
        place = axis.begin(target.name) + site_N[best]
        found.append(Calls(place, np.full(len(best), strand, np.int8), score_N[best]))
        sites += len(site_N)
    if not sites:
        what = "every window of the shuffled sample" if part in (NULL, AT_NULL) else "every window"
        raise UserError(f"{scan.genome.path}: {what} holds letters other than ACGT; nothing to call")
    return Calls.join(found), sites / len(scan.strands) * scan.windows.stride / 1000


def null_maxima(scan: GenomeScan, part: str, work: Path) -> tuple[np.ndarray, float]:
    """Return the scores of the local maxima of the shuffled sample, and its kilobases."""
    assert scan.sample is not None
    maxima, kilobases = collect(scan, part, work, Axis(scan.sample.lengths))
    return maxima.score, kilobases


def _probability(score_N: np.ndarray) -> np.ndarray:
    return expit(np.asarray(score_N, float))


@contextmanager
def _writers(scan: GenomeScan, folder: Path) -> Iterator[list]:
    """Open the files that take every score, and give what writes into them."""
    with ExitStack() as stack:
        files = stack.enter_context(tracks(folder, scan.genome.lengths, scan.strands))

        def write_tracks(name: str, strand: int, start_N, site_N, score_N) -> None:
            for write in files[strand]:
                write(name, site_N, _probability(score_N))

        if not scan.config.scan.table:
            yield [write_tracks]
            return
        columns = "chromosome start end strand position probability"
        write_rows = stack.enter_context(table(folder / "windows.tsv", columns))

        def write_table(name: str, strand: int, start_N, site_N, score_N) -> None:
            rows = zip(start_N.tolist(), site_N.tolist(), _probability(score_N).tolist(), strict=True)
            sign, size = SIGNS[strand], scan.windows.size
            write_rows(f"{name}\t{s}\t{s + size}\t{sign}\t{at}\t{p:.6g}" for s, at, p in rows)

        yield [write_tracks, write_table]


def _write_calls(calls: Calls, axis: Axis, null: tuple[np.ndarray, float] | None, folder: Path) -> None:
    calls = calls.in_order()
    rates = false_calls(calls.score, *null).tolist() if null else [None] * len(calls)
    columns = calls.strand.tolist(), _probability(calls.score).tolist()
    places = zip(axis.places(calls.position), *columns, strict=True)
    write_calls(folder, [Site(*place, strand, p) for place, strand, p in places], rates)


def _threshold(scan: GenomeScan, null: tuple[np.ndarray, float] | None) -> float:
    """Return the log-odds that calls are above, and say which probability that is."""
    settings = scan.config.scan
    if settings.threshold is not None:
        threshold = float(logit(settings.threshold))
        text = f"threshold: probability {settings.threshold:g}, as given"
    else:
        assert null is not None
        threshold = threshold_at(*null, settings.false_calls_per_kb)
        text = f"threshold: probability {_probability(np.array(threshold)):.6g}, chosen"
    if null:
        false = int((null[0] > threshold).sum())
        text += (
            f"; above it are {false} calls in {null[1]:g} kb of shuffled bases, {false / null[1]:.3g} per kb"
        )
    say(text)
    return threshold


def finish(scan: GenomeScan, work: Path, annotation: Annotation, workspace: Workspace) -> None:
    """Turn scores into tracks, calls, and what they are compared with."""
    axis, folder = Axis(scan.genome.lengths), workspace.path
    null = null_maxima(scan, NULL, work) if scan.sample else None
    threshold = _threshold(scan, null)
    with _writers(scan, folder) as writers:
        above = -np.inf if scan.compares else threshold
        maxima, kilobases = collect(scan, OURS, work, axis, writers, above)
    _count_windows(scan, kilobases, workspace.counts)
    calls = maxima.above(threshold)
    _write_calls(calls, axis, null, folder)
    workspace.counts |= {
        "calls": {TRACKS[strand]: int((calls.strand == strand).sum()) for strand in scan.strands},
        "threshold": float(_probability(np.array(threshold))),
        "kilobases": kilobases,
    }
    if null and scan.compares:
        ours = Scored(maxima, kilobases, *null)
        simple = Scored(*collect(scan, AT, work, axis), *null_maxima(scan, AT_NULL, work))
        metrics = compare(scan, ours, {"at_content": simple}, threshold, annotation, work, workspace.counts)
        workspace.write_json("metrics.json", metrics)
    say(f"{len(calls)} calls in {kilobases:g} kb: {scan.config.output / 'calls.bed'}")


def _count_windows(scan: GenomeScan, kilobases: float, counts: dict[str, Any]) -> None:
    """Count the windows, each once for both strands; say how many have no score."""
    size, stride = scan.windows.size, scan.windows.stride
    every = sum(len(target.starts(size, stride, 0, target.length)) for target in scan.targets)
    scored = round(kilobases * 1000 / stride)
    counts |= {"windows_scored": scored, "windows_not_scored": every - scored}
    if every > scored:
        say(f"{every - scored} of {every} windows hold letters other than ACGT and are not scored")
