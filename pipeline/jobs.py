"""The stages of a run: from its configuration to one job for each stage, with every $reference resolved."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from pipeline.cli import nearest
from pipeline.config import STAGES, ReportConfig, RunConfig, Section, StageConfig
from pipeline.errors import UserError

REFERENCE = re.compile(r"\$([A-Za-z0-9_]+)")
REPORT, LOGS = "report", "logs"


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


def run_schema(values: Mapping[str, Any], source: str) -> type[BaseModel]:
    """Return the schema of one run: a key for each of its inputs and each setting of its stages."""
    inputs: dict[str, Any] = dict.fromkeys(values.get("inputs") or {}, (Path | None, None))
    stages: dict[str, Any] = {}
    for name, settings in (values.get("stages") or {}).items():
        command = settings.get("stage") if isinstance(settings, dict) else None
        if command not in STAGES:
            hint = nearest(str(command), list(STAGES))
            raise UserError(f"{source}: stages.{name}.stage: {command!r} is no stage; {hint}")
        taken = [REPORT, LOGS, *inputs]
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or name in taken:
            raise UserError(
                f"{source}: stages.{name}: a name has letters, digits and _ and is not {' or '.join(taken)}"
            )
        fields = {
            key: (info.annotation, info)
            for key, info in STAGES[command].model_fields.items()
            if key not in ("output", "name")
        }
        # Paths that refer to other stages are not known yet: they are checked when they are.
        settings_of: dict[str, Any] = {"stage": (str, command), **fields}
        section = create_model(f"{name}_stage", __base__=Section, **settings_of)
        stages[name] = (section, ...)
    groups: dict[str, Any] = {
        "stages": (create_model("stages", __base__=Section, **stages), ...),
        "inputs": (section := create_model("inputs", __base__=Section, **inputs), section()),
    }
    return create_model("Run", __base__=RunConfig, __doc__=RunConfig.__doc__, **groups)


def with_seeds(config: Any) -> Any:
    """Return the configuration with the run's seed in every stage that does not set its own."""
    seeded = {
        name: section.model_copy(update={"seed": config.seed})
        for name, section in config.stages
        if "seed" not in section.model_fields_set
    }
    return config.model_copy(update={"stages": config.stages.model_copy(update=seeded)})


def make_jobs(config: Any, source: str) -> list[Job]:
    """Return the stages in order, then the report, with every reference resolved.

    Raises:
        UserError: there is no stage, or a setting of one refers to nothing, or has a wrong value.
    """
    jobs: list[Job] = []
    inputs = {name: path and Path(path).absolute() for name, path in config.inputs.model_dump().items()}
    replace: dict[str, Path | None] = dict(inputs)
    for name, section in config.stages:
        seen: set[str] = set()
        settings = _fill(section.model_dump(mode="json"), replace, seen, f"{source}: stages.{name}")
        command = settings.pop("stage")
        folder = config.output.absolute() / name
        files: list[Path] = []
        schema = STAGES[command]
        stage = schema.model_validate({**settings, "output": folder, "name": name})
        stage = schema.model_validate(_absolute(stage.model_dump(), files))
        made = [folder, *(job.config.output for job in jobs)]
        files = [path for path in files if not any(map(path.is_relative_to, made))]
        jobs.append(Job(name, command, stage, sorted(seen - inputs.keys()), files))
        replace[name] = folder
    names = [job.name for job in jobs]
    if not names:
        raise UserError(f"{source}: stages: none given; name at least one, as in: corpus: {{stage: prepare}}")
    report = ReportConfig(
        output=config.output.absolute() / REPORT,
        run=config.output.absolute(),
        stages=names,
        title=config.title,
        simulated=config.simulated,
    )
    return [*jobs, Job(REPORT, REPORT, report, names, [])]


def _absolute(value: Any, found: list[Path], key: str = "") -> Any:
    """Return settings with absolute paths, as a stage runs in the run's folder; paths go to ``found`` too.

    A tokenizer is a name or a folder.
    """
    if isinstance(value, dict):
        return {name: _absolute(item, found, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_absolute(item, found) for item in value]
    if key == "tokenizer" and (Path(value) / "tokenizer_config.json").is_file():
        return str(_absolute(Path(value), found))
    if isinstance(value, Path):
        found.append(value.absolute())
        return value.absolute()
    return value
