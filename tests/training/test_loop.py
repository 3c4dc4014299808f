import contextlib
import dataclasses
import itertools
import json
import math
import signal
import subprocess
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from pipeline.config import MaskingConfig, OptimizerConfig, PretrainConfig
from pipeline.errors import UserError
from pipeline.model import attention_strand
from pipeline.tokens.kmers import KmerCodec
from pipeline.training import checkpoints, loop
from pipeline.training.objective import MaskedObjective
from pipeline.training.optimizer import learning_rate
from pipeline.training.plan import Window, micro_batches, steps
from pipeline.training.resume import settings_of

CODEC = KmerCodec("dna", 3, True)
TIMED = ("tokens_per_second", "peak_share")


@pytest.fixture
def training(split, tiny_model, tmp_path):
    """Factory of runs of 8 steps; one epoch of the split is about 3 of them."""

    def start(
        name,
        stop_after=None,
        dropout=0.1,
        split=split,
        optimizer=OptimizerConfig(warmup=2, learning_rate=1e-2),  # noqa: B008
        objective=MaskedObjective,
        dtype=torch.float32,
        evaluate=lambda model: {"total": float(model.decoder.weight.detach().sum())},
        prepare=lambda model: None,
        **changes,
    ):
        settings = {"steps": 8, "tokens_per_step": 256, "micro_batch_tokens": 130, "checkpoint_every": 3}
        settings |= {"log_every": 1, "evaluate_every": 4, "window": 60}
        config = PretrainConfig(output=tmp_path, data=tmp_path, optimizer=optimizer, **settings | changes)
        model = tiny_model(vocab_size=74, hidden_dropout=dropout).to(dtype)
        prepare(model)
        plan = steps([split.lengths], config.window, config.tokens_per_step, True, config.seed)
        if stop_after is not None:
            plan = itertools.chain(itertools.islice(plan, stop_after), killed())
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        batches = objective(split, CODEC, MaskingConfig(), config.seed)
        settings = settings_of(config, {"data": "data"})
        run = loop.Run(Accelerator(cpu=True), model, batches, plan, evaluate, folder, spans, settings)
        loop.train(run, config)
        return model

    def read(name):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k not in TIMED} for line in lines]

    return SimpleNamespace(start=start, read=read, folder=tmp_path)


def spans(windows):
    return [(f"r{w.record}", w.start, w.start + w.length) for w in windows]


class Killed(BaseException):
    """Stands for the end of the process: nothing in the product catches it."""


def killed():
    raise Killed
    yield


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


# -- resumption


@pytest.mark.parametrize("interruptions", [(5,), (3,), (1, 4, 7), (4, 4)])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(training, interruptions):
    expected = weights(training.start("whole"))
    for stop in interruptions:
        with pytest.raises(Killed):
            training.start("broken", stop_after=stop)
    resumed = weights(training.start("broken"))
    assert training.read("broken") == training.read("whole")
    assert len([line for line in training.read("whole") if "loss" in line]) == 8
    for name, value in expected.items():
        assert torch.equal(resumed[name], value), name
    for name in ("model", "optimizer"):
        files = [
            training.folder / run / f"checkpoints/step-000008/{name}.safetensors"
            for run in ("whole", "broken")
        ]
        ours, theirs = map(load_file, files)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("where", ["inside an epoch", "at its end", "right after it"])
def test_resumption_does_not_know_of_epochs(training, split, where):
    plan = list(itertools.islice(steps([split.lengths], 60, 256, True, 0), 8))
    end = next(i for i, windows in enumerate(plan) if windows[-1].epoch == 1)
    assert plan[end][0].epoch == 0 < end, "the epoch ends within a step"
    stop = {"inside an epoch": end - 1, "at its end": end, "right after it": end + 1}[where]
    expected = weights(training.start("whole", checkpoint_every=1))
    for _ in range(2):
        with pytest.raises(Killed):
            training.start("broken", stop_after=stop, checkpoint_every=1)
    resumed = weights(training.start("broken", checkpoint_every=1))
    assert training.read("broken") == training.read("whole")
    assert all(torch.equal(resumed[name], value) for name, value in expected.items())


def test_a_run_goes_on_from_the_newest_whole_checkpoint(training, capsys):
    training.start("whole")
    with pytest.raises(Killed):
        training.start("broken", stop_after=7)
    newest = training.folder / "broken/checkpoints/step-000006/model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    capsys.readouterr()
    training.start("broken")
    said = capsys.readouterr().err
    assert "step-000006: passed over: model.safetensors is missing or damaged" in said
    assert "resumed from step-000004 of 8" in said, "it validated best, so it was saved"
    assert training.read("broken") == training.read("whole")


def test_a_run_may_be_told_to_start_afresh(training, capsys):
    training.start("again")
    before = training.read("again")
    with pytest.raises(Killed):
        training.start("again", resume="never", stop_after=3)
    assert "resumed" not in capsys.readouterr().err
    training.start("again")
    assert "resumed from step-000003" in capsys.readouterr().err, "an older run's checkpoint was taken up"
    assert training.read("again") == before


def test_a_torn_last_line_of_the_log_is_dropped(training):
    training.start("whole")
    with pytest.raises(Killed):
        training.start("torn", stop_after=5)
    with (training.folder / "torn/metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    training.start("torn")
    assert training.read("torn") == training.read("whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(training, capsys, number):
    class Signalled(MaskedObjective):
        def batch(self, windows):
            if any(window.epoch == 1 for window in windows):
                signal.raise_signal(number)
            return super().batch(windows)

    before = signal.getsignal(number)
    training.start("whole")
    with pytest.raises(SystemExit) as stop:
        training.start("broken", objective=Signalled, checkpoint_every=100)
    assert stop.value.code == 3
    assert signal.getsignal(number) is before
    (last,) = (training.folder / "broken/checkpoints").iterdir()
    said = f"{number.name}: checkpoint of step {int(last.name[5:])} of 8 written; run again to go on"
    assert said in capsys.readouterr().err
    training.start("broken", checkpoint_every=100)
    assert training.read("broken") == training.read("whole")


def test_on_a_full_disk_the_run_stops_with_a_line_and_goes_on_from_there(training, small_disk, capfd):
    common = {"keep_checkpoints": -1, "checkpoint_every": 1}
    expected = weights(training.start("whole", **common))
    with pytest.raises(UserError) as error:
        training.start("small", **common)
    last = max((small_disk / "checkpoints").iterdir())
    assert str(error.value) == (
        f"{small_disk}: the disk is full; free some space and run again, to go on from {last.name}"
    )
    assert checkpoints.damage(last) is None
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    resumed = weights(training.start("small", **common))
    assert f"resumed from {last.name} of 8" in capfd.readouterr().err
    assert training.read("small") == training.read("whole")
    assert all(torch.equal(resumed[name], value) for name, value in expected.items())


def scripted(scores):
    rest = iter(scores)
    return lambda _: {"bits": next(rest), "other": -1.0} if scores else {}


@pytest.mark.parametrize(
    ("scores", "best"),
    [([9, 3, 1, 2, 3], 4), ([9, 3, 1, 1, 3], 6), ([0, math.nan, 2, 3, 3], 4), ([], 0)],
    ids=["one is best", "of equals the last", "not a number", "no validation"],
)
def test_the_best_checkpoint_is_kept_and_known_after_a_resumption(training, scores, best):
    """Validations of the untrained network and of steps 2, 4, 6, 8."""
    common = {"evaluate_every": 2, "checkpoint_every": 3, "keep_checkpoints": 1}
    with pytest.raises(Killed):
        training.start("best", stop_after=7, evaluate=scripted(scores[:4]), **common)
    training.start("best", evaluate=scripted(scores[4:]), **common)
    saved = training.folder / "best/checkpoints"
    kept = {f"step-{step:06d}" for step in (best, 8) if step}
    assert {path.name for path in saved.iterdir()} == kept
    assert checkpoints.read(saved / "step-000008").progress.best_step == best


# -- division of a step


def test_the_memory_budget_changes_nothing(training):
    runs = {
        budget: weights(training.start(f"b{budget}", dropout=0, micro_batch_tokens=budget))
        for budget in (1, 90, 9999)
    }
    for budget in (90, 9999):
        for ours, theirs in zip(training.read("b1"), training.read(f"b{budget}"), strict=True):
            assert ours["step"] == theirs["step"]
            if "loss" in ours:
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
                assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)
    losses = [line["loss"] for line in training.read("b1") if "loss" in line]
    assert losses[-1] != pytest.approx(losses[0], rel=1e-3)
    for name, value in runs[1].items():
        torch.testing.assert_close(runs[9999][name], value, rtol=1e-4, atol=1e-4, msg=name)


def assert_alike(training, runs, names):
    one, other = names
    for ours, theirs in zip(training.read(one), training.read(other), strict=True):
        assert ours["step"] == theirs["step"]
        if "loss" in ours:
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=1e-4, atol=1e-4, msg=name)


def test_packed_and_padded_batches_take_the_same_steps(training):
    """Of mixed lengths, with both kernels' own way of leaving padding out."""
    packed = partial(MaskedObjective, packed=True)
    padded = weights(training.start("padded", dropout=0))
    end_to_end = weights(
        training.start(
            "packed",
            dropout=0,
            objective=packed,
            prepare=lambda m: m.set_attn_implementation(attention_strand.CPU),
        )
    )
    assert_alike(training, (padded, end_to_end), ("padded", "packed"))
    assert not all(torch.equal(padded[name], value) for name, value in end_to_end.items()), "packing was used"


def test_activations_computed_again_change_nothing(training):
    """With dropout, whose draws have to be the same both times."""
    plain = weights(training.start("plain"))
    again = weights(training.start("again", prepare=lambda m: m.activation_checkpointing_enable()))
    assert_alike(training, (plain, again), ("plain", "again"))


def test_a_run_with_muon_is_resumed_bit_for_bit(training):
    muon = OptimizerConfig(method="muon", warmup=2, learning_rate=1e-2)
    expected = weights(training.start("whole", optimizer=muon))
    with pytest.raises(Killed):
        training.start("broken", stop_after=5, optimizer=muon)
    resumed = weights(training.start("broken", optimizer=muon))
    assert training.read("broken") == training.read("whole")
    assert all(torch.equal(resumed[name], value) for name, value in expected.items())
    state = load_file(training.folder / "whole/checkpoints/step-000008/optimizer.safetensors")
    quantities = {name.rpartition(".")[2] for name in state}
    assert quantities == {"step", "exp_avg", "exp_avg_sq", "momentum_buffer"}
    losses = [line["loss"] for line in training.read("whole") if "loss" in line]
    assert losses[-1] < losses[0] - 0.1


def test_gradients_of_a_divided_step_are_those_of_one_batch(split, tiny_model):
    """Windows of 10 to 120 letters, so that micro-batches have very different numbers of targets."""
    model = tiny_model(vocab_size=74)
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    windows = [Window(0, i, 0, int(n), bool(i % 2)) for i, n in enumerate(split.lengths)]
    accelerator = Accelerator(cpu=True)
    whole = objective.batch(windows)
    logits = model(whole.input_ids, whole.attention_mask, target_positions=whole.positions).logits
    expected = torch.nn.functional.cross_entropy(logits, whole.labels)
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    for budget in (1, 150, 500):
        model.zero_grad()
        groups = micro_batches([w.length for w in windows], budget)
        batches = [objective.batch([windows[i] for i in group]) for group in groups]
        weight = torch.tensor(float(len(whole.labels)))
        loss = loop._backward(accelerator, model, [*batches, batches[0].empty()], weight)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=name)


def test_processes_divide_a_step_among_themselves_and_run_equally_often(split):
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    windows = [Window(0, i, 0, int(n), False) for i, n in enumerate(split.lengths)]
    everything = objective.batch(windows)
    for world in (1, 2, 3, 5, 20):
        for budget in (1, 200, 10_000):
            shares = []
            for rank in range(world):
                machine = SimpleNamespace(process_index=rank, num_processes=world, device=torch.device("cpu"))
                run = loop.Run(machine, None, objective, None, None, None, None)
                shares.append(loop._own_batches(run, windows, budget))
            assert len({len(share) for share in shares}) == 1
            weight = sum(float(batch.weights.sum()) for share in shares for batch in share)
            assert weight == len(everything.labels)


@pytest.mark.parametrize("world", [2, 3])
def test_in_double_precision_the_division_changes_nothing_at_all(training, monkeypatch, world):
    """Processes are played one after the other; 1e-8 is far from what one lost target would do."""
    common = {"dropout": 0, "dtype": torch.float64, "steps": 30, "checkpoint_every": 100}
    expected = weights(training.start("whole", micro_batch_tokens=9999, **common))
    own = loop._own_batches

    def all_in_turn(run, windows, budget):
        batches = []
        for rank in range(world):
            machine = SimpleNamespace(process_index=rank, num_processes=world, device=torch.device("cpu"))
            batches += own(dataclasses.replace(run, accelerator=machine), windows, budget)
        return batches

    monkeypatch.setattr(loop, "_own_batches", all_in_turn)
    for budget in (70, 130):
        name = f"budget {budget}"
        divided = weights(training.start(name, micro_batch_tokens=budget, **common))
        for ours, theirs in zip(training.read(name), training.read("whole"), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-8)
        for key, value in expected.items():
            torch.testing.assert_close(divided[key], value, rtol=1e-8, atol=1e-8, msg=key)


CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: not enough memory: you tried to"
)
CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.fixture
def cramped(monkeypatch):
    """Let memory suffice for so many tokens at once; what does not fit fails when its gradients are there."""

    def install(most, error):
        loss = loop._loss

        def loss_or_error(model, batch):
            value = loss(model, batch)
            if batch.input_ids.numel() > most:
                value.backward()
                raise error
            return value

        monkeypatch.setattr(loop, "_loss", loss_or_error)

    return install


@pytest.mark.parametrize("error", [CPU, CUDA], ids=["cpu", "cuda"])
def test_out_of_memory_takes_less_at_once_and_the_run_is_the_same(training, capsys, cramped, error):
    common = {"dropout": 0, "micro_batch_tokens": 260}
    expected = weights(training.start("roomy", **common))
    cramped(75, error)
    capsys.readouterr()
    divided = weights(training.start("cramped", **common))
    said = capsys.readouterr().err
    assert said.count("out of memory: micro-batches of 130 tokens from here on, not 260") == 1
    assert said.count("out of memory: micro-batches of 65 tokens from here on, not 260") == 1
    assert said.count("out of memory") == 2
    for ours, theirs in zip(training.read("cramped"), training.read("roomy"), strict=True):
        assert ours.get("loss", 0) == pytest.approx(theirs.get("loss", 0), rel=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(divided[name], value, rtol=1e-4, atol=1e-4, msg=name)


def test_a_window_that_does_not_fit_alone_ends_the_run_with_a_line(training, cramped):
    cramped(10, CPU)
    with pytest.raises(UserError, match=r"^window: out of memory with one window of \d\d tokens at a time;"):
        training.start("cramped")


def test_other_errors_of_the_network_are_not_taken_for_too_little_memory(training, cramped):
    cramped(10, RuntimeError("shapes must match"))
    with pytest.raises(RuntimeError, match="shapes must match"):
        training.start("broken")


def test_what_fails_while_processes_add_up_cannot_be_done_again(split, tiny_model, cramped):
    """The others wait for sums that never come: the run ends, with the setting that helps."""
    cramped(0, CUDA)
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    batches = [objective.batch([Window(0, i, 0, 10, False)]) for i in range(2)]
    two = SimpleNamespace(num_processes=2, device=torch.device("cpu"), backward=torch.Tensor.backward)
    two.no_sync = contextlib.nullcontext
    model, weight = tiny_model(vocab_size=74), torch.tensor(1.0)
    assert loop._backward(two, model, batches, weight) is None
    with pytest.raises(UserError, match=r"^micro_batch_tokens: out of memory; pass a smaller one$"):
        loop._backward(two, model, batches[:1], weight)


# -- more steps than before


WSD = OptimizerConfig(warmup=2, learning_rate=1e-2, schedule="wsd", decay=0.25)


def test_a_lengthened_wsd_run_is_bit_for_bit_the_long_one(training, capsys):
    expected = weights(training.start("long", optimizer=WSD, steps=16))
    training.start("short", optimizer=WSD, steps=8, keep_checkpoints=1)
    assert (training.folder / "short/checkpoints/step-000006").is_dir()
    capsys.readouterr()
    with pytest.raises(Killed):
        training.start("short", optimizer=WSD, steps=16, keep_checkpoints=1, stop_after=10)
    assert "resumed from step-000006 of 16" in capsys.readouterr().err
    lengthened = weights(training.start("short", optimizer=WSD, steps=16, keep_checkpoints=1))
    assert training.read("short") == training.read("long")
    assert all(torch.equal(lengthened[name], value) for name, value in expected.items())


def test_a_lengthened_cosine_run_goes_on_with_another_schedule_and_says_so(training, capsys):
    training.start("short")
    before = training.read("short")
    capsys.readouterr()
    training.start("short", steps=12)
    said = capsys.readouterr().err
    change = "steps 8 -> 12 (the cosine schedule is drawn anew: its rates are others from step 3 on)"
    assert f"step-000008: goes on with {change}; not the run that these settings give from the start" in said
    assert "resumed from step-000008 of 12" in said
    after = training.read("short")
    assert after[: len(before)] == before
    schedule = OptimizerConfig(warmup=2, learning_rate=1e-2)
    rates = [line["learning_rate"] for line in after[len(before) :] if "loss" in line]
    assert rates == [learning_rate(step, 12, schedule) for step in range(8, 12)]
    trainer = json.loads((training.folder / "short/checkpoints/step-000012/trainer.json").read_text())
    assert trainer["changes"] == [f"step 8: {change}"]


# -- failure and edges


class Spoilt(MaskedObjective):
    """A number that is none in every batch with record 5, from the second epoch on."""

    def batch(self, windows):
        batch = super().batch(windows)
        if any(window.record == 5 and window.epoch == 1 for window in windows):
            batch.weights[-1] = math.nan
        return batch


def spoilt_steps(split, count):
    plan = itertools.islice(steps([split.lengths], 60, 256, True, 0), count)
    return [i for i, step in enumerate(plan) if any(w.record == 5 and w.epoch == 1 for w in step)]


def test_a_step_that_is_not_finite_is_passed_over_and_the_others_are_taken(training, split, monkeypatch):
    """The same as a plan without that step: weights, optimizer and schedule do not move."""
    spoilt = spoilt_steps(split, 8)
    assert len(spoilt) == 1
    survived = weights(training.start("spoilt", objective=Spoilt, dropout=0))
    plan = loop.islice
    without = lambda it, begin, end: (s for i, s in enumerate(plan(it, begin, end)) if i not in spoilt)  # noqa: E731
    monkeypatch.setattr(loop, "islice", without)
    expected = weights(training.start("without", dropout=0))
    for name, value in expected.items():
        assert torch.equal(survived[name], value), name
    lines = training.read("spoilt")
    (skipped,) = [line for line in lines if "skipped" in line]
    windows = next(plan(steps([split.lengths], 60, 256, True, 0), spoilt[0], None))
    assert skipped == {
        "step": spoilt[0] + 1,
        "skipped": 1,
        "problem": "loss nan, gradient norm nan",
        "records": [list(span) for span in spans(windows)],
    }
    assert [line for line in lines if "skipped" not in line] == training.read("without")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    rates = [line["learning_rate"] for line in lines if "loss" in line]
    assert rates == [
        learning_rate(step, 8, OptimizerConfig(warmup=2, learning_rate=1e-2)) for step in range(8)
    ]


@pytest.mark.parametrize("stop", [3, 4, 5])
def test_a_run_that_passed_over_a_step_is_resumed_bit_for_bit(training, split, stop):
    assert spoilt_steps(split, 8)[0] in (3, 4)
    expected = weights(training.start("whole", objective=Spoilt, checkpoint_every=1))
    with pytest.raises(Killed):
        training.start("broken", objective=Spoilt, stop_after=stop, checkpoint_every=1)
    resumed = weights(training.start("broken", objective=Spoilt, checkpoint_every=1))
    assert training.read("broken") == training.read("whole")
    assert all(torch.equal(resumed[name], value) for name, value in expected.items())


def test_a_run_that_is_stopped_in_a_step_that_is_passed_over_does_not_pass_over_it_twice(training):
    class Stopped(Spoilt):
        def batch(self, windows):
            batch = super().batch(windows)
            if batch.weights.isnan().any():
                signal.raise_signal(signal.SIGTERM)
            return batch

    training.start("whole", objective=Spoilt)
    with pytest.raises(SystemExit):
        training.start("broken", objective=Stopped)
    assert training.read("broken")[-1]["skipped"] == 1
    training.start("broken", objective=Spoilt)
    assert training.read("broken") == training.read("whole")


def test_only_steps_in_a_row_count(training, monkeypatch):
    gradients = loop._gradients

    def spoilt(run, model, windows, config, seed):
        return gradients(run, model, windows, config, seed) * (math.nan if seed in (1, 3, 4, 6) else 1)

    monkeypatch.setattr(loop, "_gradients", spoilt)
    training.start("often", max_bad_steps=3)
    lines = training.read("often")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert [line["step"] for line in lines if "skipped" in line] == [2, 3, 3, 4]
    with pytest.raises(UserError, match="step 3: no finite loss and gradient 2 times in a row"):
        training.start("strict", max_bad_steps=2)


def test_steps_in_a_row_that_are_not_finite_stop_the_run(training):
    wild = OptimizerConfig(warmup=2, learning_rate=1e30)
    with pytest.raises(UserError) as error:
        training.start("wild", optimizer=wild, checkpoint_every=1, max_bad_steps=4)
    message = str(error.value)
    last = training.folder / "wild/checkpoints/step-000001"
    assert message.startswith("step 2: no finite loss and gradient 4 times in a row (loss ")
    assert f"last good checkpoint: {last}; lower optimizer.learning_rate" in message
    assert "\n" not in message
    lines = training.read("wild")
    assert [line["skipped"] for line in lines if "skipped" in line] == [1, 2, 3, 4]
    assert all(value.isfinite().all() for value in load_file(last / "model.safetensors").values())
    with pytest.raises(UserError, match="last good checkpoint: none"):
        training.start("early", optimizer=wild, checkpoint_every=100)


def test_a_step_without_a_single_target_is_no_failure(training, tokenized):
    split = tokenized(["N" * 30, "ACGTTACGAC"])
    training.start("n", split=split, tokens_per_step=10, window=30, steps=12)
    losses = [line["loss"] for line in training.read("n") if "loss" in line]
    assert 0.0 in losses
    assert max(losses) > 1


def test_the_rate_of_each_step_is_on_record(training):
    training.start("rates")
    rates = [line["learning_rate"] for line in training.read("rates") if "loss" in line]
    assert rates[:3] == [0.5e-2, 1e-2, 1e-2]
    assert rates[-1] == pytest.approx(0, abs=1e-20)
