"""The wheel: complete, and at work in a strange folder with names like ours in it."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESOURCES = ("configs", "tokenizers", "workflows")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Build the wheel as pip would, without asking the network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """Return the bin folder of a new environment: this one's packages, and strandlm from the wheel."""
    folder = tmp_path_factory.mktemp("new venv é")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Appended as plain folders, so that the .pth files in them (an editable install of ours) are not read.
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "others.pth").write_text("\n".join(sorted(packages)) + "\n")
    command = ["-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index"]
    command += ["--ignore-installed", "--force-reinstall", "--quiet", str(wheel)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
    return folder / "bin"


@pytest.fixture
def strange(tmp_path):
    """Return a folder that holds folders called as ours and as the library that ours is called after."""
    for name in ("pipeline", "tokenizers", "configs", "workflows"):
        (tmp_path / name).mkdir()
    (tmp_path / "pipeline" / "step1.txt").write_text("not ours")
    (tmp_path / "tokenizers" / "tokenizer.json").write_text("{}")
    (tmp_path / "a.fa").write_text(">a\nACGTACGTACGT\n>b\nGGGTACGTACTT\n")
    return tmp_path


def run(command, folder):
    return subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, env={"PATH": "/usr/bin"}
    )


def test_wheel_holds_all_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "pipeline").rglob("*.py")}
    assert ours <= names
    for folder in (ROOT / "pipeline").iterdir():
        assert not folder.is_dir() or folder.name == "__pycache__" or (folder / "__init__.py").is_file(), (
            folder
        )


@pytest.mark.parametrize("name", RESOURCES)
def test_wheel_holds_the_resources(wheel, name):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in (ROOT / name).rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert f"pipeline/resources/{path.relative_to(ROOT).as_posix()}" in names


def test_wheel_holds_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"pipeline", "strandlm-0.1.0.dist-info"}
    assert not [name for name in names if "test" in name or "__pycache__" in name or "/." in name]
    resources = {name.split("/")[2] for name in names if name.startswith("pipeline/resources/")}
    assert resources == set(RESOURCES)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_command_works_from_any_folder(installed, strange):
    done = run([installed / "strandlm", "--help"], strange)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: strandlm STAGE")
    argv = ["prepare", "--input", "a.fa", "--output", "corpus", "--validation", "0", "--test", "0"]
    done = run([installed / "strandlm", *argv], strange)
    assert done.returncode == 0, done.stderr
    assert (strange / "corpus" / "manifest.json").is_file()


def test_resources_are_found_from_any_folder(installed, strange):
    """The shipped tokenizer is meant, not the folder of that name that happens to be there."""
    (strange / "tokenizers" / "dna-6mer").mkdir()
    for argv in (
        ["prepare", "--input", "a.fa", "--output", "corpus", "--validation", "0", "--test", "0"],
        ["tokenize", "--corpus", "corpus", "--output", "tokens", "--tokenizer", "dna-6mer"],
        ["pretrain", "--config", "dna-6mer-tiny", "--data", "tokens", "--output", "o", "--print-config"],
    ):
        done = run([installed / "strandlm", *argv], strange)
        assert done.returncode == 0, done.stderr
    assert (strange / "tokens" / "tokenizer" / "tokenizer.json").is_file()
    assert "hidden_size: 128\n" in done.stdout


SHADOWS = """
import sys, pipeline, pipeline.cli, pipeline.resources, tokenize, tokenizers
print(pipeline.__version__, pipeline.__file__, tokenize.__file__, tokenizers.__file__, sep="\\n")
"""


def test_imports_are_ours_and_theirs(installed, strange):
    """Also where the working folder comes first on the path, as with python -m and -c."""
    done = run([installed / "python", "-c", SHADOWS], strange)
    assert done.returncode == 0, done.stderr
    number, ours, standard, library = done.stdout.splitlines()
    assert number == "0.1.0"
    assert Path(ours).is_relative_to(installed.parent)
    assert Path(standard).parent == Path(shutil.__file__).parent
    assert Path(library).parts[-2:] == ("tokenizers", "__init__.py")
    done = run([installed / "python", "-m", "pipeline.prepare", "--help"], strange)
    assert done.stdout.startswith("usage: strandlm prepare")


def test_another_package_of_our_name_is_told_apart(installed, strange):
    """A folder with an __init__.py shadows any package under python -m; the command is not fooled."""
    (strange / "pipeline" / "__init__.py").write_text("raise SystemExit('theirs')\n")
    done = run([installed / "strandlm", "--version"], strange)
    assert done.stdout == "strandlm 0.1.0\n"
