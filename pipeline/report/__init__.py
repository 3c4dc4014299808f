"""The stage that shows what a run found: report.json, and the same numbers on one self-contained page."""

from pipeline.artifacts import MANIFEST, Result, Workspace, produce, read_manifest
from pipeline.config import ReportConfig
from pipeline.errors import UserError
from pipeline.log import say


def run(config: ReportConfig) -> Result:
    """Write report.html and report.json about finished stages.

    report.json holds every number of the page's tables: each metric at the top level, and under ``stages``
    what each stage counted, logged and compared. The page also holds the sequences and contact maps that it
    draws, and small files of the stages. Equal runs give equal bytes: neither file holds a time or a place.

    Raises:
        UserError: no stages are named, one is named twice or is not finished, or its files do not fit.
    """
    if not config.stages:
        raise UserError("stages: none given; name the folders to report on")
    for name in config.stages:
        if config.stages.count(name) > 1:
            raise UserError(f"stages: {name!r} is named twice; name each folder once")
        read_manifest(config.run / name)
    inputs = {name: config.run / name / MANIFEST for name in config.stages}
    return produce("report", config, inputs, lambda workspace: _build(config, workspace))


def _build(config: ReportConfig, workspace: Workspace) -> None:
    from pipeline.report.collect import collect, read_stages
    from pipeline.report.downloads import downloads
    from pipeline.report.figures import draw_figures
    from pipeline.report.page import render
    from pipeline.report.viewers import read_viewers

    stages = read_stages(config.run, config.stages)
    report = collect(stages, config.title, config.simulated)
    figures = {stage.name: draw_figures(stage, report) for stage in stages}
    extras = {stage.name: read_viewers(stage) + downloads(stage, report["simulated"]) for stage in stages}
    workspace.write_json("report.json", report)
    page = render(report, figures, extras)
    (workspace.path / "report.html").write_text(page, encoding="utf-8", newline="\n")
    workspace.counts |= {"stages": len(stages), "figures": sum(map(len, figures.values()))}
    say(f"{len(stages)} stages, {workspace.counts['figures']} figures: {config.output / 'report.html'}")
