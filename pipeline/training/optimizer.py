"""AdamW and the learning-rate schedule."""

import math
from typing import Any

import torch

from pipeline.config import OptimizerConfig


def make_optimizer(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); only matrices decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the rate of step 0, 1, ...: linear warm-up, then down to its final share at the last step.

    Cosine: Loshchilov and Hutter 2017, arXiv:1608.03983. Warm-up, stable, decay: Hu et al. 2024,
    arXiv:2404.06395.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    begin = max(config.warmup, decay_start(steps, config) - 1 if config.schedule == "wsd" else 0)
    progress = min(1.0, max(0, step - begin) / max(1, steps - 1 - begin))
    fallen = (1 - math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else progress
    return config.learning_rate * (1 - (1 - config.final) * fallen)


def decay_start(steps: int, config: OptimizerConfig) -> int:
    """Return how many steps a warm-up, stable, decay run takes before its rate begins to fall."""
    return steps - max(1, round(config.decay * steps))


def shared_steps(steps: int, others: int, config: OptimizerConfig) -> int:
    """Return for how many first steps runs of two lengths have the same rates."""
    shorter = min(steps, others)
    if steps == others:
        return shorter
    warmup = min(config.warmup, shorter)
    return max(warmup, decay_start(shorter, config)) if config.schedule == "wsd" else warmup


def _names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def state_by_name(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's tensors as ``<parameter name>.<quantity>``."""
    names = _names(model)
    return {
        f"{names[parameter]}.{quantity}": value.detach().cpu().contiguous()
        for parameter, state in optimizer.state.items()
        for quantity, value in state.items()
    }


def load_state_by_name(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]
) -> None:
    """Put back what ``state_by_name`` returned; before the first step that is nothing."""
    for parameter, name in _names(model).items() if tensors else ():
        state: dict[str, Any] = {}
        for quantity in ("step", "exp_avg", "exp_avg_sq"):
            value = tensors[f"{name}.{quantity}"]
            state[quantity] = value.clone() if quantity == "step" else value.to(parameter.device)
        optimizer.state[parameter] = state
