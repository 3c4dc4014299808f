"""Whole runs through real Snakemake: the reduced demo, what runs again, kills, failures, a cluster."""

import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline import workflow
from pipeline.cli import main, read_yaml, resolve
from pipeline.config import STAGES
from pipeline.jobs import make_jobs, run_schema, with_seeds
from pipeline.resources import resource

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
DEMO = {
    "world.genome-length": 20_000,
    "world.promoters": 60,
    "world.family-sequences": 60,
    "world.family-length": 20,
    "world.decoy-motifs": 2,
    "genome-model.steps": 6,
    "genome-model.checkpoint-every": 2,
    "genome-model.evaluation-bases": 1000,
    "family-model.steps": 6,
    "family-model.checkpoint-every": 2,
    "promoter-model.epochs": 1,
    "promoter-model.allow-collapse": "true",
}
TWO_BRANCHES = """\
title: Two branches
inputs: {left: null, right: null}
stages:
  left_corpus: {stage: prepare, input: [$left], block: 500}
  left_tokens: {stage: tokenize, corpus: $left_corpus, tokenizer: dna-6mer}
  right_corpus: {stage: prepare, input: [$right], block: 500}
  right_tokens: {stage: tokenize, corpus: $right_corpus, tokenizer: dna-6mer}
"""
BRANCHES = {"left_corpus", "left_tokens", "right_corpus", "right_tokens", "report"}
TRAINING = """\
title: Training
seed: 5
inputs: {genome: null}
stages:
  corpus: {stage: prepare, input: [$genome], block: 1000, validation: 0.2, test: 0.2}
  tokens: {stage: tokenize, corpus: $corpus, tokenizer: dna-1mer}
  model:
    stage: pretrain
    data: $tokens
    steps: 150
    window: 60
    tokens_per_step: 512
    checkpoint_every: 2
    evaluate_every: 50
    evaluation_bases: 500
    log_every: 1
    model: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}
"""


def command(config, output, *flags):
    flags = ["--cores", "1", *map(str, flags)]
    return [
        sys.executable,
        "-m",
        "pipeline.cli",
        "run",
        "--config",
        str(config),
        "--output",
        str(output),
        *flags,
    ]


def strandlm(config, output, *flags, cwd=None, code=0):
    """Run the command to its end; return the lines it printed."""
    result = subprocess.run(
        command(config, output, *flags), capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()


def ran(lines):
    """Return the stages that made a result, as the last lines tell."""
    matches = [re.match(r"ran (\d+) of \d+ stages: (.*)", line) for line in lines]
    found = [(int(match[1]), match[2].split(", ")) for match in matches if match]
    if not found:
        assert any(line.startswith("nothing to do") for line in lines)
        return set()
    assert found[0][0] == len(found[0][1])
    return set(found[0][1])


def jobs_of(config, *flags):
    values = read_yaml(Path(config))
    schema = run_schema(values, "c")
    return make_jobs(with_seeds(resolve(schema, values, ["--output", "o", *flags], "c", "run")), "c")


def started(lines):
    """Return the stages that were called at all."""
    return {match[1] for line in lines if (match := re.match(r"\[\d+/\d+\] (\w+): [a-z-]+$", line))}


def made(output):
    """Return when every file in the stages' folders was written."""
    files = [path for path in output.glob("[!.]*/**/*") if path.is_file() and "logs" not in path.parts]
    return {path: path.stat().st_mtime_ns for path in files}


def write_fasta(path, letters, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    genome = "".join(random.Random(seed).choices("ACGT", k=letters))
    path.write_text(f">simulated {seed}\n{genome}\n")
    return path


def change_base(path):
    """Change the last base of a file; its size and time stamp stay."""
    before, text = path.stat(), path.read_text()
    path.write_text(text[:-2] + {"A": "C", "C": "G", "G": "T", "T": "A"}[text[-2]] + "\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def wait_for(condition, seconds=60.0):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, "waited in vain"
        time.sleep(0.01)


def processes(marker):
    """Return the processes that have a text in their command line or work in that folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            if words and (
                marker in words.decode(errors="replace") or marker in str((folder / "cwd").readlink())
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The reduced demo, run once, from a file and into a folder with blanks: output, flags, lines printed."""
    folder = tmp_path_factory.mktemp("demo")
    config = folder / "in put" / "demo 1.yaml"
    config.parent.mkdir()
    config.write_bytes((resource("configs") / "demo.yaml").read_bytes())
    flags = [part for key, value in DEMO.items() for part in (f"--stages.{key}", value)]
    output = folder / "my run é"
    return config, output, flags, strandlm(config, output, *flags)


class Branches:
    """A run of two branches that share nothing, in a folder of its own: call it with flags."""

    def __init__(self, folder):
        self.folder, self.output = folder, folder / "my run é"
        self.config = folder / "two.yaml"
        self.config.write_text(TWO_BRANCHES)
        self.left, self.right = (folder / "in put" / f"{side} 1.fa" for side in ("left", "right"))
        for seed, path in enumerate((self.left, self.right)):
            write_fasta(path, 5000, seed)
        self.inputs = ["--inputs.left", "in put/left 1.fa", "--inputs.right", "in put/right 1.fa"]

    def __call__(self, *flags, code=0):
        return strandlm(self.config, "my run é", *self.inputs, *flags, cwd=self.folder, code=code)


@pytest.fixture
def fresh(tmp_path):
    """Two branches that have not run."""
    return Branches(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return Branches(tmp_path_factory.mktemp("branches"))


@pytest.fixture
def finished(shared):
    """Two branches that have run to their end, whatever an earlier test changed."""
    shared()
    return shared


def test_demo_ends_with_a_report(demo):
    _, output, *_ = demo
    report = json.loads((output / "report.json").read_text())
    kinds = {
        "bits_per_hidden_base": {"baseline", "random"},
        "promoter_auroc": {"optimum", "by_group"},
        "motifs_recovered": {"of"},
        "contact_precision_at_l": {"baseline", "random"},
    }
    for key, parts in kinds.items():
        assert {"value", "untrained"} | parts <= report[key].keys(), key
    assert report["simulated"] is True
    page = (output / "report.html").read_text()
    assert "<svg" in page or "<img" in page
    for name in ("report.html", "report.json"):
        assert (output / name).read_bytes() == (output / "report" / name).read_bytes()
        assert str(output.parent) not in (output / name).read_text()


def test_demo_runs_every_stage_and_shows_it(demo):
    _, output, _, lines = demo
    names = [*read_yaml(resource("configs") / "demo.yaml")["stages"], "report"]
    assert ran(lines) == started(lines) == set(names)
    commands = {line for line in lines if re.match(r"\[\d+/", line)}
    assert f"[3/{len(names)}] genome_tokens: tokenize" in commands
    for name in names:
        assert json.loads((output / name / "manifest.json").read_text())["counts"] is not None
        assert any(line.startswith(f"[{name}] ") for line in lines), name
    assert not list(output.glob(".*.partial"))


def test_only_stages_speak(demo):
    """Nothing that Snakemake says is shown while all goes well."""
    *_, lines = demo
    ours = r"\[[\w/]+\] |StrandLM demo: 13 stages|ran 13 of 13|report: "
    assert [line for line in lines if not re.match(ours, line)] == []


def test_second_demo_run_does_nothing(demo):
    config, output, flags, _ = demo
    before = made(output)
    lines = strandlm(config, output, *flags)
    assert ran(lines) == started(lines) == set()
    assert made(output) == before


def test_exactly_what_depends_on_a_change_runs_again(finished):
    before = made(finished.output)
    assert {path.relative_to(finished.output).parts[0] for path in before} >= BRANCHES
    os.utime(finished.left)
    lines = finished()
    assert ran(lines) == started(lines) == set()
    assert made(finished.output) == before

    change_base(finished.left)
    lines = finished()
    assert ran(lines) == started(lines) == {"left_corpus", "left_tokens", "report"}
    after = made(finished.output)
    kept = {path for path in before if "right" in str(path.relative_to(finished.output))}
    assert kept
    assert all(after[path] == before[path] for path in kept)

    lines = finished("--stages.right-tokens.tokenizer", "dna-1mer")
    assert ran(lines) == started(lines) == {"right_tokens", "report"}
    assert ran(finished("--stages.right-tokens.tokenizer", "dna-1mer")) == set()


def test_deleted_result_is_made_again(finished):
    report = (finished.output / "report.json").read_bytes()
    shutil.rmtree(finished.output / "left_corpus")
    assert ran(finished()) == {"left_corpus"}
    assert (finished.output / "report.json").read_bytes() == report


def test_paths_are_those_of_the_caller(tmp_path, monkeypatch):
    """A stage runs in the run's folder, but files and tokenizers are named from where the run is called."""
    monkeypatch.chdir(tmp_path)
    write_fasta(tmp_path / "in put" / "g.fa", 100, 3)
    shutil.copytree(resource("tokenizers") / "dna-1mer", "mine")
    text = TWO_BRANCHES.replace("[$left]", "in put/g.fa").replace("dna-6mer", "mine", 1)
    Path("two.yaml").write_text(text)
    corpus, tokens, *_ = jobs_of("two.yaml", "--inputs.right", "in put/g.fa")
    assert corpus.config.input == corpus.files == [tmp_path / "in put" / "g.fa"]
    assert tokens.config.tokenizer == str(tmp_path / "mine")
    assert tokens.files == [tmp_path / "mine"]
    assert tokens.config.corpus == tmp_path / "o" / "left_corpus"
    assert tokens.needs == ["left_corpus"]


def kill(run, group):
    os.kill(run.pid, signal.SIGKILL) if not group else os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def newest_step(output):
    names = [path.name for path in output.glob(".model.partial/checkpoints/step-*[0-9]")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def test_killed_training_goes_on_to_the_same_report(tmp_path):
    """SIGKILL of ``strandlm run`` alone, then of everything, then to the end."""
    config = tmp_path / "training.yaml"
    config.write_text(TRAINING)
    genome = write_fasta(tmp_path / "genome.fa", 20_000, 1)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    strandlm(config, straight, "--inputs.genome", genome)

    steps = []
    for group in (False, True):
        call = command(config, killed, "--inputs.genome", genome)
        run = subprocess.Popen(call, env=ENVIRONMENT, stderr=subprocess.DEVNULL, start_new_session=True)
        reached = max(steps, default=0)
        wait_for(lambda reached=reached: newest_step(killed) > reached + 2)
        kill(run, group)
        assert not (killed / "model").exists()
        if not group:
            wait_for(lambda: not processes(str(killed)), 8)
        steps.append(newest_step(killed))
    lines = strandlm(config, killed, "--inputs.genome", genome)
    assert ran(lines) == {"model", "report"}
    log = (killed / "logs" / "model.log").read_text()
    resumed = [int(step) for step in re.findall(r"resumed from step-(\d+)", log)]
    assert resumed == steps
    assert 0 < resumed[0] < resumed[1] < 150
    for name in ("report.json", "report.html"):
        assert (killed / name).read_bytes() == (straight / name).read_bytes()


def test_kill_while_data_are_made_anew(finished):
    """What was done again is kept; the broken stage and what depends on it are done."""
    write_fasta(finished.left, 1_000_000, 7)
    call = command(finished.config, finished.output, *finished.inputs)
    run = subprocess.Popen(
        call, env=ENVIRONMENT, stderr=subprocess.DEVNULL, cwd=finished.folder, start_new_session=True
    )
    partial = finished.output / ".left_tokens.partial"
    wait_for(partial.exists)
    kill(run, group=True)
    assert partial.exists()
    assert ran(finished()) == {"left_tokens", "report"}
    assert not list(finished.output.glob(".*.partial"))


def test_failure_is_told_in_two_lines_and_the_rerun_goes_on(fresh):
    good = fresh.left.read_text()
    fresh.left.write_text(good[:500] + "!" + good[501:])
    lines = fresh(code=2)
    told = [line for line in lines if "error" in line]
    assert len(told) == 2
    assert told[0].startswith(f"[left_corpus] error: {fresh.left}: record 'simulated', line 1: letter '!'")
    assert told[1] == lines[-1]
    assert told[1].startswith("strandlm: error: my run é: left_corpus failed")
    assert not [line for line in lines if re.search("snakemake|rule|job", line, re.IGNORECASE)]
    for name in ("left_corpus", ".left_corpus.partial", "left_tokens", "report", "report.json"):
        assert not (fresh.output / name).exists()
    done = {path.parent.name for path in fresh.output.glob("*/manifest.json")}
    fresh.left.write_text(good)
    assert ran(fresh()) == BRANCHES - done


def test_stage_that_cannot_start_is_named(finished):
    model = "  model: {stage: pretrain, data: $left_tokens, launch: no-such-launcher}\n"
    config = finished.folder / "launcher.yaml"
    config.write_text(TWO_BRANCHES + model)
    lines = strandlm(config, "my run é", *finished.inputs, cwd=finished.folder, code=2)
    assert any("no-such-launcher: command not found" in line for line in lines)
    assert lines[-1].startswith("strandlm: error: my run é: model failed")


def test_what_snakemake_says_is_shown_when_no_stage_failed(finished):
    profile = finished.folder / "profile"
    profile.mkdir()
    (profile / "config.yaml").write_text("executor: abacus\n")
    lines = finished("--profile", "profile", "--stages.left-corpus.block", 400, code=2)
    assert any("abacus" in line for line in lines)
    assert lines[-1] == "strandlm: error: my run é: Snakemake stopped: see above"


def test_dry_run_lists_stages_and_makes_none(fresh):
    lines = fresh("--dry-run")
    assert {line.split()[2].rstrip(":") for line in lines if line.startswith("would run ")} == BRANCHES
    assert lines[-1] == "5 of 5 stages would run"
    assert {path.name for path in fresh.output.glob("[!.]*")} == {"logs"}


@pytest.mark.parametrize(
    ("change", "flags", "told"),
    [
        (
            {"stage: prepare": "stage: prepair"},
            [],
            "stages.left_corpus.stage: 'prepair' is no stage; did you mean prepare?",
        ),
        (
            {"$left_corpus": "$left_corpse"},
            ["--inputs.left", "r.fa"],
            "stages.left_tokens.corpus: $left_corpse is neither an input nor an",
        ),
        ({"block": "blocks"}, [], "unknown key stages.left_corpus.blocks; did you mean"),
        ({"left_tokens:": "report:"}, [], "stages.report: a name has letters, digits and _"),
        ({}, ["--inputs.lefft", "x.fa"], "unknown flag --inputs.lefft; did you mean --inputs.left?"),
        ({}, ["--inputs.left", "absent.fa"], "absent.fa: no such file"),
        ({}, [], "inputs.left: no file given; pass --inputs.left FILE"),
        (
            {TWO_BRANCHES[TWO_BRANCHES.index("stages") :]: "stages: {}"},
            [],
            "stages: none given; name at least one, as in: corpus: {stage: prepare}",
        ),
        (
            {},
            ["--inputs.left", "r.fa", "--profile", "slrum"],
            "profile: slrum: neither a profile of ours nor a folder",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch, change, flags, told):
    monkeypatch.chdir(tmp_path)
    text = TWO_BRANCHES
    for old, new in change.items():
        text = text.replace(old, new, 1)
    Path("two.yaml").write_text(text)
    given = ["--inputs.right", write_fasta(tmp_path / "r.fa", 500, 1)]
    with pytest.raises(SystemExit) as stop:
        main(command("two.yaml", "out", *given, *flags)[3:])
    assert stop.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("strandlm: error: ")
    assert told in lines[0]


def test_a_folder_with_other_things_is_refused_and_not_touched(fresh, capsys):
    fresh.output.mkdir()
    (fresh.output / "report.html").write_text("my own")
    with pytest.raises(SystemExit) as stop:
        main(command(fresh.config, fresh.output, *fresh.inputs)[3:])
    assert stop.value.code == 2
    problem = f"{fresh.output}: exists and was not written by strandlm; choose another --output"
    assert capsys.readouterr().err.splitlines() == [f"strandlm: error: {problem}"]
    assert [path.name for path in fresh.output.iterdir()] == ["report.html"]
    assert (fresh.output / "report.html").read_text() == "my own"


def test_second_run_in_a_folder_is_refused(fresh, monkeypatch, capsys):
    monkeypatch.setattr(workflow, "PATIENCE", 0.3)
    monkeypatch.chdir(fresh.folder)
    fresh.output.mkdir()
    with (fresh.output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit):
            main(command(fresh.config, fresh.output, *fresh.inputs)[3:])
    problem = f"strandlm: error: {fresh.output}: another strandlm run is at work in this folder"
    assert capsys.readouterr().err.splitlines() == [problem]
    assert [path.name for path in fresh.output.iterdir()] == [".lock"]


def test_printed_configuration_gives_the_same_stages(tmp_path, capsys):
    demo, printed = resource("configs") / "demo.yaml", tmp_path / "printed.yaml"
    seeds = ["--seed", "9", "--stages.genome.seed", "4"]
    main(["run", "--config", str(demo), "--output", "o", *seeds, "--print-config"])
    printed.write_text(capsys.readouterr().out)
    shown = {name: settings["seed"] for name, settings in read_yaml(printed)["stages"].items()}
    assert shown == dict.fromkeys(shown, 9) | {"genome": 4}
    assert jobs_of(printed) == jobs_of(demo, *seeds)


def plan_of_all_stages(folder):
    """Write the plan of a run with one stage of every kind."""
    names = {command: command.replace("-", "_") for command in STAGES}
    table = {
        name: {"command": command, "needs": [], "launch": "", "step": "1/1"}
        for command, name in names.items()
    }
    for part in (".plan", ".inputs"):
        (folder / part).mkdir()
        for name in names.values():
            (folder / part / f"{name}.json").write_text("{}")
    (folder / ".plan" / "jobs.json").write_text(json.dumps(table))
    return set(table)


def test_every_stage_asks_a_cluster_for_what_it_needs(tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    names = plan_of_all_stages(tmp_path)
    workflows = resource("workflows")
    call = [sys.executable, "-m", "snakemake", "--snakefile", workflows / "Snakefile", "--dry-run"]
    call += ["--cores", "8"]
    call += ["--profile", workflows / "profiles" / "slurm", "--workflow-profile", "none"]
    result = subprocess.run(call, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    jobs = dict(re.findall(r"^rule (\w+):\n((?:    .*\n)+)", result.stdout + result.stderr, re.MULTILINE))
    assert names <= jobs.keys()
    for name in names:
        resources = dict(re.findall(r"(\w+)=([^,\s]+)", jobs[name]))
        assert int(resources["mem_mb"]) >= 1000
        assert int(resources["runtime"]) >= 10
        assert ("gpu" in resources) == (name in ("pretrain", "evaluate", "finetune")), name
    assert "threads: 2" in jobs["pretrain"]


def test_cluster_profile_in_a_dry_run(fresh):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    assert fresh("--dry-run", "--profile", "slurm")[-1] == "5 of 5 stages would run"
