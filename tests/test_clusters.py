"""The job for SLURM among imitations of what a cluster has, and the page about clusters."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from pipeline.cli import main
from pipeline.resources import resource

ROOT = Path(__file__).parents[1]
FOLDER = resource("workflows") / "clusters"
SCRIPT = FOLDER / "pretrain.slurm"
STEPS = 150

# A task for each of SLURM_NTASKS; signals go to every one, the exit code is the largest.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys

words = [word for word in sys.argv[1:] if not word.startswith("--kill-on-bad-exit")]
tasks = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda caught, _: [task.send_signal(caught) for task in tasks])
for rank in map(str, range(int(os.environ["SLURM_NTASKS"]))):
    tasks.append(subprocess.Popen(words, env=os.environ | {{"SLURM_PROCID": rank, "SLURM_LOCALID": rank}}))
sys.exit(max(code if code >= 0 else 128 - code for code in [task.wait() for task in tasks]))
"""
# In place of Python: a process that ends with EXIT, at once or after a signal; one without a name kills it.
PROCESS = """#!/bin/bash
trap 'exit $EXIT' $CATCH
echo started > started-$RANK
[[ $CATCH ]] || exit "$EXIT"
while :; do sleep 0.02; done
"""
SCONTROL = """#!/bin/bash
case $1 in
  show) echo localhost ;;
  requeue) echo "$2" >> requeued ;;
esac
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    letters = random.Random(0).choices("ACGT", k=6000)
    (folder / "g.fa").write_text(">g\n" + "".join(letters) + "\n")
    cut = ["--block", "600", "--buffer", "10", "--validation", "0.2"]
    main(["prepare", "--input", str(folder / "g.fa"), *cut, "--output", str(folder / "corpus")])
    coded = ["--tokenizer", "dna-1mer", "--output", str(folder / "tokens")]
    main(["tokenize", "--corpus", str(folder / "corpus"), *coded])
    return folder / "tokens"


def wait_for(condition, job):
    begun = time.monotonic()
    while not condition():
        assert job.poll() is None or condition(), job.stderr.read()
        assert time.monotonic() - begun < 90
        time.sleep(0.02)


def port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


@pytest.fixture
def submit(tmp_path):
    """Start the script as SLURM would, with the environment of a job."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("process", PROCESS)):
        (tmp_path / "programs").mkdir(exist_ok=True)
        (tmp_path / "programs" / name).write_text(text)
        (tmp_path / "programs" / name).chmod(0o755)

    def start(*flags, processes=1, **environment):
        slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": str(processes)}
        path = f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", SCRIPT, *map(str, flags)],
            cwd=tmp_path,
            env=os.environ | slurm | {"PATH": path, "CUDA_VISIBLE_DEVICES": ""} | environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.mark.parametrize(
    ("number", "catch", "code", "status", "put_back"),
    [
        (signal.SIGUSR1, "USR1", 3, 0, True),  # 0 is scontrol's
        (signal.SIGUSR1, "TERM", 3, 0, True),  # killed by the signal before training
        (signal.SIGUSR1, "USR1", 1, 1, False),
        (signal.SIGTERM, "TERM", 3, 3, False),  # preempted jobs go back by themselves
        (None, "", 0, 0, False),
        (None, "", 3, 3, False),
        (None, "", 137, 137, False),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_only_jobs_whose_time_is_up_are_put_back(
    submit, tmp_path, number, catch, code, status, put_back, processes
):
    job = submit(processes=processes, PYTHON="process", CATCH=catch, EXIT=str(code))
    wait_for(lambda: len(list(tmp_path.glob("started-*"))) == processes, job)
    if number:
        os.kill(job.pid, number)
    job.communicate(timeout=60)
    assert job.returncode == status
    assert (tmp_path / "requeued").exists() == put_back


def flags_of(tokens):
    flags = {"data": tokens, "output": "model", "steps": STEPS, "window": 60, "tokens-per-step": 120}
    flags |= {"evaluate-every": STEPS, "checkpoint-every": STEPS, "evaluation-bases": 300, "log-every": 1}
    flags |= {"model.hidden-size": 16, "model.num-hidden-layers": 1, "model.num-attention-heads": 2}
    return [part for key, value in flags.items() for part in (f"--{key}", value)]


def steps(folder):
    lines = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


def test_a_job_whose_time_is_up_goes_on_from_its_checkpoint(submit, tokens, tmp_path):
    job = submit(
        *flags_of(tokens), processes=2, PYTHON=sys.executable, PYTHONPATH=str(ROOT), MASTER_PORT=port()
    )
    wait_for(lambda: any('"loss"' in log.read_text() for log in tmp_path.glob("**/metrics.jsonl")), job)
    os.kill(job.pid, signal.SIGUSR1)
    told = rf"SIGUSR1: checkpoint of step (\d+) of {STEPS} written; run again to go on"
    (step,) = re.findall(told, job.communicate(timeout=120)[1])
    assert job.returncode == 0
    assert (tmp_path / "requeued").read_text() == "17\n"
    assert not (tmp_path / "model").exists()
    again = submit(*flags_of(tokens), PYTHON=sys.executable, PYTHONPATH=str(ROOT), MASTER_PORT=port())
    assert f"resumed from step-{int(step):06d}" in again.communicate(timeout=120)[1]
    assert again.returncode == 0
    assert steps(tmp_path) == list(range(1, STEPS + 1))


def test_the_page_sets_for_fsdp_what_the_launcher_would():
    exports = re.findall(r"^export (.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    ours = dict(pair.split("=") for line in exports for pair in line.split())
    config = str(resource("configs") / "accelerate" / "fsdp.yaml")
    given = launch_command_parser().parse_args(["--config_file", config, "-m", "pipeline.pretrain"])
    theirs = prepare_multi_gpu_env(_validate_launch_command(given)[0])
    assert ours.items() <= theirs.items()
    assert "ACCELERATE_USE_FSDP" in ours


def test_the_page_names_files_that_are_there():
    page = (FOLDER / "README.md").read_text()
    named = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert {"pretrain.slurm", "Containerfile"} <= set(named)
    root = resource("configs").parent
    for name in named:
        assert (root / "workflows" / "clusters" / name).resolve().exists(), name
    for config in re.findall(r"--config ([a-z0-9-]+)", page + SCRIPT.read_text()):
        assert (resource("configs") / f"{config}.yaml").exists(), config
