"""Runs that two processes take together: all in one launch, because starting is what takes time.

    python -m torch.distributed.run --standalone --nproc_per_node 2 two_processes.py FOLDER

Every FOLDER/*.json is a configuration. In the run "interrupted", the second process gets a SIGTERM in step
12; in "spoilt", the second process makes a batch with a number that is none.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

import pipeline.pretrain
from pipeline.config import PretrainConfig
from pipeline.training import loop

second = os.environ.get("RANK") == "1"


def interrupted(config: PretrainConfig) -> None:
    """Take the steps up to the one in which the signal comes."""
    step = loop._step

    def step_with_signal(*arguments):
        progress = arguments[4]
        if second and progress.step == 11:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    loop._step = step_with_signal
    with pytest.raises(SystemExit, match=str(loop.STOPPED)):
        pipeline.pretrain.run(config)
    loop._step = step


def spoilt(config: PretrainConfig) -> None:
    """Spoil one batch: that of the second of several processes, or the only one's."""
    batches, calls = loop._own_batches, []

    def spoil(*arguments):
        own = batches(*arguments)
        calls.append(own)
        if len(calls) == 5 and (second or "RANK" not in os.environ):
            own[0].weights[0] = float("nan")
        return own

    loop._own_batches = spoil
    try:
        pipeline.pretrain.run(config)
    finally:
        loop._own_batches = batches


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        how = {"interrupted": interrupted, "spoilt": spoilt}.get(path.stem, pipeline.pretrain.run)
        how(PretrainConfig.model_validate_json(path.read_text()))
