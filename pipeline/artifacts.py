"""What a stage leaves on disk: one folder, complete or absent, with a manifest of how it came about."""

import fcntl
import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.log import say

MANIFEST = "manifest.json"
STAGE = ".stage"
BEGUN = ".stage-key"
# Of a checkpoint: its tensors, and which file has which where they are several.
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ANEW = "copy it once more, or run again what wrote it"
VERSIONED = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy", "biopython")
# Settings that change where or how fast a result comes, but not what it is.
NOT_HASHED = {
    *("output", "name", "launch", "resume", "dry_run"),
    *("micro_batch_tokens", "compile", "gradient_checkpointing"),
    *("log_every", "trackers", "max_bad_steps", "keep_checkpoints", "checkpoint_every"),
}


@dataclass
class Workspace:
    """Where a stage works: files go under ``path``, numbers for the manifest into ``counts``.

    ``inputs`` holds the hash of each input.
    """

    path: Path
    counts: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)

    def claim(self, key: str) -> None:
        """Keep the unfinished work of a resumable stage that was begun under this key; else clear it away."""
        begun = self.path / BEGUN
        if begun.is_file() and begun.read_text() == key:
            return
        for path in self.path.iterdir():
            if path.name != STAGE:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        begun.write_text(key)

    def write_json(self, name: str, content: Any) -> None:
        """Write ``content`` as indented JSON with a final newline."""
        write_json(self.path / name, content)


@dataclass(frozen=True)
class Result:
    """A finished stage."""

    folder: Path
    manifest: dict[str, Any]
    up_to_date: bool

    def metrics(self) -> dict[str, Any]:
        """Return the stage's metrics.json."""
        return json.loads((self.folder / "metrics.json").read_text())


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    partial.replace(path)


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        UserError: it is not there, or is no JSON.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; {ANEW}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}; {ANEW}") from None


def read_keys(path: Path) -> dict[str, Any]:
    """Return the keys and values of a JSON file.

    Raises:
        UserError: it is not there, or holds something else.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {type(content).__name__}, not keys with values; {ANEW}")
    return content


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the keys and values of each line of a log.

    Raises:
        UserError: names the first line that has none.
    """
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            content = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number}: not JSON: {error}; {ANEW}") from None
        if not isinstance(content, dict):
            raise UserError(f"{path}: line {number}: no keys with values; {ANEW}")
        yield content


def shard_names(index: Path) -> list[str]:
    """Return the files of safetensors that the index of a checkpoint names.

    Raises:
        UserError: it names none.
    """
    files = read_keys(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{index}: no weight_map with the files of the tensors; {ANEW}")
    return sorted({Path(str(name)).name for name in files.values()})


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_input(path: Path) -> str:
    """Return a hash of an input's content, whatever its name or date.

    A stage folder answers with the hash in its manifest; any other folder is hashed file by file.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if path.is_file():
        return hash_file(path)
    manifest = _find_manifest(path)
    if manifest:
        return manifest["content"]
    return _hash_json(_hash_files(path, ()))


def _hash_files(folder: Path, volatile: tuple[str, ...]) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    names = {p.relative_to(folder).as_posix(): p for p in files}
    return {n: hash_file(p) for n, p in names.items() if n != MANIFEST and not n.startswith(volatile)}


def _hash_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _without_paths(value: Any) -> Any:
    """Return a setting with its paths blanked out: what they lead to is hashed, not what it is called."""
    if isinstance(value, Path):
        return "path"
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items()}
    return [_without_paths(item) for item in value] if isinstance(value, list) else value


def key_of(stage: str, config: StageConfig, hashes: Mapping[str, str], besides: Iterable[str] = ()) -> str:
    """Return what stands for a result: equal for equal inputs, settings and versions.

    ``hashes`` are those of the inputs. Left out are settings that change where or how fast a result comes,
    and those named ``besides``.
    """
    ignored = NOT_HASHED.union(besides)
    kept = {k: _without_paths(v) for k, v in config.model_dump().items() if k not in ignored}
    return _hash_json({"stage": stage, "config": kept, "inputs": hashes, "strandlm": __version__})


def _nothing_done(folder: Path) -> bool:
    """Whether an unfinished stage has left nothing to go on from."""
    return folder.is_dir() and all(path.name.startswith(STAGE) for path in folder.iterdir())


def _find_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a finished stage, or None; other programs call files manifest.json too."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and {"stage", "key", "content"} <= manifest.keys() else None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a finished stage folder.

    Raises:
        UserError: the folder is not there, or is no finished stage.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; has the stage that writes it been run?")
    manifest = _find_manifest(folder)
    if manifest is None:
        raise UserError(f"{folder}: no {MANIFEST} of ours in it, so it is not the finished result of a stage")
    return manifest


def _check_output(
    stage: str, output: Path, inputs: Mapping[str, Path], previous: dict[str, Any] | None
) -> None:
    """Refuse to write over what is not an earlier result of the same stage, or over an input."""
    if previous and previous["stage"] != stage:
        raise UserError(f"{output}: holds the result of {previous['stage']}; choose another --output")
    if not previous and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output}: exists and was not written by strandlm; choose another --output")
    for path in inputs.values():
        if output.resolve() in (path.resolve(), *path.resolve().parents):
            raise UserError(f"{output}: the input {path} lies there; choose another --output")


def _give_way(output: Path, previous: dict[str, Any], volatile: tuple[str, ...]) -> None:
    """Say that an earlier result is to be replaced; refuse if files lie there that were put in later."""
    names = (path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    known = {MANIFEST, *previous["files"]}
    for name in sorted(names):
        if name not in known and not name.startswith((".", *volatile)):
            raise UserError(
                f"{output}: to be replaced by a result of other settings or inputs, but {name} in it was put "
                "there later; move it away, or choose another --output"
            )
    say(f"{output}: holds a result of other settings or inputs, which is replaced when this one is complete")


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    output.parent.mkdir(parents=True, exist_ok=True)
    path = output.with_name(f".{output.name}.lock")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{output}: another process is writing this folder; wait for it or stop it"
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _open_workspace(output: Path, stage: str, resumable: bool) -> Workspace:
    """Return an empty folder beside the output, or the one that this stage left unfinished."""
    partial = output.with_name(f".{output.name}.partial")
    stage_file = partial / STAGE
    if not (resumable and stage_file.is_file() and stage_file.read_text() == stage):
        stage_file.unlink(missing_ok=True)
        _remove(partial)
    partial.mkdir(exist_ok=True)
    stage_file.write_text(stage)
    return Workspace(partial)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _publish(partial: Path, output: Path) -> None:
    """Rename the finished folder to the output; a kill leaves the old result, the new one, or none."""
    old = output.with_name(f".{output.name}.old")
    _remove(old)
    if output.exists():
        output.rename(old)
    partial.rename(output)
    _remove(old)


def _versions() -> dict[str, str]:
    packages = {package: version(package) for package in VERSIONED}
    return {"strandlm": __version__, "python": platform.python_version(), **packages}


def produce(
    stage: str,
    config: StageConfig,
    inputs: Mapping[str, Path],
    build: Callable[[Workspace], None],
    *,
    volatile: tuple[str, ...] = (),
    resumable: bool = False,
) -> Result:
    """Run ``build`` in a temporary folder beside ``config.output`` and rename it when complete.

    Does nothing if the folder is there already, made from the same inputs and settings. ``volatile`` names
    files (by prefix) whose bytes differ between equal runs, such as logs with times: they are not hashed.
    A ``resumable`` stage finds its own unfinished work again, whatever its inputs and settings were; what of
    it is still of use is for ``build`` to see.

    Raises:
        UserError: an input is missing, or the output holds something else than this stage's earlier result,
            such as files that somebody put beside it.
    """
    output = config.output
    previous = _find_manifest(output)
    _check_output(stage, output, inputs, previous)
    hashes = {name: hash_input(path) for name, path in sorted(inputs.items())}
    key = key_of(stage, config, hashes)
    if previous and previous["key"] == key:
        say(f"{output}: up to date, nothing to do")
        return Result(output, previous, up_to_date=True)
    if previous:
        _give_way(output, previous, volatile)

    with _locked(output):
        workspace = _open_workspace(output, stage, resumable)
        workspace.inputs |= hashes
        try:
            build(workspace)
        except BaseException:
            if not resumable or _nothing_done(workspace.path):
                shutil.rmtree(workspace.path, ignore_errors=True)
            raise
        files = _hash_files(workspace.path, (STAGE, *volatile))
        manifest = {
            "stage": stage,
            "key": key,
            "content": _hash_json(files),
            "config": config.model_dump(mode="json"),
            "inputs": hashes,
            "counts": workspace.counts,
            "files": files,
            "versions": _versions(),
        }
        workspace.write_json(MANIFEST, manifest)
        _publish(workspace.path, output)
        for path in output.glob(f"{STAGE}*"):
            path.unlink()
    return Result(output, manifest, up_to_date=False)
