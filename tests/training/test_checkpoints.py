import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from pipeline.config import OptimizerConfig
from pipeline.training import checkpoints
from pipeline.training.checkpoints import Progress
from pipeline.training.optimizer import learning_rate, make_optimizer


def stepped(model, steps=2):
    optimizer = make_optimizer(model, OptimizerConfig())
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        ids = torch.randint(5, 40, (2, 9), generator=generator)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.fixture
def saved(tiny_model, tmp_path):
    """Checkpoints of steps 2 and 10, and the model and optimizer they were written from."""
    model = tiny_model()
    optimizer = stepped(model)
    for step in (2, 10):
        checkpoints.save(tmp_path, model, optimizer, Progress(step, step * 100), keep=5)
    return tmp_path, model, optimizer


def test_a_checkpoint_gives_back_weights_optimizer_and_progress(saved, tiny_model):
    folder, model, optimizer = saved
    again = tiny_model(seed=9)
    other = make_optimizer(again, OptimizerConfig())
    assert checkpoints.load(checkpoints.newest(folder), again, other) == Progress(10, 1000)
    assert again.decoder.weight is again.model.embeddings.weight
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        for quantity in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[ours][quantity], other.state[theirs][quantity])
    ids = torch.arange(5, 23).view(2, 9)
    for network, its_optimizer in ((model, optimizer), (again, other)):
        network(ids, labels=ids).loss.backward()
        its_optimizer.step()
    assert torch.equal(model.model.embeddings.weight, again.model.embeddings.weight)


def test_a_checkpoint_is_json_and_safetensors_named_by_parameter(saved):
    folder, model, _ = saved
    path = folder / "step-000010"
    assert {p.suffix for p in path.iterdir()} == {".json", ".safetensors", ".py"}
    tensors = load_file(path / "optimizer.safetensors")
    names = {name for name, _ in model.named_parameters()}
    assert set(tensors) == {f"{n}.{q}" for n in names for q in ("step", "exp_avg", "exp_avg_sq")}
    assert json.loads((path / "trainer.json").read_text()) == {"step": 10, "letters": 1000}
    assert not list(folder.glob("*.partial"))


def test_the_newest_is_found_by_number_and_other_names_are_ignored(saved):
    folder, _, _ = saved
    shutil.copytree(folder / "step-000010", folder / "step-1000000")
    shutil.copytree(folder / "step-000010", folder / "step-999999")
    for name in ("step-1000001.partial", "step-best", "notes"):
        (folder / name).mkdir()
    (folder / "step-2000000").write_text("a file")
    assert checkpoints.newest(folder).name == "step-1000000"
    assert checkpoints.newest(folder / "nothing") is None


def test_only_the_newest_are_kept(saved):
    folder, model, optimizer = saved
    checkpoints.save(folder, model, optimizer, Progress(9, 0), keep=2)
    assert {p.name for p in folder.iterdir()} == {"step-000009", "step-000010"}


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "trainer.json", "checksums.json"]
)
@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_damaged_checkpoint_is_passed_over_with_a_line(saved, capsys, name, harm):
    folder, _, _ = saved
    path = folder / "step-000010" / name
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + (b"\xff" + content[middle + 1 :] if harm == "changed" else b""))
    assert checkpoints.newest(folder).name == "step-000002"
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"step-000010: passed over: {name} is missing or damaged" in error


def test_with_every_checkpoint_damaged_there_is_none(saved):
    folder, _, _ = saved
    for path in folder.glob("*/model.safetensors"):
        path.write_bytes(b"")
    assert checkpoints.newest(folder) is None


def test_only_matrices_decay(tiny_model):
    model = tiny_model(norm="layernorm", use_bias=True)
    decaying, others = make_optimizer(model, OptimizerConfig(weight_decay=0.1)).param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0)
    assert all(p.ndim == 2 for p in decaying["params"])
    assert all(p.ndim == 1 for p in others["params"])
    assert len(decaying["params"]) + len(others["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize(("steps", "warmup"), [(100, 10), (37, 0), (5, 1)])
def test_the_learning_rate_reaches_its_peak_and_its_end_exactly(steps, warmup, final):
    config = OptimizerConfig(learning_rate=3e-4, warmup=warmup, final=final)
    rates = [learning_rate(step, steps, config) for step in range(steps)]
    assert max(rates) == rates[max(0, warmup - 1)] == rates[warmup] == 3e-4
    assert rates[-1] == pytest.approx(3e-4 * final, abs=1e-20)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(rate > 0 for rate in rates[:-1])
    if warmup:
        assert rates[0] == 3e-4 / warmup
    middle = (warmup + steps - 1) / 2
    if middle == int(middle):
        assert rates[int(middle)] == pytest.approx(3e-4 * (1 + final) / 2)
