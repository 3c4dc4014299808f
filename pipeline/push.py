"""The command that uploads a checkpoint to the Hugging Face Hub.

The access token is the one of the environment or of the Hub's own login; it is no setting, and is never said.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.artifacts import INDEX, WEIGHTS, read_keys, shard_names
from pipeline.errors import UserError, reason
from pipeline.log import say
from pipeline.report.card import CARD, LICENSE
from pipeline.settings.hub import PushConfig

CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
NAMES = {CARD, CONFIG, TOKENIZER, WEIGHTS, INDEX}
NAMES |= {"tokenizer.json", "special_tokens_map.json", "vocab.json", "vocab.txt"}
OTHERS = re.compile(
    r"model-\d{5}-of-\d{5}\.safetensors|(attention|configuration|contacts|modeling|tokenization)_(strand|factored)\.py"
)
KINDS = ("strand", "strand-factored", "esm")
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")


@dataclass(frozen=True)
class Parcel:
    """The files of a folder that make up a checkpoint, what else lies there, and what is in the way."""

    files: list[Path]
    left: list[str]
    problems: list[str]


def run(config: PushConfig) -> str | None:
    """Upload the checkpoint in one commit; return where it can be read, or None after a dry run.

    A dry run is refused for whatever the folder or a missing login would be refused for.

    Raises:
        UserError: the folder is no whole checkpoint, its card names no licence, a file holds an access token,
            nobody is logged in, the Hub refuses, or others could read what is to be private.
    """
    parcel = survey(config.checkpoint)
    for path in parcel.files:
        say(f"{path.name}: {path.stat().st_size:,} bytes")
    if parcel.left:
        say(f"not uploaded: {', '.join(parcel.left)}")
    if config.dry_run:
        _show_card(config.checkpoint / CARD)
    for problem in parcel.problems[1:]:
        say(f"also in the way: {problem}")
    if parcel.problems:
        raise UserError(parcel.problems[0])
    token = _token()
    if not config.dry_run:
        return _send(config, parcel.files, token)
    size = sum(path.stat().st_size for path in parcel.files)
    say(f"dry run: nothing was sent to {config.repo}; {len(parcel.files)} files, {size:,} bytes")
    return None


def _show_card(path: Path) -> None:
    if path.is_file():
        say(f"{CARD}:\n{_text(path)}")


# -- what goes


def survey(folder: Path) -> Parcel:
    """Return what of a folder would be uploaded.

    Raises:
        UserError: it holds no checkpoint.
    """
    config = _read_config(folder)
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [path for path in paths if path.is_file() and _belongs(path.name)]
    left = [path.name + "/" * path.is_dir() for path in paths if path not in files]
    names = {path.name for path in files}
    problems = [*_missing(folder, config, names), *_licence(folder), *_secrets(files)]
    return Parcel(files, left, problems)


def _belongs(name: str) -> bool:
    return name in NAMES or OTHERS.fullmatch(name) is not None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"checkpoint: {folder}: no {CONFIG}, so no checkpoint; pass the folder of one")
    config = read_keys(path)
    kind = config.get("model_type")
    if kind not in KINDS:
        raise UserError(f"checkpoint: {folder}: a {kind} model; only {', '.join(KINDS)} are uploaded")
    return config


def _text(path: Path) -> str:
    """Return a file of text that would be uploaded.

    Raises:
        UserError: it is not in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"checkpoint: {path}: not text in UTF-8: byte {error.start}; correct it") from None


def _missing(folder: Path, config: dict[str, Any], names: set[str]) -> list[str]:
    """Return which files the checkpoint cannot be opened without."""
    needed = {WEIGHTS} if INDEX not in names else set(shard_names(folder / INDEX))
    for facts in (config, read_keys(folder / TOKENIZER) if TOKENIZER in names else {}):
        places = [place for value in (facts.get("auto_map") or {}).values() for place in _listed(value)]
        needed |= {f"{place.split('.')[0]}.py" for place in places}
    for name in sorted(needed & names):  # sources import siblings
        if name.endswith(".py"):
            siblings = re.findall(r"^from \.(\w+) import", _text(folder / name), re.M)
            needed |= {f"{sibling}.py" for sibling in siblings}
    return [f"checkpoint: {folder}: no {name}, so it cannot be opened" for name in sorted(needed - names)]


def _listed(value: str | list[str | None]) -> list[str]:
    """Return the classes of an auto_map: of tokenizers it has two places, of which one may be empty."""
    return [value] if isinstance(value, str) else [place for place in value if place]


def _licence(folder: Path) -> list[str]:
    """Return why the card names no licence, if so."""
    path = folder / CARD
    if not path.is_file():
        return [f"checkpoint: {folder}: no {CARD}; write one that begins with ---, license: ... and ---"]
    front = re.match(r"---\n(.*?\n)---\n", _text(path), re.DOTALL)
    if front is None:
        return [f"{path}: line 1: no YAML between --- and ---; put license: apache-2.0 (or another) there"]
    value = _front(front[1], path).get("license")
    if isinstance(value, str) and value.strip() not in ("", LICENSE):
        return []
    line = 2 + next((i for i, text in enumerate(front[1].splitlines()) if text.startswith("license:")), 0)
    return [f"{path}: line {line}: license: {value}: not filled in; name one, such as apache-2.0 or other"]


def _front(text: str, path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise UserError(f"{path}: not YAML between --- and ---: {reason(error)}") from None
    return content if isinstance(content, dict) else {}


def _secrets(files: list[Path]) -> list[str]:
    """Return where a file of text holds what looks like an access token, without the token."""
    found = []
    for path in files:
        if path.suffix != ".safetensors":
            lines = _text(path).splitlines()
            places = [i for i, line in enumerate(lines, 1) if TOKEN.search(line)]
            found += [
                f"{path}: line {i}: an access token (hf_...); take it out, and revoke it" for i in places
            ]
    return found


# -- how it goes


def _token() -> str:
    from huggingface_hub import get_token

    token = get_token()
    if token is None:
        raise UserError("push: not logged in to the Hugging Face Hub; run hf auth login, or set HF_TOKEN")
    return token


def _send(config: PushConfig, files: list[Path], token: str) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HFValidationError, HTTPError

    api = HfApi()
    try:
        api.create_repo(config.repo, private=config.private or None, exist_ok=True)
        if config.private and not api.model_info(config.repo).private:
            raise UserError(
                f"repo: {config.repo} is there and can be read by others; make it private on its page, or "
                "push without private"
            )
        operations = [CommitOperationAdd(path.name, path) for path in files]
        commit = api.create_commit(config.repo, operations, commit_message=f"StrandLM {__version__}")
    except (OSError, HTTPError, HFValidationError) as error:
        raise UserError(f"push: {config.repo}: {reason(error).replace(token, '...')}") from None
    say(f"{len(files)} files are at {commit.commit_url}")
    return commit.commit_url


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="push")
