import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

import pipeline.pretrain
from pipeline.config import MaskingConfig, ModelConfig, OptimizerConfig, PretrainConfig
from pipeline.errors import UserError
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import SoftMask, split_of
from pipeline.training import loop
from pipeline.training.objective import MaskedObjective
from pipeline.training.plan import Window, micro_batches, steps

CODEC = KmerCodec("dna", 3, True)
IGNORED = -100


def tokenized(records):
    return split_of([CODEC.track(CODEC.codes(letters)) for letters in records])


@pytest.fixture(scope="module")
def split():
    rng = np.random.default_rng(0)
    return tokenized(["".join(rng.choice(list("ACGT"), n)) for n in rng.integers(10, 120, 12)])


@pytest.fixture
def training(split, tiny_model, tmp_path):
    """Factory of runs of 8 steps; one epoch of the split is about 3 of them."""

    def start(name, stop_after=None, dropout=0.1, split=split, peak=1e-2, **changes):
        settings = {"steps": 8, "tokens_per_step": 256, "micro_batch_tokens": 130, "checkpoint_every": 3}
        settings |= {"log_every": 1, "evaluate_every": 4, "window": 60}
        config = PretrainConfig(
            output=tmp_path,
            data=tmp_path,
            optimizer=OptimizerConfig(warmup=2, learning_rate=peak),
            **settings | changes,
        )
        model = tiny_model(vocab_size=74, hidden_dropout=dropout)
        plan = steps(split.lengths, config.window, config.tokens_per_step, True, config.seed)
        if stop_after is not None:
            plan = itertools.chain(itertools.islice(plan, stop_after), killed())
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        objective = MaskedObjective(split, CODEC, MaskingConfig(), config.seed)
        evaluate = lambda model: {"total": float(model.decoder.weight.detach().sum())}  # noqa: E731
        run = loop.Run(Accelerator(cpu=True), model, objective, plan, evaluate, folder)
        return loop.train(run, config)

    def read(name):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]

    return SimpleNamespace(start=start, read=read, folder=tmp_path)


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
    assert "resumed from step-000003 of 8" in said
    assert training.read("broken") == training.read("whole")


def test_a_run_may_be_told_to_start_afresh(training, capsys):
    training.start("again")
    before = training.read("again")
    with pytest.raises(Killed):
        training.start("again", resume="never", stop_after=4)
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
        loss = loop._backward(accelerator, model, [*batches, batches[0].empty()])
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
                run = loop.Run(machine, None, objective, None, None, None)
                shares.append(loop._own_batches(run, windows, budget))
            assert len({len(share) for share in shares}) == 1
            weight = sum(float(batch.weights.sum()) for share in shares for batch in share)
            assert weight == len(everything.labels)


# -- what a batch holds


def test_a_batch_is_framed_padded_and_asks_only_for_hidden_tokens(split):
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    windows = [Window(0, 0, 0, 10, False), Window(0, 1, 2, 30, False)]
    batch = objective.batch(windows)
    rows, width = batch.input_ids.shape
    assert (rows, width) == (2, 30 - 2 + 2)
    assert batch.attention_mask.sum(1).tolist() == [10 - 2 + 2, 30]
    assert torch.equal(batch.attention_mask, (batch.input_ids != CODEC.special("pad")).long())
    assert set(batch.input_ids[:, 0].tolist()) == {CODEC.special("cls")}
    truth = torch.full((rows, width), IGNORED)
    for row, window in enumerate(windows):
        ids = CODEC.tokens(CODEC.codes_of_track(split.slice(window.record, window.start, window.length))).ids
        truth[row, 1 : len(ids) + 1] = torch.from_numpy(ids.astype(np.int64))
        assert batch.input_ids[row, len(ids) + 1] == CODEC.special("eos")
    assert torch.equal(truth.flatten()[batch.positions], batch.labels)
    unasked = torch.ones(rows * width, dtype=torch.bool)
    unasked[batch.positions] = False
    unasked &= truth.flatten() != IGNORED
    assert torch.equal(batch.input_ids.flatten()[unasked], truth.flatten()[unasked])


def test_a_window_looks_the_same_in_any_batch(split):
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    one, other = Window(0, 2, 0, 20, True), Window(0, 3, 0, 25, False)
    alone, together = objective.batch([one]), objective.batch([other, one])
    assert torch.equal(together.input_ids[1, : alone.input_ids.shape[1]], alone.input_ids[0])


def test_a_reverse_window_is_read_from_the_other_strand():
    letters = "ACGTTNACCA"
    split = tokenized([letters])
    objective = MaskedObjective(split, CODEC, MaskingConfig(replace=0, keep=1), 0)
    shown = objective.batch([Window(0, 0, 0, 10, True)]).input_ids[0, 1:-1].numpy()
    expected = CODEC.tokens(CODEC.codes("TGGTNAACGT")).ids
    assert shown.tolist() == expected.tolist()


def test_a_target_counts_less_by_the_share_of_its_letters_that_are_soft_masked():
    letters = "ACGTTGACCATTGACGATCA"
    soft = np.zeros(20, bool)
    soft[3:9] = soft[15:20] = True
    bounds = SoftMask(np.array([3, 9, 15, 20]), np.array([0, 4]))
    split = dataclasses.replace(tokenized([letters]), soft_mask=bounds)
    masking = MaskingConfig(fraction=0.4, soft_mask_weight=0.25)
    for reverse in (False, True):
        for start, length in ((0, 20), (4, 13)):
            seen = soft[start : start + length][:: -1 if reverse else 1]
            batch = MaskedObjective(split, CODEC, masking, 0).batch([Window(0, 0, start, length, reverse)])
            soft_share = np.array([seen[i : i + 3].mean() for i in batch.positions - 1])
            assert batch.weights.tolist() == pytest.approx(0.25 * soft_share + 1 - soft_share)
            assert 0 < soft_share.mean() < 1


def test_the_shares_that_are_logged_are_those_of_the_letters(split):
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    for epoch in range(400):
        objective.batch([Window(epoch, i, 0, int(n), False) for i, n in enumerate(split.lengths)])
    shares = objective.shares()
    assert shares["hidden"] == pytest.approx(0.15, abs=0.01)
    assert shares["masked"] == pytest.approx(0.8, abs=0.02)
    assert shares["replaced"] == pytest.approx(0.1, abs=0.02)
    assert shares["kept"] == pytest.approx(0.1, abs=0.02)


def test_masks_differ_between_epochs_records_strands_and_occurrences():
    split = tokenized(["ACGTTGACCATTGACGATCA" * 4] * 2)
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    first = Window(0, 0, 0, 80, False)
    others = [
        Window(1, 0, 0, 80, False),
        Window(0, 1, 0, 80, False),
        dataclasses.replace(first, occurrence=1),
    ]
    places = [tuple(objective.batch([window]).positions.tolist()) for window in (first, first, *others)]
    assert places[0] == places[1]
    assert len(set(places)) == 4


# -- failure and edges


def test_a_loss_that_is_not_finite_stops_the_run(training):
    with pytest.raises(UserError, match=r"optimizer.learning_rate: .* at step \d is not finite; lower it"):
        training.start("wild", peak=1e30)
    for line in training.read("wild"):
        assert math.isfinite(line.get("loss", 0.0))


def test_a_step_without_a_single_target_is_no_failure(training):
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


# -- the stage, in one process and in two


def pretrain_config(data, output):
    return PretrainConfig(
        output=output,
        data=data,
        model=ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2),
        optimizer=OptimizerConfig(warmup=1),
        steps=4,
        window=40,
        tokens_per_step=400,
        micro_batch_tokens=130,
        evaluate_every=4,
        evaluation_bases=300,
        log_every=1,
        count_model=False,
    )


def test_two_processes_take_the_steps_of_one(token_folder, tmp_path):
    one, two = (pretrain_config(token_folder, tmp_path / name) for name in ("one", "two"))
    pipeline.pretrain.run(one)
    (tmp_path / "two.json").write_text(two.model_dump_json(exclude_none=True))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    finished = subprocess.run(
        [*launcher, "-m", "pipeline.pretrain", "--config", str(tmp_path / "two.json")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(pipeline.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    for once in ("2 process(es) on cpu", "of letters hidden; of their runs"):
        assert finished.stderr.count(once) == 1, once

    def lines(name):
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    ours, theirs = lines("one"), lines("two")
    assert len(ours) == len(theirs) == 4 + 2
    for a, b in zip(ours, theirs, strict=True):
        assert set(a) == set(b)
        for key in set(a) - {"tokens_per_second"}:
            assert a[key] == pytest.approx(b[key], rel=1e-4, abs=1e-9), key
    whole, divided = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, value in whole.items():
        torch.testing.assert_close(divided[name], value, rtol=1e-4, atol=1e-4, msg=name)
