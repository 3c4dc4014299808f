"""The command line: ``strandlm STAGE --config FILE [--key value ...]``, one command for each stage.

Flags are generated from the schema in ``config.py``, dotted for nested keys. A stage is imported only when it
is called, so that help is quick.
"""

import argparse
import copy
import difflib
import importlib
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pipeline.config import STAGES, RunConfig
from pipeline.errors import UserError
from pipeline.log import announce, say
from pipeline.resources import resource
from pipeline.settings.hub import PushConfig

MODULES = {"tokenize": "encode"}
COMMANDS: dict[str, type[BaseModel]] = {"run": RunConfig, **STAGES, "push": PushConfig}
Config = TypeVar("Config", bound=BaseModel)
LONGEST_VALUE = 80
WRONG = {
    "bool": "neither true nor false",
    "dict": "not a group of keys with values",
    "finite": "not a finite number",
    "float": "not a number",
    "int": "not a whole number",
    "list": "not a list",
    "path": "not a path; put it in quotes",
    "string": "not text; put it in quotes",
}
FILE_HELP = (
    "--config FILE reads keys from a YAML file (nested, with _ for -); a flag wins over the file.\n"
    "--print-config shows what would be used, and stops. A list takes several values after its flag."
)


def _summary(config: type[BaseModel]) -> str:
    return (config.__doc__ or "").strip().splitlines()[0]


def usage() -> str:
    """Return the text of ``strandlm --help``."""
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{_summary(config)}" for name, config in COMMANDS.items())
    return (
        "usage: strandlm STAGE --config FILE [--key value ...]\n\n"
        f"{commands}\n\n"
        "strandlm STAGE --help lists the keys; --print-config shows what a command would use.\n"
        "A flag wins over the file; nested keys are dotted: --optimizer.learning-rate 3e-4"
    )


def nearest(word: str, known: list[str], most: int = 16) -> str:
    """Return the known word closest to a misspelt one, or the ``most`` that are least unlike it."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    alike = difflib.get_close_matches(word, known, n=most, cutoff=0)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(alike)}"


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def keys_of(config: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Return every dotted key of a schema with its type."""
    keys: dict[str, Any] = {}
    for name, field in config.model_fields.items():
        kind: Any = field.annotation
        keys |= keys_of(kind, f"{prefix}{name}.") if _is_group(kind) else {prefix + name: kind}
    return keys


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML 1.2 (or JSON) file as a dictionary.

    Raises:
        UserError: the file is not there or is not a mapping; the message has the line.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if not path.is_file():
        raise UserError(f"--config: {path}: no such file; {nearest(path.stem, _shipped())}")
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8-sig"))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = " ".join((error.problem or str(error)).split())
        raise UserError(f"{path}: line {line}: not YAML: {problem}") from None
    except YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8: byte {error.start}") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"{path}: holds {type(content).__name__}, not keys with values")
    return content or {}


def _check_keys(values: Mapping[str, Any], schema: type[BaseModel], source: str, prefix: str = "") -> None:
    """Refuse keys that the schema does not have, in nested groups too."""
    for name, value in values.items():
        key, field = f"{prefix}{name}", schema.model_fields.get(name)
        if field is None:
            known = list(dict.fromkeys([*schema.model_fields, *keys_of(schema)]))
            raise UserError(f"{source}: unknown key {key}; {nearest(str(name), known)}")
        kind: Any = field.annotation
        if _is_group(kind):
            if not isinstance(value, dict):
                keys = ", ".join(kind.model_fields)
                raise UserError(f"{source}: {key}: {value!r}: this is a group; give keys of it: {keys}")
            _check_keys(value, kind, source, f"{key}.")


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _in_words(problem: Any) -> str:
    """Return what pydantic found wrong, for people who have not read its manual."""
    kind = problem["type"]
    if kind == "literal_error":
        return f"use {problem['ctx']['expected']}"
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    return str(WRONG.get(kind.split("_")[0], problem["msg"].replace("Input should be", "must be")))


def _one_line(error: ValidationError, source: str, flags: Mapping[str, Any]) -> UserError:
    """Return the first problem in words: where it stands, the key, the value, the way out."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    given = any(f"{key}.".startswith(f"{name}.") for name in flags)
    where = "command line" if given else source
    if problem["type"] == "missing":
        way = "with --config FILE" if key == "stages" else f"there or as {_flag(key)}"
        return UserError(f"{where}: key {key} is missing; give it {way}")
    value = repr(problem["input"])
    value = value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + "..."
    return UserError(f"{where}: {key}: {value}: {_in_words(problem)}")


def _group(argv: list[str]) -> dict[str, list[str]]:
    """Return every flag with the values that follow it, up to the next flag."""
    flags: dict[str, list[str]] = {}
    flag = ""
    for argument in argv:
        if re.match(r"-(?!\.?\d)", argument):
            flag, equals, value = argument.partition("=")
            flag = re.sub(r"^-(\w)$", r"--\1", flag)  # -k, as help writes keys of one letter
            flags.setdefault(flag, []).extend([value] if equals else [])
        elif not flag:
            raise UserError(f"command line: {argument!r} is not a flag; write --key value")
        else:
            flags[flag].append(argument)
    return flags


def _value(flag: str, kind: Any, texts: list[str]) -> Any:
    """Return what a flag says: text, or a list or dictionary of texts, for the schema to convert."""
    if kind is bool and not texts:
        return True
    if not texts:
        raise UserError(f"command line: {flag} needs a value")
    if get_origin(kind) is list:
        return texts if Path in get_args(kind) else [part for text in texts for part in text.split(",")]
    if get_origin(kind) is dict:
        return _pairs(flag, texts)
    if len(texts) > 1:
        raise UserError(
            f"command line: {flag}: {texts[1]!r}: a second value; give one, in quotes if it has blanks"
        )
    return None if texts[0] == "None" and type(None) in get_args(kind) else texts[0]


def _pairs(flag: str, texts: list[str]) -> dict[str, str]:
    """Return the dictionary that a flag gives as name=value for each item."""
    pairs = {}
    for name, equals, value in (text.partition("=") for text in texts):
        if not (name and value):
            raise UserError(f"command line: {flag}: {name + equals + value!r}: write name=value")
        if name in pairs:
            raise UserError(f"command line: {flag}: {name!r} twice; give each name one value")
        if re.search(r",\w+=", value) and not Path(value).exists():
            raise UserError(f"command line: {flag}: {value!r}: put blanks between pairs, no commas")
        pairs[name] = value
    return pairs


def _flags(argv: list[str], schema: type[BaseModel]) -> dict[str, Any]:
    """Return every dotted key that is given as a flag, with its value.

    Raises:
        UserError: a flag is unknown, has no value or too many.
    """
    kinds = keys_of(schema)
    keys = {_flag(key): key for key in kinds}
    flags = {}
    for flag, texts in _group(argv).items():
        if flag not in keys:
            raise UserError(f"command line: unknown flag {flag}; {nearest(flag, list(keys))}")
        flags[keys[flag]] = _value(flag, kinds[keys[flag]], texts)
    return flags


def _merge(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the flags in their places; a mapping given as a flag adds to the file's."""
    merged = copy.deepcopy(dict(values))
    for key, value in flags.items():
        *groups, name = key.split(".")
        group = merged
        for part in groups:
            group = group.setdefault(part, {})
        both = isinstance(value, dict) and isinstance(group.get(name), dict)
        group[name] = group[name] | value if both else value
    return merged


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str:
        return (action.help or "").removesuffix(" (default: None)")


def _print_help(schema: type[BaseModel], command: str) -> NoReturn:
    """Print the keys of a command as flags, and exit."""
    from pydantic_settings import BaseSettings, CliSettingsSource

    class Settings(schema, BaseSettings):  # pyright: ignore[reportGeneralTypeIssues]
        pass

    Settings.__doc__ = f"{(schema.__doc__ or '').strip()}\n\n{FILE_HELP}"
    CliSettingsSource(
        Settings,
        cli_prog_name=f"strandlm {command}",
        cli_parse_args=["--help"],
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        formatter_class=_Formatter,
    )
    raise AssertionError("argparse exits after the help")


def resolve(
    schema: type[Config], values: Mapping[str, Any], argv: list[str], source: str, command: str
) -> Config:
    """Return the frozen configuration: flags over file over defaults.

    A flag takes one value; a list takes several (``--input a.fa b.fa``), a mapping several ``name=value``, a
    switch none, true or false.

    Raises:
        UserError: a key is unknown or missing or a value has the wrong type, with the nearest valid key.
    """
    if "--help" in argv or "-h" in argv:
        _print_help(schema, command)
    flags = _flags(argv, schema)
    _check_keys(values, schema, source)
    try:
        return schema.model_validate(_merge(values, flags))
    except ValidationError as error:
        raise _one_line(error, source, flags) from None


def _take(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Return the value of a flag, and the other arguments."""
    for i, argument in enumerate(argv):
        if argument == flag:
            if i + 1 == len(argv):
                raise UserError(f"command line: {flag} needs a value")
            return argv[i + 1], argv[:i] + argv[i + 2 :]
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1], argv[:i] + argv[i + 1 :]
    return None, argv


def _shipped() -> list[str]:
    return sorted(path.stem for path in resource("configs").glob("*.yaml"))


def find_config(name: str) -> Path:
    """Return a configuration file, given a path or the name of one that comes with strandlm."""
    shipped = resource("configs") / f"{name}.yaml"
    return shipped if shipped.is_file() and not Path(name).is_file() else Path(name)


def _print_config(config: BaseModel) -> None:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.representer.sort_base_mapping_type_on_output = (
        False  # the order of classes and of a run's stages has a meaning
    )
    yaml.dump(config.model_dump(mode="json"), sys.stdout)


def _end_with_run() -> None:
    """Stop this process when the ``strandlm run`` that started it on this machine is gone.

    Otherwise a stage whose run was killed would go on, beside the one that the next run starts.
    """
    host, _, pid = os.environ.get("STRANDLM_RUN", "").partition(":")
    if host != os.uname().nodename:
        return

    def watch() -> None:
        while True:
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                os._exit(3)
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()


def _call(command: str, argv: list[str]) -> None:
    name, argv = _take(argv, "--config")
    path = None if name is None else find_config(name)
    values = read_yaml(path) if path else {}
    show = "--print-config" in argv
    argv = [argument for argument in argv if argument != "--print-config"]
    source = str(path) if path else "command line"
    if command == "run":
        from pipeline.workflow import run_workflow

        run_workflow(values, argv, source, show)
        return
    _end_with_run()
    receipt, argv = _take(argv, "--receipt") if command in STAGES else (None, argv)
    config = resolve(COMMANDS[command], values, argv, source, command)
    if show:
        _print_config(config)
        return
    module = importlib.import_module(f"pipeline.{MODULES.get(command, command.replace('-', '_'))}")
    main_process = os.environ.get("RANK", "0") == "0"
    if main_process:
        announce(command)
    result = module.run(config)
    if receipt and main_process:
        Path(receipt).write_bytes((result.folder / "manifest.json").read_bytes())


def _fail(message: str) -> NoReturn:
    if os.environ.get("STRANDLM_STAGE"):
        say(f"error: {message}")
    else:
        print(f"strandlm: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def main(argv: list[str] | None = None, stage: str | None = None) -> None:
    """Run a command; ``stage`` is given where ``python -m pipeline.<stage>`` names it already."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if stage is None:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(usage())
            raise SystemExit(0 if arguments else 2)
        if arguments[0] == "--version":
            from pipeline import __version__

            print(f"strandlm {__version__}")
            return
        stage = arguments.pop(0)
        if stage not in COMMANDS:
            _fail(f"no command {stage!r}; {nearest(stage, list(COMMANDS), len(COMMANDS))}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        _call(stage, arguments)
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of the output has gone, as in: strandlm ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _fail(" ".join(where.split()))
    except KeyboardInterrupt:
        _fail("interrupted")


if __name__ == "__main__":
    main()
