"""The pretraining loop."""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel

from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.training import checkpoints
from pipeline.training.checkpoints import Progress
from pipeline.training.classifier import OUT_OF_MEMORY
from pipeline.training.objective import Batch, Objective
from pipeline.training.optimizer import decay_start, learning_rate, make_optimizers
from pipeline.training.plan import Window, micro_batches
from pipeline.training.resume import find_start
from pipeline.training.sharding import is_sharded, prepare, whole
from pipeline.training.tracking import Span, Tracker

Evaluate = Callable[[torch.nn.Module], dict[str, float]]
STOPPED = 3  # exit code of a run that was asked to end before it was finished


@dataclass
class Run:
    """The parts of a run that the loop puts together.

    ``evaluate`` returns scores; the first is what the best weights are chosen by, lower is better. ``spans``
    says which letters of which records windows show. ``settings`` are those that the weights depend on.
    ``watching`` is what the tracker is told besides. ``memory`` is how many tokens this process takes at
    once, where it has run out of memory before.
    """

    accelerator: Accelerator
    model: PreTrainedModel
    objective: Objective
    plan: Iterator[list[Window]]
    evaluate: Evaluate
    folder: Path
    spans: Callable[[list[Window]], list[Span]]
    settings: dict[str, Any] = field(default_factory=dict)
    watching: dict[str, Any] = field(default_factory=dict)
    memory: int | None = None

    @property
    def saved(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"


class Outcome(NamedTuple):
    """What came of a step; one that is not finite left weights, optimizer and schedule as they were."""

    loss: float
    rate: float
    norm: float
    finite: bool


def train(run: Run, config: PretrainConfig) -> Progress:
    """Take ``config.steps`` optimizer steps with ``run.model``, from a checkpoint where there is one.

    The loss of a step is the weighted sum over all targets of all processes and micro-batches, divided by the
    sum of their weights: the same number however the step is divided. A step whose loss or gradient is not
    finite is passed over by all processes and put on record.

    SIGTERM or SIGUSR1, to any process, ends the run after the step under way, with a checkpoint and exit
    code 3.

    Raises:
        UserError: ``config.max_bad_steps`` in a row were not finite, memory does not suffice for a single
            window, the disk is full, or a checkpoint cannot be gone on from.
    """
    accelerator, bare = run.accelerator, run.model
    model, optimizers = prepare(accelerator, bare, make_optimizers(bare, config.optimizer))
    progress = _start(run, optimizers, config)
    plan = islice(run.plan, progress.position, None)
    full = checkpoints.enough_disk(run.folder)
    with full, _signals() as caught, closing(_tracker(run, config, progress)) as tracker:
        if progress.position == 0:
            progress = _evaluate(run, tracker, progress)
        while progress.step < config.steps:
            windows = next(plan)
            outcome = _step(run, model, optimizers, windows, progress, config)
            progress = _count(run, tracker, windows, outcome, progress, config)
            last = progress.step == config.steps
            if outcome.finite and (last or progress.step % config.evaluate_every == 0):
                progress = _evaluate(run, tracker, progress)
            asked = _sum(accelerator, torch.tensor(len(caught), device=accelerator.device)) > 0
            if asked or (outcome.finite and _to_be_saved(progress, config)):
                _save(run, optimizers, progress, config)
            if asked and not last:
                _stop(accelerator, caught, progress, config)
    return progress


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGUSR1 instead of dying of them: the list is empty until one arrives."""
    caught: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, lambda caller, _: caught.append(caller)) for number in numbers]
    try:
        yield caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _stop(
    accelerator: Accelerator, caught: list[int], progress: Progress, config: PretrainConfig
) -> NoReturn:
    if accelerator.is_main_process:
        name = signal.Signals(caught[0]).name if caught else "a signal to another process"
        say(f"{name}: checkpoint of step {progress.step} of {config.steps} written; run again to go on")
    raise SystemExit(STOPPED)


def _start(run: Run, optimizers, config: PretrainConfig) -> Progress:
    """Return where the run begins, with the weights and the optimizer of there."""
    main = run.accelerator.is_main_process
    found = [find_start(run.saved, config, run.settings) if main else None]
    saved = broadcast_object_list(found)[0]
    if saved is None:
        return Progress()
    progress = checkpoints.load(saved, run.model, [optimizer.optimizer for optimizer in optimizers])
    if main:
        say(f"resumed from {saved.path.name} of {config.steps}, {progress.letters} letters seen")
    if not (run.saved / checkpoints.name_of(progress.best_step)).is_dir():
        progress = replace(progress, best=None, best_step=0)
    return progress


def _tracker(run: Run, config: PretrainConfig, begin: Progress) -> Tracker:
    main = run.accelerator.is_main_process
    return Tracker(run.folder, config.steps, config.log_every, begin, main, **run.watching)


def _count(
    run: Run,
    tracker: Tracker,
    windows: list[Window],
    outcome: Outcome,
    progress: Progress,
    config: PretrainConfig,
) -> Progress:
    """Return the progress after a step, taken or passed over."""
    loss, rate, norm, finite = outcome
    if finite:
        letters = sum(window.length for window in windows)
        tracker.step(progress.step + 1, letters, loss, rate, norm)
        return replace(progress, step=progress.step + 1, letters=progress.letters + letters, in_a_row=0)
    progress = replace(progress, skipped=progress.skipped + 1, in_a_row=progress.in_a_row + 1)
    tracker.skip(progress, loss, norm, run.spans(windows))
    if progress.in_a_row >= config.max_bad_steps:
        last = next(checkpoints.complete(run.saved), None)
        raise UserError(
            f"step {progress.step + 1}: no finite loss and gradient {progress.in_a_row} times in a row (loss "
            f"{loss:g} at learning rate {rate:g}); last good checkpoint: {last.path if last else 'none'}; "
            "lower optimizer.learning_rate or lengthen optimizer.warmup; metrics.jsonl names the records"
        )
    return progress


def _to_be_saved(progress: Progress, config: PretrainConfig) -> bool:
    """Whether a step is the last, a round one, the best so far, or the last before the decay of wsd."""
    notable = (config.steps, progress.best_step, *_milestones(config))
    return progress.step in notable or progress.step % config.checkpoint_every == 0


def _milestones(config: PretrainConfig) -> tuple[int, ...]:
    """Return the step that a run with more steps can go on from exactly."""
    stable = config.optimizer.schedule == "wsd"
    return (decay_start(config.steps, config.optimizer),) if stable else ()


def _save(run: Run, optimizers, progress: Progress, config: PretrainConfig) -> None:
    main = run.accelerator.is_main_process
    if main or is_sharded(run.model):
        checkpoints.save(
            run.saved,
            run.model,
            [optimizer.optimizer for optimizer in optimizers],
            progress,
            run.settings,
            config.keep_checkpoints,
            _milestones(config),
            main,
        )
    run.accelerator.wait_for_everyone()


def _step(
    run: Run,
    model: torch.nn.Module,
    optimizers,
    windows: list[Window],
    progress: Progress,
    config: PretrainConfig,
) -> Outcome:
    """Take one optimizer step, if its loss and its gradient are finite for all processes."""
    rate = learning_rate(progress.step, config.steps, config.optimizer)
    for group in chain.from_iterable(optimizer.param_groups for optimizer in optimizers):
        group["lr"] = rate
    loss = _gradients(run, model, windows, config, config.seed + progress.position)
    norm = torch.as_tensor(run.accelerator.clip_grad_norm_(model.parameters(), config.optimizer.clip))
    norm = whole(norm)
    bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
    finite = not _sum(run.accelerator, bad.float().to(run.accelerator.device))
    for optimizer in optimizers:
        if finite:
            optimizer.step()
        optimizer.zero_grad()
    return Outcome(loss.item(), rate, norm.item(), finite)


def _own_batches(run: Run, windows: list[Window], budget: int) -> list[Batch]:
    """Return this process's micro-batches of a step; where it has fewer than others, an empty one.

    A network that runs in lock step must run equally often everywhere. What a process gets is a matter of
    ``budget``, the same for all; how much of that it takes at once is one of its own memory.
    """
    groups = _groups(windows, budget)
    rank, world = run.accelerator.process_index, run.accelerator.num_processes
    own = groups[rank::world]
    parts = [part for group in own for part in _groups(group, min(budget, run.memory or budget))]
    batches = [run.objective.batch(part) for part in parts]
    if len(own) < -(-len(groups) // world):
        batches.append((batches or [run.objective.batch(groups[0])])[0].empty())
    return [batch.to(run.accelerator.device) for batch in batches]


def _groups(windows: list[Window], budget: int) -> list[list[Window]]:
    groups = micro_batches([window.length for window in windows], budget)
    return [[windows[i] for i in group] for group in groups]


def _gradients(
    run: Run, model: torch.nn.Module, windows: list[Window], config: PretrainConfig, seed: int
) -> torch.Tensor:
    """Add up the step's gradients over micro-batches and processes; return its loss.

    Out of memory halves the micro-batches and does it again: the same sums in another order.
    """
    weight, loss = None, None
    while loss is None:
        batches = _own_batches(run, windows, config.micro_batch_tokens)
        if weight is None:
            weight = _sum(run.accelerator, torch.stack([batch.weights.sum() for batch in batches]).sum())
        torch.manual_seed(seed)
        # Windows of N alone have no targets: such a step has loss 0, not 0 / 0.
        loss = _backward(run.accelerator, model, batches, weight.clamp_min(1e-12))
        if loss is None:
            model.zero_grad()
            _halve(run, batches, config)
    return _sum(run.accelerator, loss)


def _backward(
    accelerator: Accelerator, model: torch.nn.Module, batches: list[Batch], weight: torch.Tensor
) -> torch.Tensor | None:
    """Add up gradients over micro-batches; return this process's share of the loss, or None: out of memory.

    ``weight`` is the sum of the targets' weights in the whole step.
    """
    model.train()
    total = torch.zeros((), device=accelerator.device)
    for i, batch in enumerate(batches):
        last = i == len(batches) - 1
        try:
            with nullcontext() if last else accelerator.no_sync(model):
                loss = _loss(model, batch) / weight
                # Distributed training averages gradients over processes; the sum is wanted.
                accelerator.backward(loss * accelerator.num_processes)
        except RuntimeError as error:
            if not any(words in str(error) for words in OUT_OF_MEMORY):
                raise
            if (last or is_sharded(model)) and accelerator.num_processes > 1:  # others are amid a sum
                raise UserError("micro_batch_tokens: out of memory; pass a smaller one") from None
            return None
        total = total + loss.detach()
    return total


def _loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the weighted sum of the targets' losses, each with the penalty of a network that has one."""
    where = {"attention_mask": batch.attention_mask, "sequence_offsets": batch.offsets}
    given = {name: tensor for name, tensor in where.items() if tensor is not None}
    output = model(input_ids=batch.input_ids, target_positions=batch.positions, **given)
    logits_TV = output.logits.to(torch.promote_types(output.logits.dtype, torch.float32))
    losses_T = torch.nn.functional.cross_entropy(logits_TV, batch.labels, reduction="none")
    loss, penalty = (losses_T * batch.weights).sum(), output.get("penalty")
    return loss if penalty is None else loss + penalty * batch.weights.sum()


def _halve(run: Run, batches: list[Batch], config: PretrainConfig) -> None:
    """Take half as much at once from now on."""
    if all(batch.sequences == 1 for batch in batches):
        longest = max(batch.input_ids.shape[1] for batch in batches)
        raise UserError(
            f"window: out of memory with one window of {longest} tokens at a time; pass a smaller window, or "
            "a smaller model"
        )
    run.memory = (run.memory or config.micro_batch_tokens) // 2
    if run.accelerator.device.type == "cuda":
        torch.cuda.empty_cache()
    say(
        f"out of memory: micro-batches of {run.memory} tokens from here on, not {config.micro_batch_tokens} "
        "(micro_batch_tokens); the results stay the same"
    )


def _sum(accelerator: Accelerator, value: torch.Tensor) -> torch.Tensor:
    """Return the sum over all processes."""
    total = accelerator.reduce(value, "sum")
    assert isinstance(total, torch.Tensor)
    return total


def _evaluate(run: Run, tracker: Tracker, progress: Progress) -> Progress:
    """Score the weights; return the progress, with them as the best if they are.

    The main process does it alone, unless the weights are divided: forward passes then take all processes.
    """
    main = run.accelerator.is_main_process
    if main or is_sharded(run.model):
        numbers = run.evaluate(run.model)
    if main:
        tracker.record(progress.step, **numbers)
        text = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        if text:
            say(f"step {progress.step}: {text}")
        score = next(iter(numbers.values()), math.nan)
        if progress.step and score <= (math.inf if progress.best is None else progress.best):
            progress = replace(progress, best=score, best_step=progress.step)
    return broadcast_object_list([progress])[0]
