"""The same run by one process and by two, of the real command."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pipeline.encode
import pipeline.prepare
import pipeline.pretrain
from pipeline.config import ModelConfig, OptimizerConfig, PretrainConfig

STEPS = 30
SCORES = {"validation_bits_per_hidden_base", "validation_bits_per_hidden_residue"}
SCRIPT = Path(__file__).with_name("two_processes.py")


def settings(data, output, **changes):
    common = {
        "model": ModelConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2),
        "optimizer": OptimizerConfig(warmup=5, learning_rate=3e-3),
        "steps": STEPS,
        "window": 80,
        "tokens_per_step": 600,
        "evaluate_every": 15,
        "checkpoint_every": 10,
        "evaluation_bases": 300,
        "log_every": 1,
        "count_model": False,
        "keep_best": False,
    }
    return PretrainConfig(output=output, data=data, **common | changes)


@pytest.fixture(scope="module")
def runs(random_tokens, tmp_path_factory):
    """Folder with each run as ``one/NAME`` and ``two/NAME``, and what two processes said.

    One process takes every step at once; two take it in at least four micro-batches each.
    """
    folder = tmp_path_factory.mktemp("processes")
    kmers = random_tokens(folder / "dna", "dna", "ACGT", "dna-3mer-overlap", (20, 300))
    proteins = random_tokens(folder / "proteins", "protein", "ACDEFGHIKLMNPQRSTVWY", "protein", (10, 120))
    data = {"kmers": kmers, "proteins": proteins, "interrupted": kmers, "spoilt": kmers}
    for name, where in data.items():
        config = settings(where, folder / "two" / name, micro_batch_tokens=90)
        (folder / f"{name}.json").write_text(config.model_dump_json(exclude_none=True))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    finished = subprocess.run(
        [*launcher, str(SCRIPT), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(pipeline.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    ours = {name: settings(data[name], folder / "one" / name, micro_batch_tokens=10_000) for name in data}
    for name in ("kmers", "proteins"):
        pipeline.pretrain.run(ours[name])
    runpy.run_path(str(SCRIPT))["spoilt"](ours["spoilt"])
    return folder, finished.stderr


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one, two):
    assert len(lines(one)) == len(lines(two)) >= STEPS + 3
    for a, b in zip(lines(one), lines(two), strict=True):
        assert set(a) == set(b)
        assert (a["step"], a.get("learning_rate")) == (b["step"], b.get("learning_rate"))
        if "loss" in a:
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
            assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-4)
        for key in set(a) & SCORES:
            assert a[key] == pytest.approx(b[key], rel=1e-5)
    whole, divided = (load_file(path / "model.safetensors") for path in (one, two))
    for name, value in whole.items():
        torch.testing.assert_close(divided[name], value, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", ["kmers", "proteins"])
def test_two_processes_take_the_steps_of_one(runs, name):
    folder, _ = runs
    assert_same_run(folder / "one" / name, folder / "two" / name)
    losses = [line["loss"] for line in lines(folder / "one" / name) if "loss" in line]
    assert len(losses) == STEPS
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05


def test_the_rate_reaches_its_end_at_the_last_step_of_two_processes(runs):
    rates = [line["learning_rate"] for line in lines(runs[0] / "two/kmers") if "loss" in line]
    assert rates[:5] == pytest.approx([3e-3 * (i + 1) / 5 for i in range(5)])
    assert rates[-1] == pytest.approx(0, abs=1e-20)
    assert min(rates[:-1]) > 0


def test_what_is_said_is_said_once(runs):
    _, said = runs
    assert said.count("2 process(es) on cpu") == 4
    assert said.count("of letters hidden; of their runs") == 3


def test_a_run_of_two_processes_goes_on_with_one(runs, capsys):
    """The signal came to the second process alone; both stopped after the step."""
    folder, said = runs
    assert "a signal to another process: checkpoint of step 12 of 30 written; run again to go on" in said
    config = settings(folder / "dna/tokens", folder / "two/interrupted", micro_batch_tokens=10_000)
    pipeline.pretrain.run(config)
    assert "resumed from step-000012 of 30" in capsys.readouterr().err
    assert_same_run(folder / "one/kmers", folder / "two/interrupted")


def test_a_step_that_is_spoilt_for_one_process_is_passed_over_by_all(runs):
    folder, _ = runs
    assert_same_run(folder / "one/spoilt", folder / "two/spoilt")
    one, two = ([line for line in lines(folder / n / "spoilt") if "skipped" in line] for n in ("one", "two"))
    assert one == two
    (line,) = one
    assert (line["step"], line["skipped"]) == (5, 1)
    names = {name for name, start, stop in line["records"] if 0 <= start < stop}
    assert len(names) > 1
    assert names < {f"r{i}" for i in range(60)}
