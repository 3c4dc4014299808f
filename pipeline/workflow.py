"""``strandlm run``: hand a run's stages to Snakemake as JSON, and show what comes of them.

The folder of a run holds, beside the stages' own folders: ``.plan/<stage>.json`` (the stage's resolved
configuration), ``.inputs/<stage>.json`` (content hashes of the files it reads) and ``.receipts/<stage>.json``
(a copy of the finished stage's manifest). Snakemake compares them by checksum: so exactly the stages that
depend on a change run again. A stage writes to ``logs/<stage>.log``, shown as it grows, wherever it runs.
"""

import csv
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pipeline import __version__
from pipeline.artifacts import MANIFEST, hash_input
from pipeline.cli import _print_config, nearest, resolve
from pipeline.errors import UserError
from pipeline.jobs import LOGS, REPORT, Job, make_jobs, run_schema, with_seeds
from pipeline.log import say
from pipeline.resources import resource

MESSAGES = f"{LOGS}/snakemake-messages.log"  # no stage's name has a dash
DEFAULT_CORES = 2
PATIENCE = 5.0  # seconds that the processes of a killed run get to end


def _write_if_changed(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def _receipt(output: Path, name: str) -> Path:
    return output / ".receipts" / f"{name}.json"


def _plan(jobs: list[Job], output: Path) -> None:
    """Write what each stage is to do and the hashes of what it reads; drop receipts of lost results."""
    for folder in (".plan", ".inputs", ".receipts", LOGS):
        (output / folder).mkdir(parents=True, exist_ok=True)
    for job in jobs:
        _write_if_changed(output / ".plan" / f"{job.name}.json", json.loads(job.config.model_dump_json()))
        hashes = [hash_input(path) for path in job.files]
        _write_if_changed(
            output / ".inputs" / f"{job.name}.json", {"strandlm": __version__, "inputs": hashes}
        )
        receipt, manifest = _receipt(output, job.name), output / job.name / MANIFEST
        if receipt.is_file() and not (manifest.is_file() and manifest.read_bytes() == receipt.read_bytes()):
            receipt.unlink()
    table = {
        job.name: {
            "command": job.command,
            "needs": job.needs,
            "launch": job.launch,
            "step": f"{place}/{len(jobs)}",
        }
        for place, job in enumerate(jobs, 1)
    }
    _write_if_changed(output / ".plan" / "jobs.json", table)


def _profile(name: str | None) -> Path:
    """Return the folder of a Snakemake profile: one that comes with strandlm, or the user's own."""
    shipped = resource("workflows") / "profiles"
    for folder in (shipped / (name or "default"), Path(name or "").absolute()):
        if (folder / "config.yaml").is_file():
            return folder
    hint = nearest(str(name), sorted(path.name for path in shipped.iterdir()))
    raise UserError(f"profile: {name}: neither a profile of ours nor a folder with config.yaml; {hint}")


def _snakemake(config: Any, output: Path) -> list[str]:
    """Return the call of Snakemake; on a cluster the profile says how much runs at once."""
    profile = _profile(config.profile)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(resource("workflows") / "Snakefile")]
    command += ["--directory", str(output), "--profile", str(profile), "--workflow-profile", "none"]
    command += ["--nolock", "--rerun-incomplete", "--rerun-triggers", "mtime", "--quiet", "all"]
    cores = config.cores or (DEFAULT_CORES if profile.name == "default" else None)
    return [*command, "--cores", str(cores)] if cores else command


def _lock(output: Path) -> IO[str]:
    """Hold the run's folder, also for Snakemake: the lock goes when both are gone, however they end.

    When a run is killed its stages see to it within a second, and Snakemake ends with them.
    """
    file = (output / ".lock").open("w")
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() - begun > PATIENCE:
                raise UserError(f"{output}: another strandlm run is at work in this folder") from None
            time.sleep(0.1)


def _made(jobs: list[Job], output: Path) -> dict[str, int]:
    """Return when each finished stage was made."""
    paths = {job.name: output / job.name / MANIFEST for job in jobs}
    return {name: path.stat().st_mtime_ns for name, path in paths.items() if path.is_file()}


class _Logs:
    """The logs of a run's stages, from where they end now."""

    def __init__(self, jobs: list[Job], output: Path):
        self.paths = {job.name: output / LOGS / f"{job.name}.log" for job in jobs}
        self.begun = {name: path.stat().st_size for name, path in self.paths.items() if path.is_file()}
        self.shown = dict(self.begun)

    def show(self, whole_lines: bool) -> None:
        """Print what is new."""
        for name, path in self.paths.items():
            if path.is_file() and path.stat().st_size > self.shown.get(name, 0):
                with path.open("rb") as log:
                    log.seek(self.shown.get(name, 0))
                    new = log.read()
                new = new[: new.rfind(b"\n") + 1] if whole_lines else new
                self.shown[name] = self.shown.get(name, 0) + len(new)
                sys.stderr.write(new.decode(errors="replace"))
        sys.stderr.flush()

    def written(self) -> list[str]:
        """Return the stages that wrote something."""
        return [name for name in self.paths if self.shown.get(name, 0) > self.begun.get(name, 0)]


def _execute(command: list[str], jobs: list[Job], config: Any, lock: IO[str]) -> None:
    """Let Snakemake run what is to be run, showing what the stages say."""
    output = config.output.absolute()
    logs = _Logs(jobs, output)
    environment = {**os.environ, "STRANDLM_RUN": f"{os.uname().nodename}:{os.getpid()}"}
    with (output / MESSAGES).open("w") as messages:
        process = subprocess.Popen(
            command, stdout=messages, stderr=messages, env=environment, pass_fds=[lock.fileno()]
        )
    while process.poll() is None:
        logs.show(whole_lines=True)
        time.sleep(0.2)
    logs.show(whole_lines=False)
    if not process.returncode:
        return
    failed = [name for name in logs.written() if not _receipt(output, name).is_file()]
    if not failed:
        print((output / MESSAGES).read_text(), file=sys.stderr)
        raise UserError(f"{config.output}: Snakemake stopped: see above")
    where = " ".join(str(config.output / LOGS / f"{name}.log") for name in failed)
    raise UserError(f"{config.output}: {', '.join(failed)} failed: see above, or {where}; run again to go on")


def _say_what_would_run(command: list[str], jobs: list[Job]) -> None:
    table = subprocess.run([*command, "--summary"], capture_output=True, text=True, check=False)
    if table.returncode:
        print(table.stderr, file=sys.stderr)
        raise UserError("Snakemake stopped: see above")
    rows = csv.DictReader(table.stdout.splitlines(), delimiter="\t")
    pending = {Path(row["output_file"]).stem for row in rows if row["plan"] != "no update"}
    for job in jobs:
        if job.name in pending:
            say(f"would run {job.name}: {job.command}")
    say(f"{len(pending)} of {len(jobs)} stages would run")


def _copy_report(output: Path) -> None:
    """Put the report at the top of the run's folder."""
    for name in ("report.html", "report.json"):
        made, copy = output / REPORT / name, output / name
        if not copy.is_file() or copy.read_bytes() != made.read_bytes():
            partial = output / f".{name}.partial"
            shutil.copyfile(made, partial)
            partial.replace(copy)


def _check_output(output: Path) -> None:
    """Refuse to work in a folder that holds other things than an earlier run."""
    mine = (output / ".plan").is_dir() or not output.exists()
    if not mine and not (output.is_dir() and all(path.name.startswith(".") for path in output.iterdir())):
        raise UserError(f"{output}: exists and was not written by strandlm; choose another --output")


def run_workflow(values: Mapping[str, Any], argv: list[str], source: str, show: bool) -> None:
    """Run every stage whose inputs or settings changed, then write report.html and report.json.

    Raises:
        UserError: the configuration is wrong, or a stage failed.
    """
    config = with_seeds(resolve(run_schema(values, source), values, argv, source, "run"))
    if show:
        _print_config(config)
        return
    output = config.output.absolute()
    jobs = make_jobs(config, source)
    command = _snakemake(config, output)
    _check_output(output)
    output.mkdir(parents=True, exist_ok=True)
    with _lock(output) as lock:
        _plan(jobs, output)
        if config.dry_run:
            _say_what_would_run(command, jobs)
            return
        before = _made(jobs, output)
        say(f"{config.title}: {len(jobs)} stages in {config.output}")
        _execute(command, jobs, config, lock)
        _copy_report(output)
    ran = [name for name, time_made in _made(jobs, output).items() if before.get(name) != time_made]
    if ran:
        say(f"ran {len(ran)} of {len(jobs)} stages: {', '.join(ran)}")
    else:
        say(f"nothing to do: all {len(jobs)} stages are up to date")
    say(f"report: {config.output / 'report.html'}")
