import pytest
import torch

from pipeline.config import OptimizerConfig
from pipeline.training.optimizer import decay_start, learning_rate, make_optimizers, shared_steps

SCHEDULES = ["cosine", "linear", "wsd"]


def rates_of(steps, config):
    return [learning_rate(step, steps, config) for step in range(steps)]


def test_only_matrices_decay(tiny_model):
    model = tiny_model(norm="layernorm", use_bias=True)
    (adamw,) = make_optimizers(model, OptimizerConfig(weight_decay=0.1))
    decaying, others = adamw.param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0)
    assert all(p.ndim == 2 for p in decaying["params"])
    assert all(p.ndim == 1 for p in others["params"])
    assert len(decaying["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_muon_has_the_matrices_of_the_layers_and_adamw_all_else(tiny_model):
    model = tiny_model(norm="layernorm", use_bias=True, lm_head="dense")
    muon, adamw = make_optimizers(model, OptimizerConfig(method="muon", weight_decay=0.1))
    assert isinstance(muon, torch.optim.Muon)
    of = {id(p): name for name, p in model.named_parameters()}
    matrices, rest = ([of[id(p)] for g in o.param_groups for p in g["params"]] for o in (muon, adamw))
    parts = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    assert sorted(matrices) == sorted(
        f"model.layers.{i}.{part}.weight" for i in range(model.config.num_hidden_layers) for part in parts
    )
    assert sorted(matrices + rest) == sorted(of.values())
    assert {group["weight_decay"] for group in muon.param_groups} == {0.1}


def test_muons_updates_are_orthogonal_and_as_large_as_adamws(tiny_model):
    """Five iterations bring the singular values of an update near 1, its root mean square near 0.2 rates."""
    model = tiny_model(hidden_size=32)
    (muon, _) = make_optimizers(model, OptimizerConfig(method="muon", learning_rate=0.01, weight_decay=0))
    weight = model.model.layers[0].attention.qkv.weight
    before = weight.detach().clone()
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    muon.step()
    update = before - weight.detach()
    assert update.square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.25)
    values = torch.linalg.svdvals(update)
    assert values.max() / values.min() < 2
    assert (update * weight.grad).sum() > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize(("steps", "warmup"), [(100, 10), (37, 0), (5, 1)])
def test_the_learning_rate_reaches_its_peak_and_its_end_exactly(steps, warmup, final, schedule):
    config = OptimizerConfig(learning_rate=3e-4, warmup=warmup, final=final, schedule=schedule)
    rates = rates_of(steps, config)
    assert max(rates) == rates[max(0, warmup - 1)] == rates[warmup] == 3e-4
    assert rates[-1] == pytest.approx(3e-4 * final, abs=1e-20)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(rate > 0 for rate in rates[:-1])
    if warmup:
        assert rates[0] == 3e-4 / warmup


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_half_way_half_is_gone(schedule, final):
    config = OptimizerConfig(learning_rate=3e-4, warmup=5, final=final, schedule=schedule)
    rates = rates_of(100, config)
    assert rates[(5 + 99) // 2] == pytest.approx(3e-4 * (1 + final) / 2)
    quarter = {"cosine": (1 + 0.5**0.5) / 2, "linear": 3 / 4}[schedule]
    assert rates_of(46, config)[15] == pytest.approx(3e-4 * (final + (1 - final) * quarter))


def test_stable_rates_fall_in_a_straight_line_at_the_end():
    config = OptimizerConfig(learning_rate=1.0, warmup=4, schedule="wsd", decay=0.25, final=0.5)
    assert decay_start(40, config) == 30
    rates = rates_of(40, config)
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(rates[3:30]) == {1.0}
    assert rates[30:] == pytest.approx([1 - 0.05 * i for i in range(1, 11)])


@pytest.mark.parametrize("warmup", [0, 3, 12, 60])
@pytest.mark.parametrize("decay", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_steps_are_those_with_equal_rates(schedule, decay, warmup):
    config = OptimizerConfig(warmup=warmup, schedule=schedule, decay=decay)
    for steps, others in [(20, 30), (30, 20), (20, 21), (10, 100), (25, 25)]:
        pairs = zip(rates_of(steps, config), rates_of(others, config), strict=False)
        equal = [a == b for a, b in pairs]
        count = equal.index(False) if False in equal else len(equal)
        # Both are at the peak for one step more, which takes a rate that later steps do not share.
        assert shared_steps(steps, others, config) in (count, count - 1)
