import dataclasses
import errno
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from pipeline.config import OptimizerConfig
from pipeline.errors import UserError
from pipeline.training import checkpoints
from pipeline.training.checkpoints import Progress
from pipeline.training.optimizer import make_optimizers, state_by_name

SETTINGS = {"window": 40}


def names(folder):
    return {path.name for path in folder.iterdir()}


def newest(folder):
    saved = next(checkpoints.complete(folder), None)
    return saved and saved.path.name


def stepped(model, steps=2, method="adamw"):
    optimizers = make_optimizers(model, OptimizerConfig(method=method))
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        ids = torch.randint(5, 40, (2, 9), generator=generator)
        take_step(model, optimizers, ids)
    return optimizers


def take_step(model, optimizers, ids):
    model(ids, labels=ids).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def saved(tiny_model, tmp_path):
    """Checkpoints of steps 2 and 10, and the model and optimizers they were written from."""
    model = tiny_model()
    optimizers = stepped(model)
    folder = tmp_path / "checkpoints"
    for step in (2, 10):
        checkpoints.save(folder, model, optimizers, Progress(step, step * 100), SETTINGS, keep=5)
    return folder, model, optimizers


def test_a_checkpoint_gives_back_weights_optimizer_and_progress(saved, tiny_model):
    folder, model, optimizers = saved
    again = tiny_model(seed=9)
    others = make_optimizers(again, OptimizerConfig())
    saved = next(checkpoints.complete(folder))
    assert saved.settings == SETTINGS
    assert checkpoints.load(saved, again, others) == saved.progress == Progress(10, 1000)
    assert again.decoder.weight is again.model.embeddings.weight
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    (optimizer,), (other,) = optimizers, others
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert optimizer.state[ours].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for quantity, value in optimizer.state[ours].items():
            assert torch.equal(value, other.state[theirs][quantity])
    ids = torch.arange(5, 23).view(2, 9)
    for network, its_optimizers in ((model, optimizers), (again, others)):
        take_step(network, its_optimizers, ids)
    assert torch.equal(model.model.embeddings.weight, again.model.embeddings.weight)


def test_the_state_of_two_optimizers_is_given_back(tiny_model, tmp_path):
    model, again = tiny_model(), tiny_model(seed=9)
    optimizers = stepped(model, method="muon")
    checkpoints.save(tmp_path, model, optimizers, Progress(2), SETTINGS, keep=1)
    tensors = load_file(tmp_path / "step-000002" / "optimizer.safetensors")
    assert {name.rpartition(".")[2] for name in tensors if ".layers.0.mlp.up." in name} == {"momentum_buffer"}
    assert "model.embeddings.weight.exp_avg" in tensors
    others = make_optimizers(again, OptimizerConfig(method="muon"))
    checkpoints.load(next(checkpoints.complete(tmp_path)), again, others)
    ids = torch.arange(5, 23).view(2, 9)
    for network, its_optimizers in ((model, optimizers), (again, others)):
        take_step(network, its_optimizers, ids)
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("before", "after"), [("muon", "adamw"), ("adamw", "muon")])
def test_the_state_of_another_optimizer_is_passed_over(tiny_model, tmp_path, before, after):
    """A run may go on with another method when it is told to: what both keep stays, the rest starts at 0."""
    model = tiny_model()
    checkpoints.save(tmp_path, model, stepped(model, method=before), Progress(2), SETTINGS, keep=1)
    again = tiny_model(seed=9)
    optimizers = make_optimizers(again, OptimizerConfig(method=after))
    checkpoints.load(next(checkpoints.complete(tmp_path)), again, optimizers)
    take_step(again, optimizers, torch.arange(5, 23).view(2, 9))
    state = state_by_name(again, optimizers)
    assert state["model.embeddings.weight.step"] == 3
    kept = {name.rpartition(".")[2] for name in state if ".layers.0.mlp.up." in name}
    assert kept == ({"momentum_buffer"} if after == "muon" else {"step", "exp_avg", "exp_avg_sq"})


def test_a_checkpoint_is_json_and_safetensors_named_by_parameter(saved):
    folder, model, _ = saved
    path = folder / "step-000010"
    assert {p.suffix for p in path.iterdir()} == {".json", ".safetensors", ".py"}
    tensors = load_file(path / "optimizer.safetensors")
    names = {name for name, _ in model.named_parameters()}
    assert set(tensors) == {f"{n}.{q}" for n in names for q in ("step", "exp_avg", "exp_avg_sq")}
    said = json.loads((path / "trainer.json").read_text())
    assert said == dataclasses.asdict(Progress(10, 1000)) | {"settings": SETTINGS}
    assert not list(folder.glob("*.partial"))


def test_the_newest_is_found_by_number_and_other_names_are_ignored(saved):
    folder, _, _ = saved
    shutil.copytree(folder / "step-000010", folder / "step-1000000")
    shutil.copytree(folder / "step-000010", folder / "step-999999")
    for name in ("step-1000001.partial", "step-best", "notes"):
        (folder / name).mkdir()
    (folder / "step-2000000").write_text("a file")
    assert newest(folder) == "step-1000000"
    assert newest(folder / "nothing") is None


@pytest.mark.parametrize(
    ("keep", "kept"),
    [(2, {4, 12, 13}), (1, {4, 13}), (0, {4, 13}), (-1, {2, 4, 12, 13})],
)
def test_the_newest_the_best_and_those_asked_for_are_kept(saved, keep, kept):
    folder, model, optimizers = saved
    for step in (4, 12, 13):
        progress = Progress(step, best=1.5, best_step=4)
        checkpoints.save(folder, model, optimizers, progress, SETTINGS, keep)
    assert names(folder) == {f"step-{step:06d}" for step in kept}
    checkpoints.save(folder, model, optimizers, Progress(14), SETTINGS, 1, keep_also=[13])
    assert names(folder) == {"step-000013", "step-000014"}


def test_checkpoints_of_a_future_that_is_replaced_go_when_the_first_new_one_is_there(saved):
    folder, model, optimizers = saved
    (folder / "step-000008.partial").mkdir()
    checkpoints.save(folder, model, optimizers, Progress(9, 0), SETTINGS, keep=1)
    assert names(folder) == {"step-000009"}


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
    assert newest(folder) == "step-000002"
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"step-000010: passed over: {name} is missing or damaged" in error


def test_with_every_checkpoint_damaged_there_is_none(saved):
    folder, _, _ = saved
    for path in folder.glob("*/model.safetensors"):
        path.write_bytes(b"")
    assert newest(folder) is None


def every_file(folder):
    return sorted(path.name for path in (folder / "step-000010").iterdir())


def test_any_file_of_a_checkpoint_may_be_the_damaged_one(saved):
    folder, _, _ = saved
    assert len(every_file(folder)) > 5
    for name in every_file(folder):
        path = folder / "step-000010" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert newest(folder) == "step-000002", name
        path.write_bytes(content)
        assert newest(folder) == "step-000010"


def test_other_networks_are_refused(saved, tiny_model):
    folder, _, _ = saved
    path = folder / "step-000010"
    with pytest.raises(
        UserError, match=r"^resume: .*step-000010 holds another network: size mismatch for .*$"
    ):
        checkpoints.restore_weights(path, tiny_model(hidden_size=16))
    with pytest.raises(
        UserError, match=r"holds another network: model.layers.2.* is in one of the two only$"
    ):
        checkpoints.restore_weights(path, tiny_model(num_hidden_layers=3))


@pytest.mark.parametrize("moment", ["while the old is deleted", "before the new is renamed"])
def test_a_kill_leaves_nothing_that_looks_complete(saved, monkeypatch, moment):
    folder, model, optimizers = saved

    class Killed(BaseException):
        pass

    def die(path, *_, **__):
        (path / "model.safetensors").unlink()
        raise Killed

    step = 10 if moment == "before the new is renamed" else 11
    monkeypatch.setattr(checkpoints.shutil, "rmtree", die)
    with pytest.raises(Killed):
        checkpoints.save(folder, model, optimizers, Progress(step), SETTINGS, keep=1)
    left = [path for path in folder.iterdir() if checkpoints.NAME.fullmatch(path.name)]
    assert left
    assert all(checkpoints.damage(path) is None for path in left)
    monkeypatch.undo()
    checkpoints.save(folder, model, optimizers, Progress(12), SETTINGS, keep=1)
    assert names(folder) == {"step-000012"}


# -- a full disk


@pytest.mark.parametrize("broken", ["save_file", "write_json"])
def test_a_failed_save_leaves_nothing_behind_and_is_told_in_a_line(saved, monkeypatch, broken):
    folder, model, optimizers = saved

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, broken, full)
    with pytest.raises(UserError) as error, checkpoints.enough_disk(folder.parent):
        checkpoints.save(folder, model, optimizers, Progress(11), SETTINGS, keep=1)
    line = "the disk is full; free some space and run again, to go on from step-000010"
    assert str(error.value) == f"{folder.parent}: {line}"
    assert names(folder) == {"step-000002", "step-000010"}


def test_other_errors_are_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(PermissionError), checkpoints.enough_disk(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_on_a_disk_that_is_full_the_older_checkpoint_stays(small_disk, tiny_model):
    model = tiny_model()
    optimizers = stepped(model)
    folder = small_disk / "checkpoints"
    with pytest.raises(UserError, match=r"the disk is full; .* to go on from step-00000\d$"):  # noqa: PT012, SIM117
        with checkpoints.enough_disk(small_disk):
            for step in range(1, 10):
                checkpoints.save(folder, model, optimizers, Progress(step), SETTINGS, keep=-1)
    assert newest(folder) == max(names(folder)) < "step-000009"
    assert all(checkpoints.damage(path) is None for path in folder.iterdir())
