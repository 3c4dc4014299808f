"""Attention kernels on one CPU thread: nanoseconds per score, forward and backward.

    python benchmarks/attention.py

The kernels take turns within one run, and CPU time is counted, so that ratios hold on a shared machine: 320
channels, 2048 tokens in sequences of one length, packed for our kernel and as a batch for SDPA.
"""

import argparse
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.model.attention_strand import cpu_attention

CHANNELS, TOKENS = 320, 2048


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


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
