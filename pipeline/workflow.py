"""``strandlm run``: resolve a run's configuration, hand Snakemake JSON, and show what came of it.

The folder of a run holds, beside the stages' own folders: ``.plan/<stage>.json`` (the stage's resolved
configuration), ``.inputs/<stage>.json`` (content hashes of the files it reads) and ``.receipts/<stage>.json``
(a copy of the finished stage's manifest). The first two are rewritten only when they change, and Snakemake
compares receipts by checksum: so exactly the stages that depend on a change run again.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from pipeline.artifacts import MANIFEST, hash_input
from pipeline.cli import _print_config, nearest, resolve
from pipeline.config import STAGES, ReportConfig, RunConfig, Section, StageConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.resources import resource

REFERENCE = re.compile(r"\$([A-Za-z0-9_]+)")
REPORT = "report"


@dataclass(frozen=True)
class Job:
    """A stage of a run: its command, its resolved settings, the stages and the files that it needs."""

    name: str
    command: str
    config: StageConfig
    needs: list[str]
    files: list[Path]

    @property
    def launch(self) -> str:
        """What is put before the stage's command instead of python."""
        return getattr(self.config, "launch", None) or ""


def _fill(value: Any, replace: Mapping[str, Path | None], seen: set[str], where: str) -> Any:
    """Return a setting with every $name replaced by a path; the names met are added to ``seen``."""
    if isinstance(value, dict):
        return {key: _fill(item, replace, seen, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, replace, seen, where) for item in value]
    if not isinstance(value, str):
        return value

    def path_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in replace:
            hint = nearest(name, list(replace))
            raise UserError(f"{where}: ${name} is neither an input nor an earlier stage; {hint}")
        if replace[name] is None:
            raise UserError(f"inputs.{name}: no file given; pass --inputs.{name.replace('_', '-')} FILE")
        seen.add(name)
        return str(replace[name])

    return REFERENCE.sub(path_of, value)


def _schema(values: Mapping[str, Any], source: str) -> type[BaseModel]:
    """Return the schema of one run: a key for each of its inputs and each setting of its stages."""
    stages: dict[str, Any] = {}
    for name, settings in (values.get("stages") or {}).items():
        command = settings.get("stage") if isinstance(settings, dict) else None
        if command not in STAGES:
            hint = nearest(str(command), list(STAGES))
            raise UserError(f"{source}: stages.{name}.stage: {command!r} is no stage; {hint}")
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or name == REPORT:
            raise UserError(f"{source}: stages.{name}: a name has letters, digits and _, and is not report")
        fields = {
            key: (info.annotation, info)
            for key, info in STAGES[command].model_fields.items()
            if key not in ("output", "name")
        }
        # Paths that refer to other stages are not known yet: they are checked when they are.
        settings_of: dict[str, Any] = {"stage": (str, command), **fields}
        section = create_model(f"{name}_stage", __base__=Section, **settings_of)
        stages[name] = (section, ...)
    inputs: dict[str, Any] = dict.fromkeys(values.get("inputs") or {}, (Path | None, None))
    groups: dict[str, Any] = {
        "stages": (create_model("stages", __base__=Section, **stages), ...),
        "inputs": (section := create_model("inputs", __base__=Section, **inputs), section()),
    }
    return create_model("Run", __base__=RunConfig, __doc__=RunConfig.__doc__, **groups)


def _jobs(config: Any, source: str) -> list[Job]:
    """Return the stages in order, then the report, with every reference resolved."""
    jobs: list[Job] = []
    inputs = {name: path and Path(path).absolute() for name, path in config.inputs.model_dump().items()}
    replace: dict[str, Path | None] = dict(inputs)
    for name, section in config.stages:
        seen: set[str] = set()
        settings = _fill(section.model_dump(mode="json"), replace, seen, f"{source}: stages.{name}")
        command = settings.pop("stage")
        if "seed" not in section.model_fields_set:
            settings["seed"] = config.seed
        folder = config.output.absolute() / name
        stage = STAGES[command].model_validate({**settings, "output": folder, "name": name})
        files = [path for key in sorted(seen) if (path := inputs.get(key))]
        files += _other_files(stage, config.output.absolute(), set(files))
        jobs.append(Job(name, command, stage, sorted(seen - inputs.keys()), files))
        replace[name] = folder
    names = [job.name for job in jobs]
    report = ReportConfig(
        output=config.output.absolute() / REPORT,
        run=config.output.absolute(),
        stages=names,
        title=config.title,
        simulated=config.simulated,
    )
    return [*jobs, Job(REPORT, REPORT, report, names, [])]


def _other_files(stage: StageConfig, output: Path, known: set[Path]) -> list[Path]:
    """Return paths written in the configuration itself, not by reference."""

    def paths(value: Any) -> list[Path]:
        if isinstance(value, Path):
            return [value.absolute()]
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return [path for item in items for path in paths(item)]

    written = paths(stage.model_dump(exclude={"output"}))
    return [path for path in written if path not in known and output not in path.parents]


def _write_if_changed(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def _receipt(output: Path, name: str) -> Path:
    return output / ".receipts" / f"{name}.json"


def _plan(jobs: list[Job], output: Path) -> None:
    """Write what each stage is to do and the hashes of what it reads; drop receipts of lost results."""
    for folder in (".plan", ".inputs", ".receipts", "logs"):
        (output / folder).mkdir(parents=True, exist_ok=True)
    for job in jobs:
        _write_if_changed(output / ".plan" / f"{job.name}.json", json.loads(job.config.model_dump_json()))
        hashes = {str(i): hash_input(path) for i, path in enumerate(job.files)}
        _write_if_changed(output / ".inputs" / f"{job.name}.json", hashes)
        receipt, manifest = _receipt(output, job.name), output / job.name / MANIFEST
        if receipt.is_file() and not (manifest.is_file() and manifest.read_bytes() == receipt.read_bytes()):
            receipt.unlink()
    table = {job.name: {"command": job.command, "needs": job.needs, "launch": job.launch} for job in jobs}
    _write_if_changed(output / ".plan" / "jobs.json", table)


def _snakemake(config: Any, output: Path) -> list[str]:
    workflows = resource("workflows")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(workflows / "Snakefile")]
    command += ["--directory", str(output), "--cores", str(config.cores), "--nolock", "--rerun-incomplete"]
    command += ["--rerun-triggers", "mtime", "--quiet", "all"]
    profile = config.profile or "default"
    folder = workflows / "profiles" / profile
    command += ["--profile", str(folder if folder.is_dir() else Path(profile).absolute())]
    return [*command, "--dry-run"] if config.dry_run else command


def _lock(output: Path):
    """Hold the run's folder; the lock goes with the process, also when it is killed."""
    file = (output / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{output}: another strandlm run is at work in this folder") from None
    return file


def _stamps(jobs: list[Job], output: Path) -> dict[str, int]:
    paths = {job.name: _receipt(output, job.name) for job in jobs}
    return {name: path.stat().st_mtime_ns for name, path in paths.items() if path.is_file()}


def run_workflow(values: Mapping[str, Any], argv: list[str], source: str, show: bool) -> None:
    """Run every stage whose inputs or settings changed, then write report.html and report.json.

    Raises:
        UserError: the configuration is wrong, or a stage failed.
    """
    config: Any = resolve(_schema(values, source), values, argv, source, "run")
    if show:
        _print_config(config)
        return
    output = config.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    jobs = _jobs(config, source)
    lock = _lock(output)
    _plan(jobs, output)
    before = _stamps(jobs, output)
    say(f"{config.title}: {len(jobs)} stages in {config.output}")
    environment = {**os.environ, "STRANDLM_RUN": f"{os.uname().nodename}:{os.getpid()}"}
    process = subprocess.run(_snakemake(config, output), env=environment, check=False)
    if process.returncode:
        raise UserError(
            f"{config.output}: a stage failed: see above, or {config.output / 'logs'}; run again to go on"
        )
    if config.dry_run:
        return
    for name in ("report.html", "report.json"):
        target = output / name
        shutil.copyfile(output / REPORT / name, target.with_suffix(".partial"))
        target.with_suffix(".partial").replace(target)
    ran = [name for name, stamp in _stamps(jobs, output).items() if before.get(name) != stamp]
    if ran:
        say(f"ran {len(ran)} of {len(jobs)} stages: {', '.join(ran)}")
    else:
        say(f"nothing to do: all {len(jobs)} stages are up to date")
    say(f"report: {config.output / 'report.html'}")
    lock.close()
