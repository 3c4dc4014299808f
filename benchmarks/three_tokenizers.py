"""Bits per hidden base of the DNA tokenizers on one genome: same hidden runs, same network, one table.

    python benchmarks/three_tokenizers.py genome.fna.gz --output three

Each tokenizer has a folder; what is there already is not done again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline import encode, evaluate, prepare, pretrain
from pipeline.config import EvaluateConfig, ModelConfig, PrepareConfig, PretrainConfig, TokenizeConfig

TOKENIZERS = ("dna-1mer", "dna-3mer-overlap", "dna-6mer-overlap", "dna-6mer")
SHAPE = ModelConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4)
WINDOW = 510  # a multiple of six
NUMBERS = ("value", "standard_error", "joint", "single", "baseline", "single_baseline", "random")


def scores(corpus: Path, tokenizer: str, folder: Path, letters: int, **training: Any) -> dict[str, Any]:
    """Return the scores on the test split of a network trained with a tokenizer.

    Args:
        corpus: folder written by prepare.
        tokenizer: name of a tokenizer that comes with strandlm.
        folder: where its tokens, checkpoint and scores go.
        letters: test letters read, of which 15 % are hidden.
        **training: settings of pretrain.
    """
    tokens, checkpoint = folder / "tokens", folder / "checkpoint"
    encode.run(TokenizeConfig(output=tokens, corpus=corpus, tokenizer=tokenizer))
    settings = {"model": SHAPE, "window": WINDOW, "count_model": False, "evaluation_bases": 20_400} | training
    pretrain.run(PretrainConfig(output=checkpoint, data=tokens, **settings))
    scored = EvaluateConfig(
        output=folder / "scores", checkpoint=checkpoint, data=[tokens], window=WINDOW, letters=letters
    )
    return evaluate.run(scored).metrics()["bits_per_hidden_base"]


def print_table(results: dict[str, dict[str, Any]], title: str) -> None:
    """Print a row for each tokenizer, and all of it as one line of JSON."""
    table = Table(title=title, box=None)
    table.add_column("tokenizer")
    for name in ("hidden letters", *NUMBERS, "comparable"):
        table.add_column(name.replace("_", " "), justify="right")
    for tokenizer, row in results.items():
        numbers = (f"{row[name]:.4f}" if name in row else "" for name in NUMBERS)
        comparable = "yes" if row["comparable"] else "no"
        table.add_row(tokenizer, str(row["hidden_letters"]), *numbers, comparable)
    Console(width=160).print(table)
    print(json.dumps(results))


def arguments(parser: argparse.ArgumentParser, steps: int, letters: int) -> argparse.Namespace:
    """Return the command line's values, with what both benchmarks have in common."""
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--tokens-per-step", type=int, default=8192)
    parser.add_argument("--letters", type=int, default=letters, help="test letters read")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("genome", type=Path)
    given = arguments(parser, steps=400, letters=200_000)
    corpus = given.output / "corpus"
    prepare.run(PrepareConfig(output=corpus, input=[given.genome], block=20_400, seed=given.seed))
    training = {"steps": given.steps, "tokens_per_step": given.tokens_per_step, "seed": given.seed}
    results = {
        name: scores(corpus, name, given.output / name, given.letters, **training) for name in TOKENIZERS
    }
    assert len({row["hidden_letters"] for row in results.values()}) == 1
    assert all(row["comparable"] for row in results.values())
    print_table(results, f"{given.genome.name}, {given.steps} steps: bits per hidden base")


if __name__ == "__main__":
    main()
