"""Whether a run that is killed, runs out of disk, loses a checkpoint or meets a NaN ends as if undisturbed.

    python benchmarks/faults.py --kills 20

A small network is trained on random DNA, saving after every step. It is killed with SIGKILL at random
moments, every other time in the middle of a save; the disk gets full during a save (a small tmpfs, for root
only); a bit is changed in each file of the newest checkpoint in turn; a gradient is made NaN. After each of
these no folder may look like a complete checkpoint without being one, and the next start has to go on from
the newest complete one. The weights, the optimizer's state and the log of the end have to be those of the
undisturbed run, bit for bit.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import pipeline.encode
import pipeline.prepare
import pipeline.pretrain
from pipeline.cli import main as strandlm
from pipeline.config import ModelConfig, OptimizerConfig, PrepareConfig, PretrainConfig, TokenizeConfig
from pipeline.training import checkpoints, loop

STEPS = 40


def tokens(folder: Path) -> Path:
    """Return a token folder of random DNA in overlapping 3-mers."""
    rng = np.random.default_rng(0)
    records = ["".join(rng.choice(list("ACGT"), size)) for size in rng.integers(20, 200, 80)]
    (folder / "r.fa").write_text("".join(f">r{i}\n{record}\n" for i, record in enumerate(records)))
    pipeline.prepare.run(PrepareConfig(output=folder / "corpus", input=[folder / "r.fa"], test=0))
    config = TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer="dna-3mer-overlap")
    return pipeline.encode.run(config).folder


def small_run(data: Path, output: Path) -> PretrainConfig:
    """Return the configuration of a run of a second or two that saves after every step."""
    return PretrainConfig(
        output=output,
        data=data,
        model=ModelConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2),
        optimizer=OptimizerConfig(warmup=5, learning_rate=3e-3),
        steps=STEPS,
        window=80,
        tokens_per_step=600,
        evaluate_every=10,
        evaluation_bases=200,
        checkpoint_every=1,
        log_every=1,
        count_model=False,
    )


class Child:
    """A run in a process of its own, forked so that nothing has to be imported again."""

    def __init__(self, config: PretrainConfig, spoil_call: int | None = None):
        self.config = config
        self.partial = config.output.with_name(f".{config.output.name}.partial")
        self.log = config.output.with_suffix(".log")
        self.path = config.output.with_suffix(".json")
        self.path.write_text(config.model_dump_json(exclude_none=True))
        self.began = time.time_ns()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(spoil_call)

    def _work(self, spoil_call: int | None) -> None:
        code = 1
        try:
            os.dup2(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            if spoil_call is not None:
                spoil(spoil_call)
            strandlm(["pretrain", "--config", str(self.path)])
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            os._exit(code)

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def saving(self) -> bool:
        """Whether a checkpoint is being written, or was when the process died."""
        with contextlib.suppress(FileNotFoundError):
            return any(p.stat().st_mtime_ns > self.began for p in self.partial.glob("checkpoints/*.partial"))
        return False

    def kill(self, delay: float, when_saving: bool) -> int:
        """Kill the process after a delay, or in the first save after it; return the exit code."""
        end = time.monotonic() + delay
        while time.monotonic() < end or (when_saving and not self.saving()):
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def resumed_from(self) -> str:
        """Return the checkpoint that the run said it went on from."""
        found = re.search(r"resumed from (step-\d+)", self.log.read_text())
        return found[1] if found else "the start"


def spoil(position: int) -> None:
    """Put a NaN into the batches of one place in the plan."""
    gradients = loop._gradients

    def spoilt(run, model, windows, config, seed):
        total = gradients(run, model, windows, config, seed)
        if seed - config.seed == position:
            next(model.parameters()).grad[0] = float("nan")
        return total

    loop._gradients = spoilt


def newest(partial: Path) -> str:
    """Return the newest complete checkpoint; whatever looks like one has to be one."""
    folders = sorted(path for path in partial.glob("checkpoints/step-*") if not path.suffix)
    for path in folders:
        assert checkpoints.damage(path) is None, path
    return folders[-1].name if folders else "the start"


def ending(folder: Path) -> tuple[bytes, bytes, list[dict]]:
    """Return the weights, the optimizer's state and the log of a finished run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    log = [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]
    last = folder / f"checkpoints/step-{STEPS:06d}"
    return (
        (folder / "model.safetensors").read_bytes(),
        (last / "optimizer.safetensors").read_bytes(),
        log,
    )


def undisturbed(config: PretrainConfig, spoil_call: int | None = None):
    """Return the ending of a run that nothing happens to, and how long it took."""
    began = time.monotonic()
    assert Child(config, spoil_call).wait() == 0
    return ending(config.output), time.monotonic() - began


def finish(config: PretrainConfig, expected, spoil_call: int | None = None) -> None:
    """Run to the end; compare."""
    start = newest(config.output.with_name(f".{config.output.name}.partial"))
    child = Child(config, spoil_call)
    assert child.wait() == 0, child.log.read_text()
    assert child.resumed_from() == start
    assert ending(config.output) == expected
    shutil.rmtree(config.output)


def killed(config: PretrainConfig, expected, seconds: float, kills: int, rng: random.Random) -> Counter:
    """Kill a run again and again; when it gets to its end, compare and begin anew."""
    count: Counter = Counter()
    while count["kills"] < kills:
        start = newest(config.output.with_name(".run.partial"))
        child = Child(config)
        code = child.kill(rng.uniform(0, seconds), when_saving=count["kills"] % 2 == 0)
        if code == 0:
            assert ending(config.output) == expected
            shutil.rmtree(config.output)
            count["runs"] += 1
            continue
        assert code == -signal.SIGKILL
        trained = re.search(r"^step \d+/", child.log.read_text(), re.MULTILINE)
        assert not trained or child.resumed_from() == start
        count["kills after a step was taken"] += bool(trained)
        count["kills"] += 1
        count["kills during a save"] += child.saving()
        count["kills before the first checkpoint"] += newest(child.partial) == "the start"
    finish(config, expected)
    count["runs"] += 1
    return count


def interrupted(config: PretrainConfig, steps: int, spoil_call: int | None = None) -> Path:
    """Let a run go on until some steps are saved, and kill it; return its unfinished folder."""
    child = Child(config, spoil_call)
    while not (child.partial / f"checkpoints/step-{steps:06d}").exists():
        time.sleep(0.002)
    assert child.kill(0, when_saving=False) == -signal.SIGKILL
    return child.partial


def damaged(config: PretrainConfig, expected) -> Counter:
    """Change one bit of each file of the newest checkpoint in turn."""
    count: Counter = Counter()
    while True:
        partial = interrupted(config, 5)
        path = partial / "checkpoints" / newest(partial)
        files = sorted(path.iterdir())
        if count["damaged files"] == len(files):
            finish(config, expected)
            return count
        flip(files[count["damaged files"]])
        child = Child(config)
        assert child.wait() == 0
        assert f"{path}: passed over: " in child.log.read_text()
        assert child.resumed_from() not in (path.name, "the start")
        assert ending(config.output) == expected
        shutil.rmtree(config.output)
        count["damaged files"] += 1


def flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def full_disk(config: PretrainConfig, expected, sizes: range) -> Counter:
    """Run on disks of several sizes (kB) until they are full, then enlarge them and go on."""
    count: Counter = Counter()
    for size in sizes if os.geteuid() == 0 else ():
        disk = config.output.parent / f"disk-{size}"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True).returncode:
            break
        try:
            there = config.model_copy(update={"output": disk / "run", "keep_checkpoints": -1})
            child = Child(there)
            assert child.wait() == 2, child.log.read_text()
            last_line = child.log.read_text().splitlines()[-1]
            assert "the disk is full; free some space and run again" in last_line, last_line
            subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
            finish(there, expected)
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        count["full disks"] += 1
    return count


def not_a_number(config: PretrainConfig) -> Counter:
    """Spoil a step; kill the run before, in and after it."""
    position, count = 12, Counter()
    whole = config.model_copy(update={"output": config.output.with_name("spoilt")})
    expected, _ = undisturbed(whole, position)
    (skipped,) = [line for line in expected[2] if "skipped" in line]
    assert skipped["step"] == position + 1
    for steps in (8, 12, 16):
        interrupted(config, steps, position)
        finish(config, expected, position)
        count["spoilt runs"] += 1
    return count


def main() -> None:
    """Do everything in a temporary folder; print a table and a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = small_run(tokens(folder), folder / "run")
        expected, seconds = undisturbed(config.model_copy(update={"output": folder / "whole"}))
        rng = random.Random(arguments.seed)
        count = killed(config, expected, seconds, arguments.kills, rng)
        count += damaged(config, expected)
        count += full_disk(config, expected, range(700, 1500, 100))
        count += not_a_number(config)
    print("| fault | times |\n|---|---|")
    for what, times in count.items():
        print(f"| {what} | {times} |")
    print(json.dumps({"seconds_undisturbed": round(seconds, 1)} | count))


if __name__ == "__main__":
    main()
