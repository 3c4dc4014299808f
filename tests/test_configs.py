"""Every YAML in configs/ resolves against the schema of what it is for."""

import re
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType

from pipeline.cli import main, read_yaml, resolve
from pipeline.config import STAGES
from pipeline.model import StrandForMaskedLM
from pipeline.resources import resource

CONFIGS = sorted(resource("configs").glob("*.yaml"))
PLACES = {"output": "o", "data": "d", "corpus": "d", "checkpoint": "c", "input": "i"}


def stage_of(path):
    """Return the stage that a file is for, from the command in its comment."""
    return re.search(r"^# .*`strandlm ([a-z-]+)", path.read_text(), re.MULTILINE)[1]


def is_run(path):
    return "stages" in read_yaml(path)


def with_places(schema, values):
    """Return the values with the paths that a user, or the run, adds."""
    required = [name for name, field in schema.model_fields.items() if field.is_required()]
    return {**{name: PLACES[name] for name in required}, **values}


def test_there_are_configs_of_both_kinds():
    names = {path.stem for path in CONFIGS}
    assert {"dna-6mer-tiny", "dna-6mer-overlap-tiny", "dna-1mer-small", "dna-110m"} <= names
    assert {"protein-tiny", "protein-8m", "protein-650m"} <= names
    assert {"demo", "ecoli-promoters", "protein-family"} == {path.stem for path in CONFIGS if is_run(path)}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_resolves(path):
    values = read_yaml(path)
    if not is_run(path):
        schema = STAGES[stage_of(path)]
        resolve(schema, with_places(schema, values), [], str(path), stage_of(path))
        return
    known = set(values.get("inputs") or {})
    for name, settings in values["stages"].items():
        stage = settings.pop("stage")
        where = f"{path}: stages.{name}"
        resolve(STAGES[stage], with_places(STAGES[stage], settings), [], where, stage)
        for reference in re.findall(r"\$(\w+)", str(settings)):
            assert reference in known, f"{where}: ${reference} is neither an input nor an earlier stage"
        known.add(name)


@pytest.mark.parametrize("path", [path for path in CONFIGS if is_run(path)], ids=lambda path: path.stem)
def test_run_is_printed_as_it_would_be_used(path, tmp_path, capsys):
    main(["run", "--config", path.stem, "--output", "o", "--print-config"])
    first = capsys.readouterr().out
    (tmp_path / "c.yaml").write_text(first)
    main(["run", "--config", str(tmp_path / "c.yaml"), "--print-config"])
    assert capsys.readouterr().out == first
    assert list(read_yaml(tmp_path / "c.yaml")["stages"]) == list(read_yaml(path)["stages"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_says_what_it_is_for(path):
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize(
    ("name", "kind"), [("ddp", DistributedType.MULTI_GPU), ("fsdp", DistributedType.FSDP)]
)
def test_accelerate_reads_its_config(name, kind):
    config = load_config_from_file(str(resource("configs") / "accelerate" / f"{name}.yaml"))
    assert config.distributed_type == kind
    assert (config.num_processes, config.num_machines, config.machine_rank) == (2, 1, 0)
    assert config.mixed_precision == "no"


def test_what_fsdp_divides():
    config = load_config_from_file(str(resource("configs") / "accelerate" / "fsdp.yaml"))
    assert config.fsdp_config["fsdp_version"] == 2
    assert [config.fsdp_config["fsdp_transformer_layer_cls_to_wrap"]] == StrandForMaskedLM._no_split_modules


def test_accelerate_configs_are_all_tested():
    files = Path(resource("configs") / "accelerate").iterdir()
    assert sorted(path.name for path in files) == ["ddp.yaml", "fsdp.yaml"]
