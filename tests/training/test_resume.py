import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.config import MaskingConfig, MixtureConfig, ModelConfig, OptimizerConfig, PretrainConfig
from pipeline.errors import UserError
from pipeline.training import checkpoints
from pipeline.training.checkpoints import Progress
from pipeline.training.optimizer import make_optimizers
from pipeline.training.resume import find_start, settings_of, take_over

WSD = OptimizerConfig(warmup=2, schedule="wsd", decay=0.2)


@pytest.fixture
def config(tmp_path):
    def build(**changes):
        return PretrainConfig(output=tmp_path / "out", data=tmp_path, **{"steps": 20} | changes)

    return build


@pytest.fixture
def write(tmp_path, tiny_model, capsys):
    """Write checkpoints of steps, made with a configuration; return their folder."""
    model = tiny_model(hidden_size=8, num_hidden_layers=1)

    def save(config, *steps, data="data", folder=tmp_path / "run"):
        optimizers = make_optimizers(model, config.optimizer)
        for step in steps:
            settings = settings_of(config, {"data": data})
            checkpoints.save(folder / "checkpoints", model, optimizers, Progress(step), settings, keep=-1)
        capsys.readouterr()
        return folder / "checkpoints"

    return save


def start(folder, config, data="data"):
    return find_start(folder, config, settings_of(config, {"data": data}))


def step_of(*arguments):
    return start(*arguments).progress.step


FREE = {
    "micro_batch_tokens": 7,
    "checkpoint_every": 3,
    "keep_checkpoints": 9,
    "evaluate_every": 5,
    "log_every": 2,
    "launch": "torchrun",
    "max_bad_steps": 8,
    "keep_best": False,
    "count_model": False,
    "name": "other",
    "resume_changed": True,
    "gradient_checkpointing": True,
    "compile": True,
    "trackers": ["tensorboard"],
    "dry_run": True,
}
CHANGES = [
    ({"model": ModelConfig(hidden_size=64)}, "model.hidden_size 128 -> 64"),
    ({"masking": MaskingConfig(fraction=0.3)}, "masking.fraction 0.15 -> 0.3"),
    ({"optimizer": OptimizerConfig(beta2=0.9)}, "optimizer.beta2 0.98 -> 0.9"),
    ({"window": 64}, "window 510 -> 64"),
    ({"tokens_per_step": 64}, "tokens_per_step 16384 -> 64"),
    ({"seed": 2}, "seed 0 -> 2"),
    ({"precision": "bf16"}, "precision no -> bf16"),
    ({"evaluation_bases": 5}, "evaluation_bases 100000 -> 5"),
    ({"window_warmup": 9}, "window_warmup 0 -> 9"),
    ({"mixture": MixtureConfig(temperature=2)}, "mixture.temperature 1.0 -> 2.0"),
]


def test_every_setting_is_either_free_or_part_of_the_mathematics(config):
    settings = settings_of(config(), {"data": "data"})
    known = {key.partition(".")[0] for key in settings} | FREE.keys()
    assert known - {"strandlm"} == PretrainConfig.model_fields.keys() - {"output", "resume"}
    assert {"steps", "data", "strandlm", "optimizer.schedule", "model.rope_theta"} <= settings.keys()


def test_what_changes_no_result_may_change(config, write):
    folder = write(config(), 3, 6)
    assert step_of(folder, config(**FREE)) == 6


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_other_mathematics_are_refused_by_key_unless_told(config, write, capsys, change, words):
    folder = write(config(), 3, 6)
    with pytest.raises(UserError) as error:
        start(folder, config(**change))
    assert str(error.value) == (
        f"resume: {folder}/step-000006 was made with other settings: {words}; set them back, go on with "
        "--resume-changed true, or start over with --resume never"
    )
    told = start(folder, config(**change, resume_changed=True))
    assert told.progress.changes == [f"step 6: {words}"]
    assert f"step-000006: goes on with {words}; not the run that" in capsys.readouterr().err


def test_other_data_are_refused_and_all_keys_are_named(config, write):
    folder = write(config(), 3, data="a" * 64)
    with pytest.raises(UserError, match=r"settings: data a{12} -> b{12}, seed 0 -> 1, steps 20 -> 30; set"):
        start(folder, config(seed=1, steps=30), "b" * 64)


def test_no_checkpoint_is_a_start_and_never_forgets_them(config, write, tmp_path):
    assert start(tmp_path / "nothing", config()) is None
    folder = write(config(), 3)
    assert start(folder, config(resume="never", seed=9)) is None
    assert not folder.exists()


# -- a checkpoint by name


def test_a_checkpoint_may_be_named(config, write):
    folder = write(config(), 3, 6)
    assert step_of(folder.parent / "elsewhere", config(resume=folder / "step-000003")) == 3
    assert step_of(folder, config(resume=folder / "step-000003")) == 3
    assert {path.name for path in folder.iterdir()} == {"step-000003", "step-000006"}


@pytest.mark.parametrize("name", ["step-000004", "step-000003"])
def test_a_named_checkpoint_that_is_not_complete_is_refused(config, write, name):
    folder = write(config(), 3, 6)
    (folder / "step-000003" / "checksums.json").unlink()
    message = rf"^resume: .*/{name}: checksums.json is missing or damaged; give a complete folder step-"
    with pytest.raises(UserError, match=message):
        start(folder, config(resume=folder / name))


def test_text_in_the_configuration_is_a_word_or_a_path(config):
    assert config(resume="auto").resume == "auto"
    assert config(resume="runs/step-000003").resume == Path("runs/step-000003")
    with pytest.raises(ValidationError, match="use 'auto' or 'never', or a checkpoint's folder"):
        config(resume="atuo")


# -- another number of steps


@pytest.mark.parametrize(
    ("steps", "expected"), [(20, 19), (40, 16), (18, 13), (16, 13), (15, 12), (13, 10), (10, 8)]
)
def test_wsd_goes_on_from_where_the_rates_were_the_same(config, write, capsys, steps, expected):
    """The decay of 20 steps begins after 16, that of 18 after 14, of 16 after 13, of 15 after 12..."""
    folder = write(config(optimizer=WSD), *range(7, 14), 16, 19)
    saved = start(folder, config(optimizer=WSD, steps=steps))
    assert (saved.progress.step, saved.progress.changes) == (expected, [])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_other_schedules_are_drawn_anew_on_record(config, write, capsys, schedule):
    settings = {"optimizer": OptimizerConfig(warmup=4, schedule=schedule)}
    folder = write(config(**settings), 3, 9)
    what = f"steps 20 -> 25 (the {schedule} schedule is drawn anew: its rates are others from step 5 on)"
    saved = start(folder, config(**settings, steps=25))
    assert saved.progress.step == 3, "the end of the warm-up is not passed"
    (folder / "step-000003").rename(folder / "elsewhere")
    saved = start(folder, config(**settings, steps=25))
    assert (saved.progress.step, saved.progress.changes) == (9, [f"step 9: {what}"])
    assert capsys.readouterr().err.startswith(f"step-000009: goes on with {what}; not the run that these")


def test_fewer_steps_than_taken_are_refused(config, write):
    folder = write(config(), 6)
    with pytest.raises(UserError, match=r"^resume: .*step-000006 is beyond steps: 5; raise steps, or start"):
        start(folder, config(steps=5))


# -- a finished run that is lengthened


@pytest.fixture
def finished(config, write):
    """A finished run of 20 steps."""
    folder = config().output
    write(config(), 10, 20, folder=folder)
    (folder / "metrics.jsonl").write_text('{"step": 20}\n')
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events").write_text("events")
    return folder


def taken(finished, config, tmp_path):
    folder = tmp_path / "partial"
    folder.mkdir(exist_ok=True)
    take_over(finished, folder, config, settings_of(config, {"data": "data"}))
    return folder


@pytest.mark.parametrize("links", [True, False])
def test_a_longer_run_takes_over_checkpoints_and_log(finished, config, tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    (tmp_path / "partial" / "checkpoints.partial" / "step-000010").mkdir(parents=True)
    folder = taken(finished, config(steps=30), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "metrics.jsonl", "tensorboard"]
    assert [s.progress.step for s in checkpoints.complete(folder / "checkpoints")] == [20, 10]
    same = [(path / "checkpoints/step-000020/model.safetensors").stat().st_ino for path in (folder, finished)]
    assert (same[0] == same[1]) == links
    (folder / "metrics.jsonl").write_text("written over")
    (folder / "tensorboard" / "events").write_text("written over")
    assert json.loads((finished / "metrics.jsonl").read_text()) == {"step": 20}
    assert (finished / "tensorboard" / "events").read_text() == "events"


@pytest.mark.parametrize(
    ("change", "said"),
    [({"steps": 10}, False), ({"count_model": False}, False), ({"steps": 30, "seed": 1}, True)],
)
def test_other_runs_start_over(finished, config, tmp_path, capsys, change, said):
    assert not list(taken(finished, config(**change), tmp_path).iterdir())
    expected = f"{finished}: made with other settings (seed 0 -> 1, steps 20 -> 30): starts over\n"
    assert capsys.readouterr().err.endswith(expected if said else "")
    if said:
        assert list(taken(finished, config(**change, resume_changed=True), tmp_path).iterdir())
