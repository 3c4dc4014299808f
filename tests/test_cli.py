"""The command line: what each command takes, and that every mistake is one line with a way out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.artifacts import MANIFEST
from pipeline.cli import COMMANDS, main, nearest, read_yaml, resolve
from pipeline.config import PredictConfig, PrepareConfig, PretrainConfig, SimulateConfig
from pipeline.errors import UserError

ROOT = str(Path(__file__).parents[1])
FASTA = ">a\nACGTACGTACGT\n>b\nGGGTACGTACTT\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run each test in a folder whose name is not plain ASCII without blanks."""
    folder = tmp_path / "my run é"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fails(capsys):
    """Return a function that runs a command which must fail, and gives its line."""

    def fails(*argv):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(argv))
        out, err = capsys.readouterr()
        assert stop.value.code == 2
        assert out == ""
        assert err.startswith("strandlm: error: ")
        assert err.count("\n") == 1
        return err.removeprefix("strandlm: error: ").strip()

    return fails


@pytest.fixture
def shows(capsys):
    """Return a function that gives what a command would use."""

    def shows(*argv):
        capsys.readouterr()
        main([*argv, "--print-config"])
        return YAML(typ="safe", pure=True).load(capsys.readouterr().out)

    return shows


@pytest.fixture
def yaml(folder):
    def yaml(content, name="c.yaml"):
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    return yaml


def prepare_config(*argv, **values):
    return resolve(PrepareConfig, {"output": "o", **values}, list(argv), "file", "prepare")


def strandlm(*argv, module="pipeline.cli"):
    command = [sys.executable, "-m", module, *argv]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT})


# Commands and help


def test_alone_prints_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    usage = capsys.readouterr().out
    assert usage.startswith("usage: strandlm STAGE --config FILE [--key value ...]\n")
    for command, schema in COMMANDS.items():
        assert f"  {command} " in usage
        assert schema.__doc__.splitlines()[0] in usage


def test_help_and_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    main(["--version"])
    assert capsys.readouterr().out.endswith("\nstrandlm 0.1.0\n")


def test_unknown_command(fails):
    assert fails("pretain") == "no command 'pretain'; did you mean pretrain?"
    line = fails("xyzzy")
    assert line.startswith("no command 'xyzzy'; known: ")
    assert set(line.split("known: ")[1].split(", ")) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_key_and_imports_nothing_heavy(command):
    script = f"""
import sys
from pipeline.cli import main
try:
    main([{command!r}, "--help"])
finally:
    heavy = {{"torch", "numpy", "transformers", "datasets", "Bio", "matplotlib", "ruamel"}}
    print(sorted(heavy & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.stdout.startswith(f"usage: strandlm {command} ")
    assert "--config FILE reads keys" in done.stdout
    assert "(default: None)" not in done.stdout
    for key in COMMANDS[command].model_fields.keys() - {"inputs", "stages"}:  # those are a run's own
        assert f"-{key.replace('_', '-')}" in done.stdout


@pytest.mark.parametrize(
    ("command", "module"), [("prepare", "prepare"), ("tokenize", "encode"), ("pretrain", "pretrain")]
)
def test_module_is_the_same_command(command, module):
    ours, theirs = strandlm(command, "--help"), strandlm("--help", module=f"pipeline.{module}")
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)
    assert theirs.returncode == 0
    wrong = strandlm("--alined", "true", module=f"pipeline.{module}")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("strandlm: error: command line: unknown flag --alined; ")
    assert wrong.stderr.count("\n") == 1


# Keys of the file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("mask_probabilty: 0.15", "c.yaml: unknown key mask_probabilty; "),
        ("optimzer: {clip: 1}", "c.yaml: unknown key optimzer; did you mean optimizer?"),
        ("masking: {probabilty: 0.15}", "c.yaml: unknown key masking.probabilty; "),
        ("fracton: 0.15", "c.yaml: unknown key fracton; did you mean masking.fraction?"),
        ("masking: {fracton: 0.15}", "c.yaml: unknown key masking.fracton; did you mean fraction?"),
        ("weight-decay: 1", "c.yaml: unknown key weight-decay; did you mean optimizer.weight_decay?"),
        ("learning_rate: 1", "c.yaml: unknown key learning_rate; did you mean optimizer.learning_rate?"),
        ("3: 4", "c.yaml: unknown key 3; known: "),
        ("masking: {3: 4}", "c.yaml: unknown key masking.3; known: "),
        ("steps: 2.5", "c.yaml: steps: 2.5: not a whole number"),
        ("steps: ten", "c.yaml: steps: 'ten': not a whole number"),
        ("steps: true", "c.yaml: steps: True: true and false are no values of this key"),
        ("steps: 0", "c.yaml: steps: 0: must be greater than 0"),
        ("steps:", "c.yaml: steps: None: not a whole number"),
        ("masking: {fraction: 1}", "c.yaml: masking.fraction: 1: must be less than 1"),
        ("masking: {fraction: .nan}", "c.yaml: masking.fraction: nan: not a finite number"),
        ("optimizer: {warmup: x}", "c.yaml: optimizer.warmup: 'x': not a whole number"),
        ("optimizer: {clip: .inf}", "c.yaml: optimizer.clip: inf: not a finite number"),
        ("optimizer: {clip: [1]}", "c.yaml: optimizer.clip: [1]: not a number"),
        ("model: 3", "c.yaml: model: 3: this is a group; give keys of it: architecture, hidden_size, "),
        ("model:", "c.yaml: model: None: this is a group; give keys of it: architecture, hidden_size, "),
        ("model: {norm: batchnorm}", "c.yaml: model.norm: 'batchnorm': use 'rmsnorm' or 'layernorm'"),
        ("resume: no", "c.yaml: resume: 'no': use 'auto' or 'never'"),
        ("count_model: maybe", "c.yaml: count_model: 'maybe': neither true nor false"),
        ("launch: 3", "c.yaml: launch: 3: not text; put it in quotes"),
        ("name: 1.10", "c.yaml: name: 1.1: not text; put it in quotes"),
        ("output: 3", "c.yaml: output: 3: not a path; put it in quotes"),
        ("output: {a: b}", "c.yaml: output: {'a': 'b'}: not a path; put it in quotes"),
        ("data: 3", "c.yaml: data: 3: not a list"),
    ],
)
def test_mistake_in_a_file(fails, yaml, content, message):
    rest = "".join(f"{key}: x\n" for key in ("output", "data") if f"{key}:" not in content)
    assert fails("pretrain", "--config", yaml(f"{rest}{content}\n")).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("input: {a: b}", "c.yaml: input: {'a': 'b'}: not a list"),
        ("input: 3", "c.yaml: input: 3: not a list"),
        ("input: [a.fa, 3]", "c.yaml: input.1: 3: not a path; put it in quotes"),
        ("keep_columns: [a, 1]", "c.yaml: keep_columns.1: 1: not text; put it in quotes"),
        ("classes: [x]", "c.yaml: classes: ['x']: not a group of keys with values"),
        ("classes: {x: 3}", "c.yaml: classes.x: 3: not a path; put it in quotes"),
        ("classes: {x: [a.fa]}", "c.yaml: classes.x: ['a.fa']: not a path; put it in quotes"),
        ("block: x", "c.yaml: block: 'x': not a whole number"),
        ("sequence_column: true", "c.yaml: sequence_column: True: true and false are no values of this key"),
        ("min-length: 3", "c.yaml: unknown key min-length; did you mean min_length?"),
    ],
)
def test_mistake_in_a_file_of_lists(fails, yaml, content, message):
    assert fails("prepare", "--config", yaml(f"output: o\n{content}\n")) == message


def test_long_value_is_cut(fails, yaml):
    line = fails("prepare", "--config", yaml(f"output: o\nblock: {'x' * 1000}\n"))
    assert line == f"c.yaml: block: '{'x' * 79}...: not a whole number"


def test_missing_key(fails, yaml):
    assert fails("prepare") == "command line: key output is missing; give it there or as --output"
    message = "c.yaml: key data is missing; give it there or as --data"
    assert fails("pretrain", "--config", yaml("output: o\n")) == message


def test_missing_file(fails, folder):
    assert fails("prepare", "--config", "nope.yaml").startswith("--config: nope.yaml: no such file; ")
    assert fails("prepare", "--config", str(folder)).startswith(f"--config: {folder}: no such file; ")
    assert fails("prepare", "--config=").startswith("--config: .: no such file; ")
    known = "did you mean dna-6mer-tiny?"
    assert fails("pretrain", "--config", "dna-6mer-tyni") == f"--config: dna-6mer-tyni: no such file; {known}"
    assert fails("prepare", "--config") == "command line: --config needs a value"
    assert fails("prepare", "--output", "o", "--input", "gone.fa") == "gone.fa: no such file or folder"


# YAML 1.2


def test_yaml_values(yaml, shows):
    content = "output: o\nsequence_column: NO\nid_column: on\nseed: 010\nvalidation: 1e-4\naligned: no\n"
    shown = shows("prepare", "--config", yaml(content))
    assert shown["sequence_column"] == "NO"
    assert shown["id_column"] == "on"
    assert shown["seed"] == 10
    assert shown["validation"] == 1e-4
    assert shown["aligned"] is False


def test_yaml_is_read_as_such(yaml, folder):
    yaml("a: NO\nb: 010\nc: 1e-4\nd: 0o10\ne: 12:30\nf: true\ng:\n")
    values = {"a": "NO", "b": 10, "c": 1e-4, "d": 8, "e": "12:30", "f": True, "g": None}
    assert read_yaml(folder / "c.yaml") == values
    yaml('{"a": {"b": [1]}}', "c.json")
    assert read_yaml(folder / "c.json") == {"a": {"b": [1]}}
    yaml("")
    assert read_yaml(folder / "c.yaml") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("output: o\nseed: [1\n", "line 3: not YAML: expected ',' or ']'"),
        ("output: o\n\tseed: 1\n", "line 2: not YAML: found character '\\t' that cannot start any token"),
        ("seed: 1\nseed: 2\n", 'line 2: not YAML: found duplicate key "seed"'),
        ("output: o\n---\nseed: 1\n", "line 2: not YAML: but found another document"),
        ("output: !!python/name:os.system x\n", "line 1: not YAML: could not determine a constructor"),
        ("output: \x01\n", "not YAML: "),
        (b"output: \xff\n", "not text in UTF-8: byte 8"),
        ("- output\n", "holds list, not keys with values"),
        ("output\n", "holds str, not keys with values"),
    ],
)
def test_not_yaml(fails, yaml, content, message):
    assert fails("prepare", "--config", yaml(content)).startswith(f"c.yaml: {message}")


def test_byte_order_mark(yaml, shows):
    assert shows("prepare", "--config", yaml(b"\xef\xbb\xbfoutput: o\n"))["output"] == "o"


def test_scalar_where_a_list_belongs_is_a_list_of_one(yaml, shows):
    shown = shows("prepare", "--config", yaml("output: o\ninput: my, file.fa\nkeep_columns: strand\n"))
    assert shown["input"] == ["my, file.fa"]
    assert shown["keep_columns"] == ["strand"]


# Flags


def test_flags_win_over_the_file(yaml, shows):
    name = yaml("output: o\ndata: d\nsteps: 5\noptimizer: {learning_rate: 0.5, warmup: 7}\n")
    shown = shows("pretrain", "--config", name, "--steps", "6", "--optimizer.learning-rate", "3e-4")
    assert shown["steps"] == 6
    assert shown["optimizer"]["learning_rate"] == 3e-4
    assert shown["optimizer"]["warmup"] == 7
    assert shown["optimizer"]["beta2"] == 0.98


@pytest.mark.parametrize("flag", ["--aligned=False", "--aligned no", "--aligned 0", "--aligned FALSE"])
def test_false_is_false(flag):
    assert prepare_config(*flag.split()).aligned is False
    assert prepare_config(*flag.replace("aligned", "deduplicate").split()).deduplicate is False


@pytest.mark.parametrize("flag", ["--aligned", "--aligned=True", "--aligned yes", "--aligned --seed=1"])
def test_true_is_true(flag):
    assert prepare_config(*flag.split(), deduplicate="no").aligned is True


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--aligned maybe", "aligned: 'maybe': neither true nor false"),
        ("--aligned=", "aligned: '': neither true nor false"),
        ("--alined True", "unknown flag --alined; did you mean --aligned?"),
        ("--min_length 3", "unknown flag --min_length; did you mean --min-length?"),
        ("--outp x", "unknown flag --outp; did you mean --output?"),
        ("-x 3", "unknown flag --x; known: --"),
        ("--xyzzy", "unknown flag --xyzzy; known: --"),
        ("--classes.a x", "unknown flag --classes.a; did you mean --classes?"),
        ("-- --seed 3", "unknown flag --; did you mean --"),
        ("--seed", "--seed needs a value"),
        ("--input --seed 1", "--input needs a value"),
        ("--seed 1.5", "seed: '1.5': not a whole number"),
        ("--seed -1", "seed: '-1': must be greater than or equal to 0"),
        ("--seed 1 --seed 2", "--seed: '2': a second value; give one, in quotes if it has blanks"),
        ("--name my run", "--name: 'run': a second value; give one, in quotes if it has blanks"),
        ("--validation nan", "validation: 'nan': not a finite number"),
        ("--validation 2", "validation: '2': must be less than or equal to 1"),
        ("--alphabet rna", "alphabet: 'rna': use 'dna' or 'protein'"),
        ("--classes x", "--classes: 'x': write name=value"),
        ("--classes a= =b", "--classes: 'a=': write name=value"),
        ("--classes a=x =b", "--classes: '=b': write name=value"),
        ("--classes a=x b=y a=z", "--classes: 'a' twice; give each name one value"),
        ("--classes a=x,b=y", "--classes: 'x,b=y': put blanks between pairs, no commas"),
    ],
)
def test_mistake_in_a_flag(fails, yaml, flags, message):
    line = fails("prepare", "--config", yaml("output: o\nseed: 0\n"), *flags.split())
    assert line.startswith(f"command line: {message}")


def test_a_file_may_have_a_comma_and_an_equals_sign_in_its_name(shows, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("x,b=y").touch()
    assert shows("prepare", "--output", "o", "--classes", "a=x,b=y")["classes"] == {"a": "x,b=y"}


def test_argument_that_is_no_flag(fails):
    assert fails("prepare", "a.fa") == "command line: 'a.fa' is not a flag; write --key value"


def test_mistake_of_the_file_is_blamed_on_the_file(fails, yaml):
    name = yaml("output: o\ndata: d\noptimizer: {learning_rate: x}\nsteps: x\n")
    flags = ["--optimizer.warmup", "3", "--steps", "5"]
    assert fails("pretrain", "--config", name, *flags) == "c.yaml: optimizer.learning_rate: 'x': not a number"
    flags[-2:] = ["--optimizer.learning-rate", "y"]
    blamed = "command line: optimizer.learning_rate: 'y': not a number"
    assert fails("pretrain", "--config", name, *flags) == blamed


@pytest.mark.parametrize(
    "paths", [["a b.fa"], ["é.fa", "a,b.fa"], ["3"], ['it\'s "1".fa', "[1].fa"], ["{a}", "a=b", "~", "$HOME"]]
)
def test_paths_are_taken_as_they_are(paths):
    together = prepare_config("--input", *paths)
    apart = prepare_config(*[part for path in paths for part in ("--input", path)])
    assert [str(path) for path in together.input] == paths
    assert apart == together
    assert str(resolve(SimulateConfig, {}, [f"--output={paths[0]}"], "", "simulate").output) == paths[0]


def test_lists_and_mappings():
    config = prepare_config("--keep-columns", "a,01", "true", "--classes", "p=a b.fa", "n=c=d.fa")
    assert config.keep_columns == ["a", "01", "true"]
    assert {name: str(path) for name, path in config.classes.items()} == {"p": "a b.fa", "n": "c=d.fa"}
    assert list(config.classes) == ["p", "n"]
    more = prepare_config("--classes", "n=new.fa", classes={"p": "p.fa", "n": "n.fa"})
    assert {name: str(path) for name, path in more.classes.items()} == {"p": "p.fa", "n": "new.fa"}


def test_text_stays_text():
    assert prepare_config("--label-column", "3").label_column == "3"
    assert prepare_config("--sequence-column", "010").sequence_column == "010"
    assert prepare_config("--sequence-column", "None").sequence_column == "None"
    assert prepare_config("--label-column=--x").label_column == "--x"
    assert prepare_config("--label-column", "None", label_column="y").label_column is None
    assert prepare_config("--block", "None", block=3).block is None


@pytest.mark.parametrize("flag", ["-k 3", "-k=3", "--k 3", "--k=3"])
def test_key_of_one_letter(flag):
    schema = COMMANDS["build-tokenizer"]
    assert resolve(schema, {"output": "o"}, flag.split(), "file", "build-tokenizer").k == 3


def test_file_is_not_changed_by_flags():
    values = {"output": "o", "data": "d", "optimizer": {"warmup": 1}}
    resolve(PretrainConfig, values, ["--optimizer.warmup", "2"], "file", "pretrain")
    assert values["optimizer"] == {"warmup": 1}


def test_environment_is_no_source(monkeypatch):
    monkeypatch.setenv("SEED", "9")
    assert prepare_config().seed == 0


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "run"])
def test_printed_config_resolves_to_itself(command, capsys, folder):
    texts = {"checkpoint": "c é", "data": "d", "corpus": "c", "run": "r", "input": "[i]", "stages": "[s]"}
    texts["repo"] = "lab/model"
    schema = COMMANDS[command]
    needed = [name for name, field in schema.model_fields.items() if field.is_required()]
    lines = "".join(f"{name}: {texts.get(name, 'NO')}\n" for name in needed)
    (folder / "c.yaml").write_text(lines)
    main([command, "--config", "c.yaml", "--print-config"])
    first = capsys.readouterr().out
    (folder / "c.yaml").write_text(first)
    main([command, "--print-config", "--config=c.yaml"])
    assert capsys.readouterr().out == first
    assert set(YAML(typ="safe", pure=True).load(first)) == set(schema.model_fields)


def test_printed_config_keeps_the_order(shows):
    shown = shows("prepare", "--output", "o", "--classes", "promoter=p.fa", "background=b.fa")
    assert list(shown["classes"]) == ["promoter", "background"]
    assert list(shown) == list(PrepareConfig.model_fields)


def test_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m pipeline.cli pretrain --output o --data d --print-config | true"
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert done.stderr == ""


def test_nearest():
    assert nearest("lerning_rate", ["learning_rate", "steps"]) == "did you mean learning_rate?"
    assert nearest("xa", ["steps", "data", "seed"]) == "known: data, steps, seed"
    assert nearest("zzz", list("abcdefghijklmnopqrstuvw")).count(",") == 15


RUN = """
output: o
inputs: {genome: old.fa, structure: null}
stages:
  corpus: {stage: prepare, input: $genome}
  model_1: {stage: pretrain, data: $corpus, steps: 5}
"""


def test_flags_of_a_run_reach_inputs_and_stages(yaml, shows):
    flags = ["--inputs.genome", "in put/é.fa", "--stages.model-1.optimizer.warmup", "3", "--dry-run"]
    shown = shows("run", "--config", yaml(RUN), *flags)
    assert shown["inputs"] == {"genome": "in put/é.fa", "structure": None}
    assert shown["stages"]["corpus"]["input"] == ["$genome"]
    assert shown["stages"]["model_1"]["steps"] == 5
    assert shown["stages"]["model_1"]["optimizer"]["warmup"] == 3
    assert shown["dry_run"] is True


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (("steps", "stops"), [], "c.yaml: unknown key stages.model_1.stops; did you mean steps?"),
        (("5", "five"), [], "c.yaml: stages.model_1.steps: 'five': not a whole number"),
        (
            ("pretrain", "pretain"),
            [],
            "c.yaml: stages.model_1.stage: 'pretain' is no stage; did you mean pre",
        ),
        (("data", "date"), [], "c.yaml: unknown key stages.model_1.date; did you mean data?"),
        (("data: $corpus, ", ""), [], "c.yaml: key stages.model_1.data is missing; give it there or as --st"),
        (("{stage: prepare, input: $genome}", "3"), [], "c.yaml: stages.corpus"),
        (("stages", "stags"), [], "c.yaml: unknown key stags; did you mean stages?"),
        (
            ("", ""),
            ["--inputs.genom", "x"],
            "command line: unknown flag --inputs.genom; did you mean --inputs.g",
        ),
        (("", ""), ["--cores", "0"], "command line: cores: '0': must be greater than 0"),
        (
            ("", ""),
            ["--stages.model-1.steps", "x"],
            "command line: stages.model_1.steps: 'x': not a whole nu",
        ),
    ],
)
def test_mistake_in_a_run(fails, yaml, folder, change, flags, message):
    line = fails("run", "--config", yaml(RUN.replace(*change)), *flags)
    assert line.startswith(message)
    assert [path.name for path in folder.iterdir()] == ["c.yaml"]


# Stages through the command line


def test_prepare_with_blanks_and_accents_in_paths(folder, capsys):
    source = folder / "in put" / "génome 1.fa"
    source.parent.mkdir()
    source.write_text(FASTA)
    argv = ["prepare", "--output", "out put/corpus é", "--input", "in put/génome 1.fa"]
    main([*argv, "--validation", "0", "--test", "0", "--deduplicate", "False"])
    output = folder / "out put" / "corpus é"
    manifest = json.loads((output / MANIFEST).read_text())
    assert manifest["config"]["deduplicate"] is False
    assert manifest["counts"]["kept"] == {"rows": 2, "letters": 24}
    assert [path.name for path in output.parent.iterdir()] == ["corpus é"]
    capsys.readouterr()
    main([*argv, "--validation", "0", "--test", "0", "--deduplicate", "no"])
    assert "up to date, nothing to do" in capsys.readouterr().err


def test_foreign_output_is_refused(fails, folder):
    (folder / "a.fa").write_text(FASTA)
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter1.tex").write_text("text")
    line = fails("prepare", "--output", "thesis", "--input", "a.fa")
    assert line == "thesis: exists and was not written by strandlm; choose another --output"
    assert [path.name for path in (folder / "thesis").iterdir()] == ["chapter1.tex"]
    line = fails("prepare", "--output", "a.fa", "--input", "a.fa")
    assert line == "a.fa: exists and was not written by strandlm; choose another --output"


def test_fault_of_the_file_system_is_one_line(fails, folder):
    (folder / "a.fa").write_text(FASTA)
    line = fails("prepare", "--output", "a.fa/corpus", "--input", "a.fa")
    assert line in ("a.fa: File exists", "a.fa: Not a directory", "a.fa/corpus: Not a directory")


def test_interruption_is_one_line(fails, monkeypatch):
    def interrupt(config):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.prepare.run", interrupt)
    assert fails("prepare", "--output", "o") == "interrupted"


def test_a_fault_of_ours_shows_where_it_is(monkeypatch):
    def fault(config):
        raise KeyError("ours")

    monkeypatch.setattr("pipeline.prepare.run", fault)
    with pytest.raises(KeyError):
        main(["prepare", "--output", "o"])


def test_mistake_ends_the_process_with_2(folder):
    (folder / "a.fa").write_text(">a\nACGT!\n")
    done = strandlm("prepare", "--output", "o", "--input", "a.fa")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("strandlm: error: a.fa: record 'a', line 1: letter '!' at position 5")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["a.fa"]


def test_receipt_is_the_manifest(folder):
    (folder / "a.fa").write_text(FASTA)
    main(["prepare", "--output", "o", "--input", "a.fa", "--test", "0", "--receipt", "r.json"])
    assert (folder / "r.json").read_bytes() == (folder / "o" / MANIFEST).read_bytes()


def test_schema_is_frozen_and_names_the_key():
    config = prepare_config()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    with pytest.raises(UserError, match="key checkpoint is missing"):
        resolve(PredictConfig, {"output": "o", "input": "a.fa"}, [], "file", "predict")


def test_a_folder_of_that_name_does_not_hide_a_shipped_config(tmp_path, monkeypatch):
    from pipeline.cli import find_config

    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_config("demo").name == "demo.yaml"
