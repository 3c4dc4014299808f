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
    """Return the rate of step 0, 1, ...: linear warm-up, then a cosine to its final share at the end."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, steps - 1 - config.warmup)
    share = config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * share


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
    """Put back what ``state_by_name`` returned."""
    for parameter, name in _names(model).items():
        state: dict[str, Any] = {}
        for quantity in ("step", "exp_avg", "exp_avg_sq"):
            value = tensors[f"{name}.{quantity}"]
            state[quantity] = value.clone() if quantity == "step" else value.to(parameter.device)
        optimizer.state[parameter] = state
