"""Networks whose weights are divided among processes (FSDP2), and what they have in common with whole ones.

Every tensor is then a ``DTensor``, of which a process holds a part (Zhao et al. 2023, arXiv:2304.11277).
Putting it together is a collective operation: all processes take part in it, in the same order.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, DynamoBackend, convert_outputs_to_fp32
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.initialization import no_init_weights

from pipeline.config import PretrainConfig
from pipeline.errors import UserError


def check_launch(config: PretrainConfig) -> None:
    """Refuse what `accelerate launch` was asked for, as its environment says, and pretraining has not.

    Raises:
        UserError: DeepSpeed; or FSDP with settings or a network that it is not used with here.
    """
    if _asked("ACCELERATE_USE_DEEPSPEED"):
        raise UserError(
            "accelerate launch: DeepSpeed is refused: it owns the accumulation of gradients, which makes "
            "steps here the same on any number of processes; use configs/accelerate/fsdp.yaml"
        )
    dynamo = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "NO").upper() != DynamoBackend.NO.value
    reasons = {
        "fsdp_version: 1 is refused; use 2": os.environ.get("FSDP_VERSION", "1") != "2",
        "fsdp_activation_checkpointing renames weights; use gradient_checkpointing: true": _asked(
            "FSDP_ACTIVATION_CHECKPOINTING"
        ),
        "dynamo_backend renames weights when FSDP divides them; use compile: true": dynamo,
        "muon needs whole matrices: the bfloat16 products of divided ones are rounded otherwise, by some "
        "percent of a step; use optimizer.method: adamw, or ddp.yaml": config.optimizer.method == "muon",
        "FSDP divides layers, and factored has one; use ddp.yaml": config.model.architecture == "factored",
    }
    for reason, holds in reasons.items():
        if holds and _asked("ACCELERATE_USE_FSDP"):
            raise UserError(f"accelerate launch: {reason} (configs/accelerate)")


def _asked(name: str) -> bool:
    return os.environ.get(name, "false").lower() == "true"


def check_sharding(accelerator: Accelerator) -> None:
    """See to it that FSDP is there if it was asked for, in the precision of the same run without it.

    Gathered weights stay in float32 and are cast where autocast casts them, as in every other run.

    Raises:
        UserError: Accelerate has gone over to copies of the whole network, as it does on CPUs, silently.
    """
    if not _asked("ACCELERATE_USE_FSDP"):
        return
    if accelerator.distributed_type != DistributedType.FSDP:
        raise UserError(
            f"accelerate launch: FSDP needs several GPUs; on {accelerator.num_processes} process(es) with "
            f"{accelerator.device.type} Accelerate does not divide networks; use configs/accelerate/ddp.yaml"
        )
    plugin = accelerator.state.fsdp_plugin
    assert plugin is not None
    plugin.mixed_precision_policy = None


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether the weights are divided among processes: its forward passes are then collective."""
    return isinstance(model, FSDPModule)


def prepare(
    accelerator: Accelerator, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]
) -> tuple[torch.nn.Module, list[Any]]:
    """Return a network and its optimizers, ready for several processes and for the precision chosen.

    A network that ``fully_shard`` has divided already stays as it is; others are divided, or copied to every
    process, as Accelerate was launched. Accelerate leaves out automatic mixed precision where it divides.
    """
    if is_sharded(model):
        return _in_precision(accelerator, model), [accelerator.prepare_optimizer(each) for each in optimizers]
    prepared, *rest = accelerator.prepare(model, *optimizers)
    return (_in_precision(accelerator, prepared) if is_sharded(prepared) else prepared), rest


def _in_precision(accelerator: Accelerator, model: torch.nn.Module) -> torch.nn.Module:
    if accelerator.mixed_precision != "no":
        with_autocast = accelerator.autocast()(model.forward)
        model.forward = convert_outputs_to_fp32(with_autocast)
    return model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor to every process."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather(tensors: Mapping[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Return whole tensors in CPU memory; nothing to a process that is not to ``keep`` them."""
    gathered = {}
    for name, tensor in tensors.items():
        complete = whole(tensor.detach())
        if keep:
            gathered[name] = complete.cpu().contiguous()
    return gathered


def like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor, the same in every process, divided as ``parameter`` is; numbers are not."""
    if not isinstance(parameter, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole_model(model, keep: bool = True):
    """Return the network undivided, in CPU memory, or None to a process that is not to ``keep`` it.

    A network that is not divided is returned itself, to all.
    """
    if not is_sharded(model):
        return model
    weights = gather(model.state_dict(), keep)
    if not keep:
        return None
    kind = next(each for each in type(model).__mro__ if not issubclass(each, FSDPModule))
    with no_init_weights():
        undivided = kind(model.config)
    undivided.load_state_dict(weights, assign=True)
    undivided.tie_weights()
    undivided.set_attn_implementation("sdpa")  # it is in float32, which not every kernel takes
    return undivided.eval()
