"""Stage folders: complete or absent, redone when input or settings changed, never over other files."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.artifacts import MANIFEST, hash_input, key_of, produce, read_manifest
from pipeline.config import PrepareConfig, TokenizeConfig
from pipeline.errors import UserError


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in put" / "génome 1.fa"
    path.parent.mkdir()
    path.write_bytes(b">a\nACGT\n")
    return path


@pytest.fixture
def stage(tmp_path, source):
    """Return a stage that copies its input, and the list of its runs."""
    runs = []

    def build(workspace):
        runs.append(workspace.path)
        (workspace.path / "copy.fa").write_bytes(stage.source.read_bytes())
        workspace.counts["records"] = 1

    def stage(command="prepare", resumable=False, volatile=(), build=build, **settings):
        config = PrepareConfig(output=tmp_path / "out put" / "é", input=[stage.source], **settings)
        inputs = {"input0": stage.source}
        return produce(command, config, inputs, build, resumable=resumable, volatile=volatile)

    stage.source, stage.runs = source, runs
    return stage


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_manifest_says_how_the_folder_came_about(stage):
    result = stage(seed=3)
    manifest = json.loads((result.folder / MANIFEST).read_text())
    assert manifest == result.manifest == read_manifest(result.folder)
    assert manifest["stage"] == "prepare"
    assert manifest["config"]["seed"] == 3
    assert manifest["counts"] == {"records": 1}
    assert list(manifest["files"]) == ["copy.fa"]
    # printf '>a\nACGT\n' | sha256sum
    digest = "ec93753459551ffadb17f616d5e6bd45de641c045083fac84c4fa223987b232b"
    assert manifest["inputs"] == {"input0": digest}
    assert {"python", "torch", "strandlm"} <= manifest["versions"].keys()
    assert sorted(p.name for p in result.folder.iterdir()) == ["copy.fa", MANIFEST]
    assert hidden(result.folder.parent) == []


def test_second_run_does_nothing_and_says_so(stage, capsys):
    first = stage()
    capsys.readouterr()
    second = stage()
    assert capsys.readouterr().err.endswith("up to date, nothing to do\n")
    assert (second.up_to_date, len(stage.runs)) == (True, 1)
    assert second.manifest == first.manifest


def test_same_content_under_another_name_and_date_does_nothing(stage):
    stage()
    moved = stage.source.with_name("other.fa")
    stage.source.rename(moved)
    os.utime(moved, (1, 1))
    stage.source = moved
    assert stage().up_to_date


def test_one_changed_byte_of_the_same_size_and_date_runs_again(stage):
    stage()
    before = stage.source.stat()
    stage.source.write_bytes(b">a\nACGA\n")
    os.utime(stage.source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert stage.source.stat().st_size == before.st_size
    result = stage()
    assert (result.up_to_date, len(stage.runs)) == (False, 2)
    assert (result.folder / "copy.fa").read_bytes() == b">a\nACGA\n"
    assert hidden(result.folder.parent) == []


@pytest.mark.parametrize(("setting", "again"), [({"seed": 1}, True), ({"name": "other"}, False)])
def test_settings_that_change_the_result_run_again(stage, setting, again):
    stage()
    assert stage(**setting).up_to_date is not again


def test_new_version_of_strandlm_runs_again(stage, monkeypatch):
    stage()
    monkeypatch.setattr("pipeline.artifacts.__version__", "99")
    assert not stage().up_to_date


def test_content_hash_leaves_out_volatile_files(stage):
    def build(text):
        def build(workspace):
            (workspace.path / "data").write_text("same")
            (workspace.path / "logs").mkdir()
            (workspace.path / "logs" / "times").write_text(text)

        return build

    first = stage(build=build("12:00"), volatile=("logs",)).manifest
    again = stage(build=build("12:01"), volatile=("logs",), seed=1)
    assert first["content"] == again.manifest["content"]
    assert list(first["files"]) == ["data"]
    shutil.rmtree(again.folder)
    third = stage(build=build("12:02"), seed=2).manifest
    assert third["content"] != first["content"]


def test_next_stage_sees_content_not_settings(stage, tmp_path):
    """A stage that runs again and finds the same does not make the stages after it run again."""
    first = hash_input(stage().folder)
    assert hash_input(stage(seed=1).folder) == first
    stage.source.write_bytes(b">a\nACGA\n")
    assert hash_input(stage(seed=1).folder) != first


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), UserError("x")])
def test_failure_leaves_nothing_and_the_next_run_redoes_it(stage, tmp_path, error):
    def build(workspace):
        (workspace.path / "half.fa").write_text(">a\nAC")
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        stage(build=build)
    output = tmp_path / "out put" / "é"
    assert not output.exists()
    assert hidden(output.parent) == []
    assert sorted(p.name for p in stage().folder.iterdir()) == ["copy.fa", MANIFEST]


def test_failure_keeps_the_result_before_it(stage):
    first = stage()

    def build(workspace):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage(build=build, seed=1)
    assert (first.folder / "copy.fa").read_bytes() == b">a\nACGT\n"
    assert stage().up_to_date


KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.artifacts import produce
from pipeline.config import PrepareConfig

def build(workspace):
    (workspace.path / "half.fa").write_text(">a")
    os.kill(os.getpid(), signal.SIGKILL)

config = PrepareConfig(output=sys.argv[1], input=[sys.argv[2]])
produce("prepare", config, {"input0": Path(sys.argv[2])}, build, resumable=sys.argv[3] == "resumable")
"""


@pytest.mark.parametrize("kind", ["plain", "resumable"])
def test_kill_leaves_no_finished_looking_folder(stage, tmp_path, kind):
    output = tmp_path / "out put" / "é"
    command = [sys.executable, "-c", KILLED, str(output), str(stage.source), kind]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    assert not output.exists()
    assert ".é.partial" in hidden(output.parent)
    with pytest.raises(UserError, match="no such folder; has the stage that writes it been run"):
        read_manifest(output)
    result = stage(resumable=kind == "resumable")
    expected = ["copy.fa", "half.fa", MANIFEST] if kind == "resumable" else ["copy.fa", MANIFEST]
    assert sorted(p.name for p in result.folder.iterdir()) == expected
    assert hidden(output.parent) == []


@pytest.mark.parametrize("claimed", [False, True])
def test_a_resumable_stage_that_did_nothing_leaves_nothing(stage, tmp_path, claimed):
    def build(workspace):
        if claimed:
            workspace.claim("key")
        raise UserError("a mistake")

    with pytest.raises(UserError, match="a mistake"):
        stage(build=build, resumable=True)
    assert [path.name for path in (tmp_path / "out put").iterdir() if "partial" in path.name] == []


def test_unfinished_work_is_found_again_by_the_same_stage_alone(stage):
    def build(workspace):
        (workspace.path / "checkpoint").write_text("step 5")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage(build=build, resumable=True)
    assert not (stage("encode", resumable=True).folder / "checkpoint").exists()
    shutil.rmtree(stage("encode").folder)
    with pytest.raises(KeyboardInterrupt):
        stage(build=build, resumable=True)
    assert (stage(seed=1, resumable=True).folder / "checkpoint").read_text() == "step 5"


def test_unfinished_work_is_kept_under_its_key_alone(stage):
    found = []

    def build(workspace, key="one", error=KeyboardInterrupt):
        assert set(workspace.inputs) == {"input0"}
        workspace.claim(key)
        found.append(sorted(path.name for path in workspace.path.iterdir() if path.name[0] != "."))
        (workspace.path / "part").mkdir(exist_ok=True)
        (workspace.path / "part" / "step").write_text("5")
        (workspace.path / "half.fa").write_text(">a")
        if error:
            raise error

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            stage(build=build, resumable=True)
    with pytest.raises(KeyboardInterrupt):
        stage(build=lambda workspace: build(workspace, "two"), resumable=True)
    result = stage(build=lambda workspace: build(workspace, "two", None), resumable=True)
    assert found == [[], ["half.fa", "part"], [], ["half.fa", "part"]]
    assert sorted(path.name for path in result.folder.iterdir()) == ["half.fa", MANIFEST, "part"]
    assert set(result.manifest["files"]) == {"half.fa", "part/step"}


def test_a_key_leaves_out_what_is_named(stage):
    one, two = (PrepareConfig(output="x", input=["y"], seed=seed) for seed in (0, 1))
    assert key_of("prepare", one, {"input0": "a"}) != key_of("prepare", two, {"input0": "a"})
    assert key_of("prepare", one, {}, ["seed"]) == key_of("prepare", two, {}, ["seed"])
    assert key_of("prepare", one, {"input0": "a"}, ["seed"]) != key_of("prepare", one, {}, ["seed"])


@pytest.mark.parametrize("step", ["rename the old result", "rename the new one"])
def test_kill_between_the_renames(stage, monkeypatch, step):
    """The old result steps aside in one move, so that what is left of it is never taken for a result."""
    folder = stage().folder
    rename, moves = Path.rename, []

    def rename_or_die(path, target):
        moves.append(path)
        if len(moves) == (1 if step == "rename the old result" else 2):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_or_die)
    with pytest.raises(KeyboardInterrupt):
        stage(seed=1)
    monkeypatch.setattr(Path, "rename", rename)
    assert folder.exists() is (step == "rename the old result")
    assert not stage(seed=1).up_to_date
    assert hidden(folder.parent) == []


@pytest.mark.parametrize("manifest", [None, '{"name": "a browser extension"}', '"text"', "{half"])
def test_foreign_folder_is_refused_and_not_touched(stage, tmp_path, manifest):
    output = tmp_path / "out put" / "é"
    output.mkdir(parents=True)
    (output / "thesis.txt").write_text("years of work")
    if manifest:
        (output / MANIFEST).write_text(manifest)
    names = sorted(p.name for p in output.iterdir())
    with pytest.raises(UserError, match="exists and was not written by strandlm; choose another --output"):
        stage()
    assert sorted(p.name for p in output.iterdir()) == names
    assert (output / "thesis.txt").read_text() == "years of work"
    assert stage.runs == []


def test_files_beside_a_result_are_not_lost_with_it(stage, capsys):
    """A result that gives way is named; what its stage did not write is not thrown away with it."""
    folder = stage().folder
    (folder / ".DS_Store").write_text("")
    (folder / "notes.txt").write_text("what I saw")
    before = sorted(path.name for path in folder.iterdir())
    assert stage().up_to_date
    told = r"to be replaced by a result of other settings or inputs, but notes\.txt in it was put there later"
    with pytest.raises(UserError, match=told):
        stage(seed=1)
    assert sorted(path.name for path in folder.iterdir()) == before
    (folder / "notes.txt").unlink()
    assert not stage(seed=1).up_to_date
    assert "holds a result of other settings or inputs, which is replaced" in capsys.readouterr().err


def test_foreign_file_is_refused(stage, tmp_path):
    (tmp_path / "out put").mkdir()
    (tmp_path / "out put" / "é").write_text("a file")
    with pytest.raises(UserError, match="was not written by strandlm"):
        stage()
    assert (tmp_path / "out put" / "é").read_text() == "a file"


def test_empty_folder_is_used(stage, tmp_path):
    (tmp_path / "out put" / "é").mkdir(parents=True)
    assert stage().folder.is_dir()


def test_result_of_another_stage_is_refused(stage):
    folder = stage().folder
    with pytest.raises(UserError, match="holds the result of prepare; choose another --output"):
        stage("tokenize")
    assert read_manifest(folder)["stage"] == "prepare"


def test_output_that_holds_an_input_is_refused(stage):
    corpus = stage().folder
    config = TokenizeConfig(output=corpus, corpus=corpus)
    with pytest.raises(UserError, match=r"the input .* lies there"):
        produce("prepare", config, {"corpus": corpus}, lambda workspace: None)
    inner = corpus / "copy.fa"
    with pytest.raises(UserError, match=r"the input .*copy.fa lies there"):
        produce("prepare", config, {"corpus": inner}, lambda workspace: None)


def test_missing_input(stage, tmp_path):
    stage.source = tmp_path / "gone.fa"
    with pytest.raises(UserError, match=r"gone\.fa: no such file or folder"):
        stage()
    assert hidden(tmp_path) == []


def test_two_processes_do_not_write_one_folder(stage, tmp_path):
    output = tmp_path / "out put" / "é"
    output.parent.mkdir()
    with (output.parent / ".é.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is writing this folder"):
            stage()
    assert stage.runs == []


def test_folders_that_are_not_ours_are_hashed_file_by_file(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.json").write_text("{}")
    first = hash_input(folder)
    folder.rename(tmp_path / "other name")
    assert hash_input(tmp_path / "other name") == first
    (tmp_path / "other name" / "vocab.json").write_text("[]")
    assert hash_input(tmp_path / "other name") != first
