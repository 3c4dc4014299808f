"""How the cost of our training step grows with length and with size, beside what its FLOPs predict.

    python benchmarks/scaling.py

Random tokens, packed rows of 2048 tokens in sequences of one length, head size 64, SwiGLU, forward, backward
and fused AdamW. The lengths are measured with 320 channels and 6 layers, the sizes at length 256. Expected
is the speed of a row if it ran at the table's best FLOP/s: 6 FLOPs for each weight and 12 L D for attention
in each layer. With one thread CPU time is counted; with more, time on the clock.
"""

import argparse
import json

import torch
from training import TYPES, VOCABULARY, Batch, Trainer, in_turns

from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.training.estimate import flops_per_token

TOKENS, TARGETS = 2048, 0.15
LENGTHS = (128, 256, 512, 1024, 2048)
SIZES = ((128, 5), (256, 4), (384, 6), (512, 8), (704, 9))  # channels and layers: 1 M to 50 M weights


def network(width: int, layers: int):
    """Return a network with heads of 64 channels."""
    config = StrandConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=width * 8 // 3 // 8 * 8,
        max_position_embeddings=TOKENS,
    )
    return StrandForMaskedLM(config)


def row(length: int) -> Batch:
    """Return a packed row of random tokens."""
    ids, places = torch.randint(4, 24, (1, TOKENS)), torch.randperm(TOKENS)[: int(TARGETS * TOKENS)]
    offsets = torch.arange(0, TOKENS + 1, length)
    inputs = {"input_ids": ids, "sequence_offsets": offsets, "target_positions": places}
    return Batch(inputs, ids[0, places], TOKENS, TOKENS)


def curve(cases: list[tuple[int, int, int]], kind: str, rounds: int) -> list[dict[str, float]]:
    """Print and return the measured and the expected speed of (width, layers, length) each."""
    runners = {case: Trainer(network(*case[:2]), [row(case[2])], TYPES[kind]) for case in cases}
    taken = in_turns(runners, 1, rounds)
    work = {c: TOKENS * flops_per_token(run.model, c[2], TARGETS, 1) for c, run in runners.items()}
    best = max(work[case] / taken[case] for case in cases)
    print("| parameters | length | tokens/s | expected | GFLOP/s |\n|---|---|---|---|---|")
    rows = []
    for case, run in runners.items():
        size, speed = sum(p.numel() for p in run.model.parameters()), TOKENS / taken[case]
        expected, rate = TOKENS * best / work[case], work[case] / taken[case] / 1e9
        print(f"| {size / 1e6:.1f} M | {case[2]} | {speed:.0f} | {expected:.0f} | {rate:.0f} |")
        numbers = {"tokens_per_s": round(speed), "expected": round(expected)}
        rows.append({"parameters": size, "length": case[2], **numbers})
    print()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--type", choices=TYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    lengths = curve([(320, 6, length) for length in LENGTHS], options.type, options.rounds)
    sizes = curve([(*size, 256) for size in SIZES], options.type, options.rounds)
    print(json.dumps({"threads": options.threads, "by_length": lengths, "by_size": sizes}))


if __name__ == "__main__":
    main()
