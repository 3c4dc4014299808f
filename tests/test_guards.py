"""Rules of the house that no other test would notice being broken."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "pipeline").rglob("*.py"))
TRAVELLING = sorted((ROOT / "pipeline" / "model").glob("*.py"))
ROOMS = {"sequences", "tokens", "model", "training", "attention", "report", "worlds"}
# What declared dependencies work with and bring along: datasets, transformers, xopen.
COMES_WITH = {"pyarrow", "huggingface-hub", "backports-zstd"}


def imports(path):
    """Return every module that a file imports, also inside functions; relative ones begin with a dot."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
    return found


def ids(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TRAVELLING, ids=ids)
def test_files_in_a_checkpoint_import_only_what_is_there(path):
    allowed = {"torch", "transformers", "huggingface_hub", "typing"}
    allowed |= {"collections", "dataclasses", "itertools", "json", "pathlib", "re"}
    siblings = {f".{other.stem}" for other in TRAVELLING}
    for name in imports(path):
        assert name in siblings or name.split(".")[0] in allowed, name


@pytest.mark.parametrize("path", TRAVELLING, ids=ids)
def test_files_in_a_checkpoint_are_copied(path):
    """transformers finds what to copy by a pattern over the text: a relative import that begins a line."""
    assert not re.search(r"^\s*from \. import", path.read_text(), re.MULTILINE)
    text = re.findall(r"^\s*(?:from|import)\s+\.(\w+)", path.read_text(), re.MULTILINE)
    assert sorted(set(text)) == sorted({name[1:] for name in imports(path) if name.startswith(".")})


def test_tokenizers_holds_no_python():
    """A module there would stand in the way of the tokenizers library."""
    files = [path for path in (ROOT / "tokenizers").rglob("*") if path.is_file()]
    assert files
    assert {path.suffix for path in files} == {".json"}


def test_no_module_shadows_the_standard_library():
    names = {path.stem for path in MODULES} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert "tokenize" not in names
    assert not names & (sys.stdlib_module_names - {"__main__"})


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= 600


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_imports_point_downwards(path):
    """Stages use rooms, rooms use the model; no stage uses another, the model knows of nothing else."""
    parts = path.relative_to(ROOT / "pipeline").with_suffix("").parts
    stages = {"encode" if name == "tokenize" else name.replace("-", "_") for name in COMMANDS}
    above = stages - ROOMS | {"cli", "jobs", "workflow"}
    for name in imports(path):
        if not name.startswith("pipeline.") or name == "pipeline.cli":
            continue  # the last lines of a stage hand over to the command line
        target = name.split(".")[1]
        assert parts[0] != "model", name
        if parts[0] in ROOMS or parts[0] in stages:
            assert target == parts[0] or target not in above, name


def test_dependencies_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = (re.match(r"[\w.-]+", line)[0] for line in project["dependencies"])
    declared = {re.sub(r"[._]", "-", name.lower()) for name in names}
    distributions = packages_distributions()
    for path in MODULES:
        for name in imports(path):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top in ("", "pipeline"):
                continue
            full = {re.sub(r"[._]", "-", d.lower()) for d in distributions.get(top, [top])}
            assert full & (declared | COMES_WITH), f"{ids(path)} imports {name}"


HELP = """
import sys
from pipeline.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert stop.code == 0, stop.code
print(",".join(sorted({name.split(".")[0] for name in sys.modules})), file=sys.stderr)
"""


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_imports_nothing_heavy(command):
    argv = [*([command] if command else []), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", HELP, *argv], capture_output=True, text=True, env=environment, check=True
    )
    loaded = set(done.stderr.split(","))
    assert "pipeline" in loaded
    heavy = {"torch", "transformers", "accelerate", "datasets", "numpy", "pandas", "matplotlib", "snakemake"}
    assert not loaded & heavy


def test_documents_name_no_place_of_their_making():
    """Nobody else has our folders."""
    files = [*MODULES, *ROOT.glob("*.md"), *(ROOT / "configs").rglob("*.yaml"), ROOT / ".ci" / "run"]
    for path in files:
        assert not re.search(r"/(work|root|home)/\w", path.read_text()), path
