"""Uniform random DNA, where nothing can be predicted: every tokenizer has to come to 2 bits a base.

    python benchmarks/random_dna.py --output random

It trains a network with each DNA tokenizer that comes with strandlm and scores it on 100,000 hidden bases,
and exits with 1 if one with fixed k is more than 0.01 off, or more than three standard errors below. Byte
pairs are reported, not judged. Each tokenizer has a folder; what is there already is not done again.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from three_tokenizers import arguments, print_table, scores

from pipeline import prepare
from pipeline.config import PrepareConfig
from pipeline.resources import resource
from pipeline.tokens.kmers import read_facts

BASES, RECORD = 2_000_000, 20_400


def simulate(path: Path, seed: int) -> Path:
    """Write a FASTA file of uniform random DNA."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, BASES, RECORD):
            letters = np.frombuffer(b"ACGT", np.uint8)[rng.integers(0, 4, RECORD)]
            file.write(b">simulated%d\n%s\n" % (start, letters.tobytes()))
    return path


def verdict(row: dict[str, Any]) -> str | None:
    """Return what is wrong with the bits of a tokenizer on random DNA, if anything is."""
    bits, error = row["value"], row["standard_error"]
    if not row["comparable"]:
        return None
    if bits < 2 - 3 * error:
        return f"{bits:.4f} bits is more than three standard errors ({error:.4f}) below 2: something leaks"
    return f"{bits:.4f} bits is not within 0.01 of 2" if abs(bits - 2) > 0.01 else None


def main() -> None:
    given = arguments(argparse.ArgumentParser(description=str(__doc__).splitlines()[0]), 500, 680_000)
    fasta, corpus = simulate(given.output / "random.fa", given.seed), given.output / "corpus"
    prepare.run(PrepareConfig(output=corpus, input=[fasta], test=0.4, validation=0.02, seed=given.seed))
    training = {"steps": given.steps, "tokens_per_step": given.tokens_per_step, "seed": given.seed}
    shipped = sorted(folder for folder in resource("tokenizers").iterdir() if folder.is_dir())
    names = [folder.name for folder in shipped if read_facts(folder)["alphabet"] == "dna"]
    results = {name: scores(corpus, name, given.output / name, given.letters, **training) for name in names}
    print_table(results, f"uniform random DNA, {given.steps} steps: bits per hidden base")
    wrong = {name: verdict(row) for name, row in results.items() if verdict(row)}
    if wrong:
        raise SystemExit("\n".join(f"{name}: {problem}" for name, problem in wrong.items()))


if __name__ == "__main__":
    main()
