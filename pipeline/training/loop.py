"""The pretraining loop."""

import itertools
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.training import checkpoints
from pipeline.training.checkpoints import Progress
from pipeline.training.objective import Batch, Objective
from pipeline.training.optimizer import learning_rate, make_optimizer
from pipeline.training.plan import Window, micro_batches
from pipeline.training.tracking import Tracker

Evaluate = Callable[[torch.nn.Module], dict[str, float]]
STOPPED = 3  # exit code of a run that was asked to end before it was finished


@dataclass
class Run:
    """The parts of a run that the loop puts together."""

    accelerator: Accelerator
    model: PreTrainedModel
    objective: Objective
    plan: Iterator[list[Window]]
    evaluate: Evaluate
    folder: Path


def train(run: Run, config: PretrainConfig) -> PreTrainedModel:
    """Take ``config.steps`` optimizer steps, from the newest checkpoint in the folder if there is one.

    The loss of a step is the weighted sum over all targets of all processes and micro-batches, divided by the
    sum of their weights: the same number however the step is divided.

    SIGTERM, to any process, ends the run after the step under way, with a checkpoint and exit code 3.
    """
    accelerator = run.accelerator
    bare = run.model
    model, optimizer = accelerator.prepare(bare, make_optimizer(bare, config.optimizer))
    saved = run.folder / "checkpoints"
    progress = _resume(accelerator, saved, bare, optimizer, config)
    tracker = Tracker(
        run.folder, config.steps, config.log_every, progress.step, main=accelerator.is_main_process
    )
    with _sigterm() as caught:
        if progress.step == 0:
            _evaluate(run, bare, tracker, progress)
        for windows in itertools.islice(run.plan, progress.step, config.steps):
            loss, rate, norm = _step(run, model, optimizer, windows, progress.step, config)
            letters = sum(window.length for window in windows)
            progress = Progress(progress.step + 1, progress.letters + letters)
            tracker.step(progress.step, letters, loss, rate, norm)
            last = progress.step == config.steps
            asked = _sum(accelerator, torch.tensor(len(caught), device=accelerator.device)) > 0
            if last or progress.step % config.evaluate_every == 0:
                _evaluate(run, bare, tracker, progress)
            if last or asked or progress.step % config.checkpoint_every == 0:
                if accelerator.is_main_process:
                    checkpoints.save(saved, bare, optimizer.optimizer, progress, config.keep_checkpoints)
                accelerator.wait_for_everyone()
            if asked:
                tracker.close()
                _stop(accelerator, progress, config)
    tracker.close()
    return bare


@contextmanager
def _sigterm() -> Iterator[list[int]]:
    """Collect SIGTERM instead of dying of it: the list is empty until one arrives."""
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(accelerator: Accelerator, progress: Progress, config: PretrainConfig) -> NoReturn:
    if accelerator.is_main_process:
        say(f"SIGTERM: checkpoint of step {progress.step} of {config.steps} written; run again to go on")
    raise SystemExit(STOPPED)


def _step(
    run: Run, model: torch.nn.Module, optimizer, windows: list[Window], step: int, config: PretrainConfig
) -> tuple[float, float, float]:
    """Take one optimizer step; return its loss, learning rate and gradient norm."""
    rate = learning_rate(step, config.steps, config.optimizer)
    for group in optimizer.param_groups:
        group["lr"] = rate
    batches = _own_batches(run, windows, config.micro_batch_tokens)
    torch.manual_seed(config.seed + step)
    loss = _backward(run.accelerator, model, batches)
    norm = torch.as_tensor(run.accelerator.clip_grad_norm_(model.parameters(), config.optimizer.clip))
    if not (torch.isfinite(loss) and torch.isfinite(norm)):
        raise UserError(
            f"optimizer.learning_rate: {rate:g}: loss {loss.item():g} at step {step + 1} is not finite; "
            "lower it, or lengthen optimizer.warmup"
        )
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), rate, float(norm)


def _resume(accelerator: Accelerator, saved: Path, model, optimizer, config: PretrainConfig) -> Progress:
    if config.resume == "never" and accelerator.is_main_process:
        shutil.rmtree(saved, ignore_errors=True)
    accelerator.wait_for_everyone()
    path = checkpoints.newest(saved)
    if path is None:
        return Progress()
    progress = checkpoints.load(path, model, optimizer.optimizer)
    if accelerator.is_main_process:
        say(f"resumed from {path.name} of {config.steps}, {progress.letters} letters seen")
    return progress


def _own_batches(run: Run, windows: list[Window], budget: int) -> list[Batch]:
    """Return this process's micro-batches of a step; where it has fewer than others, an empty one.

    A network that runs in lock step must run equally often everywhere.
    """
    groups = micro_batches([window.length for window in windows], budget)
    rank, world = run.accelerator.process_index, run.accelerator.num_processes
    own = [run.objective.batch([windows[i] for i in group]) for group in groups[rank::world]]
    if len(own) < -(-len(groups) // world):
        own.append((own or [run.objective.batch([windows[i] for i in groups[0]])])[0].empty())
    return [batch.to(run.accelerator.device) for batch in own]


def _backward(accelerator: Accelerator, model: torch.nn.Module, batches: list[Batch]) -> torch.Tensor:
    """Add up the step's gradients over micro-batches and processes; return its loss."""
    model.train()
    weight = torch.stack([batch.weights.sum() for batch in batches]).sum()
    # Windows of N alone have no targets: such a step has loss 0, not 0 / 0.
    weight = _sum(accelerator, weight).clamp_min(1e-12)
    total = torch.zeros((), device=accelerator.device)
    for i, batch in enumerate(batches):
        last = i == len(batches) - 1
        with nullcontext() if last else accelerator.no_sync(model):
            logits_TV = model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                target_positions=batch.positions,
            ).logits
            losses_T = torch.nn.functional.cross_entropy(logits_TV.float(), batch.labels, reduction="none")
            loss = (losses_T * batch.weights).sum() / weight
            # Distributed training averages gradients over processes; the sum is wanted.
            accelerator.backward(loss * accelerator.num_processes)
        total += loss.detach()
    return _sum(accelerator, total)


def _sum(accelerator: Accelerator, value: torch.Tensor) -> torch.Tensor:
    """Return the sum over all processes."""
    total = accelerator.reduce(value, "sum")
    assert isinstance(total, torch.Tensor)
    return total


def _evaluate(run: Run, model: torch.nn.Module, tracker: Tracker, progress: Progress) -> None:
    if run.accelerator.is_main_process:
        numbers = run.evaluate(model)
        tracker.record(progress.step, **numbers)
        text = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        if text:
            say(f"step {progress.step}: {text}")
    run.accelerator.wait_for_everyone()
