"""Runs of a network that two processes have divided, all in one launch, because starting is what takes time.

    python -m torch.distributed.run --standalone --nproc_per_node 2 two_shards.py FOLDER

FOLDER/own.json configures a run that ``fully_shard`` has divided beforehand; FOLDER/launched.json one that
Accelerate divides, as it would on GPUs, in the environment of FOLDER/environment.json. In both, the second
process makes a batch with a number that is none in step 3, and gets a SIGTERM in step 7; the second run then
goes on. FOLDER/parts-RANK.json tells what each process held, FOLDER/precision-RANK.json what bfloat16 gave.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import pipeline.pretrain
import pipeline.training.network
from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.training import loop
from pipeline.training.sharding import prepare, whole_model

STOP = 7
rank = os.environ.get("RANK", "none")
parts: dict[str, dict[str, list[int]]] = {}


def held(run) -> dict[str, list[int]]:
    """Return the elements that this process holds of each weight, and how many there are."""
    named = run.model.named_parameters()
    return {n: [p.to_local().numel(), p.numel()] for n, p in named if isinstance(p, DTensor)}


def spoilt_and_stopped(config: PretrainConfig) -> None:
    """Spoil the third batch of the second process, or of the only one; stop the two in step 7."""
    step, batches, calls = loop._step, loop._own_batches, []

    def step_with_signal(*arguments):
        run, progress = arguments[0], arguments[4]
        if progress.step == STOP - 1:
            parts[config.output.name] = held(run)
            if rank == "1":
                os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    def spoil(*arguments):
        own = batches(*arguments)
        calls.append(own)
        if len(calls) == 3 and rank != "0":
            own[0].weights[0] = float("nan")
        return own

    loop._step, loop._own_batches = step_with_signal, spoil
    try:
        pipeline.pretrain.run(config)
    finally:
        loop._step, loop._own_batches = step, batches


def divided_beforehand(config: PretrainConfig) -> None:
    """Divide the first network that is made; the second is the untrained one that is scored."""
    make = pipeline.training.network.make_model

    def make_divided(*arguments):
        pipeline.training.network.make_model = make
        model, mesh = make(*arguments), init_device_mesh("cpu", (2,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    pipeline.training.network.make_model = make_divided
    with pytest.raises(SystemExit, match=str(loop.STOPPED)):
        spoilt_and_stopped(config)


def divided_by_accelerate(config: PretrainConfig) -> None:
    """Let Accelerate do what it does with GPUs; without, it leaves that undone, and the run is refused."""
    with pytest.raises(
        UserError, match=r"FSDP needs several GPUs; on 2 process.* with cpu Accelerate does not"
    ):
        pipeline.pretrain.run(config)

    def accelerator(_: PretrainConfig) -> Accelerator:
        made = Accelerator(cpu=True)
        for state in (PartialState, AcceleratorState):
            state._shared_state["distributed_type"] = DistributedType.FSDP
        AcceleratorState._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin()
        return made

    pipeline.pretrain._accelerator = accelerator
    with pytest.raises(SystemExit, match=str(loop.STOPPED)):
        spoilt_and_stopped(config)
    pipeline.pretrain.run(config)


def in_precision() -> dict[str, bool]:
    """Compare a divided network with the same one whole, both under automatic mixed precision."""
    AcceleratorState._reset_state()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    model = fully_shard(StrandForMaskedLM(StrandConfig(**sizes)), mesh=init_device_mesh("cpu", (2,)))
    undivided, ids = whole_model(model), torch.arange(5, 35).view(2, 15)
    prepared, _ = prepare(Accelerator(cpu=True, mixed_precision="bf16"), model, [])
    with torch.autocast("cpu", torch.bfloat16):
        expected = undivided(ids).logits
    got = prepared(ids).logits
    exact = undivided(ids).logits
    AcceleratorState._reset_state()
    return {"as whole": torch.equal(got, expected.float()), "in float32": torch.equal(got, exact)}


def read(path: Path) -> PretrainConfig:
    """Return a configuration."""
    return PretrainConfig.model_validate_json(path.read_text())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    divided_beforehand(read(folder / "own.json"))
    (folder / f"precision-{rank}.json").write_text(json.dumps(in_precision()))
    os.environ |= json.loads((folder / "environment.json").read_text())
    divided_by_accelerate(read(folder / "launched.json"))
    (folder / f"parts-{rank}.json").write_text(json.dumps(parts))
    torch.distributed.destroy_process_group()
