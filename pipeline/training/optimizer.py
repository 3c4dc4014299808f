"""AdamW, Muon and the learning-rate schedule."""

import math

import torch

from pipeline.config import OptimizerConfig
from pipeline.training.sharding import gather, like

QUANTITIES = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), torch.optim.Muon: ("momentum_buffer",)}


def make_optimizers(model: torch.nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Return AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); only matrices decay.

    With ``method`` muon the matrices of the layers have Muon (Jordan et al. 2024), its updates as large as
    AdamW's (Liu et al. 2025, arXiv:2502.16982), so that one learning rate serves both.
    """
    hidden, others = [], []
    for name, parameter in model.named_parameters():
        of_muon = config.method == "muon" and parameter.ndim == 2 and ".layers." in name
        if parameter.requires_grad:
            (hidden if of_muon else others).append(parameter)
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
    if not hidden:
        return [adamw]
    muon = torch.optim.Muon(
        hidden,
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [muon, adamw]


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


def state_by_name(
    model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], keep: bool = True
) -> dict[str, torch.Tensor]:
    """Return the optimizers' tensors, whole, as ``<parameter name>.<quantity>``.

    Where processes have divided them, all call this; one that is not to ``keep`` them is given nothing.
    """
    names = _names(model)
    state = {
        f"{names[parameter]}.{quantity}": value
        for optimizer in optimizers
        for parameter, quantities in optimizer.state.items()
        for quantity, value in quantities.items()
    }
    return gather(state, keep)


def load_state_by_name(
    model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], tensors: dict[str, torch.Tensor]
) -> None:
    """Put back what ``state_by_name`` returned; what another kind of optimizer left behind is passed over."""
    names = _names(model)
    for optimizer in optimizers:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        groups = optimizer.state_dict()["param_groups"]
        state = {i: _state_of(names[p], p, QUANTITIES[type(optimizer)], tensors) for i, p in enumerate(own)}
        optimizer.load_state_dict({"state": {i: s for i, s in state.items() if s}, "param_groups": groups})


def _state_of(
    name: str, parameter: torch.Tensor, quantities: tuple[str, ...], tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    keys = {quantity: f"{name}.{quantity}" for quantity in quantities}
    return {quantity: like(tensors[key], parameter) for quantity, key in keys.items() if key in tensors}
