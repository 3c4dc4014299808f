"""What starting k-mers as sums of their letters gives: bits per hidden base with and without, over seeds.

    python benchmarks/composed_kmers.py --output composed --seeds 1 2 3

Both variants train on the same simulated genome with the same batches and masks, interleaved in one process.
"""

import argparse
import json
from pathlib import Path
from unittest import mock

import numpy as np

from pipeline import encode, prepare, pretrain, simulate
from pipeline.config import (
    ModelConfig,
    OptimizerConfig,
    PrepareConfig,
    PretrainConfig,
    SimulateConfig,
    TokenizeConfig,
)

SHAPE = ModelConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4)


def tokens(folder: Path) -> Path:
    """Return the token folder of a simulated genome in overlapping 6-mers."""
    simulate.run(SimulateConfig(output=folder / "world", seed=1))
    genome = folder / "world" / "genome.fa"
    prepare.run(PrepareConfig(output=folder / "corpus", input=[genome], block=2000, test=0.1, seed=1))
    encode.run(
        TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer="dna-6mer-overlap")
    )
    return folder / "tokens"


def bits(data: Path, output: Path, seed: int, steps: int) -> dict[str, float]:
    """Return the scores of one run on the test split."""
    config = PretrainConfig(
        output=output,
        data=data,
        seed=seed,
        model=SHAPE,
        optimizer=OptimizerConfig(learning_rate=2e-3),
        window=128,
        steps=steps,
        tokens_per_step=2048,
        evaluate_every=steps,
        log_every=steps,
    )
    return pretrain.run(config).metrics()["bits_per_hidden_base"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    data = tokens(arguments.output)
    found: dict[str, list[float]] = {"composed": [], "independent": []}
    for seed in arguments.seeds:
        scores = bits(data, arguments.output / f"composed-{seed}", seed, arguments.steps)
        found["composed"].append(scores["value"])
        with mock.patch("pipeline.training.initialise.compose_kmers"):
            scores = bits(data, arguments.output / f"independent-{seed}", seed, arguments.steps)
        found["independent"].append(scores["value"])
    summary = {name: {"mean": np.mean(v), "sd": np.std(v, ddof=1), "values": v} for name, v in found.items()}
    summary |= {"composition": scores["random"], "two_sided_counts": scores["baseline"]}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
