"""Attention on one CPU thread: kernels for training, and capturing what heads attend to.

    python benchmarks/attention.py             nanoseconds per score, forward and backward
    python benchmarks/attention.py capture     memory and time of capturing; the last line is JSON

What is compared takes turns within one run, and CPU time is counted, so that ratios hold on a shared machine.
The kernels have 320 channels and 2048 tokens in sequences of one length, packed for our kernel and as a batch
for SDPA. Capturing reads one sequence of 1024 tokens with a network of ESM-2-8M's shape, 6 layers of 20
heads: ``all`` and ``cls`` give the attention that each token gets from all tokens or from the first, ``maps``
the mean of all corrected maps, and ``eager`` is the same network with ``output_attentions=True``, whose maps
are then not even used. Memory is the most that a process of its own had above what it had before (VmHWM,
reset after a short warm-up, less VmRSS, of /proc; Linux only). The JSON line has the worse of ``all`` and
``cls`` against ``eager``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention.capture import received_attention
from pipeline.attention.maps import weighted_maps
from pipeline.model import StrandConfig, StrandModel
from pipeline.model.attention_strand import cpu_attention

CHANNELS, TOKENS = 320, 2048
LENGTH, LAYERS, HEADS = 1024, 6, 20
WAYS = ("eager", "all", "cls", "maps")


def step(kernel: str, dtype: torch.dtype, length: int, head_size: int):
    """Return a function that runs one forward and backward pass."""
    B, H = max(1, TOKENS // length), CHANNELS // head_size
    qkv = [torch.randn(B, H, length, head_size, dtype=dtype).requires_grad_() for _ in range(3)]
    up, scale = torch.randn(B, length, H, head_size, dtype=dtype), head_size**-0.5
    offsets = torch.arange(0, B * length + 1, length)
    packed = [x.detach().transpose(0, 1).reshape(1, H, -1, head_size).requires_grad_() for x in qkv]

    def sdpa():
        mixed = scaled_dot_product_attention(*qkv, scale=scale).transpose(1, 2)
        torch.autograd.grad(mixed, qkv, up)

    def ours():
        mixed, _ = cpu_attention(None, *packed, None, scale, sequence_offsets=offsets)
        torch.autograd.grad(mixed, packed, up.view(mixed.shape))

    return {"sdpa": sdpa, "strand_cpu": ours}[kernel]


def seconds(steps: dict, repeats: int) -> dict:
    """Return the median CPU time of each step, which take turns."""
    taken = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, run in steps.items():
            start = time.process_time()
            run()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def table(repeats: int) -> None:
    """Print a row for each head size and length."""
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    names = [(kernel, short) for short in types for kernel in ("sdpa", "strand_cpu")]
    print("head  length  " + "  ".join(f"{k} {t}" for k, t in names) + "  sdpa / strand_cpu in fp32, bf16")
    for head_size in (16, 32, 64):
        for length in (128, 350, 512, 1024):
            torch.manual_seed(0)
            steps = {name: step(name[0], types[name[1]], length, head_size) for name in names}
            taken = seconds(steps, repeats)
            scores = max(1, TOKENS // length) * CHANNELS // head_size * length**2
            row = "  ".join(f"{taken[name] / scores * 1e9:10.2f}" for name in names)
            ratios = (taken["sdpa", short] / taken["strand_cpu", short] for short in types)
            print(f"{head_size:4d}  {length:6d}  {row}  " + "  ".join(f"{x:.2f}" for x in ratios), flush=True)


# -- capturing


def captures(length: int) -> dict[str, Callable[[], object]]:
    """Return functions that read one sequence in each way, with the same network."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * CHANNELS}
    model = StrandModel(StrandConfig(vocab_size=33, hidden_size=CHANNELS, **shape)).eval()
    ids = torch.randint(5, 33, (1, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    mean = np.full(LAYERS * HEADS, 1 / (LAYERS * HEADS), np.float32)

    @torch.no_grad()
    def eager():
        model.set_attn_implementation("eager")
        assert len(model(**inputs, output_attentions=True).attentions) == LAYERS

    return {
        "eager": eager,
        "all": lambda: received_attention(model, inputs, "all"),
        "cls": lambda: received_attention(model, inputs, "cls"),
        "maps": lambda: weighted_maps(model, inputs, [np.arange(1, length - 1)], mean),
    }


def status(field: str) -> float:
    """Return a field of this process's memory in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def peak(way: str) -> float:
    """Return the most MiB that reading the sequence takes above what is there before."""
    captures(64)[way]()
    run = captures(LENGTH)[way]
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is what there is now
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def compare(repeats: int) -> None:
    """Print memory and CPU time of each way, and how they compare."""
    command = [sys.executable, __file__, "capture", "--peak-of"]
    memory = {w: float(subprocess.check_output([*command, w], text=True).split()[-1]) for w in WAYS}
    taken = seconds(captures(LENGTH), repeats)
    for way in WAYS:
        print(f"{way:6s} {memory[way]:7.1f} MiB  {taken[way]:6.3f} s of CPU time")
    saving = min(memory["eager"] / memory[way] for way in ("all", "cls"))
    ratio = min(taken["eager"] / taken[way] for way in ("all", "cls"))
    print(json.dumps({"memory_saving": round(saving, 1), "speed_ratio": round(ratio, 2)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("what", choices=("kernels", "capture"), nargs="?", default="kernels")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peak-of", choices=WAYS, help="MiB of one way of capturing, alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak_of:
        print(peak(arguments.peak_of))
    elif arguments.what == "capture":
        compare(arguments.repeats)
    else:
        table(arguments.repeats)


if __name__ == "__main__":
    main()
