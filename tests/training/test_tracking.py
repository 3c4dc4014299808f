import json
import re
import sys

import pytest
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, register_tracker_class
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.training.checkpoints import Progress
from pipeline.training.tracking import Tracker, check_trackers, duration, start_trackers


class Recorder(GeneralTracker):
    """A tracker of Accelerate's that keeps what it is given."""

    name = "recorder"
    requires_logging_directory = False

    def __init__(self, run_name):
        super().__init__()
        self.run_name, self.settings, self.lines, self.finished = run_name, {}, [], False

    @property
    def tracker(self):
        return self

    def start(self):
        pass

    def store_init_configuration(self, values):
        self.settings = values

    def log(self, values, step=None, **_):
        self.lines.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def clock(monkeypatch):
    """The time, in a list; it stands still unless it is changed."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def follow(tmp_path, clock):
    """Take steps of 1000 letters and 2 seconds with a tracker; return the lines of metrics.jsonl."""

    def run(last, steps=100, every=10, begin=0, main=True, validation=(), seconds=lambda step: 2.0, **rest):
        start = Progress(step=begin)
        tracker = Tracker(tmp_path, steps, every, start, main, **rest)
        for step in range(begin, last + 1):
            if step > begin:
                clock[0] += seconds(step)
                tracker.step(step, 1000, loss=1 / step, rate=0.1, norm=1.0)
            if step in validation:
                clock[0] += 50
                tracker.record(step, validation_bits_per_hidden_base=2 - step / 1000)
        tracker.close()
        path = tmp_path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if main else []

    return run


def test_a_line_has_the_speed_and_the_share_of_peak(follow, capsys):
    lines = follow(10, tokens_per_letter=0.5, flops_per_token=4e6, peak=5e9)
    numbers = {"loss": 0.1, "learning_rate": 0.1, "gradient_norm": 1.0}
    assert lines == [{"step": 10, **numbers, "tokens_per_second": 250.0, "peak_share": 0.2}]
    assert capsys.readouterr().err == "step 10/100: loss 0.1000, 250 tokens/s, 20.0% of peak, 3 min left\n"


def test_without_a_peak_there_is_no_share(follow, capsys):
    (line,) = follow(10, flops_per_token=4e6)
    assert "peak_share" not in line
    assert capsys.readouterr().err == "step 10/100: loss 0.1000, 500 tokens/s, 3 min left\n"


def test_the_first_validation_is_no_part_of_the_time_and_the_latest_is_shown(follow, capsys):
    lines = follow(20, validation=(0, 10))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "step 10/100: loss 0.1000, validation 2.0000 bits, 500 tokens/s, 3 min left"
    assert "validation 1.9900 bits, 500 tokens/s, 6 min left" in said[1]  # 90 s for 20 steps
    assert [line["step"] for line in lines] == [0, 10, 10, 20]


def test_the_speed_is_that_of_most_steps_and_of_the_last_fifty(follow):
    slow_at_first = follow(110, steps=200, seconds=lambda step: 4.0 if step <= 60 else 2.0)
    assert [line["tokens_per_second"] for line in slow_at_first][5:] == [250] * 3 + [500] * 3


def test_after_twenty_steps_the_whole_time_is_told_once(follow, capsys):
    follow(60, every=1000, steps=3600)
    said = "expected time: 2 h 00 min, 119 min of it still to come (after 20 steps)\n"
    assert capsys.readouterr().err == said
    follow(460, begin=400, every=1000, steps=1000)
    said = "expected time from step 400 on: 20 min, 19 min of it still to come (after 20 steps)\n"
    assert capsys.readouterr().err == said
    follow(20, every=1000, steps=20)
    assert "expected" not in capsys.readouterr().err


def test_other_processes_are_silent(follow, capsys, tmp_path):
    other = Recorder("run")
    follow(30, main=False, validation=(0, 10), others=[other])
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []
    assert (other.lines, other.finished) == ([], False)


def test_a_terminal_has_a_bar_with_the_same_words(follow, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    follow(30, validation=(0,), flops_per_token=1e6, peak=1e9)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "30/100 loss 0.0333, validation 2.0000 bits, 500 tokens/s, 50.0% of peak, 2 min left" in said
    assert "expected time: 3 min" in said
    assert "step 30/100:" not in said


def test_tensorboard_and_other_trackers_get_the_same_numbers(follow, tmp_path):
    other = Recorder("run")
    lines = follow(20, validation=(10,), others=[other])
    assert [(line.pop("step"), line) for line in lines] == other.lines
    assert other.finished
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("loss", "tokens_per_second", "validation_bits_per_hidden_base"):
        points = [(point.step, point.value) for point in board.Scalars(name)]
        assert points == [(step, pytest.approx(n[name])) for step, n in other.lines if name in n]


def test_a_tracker_is_opened_by_name_with_the_settings_of_the_run():
    register_tracker_class(Recorder)
    config = PretrainConfig(output="out", data=["a", "b"], trackers=["recorder"], steps=7)
    check_trackers(config.trackers)
    accelerator = Accelerator(cpu=True, log_with=config.trackers)
    (tracker,) = start_trackers(accelerator, config)
    assert (tracker.name, tracker.run_name) == ("recorder", "strandlm")
    assert tracker.settings["steps"] == 7
    assert tracker.settings["optimizer.learning_rate"] == 1e-3
    assert tracker.settings["data"] == "['a', 'b']"
    assert tracker.settings["start_from"] == "None"
    assert {type(value) for value in tracker.settings.values()} <= {int, float, str, bool}
    assert start_trackers(Accelerator(cpu=True), config) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("wandbb", "trackers: Accelerate knows no 'wandbb'; known: aim, "),
        ("all", "trackers: Accelerate knows no 'all'"),
        ("swanlab", "trackers: swanlab is not installed; install it, or leave it out"),
        ("tensorboard", "trackers: tensorboard is always written"),
    ],
)
def test_trackers_that_cannot_be_used_are_refused(name, problem, monkeypatch):
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        check_trackers([name])
    assert "\n" not in str(error.value)


def test_a_resumed_log_has_no_line_twice(follow, tmp_path):
    whole = follow(60, steps=60)
    assert [line["step"] for line in whole] == [10, 20, 30, 40, 50, 60]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6')
    resumed = follow(60, steps=60, begin=30)
    assert resumed == whole


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7170, "2 h 00 min"),
        (11_100, "3 h 05 min"),
        (2e5, "2 d 7 h"),
    ],
)
def test_times_for_people(seconds, text):
    assert duration(seconds) == text
