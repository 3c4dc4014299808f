"""A network that two processes divide (FSDP2), and the same run by one that holds it whole."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import accelerate
import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

import pipeline.encode
import pipeline.prepare
import pipeline.pretrain
from pipeline.config import ModelConfig, OptimizerConfig, PretrainConfig
from pipeline.errors import UserError
from pipeline.resources import resource
from pipeline.training.sharding import check_sharding, is_sharded, like, whole, whole_model

STEPS = 12
SCRIPT = Path(__file__).with_name("two_shards.py")


def launch_environment():
    """Return what `accelerate launch` with configs/accelerate/fsdp.yaml puts into the environment."""
    config = str(resource("configs") / "accelerate" / "fsdp.yaml")
    arguments = launch_command_parser().parse_args(["--config_file", config, "script.py"])
    environment = prepare_multi_gpu_env(_validate_launch_command(arguments)[0])
    return {n: v for n, v in environment.items() if n.startswith(("ACCELERATE_", "FSDP_"))}


@pytest.fixture(scope="module")
def data(random_tokens, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded") / "kmers"
    return random_tokens(folder, "dna", "ACGT", "dna-3mer-overlap", (20, 300))


def settings(data, output, **changes):
    common = {
        "model": ModelConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2),
        "optimizer": OptimizerConfig(warmup=3, learning_rate=3e-3),
        "steps": STEPS,
        "window": 80,
        "tokens_per_step": 600,
        "micro_batch_tokens": 10_000,
        "evaluate_every": 6,
        "checkpoint_every": 5,
        "evaluation_bases": 300,
        "log_every": 1,
        "keep_checkpoints": -1,
        "count_model": False,
        "keep_best": False,
    }
    return PretrainConfig(output=output, data=[data], **common | changes)


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Folder of ``whole``, the run of one process, ``own``, stopped in step 7, and ``launched``."""
    folder = tmp_path_factory.mktemp("sharded")
    for name in ("own", "launched"):
        config = settings(data, folder / name, micro_batch_tokens=90)
        (folder / f"{name}.json").write_text(config.model_dump_json(exclude_none=True))
    (folder / "environment.json").write_text(json.dumps(launch_environment()))
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
    runpy.run_path(str(SCRIPT))["spoilt_and_stopped"](settings(data, folder / "whole"))
    return folder


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one, two):
    assert len(lines(one)) == len(lines(two)) >= STEPS + 4
    for a, b in zip(lines(one), lines(two), strict=True):
        assert set(a) == set(b)
        assert (a["step"], a.get("learning_rate")) == (b["step"], b.get("learning_rate"))
        for name in a.keys() & {"loss", "gradient_norm", "validation_bits_per_hidden_base"}:
            assert a[name] == pytest.approx(b[name], rel=1e-5, nan_ok=True), name


def logits(folder, **how):
    model = AutoModelForMaskedLM.from_pretrained(folder, **how)
    return model(torch.arange(5, 65).view(2, 30)).logits


@pytest.mark.parametrize("name", ["own", "launched"])
def test_each_process_holds_half_of_every_weight(runs, name):
    both = [json.loads((runs / f"parts-{rank}.json").read_text())[name] for rank in (0, 1)]
    shapes = {key: value.numel() for key, value in load_file(runs / "whole/model.safetensors").items()}
    for parts in both:
        assert parts == {key: [size / 2, size] for key, size in shapes.items()}


def test_a_run_that_accelerate_divides_is_that_of_one_process(runs):
    """Stopped, and gone on with by two processes; one step was spoilt for one and passed over by both."""
    assert_same_run(runs / "whole", runs / "launched")
    (skipped,) = [line for line in lines(runs / "launched") if "skipped" in line]
    assert skipped["step"] == 3


def test_a_divided_run_is_gone_on_with_by_one_process(runs, data, capsys):
    before = logits(runs / ".own.partial/checkpoints/step-000007")
    pipeline.pretrain.run(settings(data, runs / "own"))
    assert "resumed from step-000007 of 12" in capsys.readouterr().err
    assert_same_run(runs / "whole", runs / "own")
    of_one = logits(runs / "whole/checkpoints/step-000005")
    torch.testing.assert_close(logits(runs / "own/checkpoints/step-000005"), of_one, rtol=0, atol=1e-5)
    assert (before - of_one).abs().max() > 1e-3


@pytest.mark.parametrize("part", ["", "checkpoints/step-000005", "checkpoints/step-000012"])
def test_what_was_divided_is_written_whole(runs, part):
    one, two = runs / "whole" / part, runs / "launched" / part
    torch.testing.assert_close(logits(two), logits(one), rtol=0, atol=1e-5)
    _, said = AutoModelForMaskedLM.from_pretrained(two, output_loading_info=True)
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name in {p.name for p in one.glob("*.safetensors")}:
        ours, theirs = load_file(one / name), load_file(two / name)
        assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    same = {p.name for p in one.iterdir()} - {"checksums.json", "trainer.json"}
    assert {p.name for p in two.iterdir()} >= same
    for name in ("config.json", "modeling_strand.py"):
        assert (one / name).read_text() == (two / name).read_text()


def test_the_scores_of_the_result_are_those_of_one_process(runs):
    one, two = (json.loads((runs / n / "metrics.json").read_text()) for n in ("whole", "launched"))
    for name, value in one["bits_per_hidden_base"].items():
        assert two["bits_per_hidden_base"][name] == pytest.approx(value, rel=1e-5), name


def test_mixed_precision_is_that_of_a_whole_network(runs):
    for rank in (0, 1):
        said = json.loads((runs / f"precision-{rank}.json").read_text())
        assert said == {"as whole": True, "in float32": False}


def test_whole_networks_and_tensors_are_left_alone(tiny_model):
    model = tiny_model()
    assert not is_sharded(model)
    assert whole_model(model) is whole_model(model, keep=False) is model
    assert whole(model.decoder.bias) is like(model.decoder.bias, model.decoder.bias) is model.decoder.bias


# -- what is refused


def refused(monkeypatch, tmp_path, environment, **changes):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as error:
        pipeline.pretrain._accelerator(settings(tmp_path, tmp_path / "out", **changes))
    return str(error.value)


def test_deepspeed_is_refused_by_name(monkeypatch, tmp_path):
    said = refused(monkeypatch, tmp_path, {"ACCELERATE_USE_DEEPSPEED": "true"})
    assert said.startswith("accelerate launch: DeepSpeed is refused: it owns the accumulation of gradients")


@pytest.mark.parametrize(
    ("environment", "changes", "reason"),
    [
        ({"FSDP_VERSION": "1"}, {}, "fsdp_version: 1 is refused; use 2"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, {}, "use gradient_checkpointing: true"),
        ({"ACCELERATE_DYNAMO_BACKEND": "inductor"}, {}, "use compile: true"),
        ({}, {"optimizer": OptimizerConfig(method="muon")}, "muon needs whole matrices"),
        ({}, {"model": ModelConfig(architecture="factored")}, "FSDP divides layers, and factored has one"),
    ],
)
def test_what_fsdp_is_not_used_with(monkeypatch, tmp_path, environment, changes, reason):
    assert reason in refused(monkeypatch, tmp_path, launch_environment() | environment, **changes)


def test_fsdp_gathers_weights_in_full_precision(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    plugin = SimpleNamespace(mixed_precision_policy="bf16")
    made = SimpleNamespace(
        distributed_type=accelerate.DistributedType.FSDP, state=SimpleNamespace(fsdp_plugin=plugin)
    )
    check_sharding(made)
    assert plugin.mixed_precision_policy is None
