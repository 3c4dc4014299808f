"""Six planted motifs, found again: simulated data, everything from letters to the stage motifs.

    python benchmarks/motif_truth.py --output motif-truth            # five seeds
    python benchmarks/motif_truth.py --output smoke --seeds 1 --rows 200 --steps 5 --epochs 1

Positives are random bases with four motifs, each in half of them, anywhere in its part of the window, and two
more that occur only together, a fixed number of bases apart, also in half of them. Negatives are random
bases. The language model, the classifier and the motifs are made by the stages of strandlm. One result file
for each seed; what is finished is not made again. Target: 27 of 30 motifs at q < 0.05, the spacing to +-1.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline import encode, finetune, motifs, prepare, pretrain
from pipeline.artifacts import write_json
from pipeline.attention.evidence import site_auroc
from pipeline.attention.motif_files import write_meme
from pipeline.config import (
    FinetuneConfig,
    ModelConfig,
    MotifsConfig,
    OptimizerConfig,
    PrepareConfig,
    PretrainConfig,
    TokenizeConfig,
)
from pipeline.worlds import BASES, draw, to_text
from pipeline.worlds.matrices import sample_decoys

WIDTH, SHARE = 8, 0.85  # of a motif; of its consensus base in each column
SLOT = 20  # bases of the part of the window that a motif lies in
SINGLE, PAIR, SPACING = ("single1", "single2", "single3", "single4"), ("first", "second"), 9
WINDOW = SLOT * len(SINGLE) + 2 * SLOT
DECOYS = 200


def planted(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return six matrices (W, 4) of random consensus words."""
    found = {}
    for name in (*SINGLE, *PAIR):
        matrix = np.full((WIDTH, 4), (1 - SHARE) / 3)
        matrix[np.arange(WIDTH), rng.integers(4, size=WIDTH)] = SHARE
        found[name] = matrix
    return found


def row(
    matrices: dict[str, np.ndarray], rng: np.random.Generator, positive: bool
) -> tuple[str, dict[str, int]]:
    """Return a window, and where each motif begins in it."""
    code_L = rng.integers(4, size=WINDOW)
    starts: dict[str, int] = {}
    if positive:
        room = SLOT - WIDTH + 1
        held = {name: SLOT * i + int(rng.integers(room)) for i, name in enumerate(SINGLE)}
        starts = {name: start for name, start in held.items() if rng.random() < 0.5}
        if rng.random() < 0.5:
            begin = SLOT * len(SINGLE) + int(rng.integers(2 * SLOT - 2 * WIDTH - SPACING + 1))
            starts |= dict(zip(PAIR, (begin, begin + WIDTH + SPACING), strict=True))
    for name, start in starts.items():
        for place, column in enumerate(matrices[name]):
            code_L[start + place] = draw(rng, column, 1)[0]
    return to_text(code_L, BASES), starts


def simulate(folder: Path, rows: int, seed: int) -> dict[str, dict[str, int]]:
    """Write rows.tsv and database.meme; return by id where each positive has its motifs."""
    rng = np.random.default_rng(seed)
    matrices, truth, table = planted(rng), {}, []
    for number in range(2 * rows):
        letters, starts = row(matrices, rng, number % 2 == 0)
        name, kind = f"simulated_{number}", "yes" if number % 2 == 0 else "no"
        truth |= {name: starts} if starts else {}
        split = "train" if number % 10 < 6 else "validation" if number % 10 < 7 else "test"
        table.append((name, letters, kind, split))
    folder.mkdir(parents=True, exist_ok=True)
    columns = ["id", "sequence", "class", "split"]
    pd.DataFrame(table, columns=columns).to_csv(folder / "rows.tsv", sep="\t", index=False)
    database = matrices | sample_decoys(DECOYS, rng)
    write_meme(folder / "database.meme", database, dict.fromkeys(database, rows))
    return truth


def trained(folder: Path, options, seed: int) -> tuple[Path, Path]:
    """Return the corpus and a classifier of it, made if need be."""
    columns = {"label_column": "class", "split_column": "split"}
    corpus = prepare.run(
        PrepareConfig(output=folder / "corpus", input=[folder / "rows.tsv"], **columns)
    ).folder
    tokenizer = "dna-3mer-overlap"
    tokens = encode.run(TokenizeConfig(output=folder / "tokens", corpus=corpus, tokenizer=tokenizer)).folder
    model = pretrain.run(
        PretrainConfig(
            output=folder / "model",
            data=tokens,
            window=WINDOW,
            steps=options.steps,
            tokens_per_step=4096,
            seed=seed,
            model=ModelConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4),
            optimizer=OptimizerConfig(learning_rate=2e-3, warmup=max(1, options.steps // 10)),
        )
    ).folder
    how: dict[str, Any] = {"epochs": options.epochs, "learning_rate": 1e-3, "untrained_control": False}
    how |= {"controls": [], "allow_collapse": options.epochs < 2}
    config = FinetuneConfig(
        output=folder / "classifier", checkpoint=model, data=corpus, positive="yes", seed=seed, **how
    )
    return corpus, finetune.run(config).folder


def spacing(folder: Path) -> int | None:
    """Return the bases found between the motifs of the pair, in the columns that were planted."""
    found = json.loads((folder / "motifs.json").read_text())
    of = {m["best_hit"]["target"]: m for m in found if m["best_hit"]}
    if not set(PAIR) <= of.keys():
        return None
    first, second = (of[name] for name in PAIR)
    pairs = pd.read_csv(folder / "pairs.tsv", sep="\t")
    mine = pairs[(pairs["first"] == first["name"]) & (pairs["second"] == second["name"])]
    if mine.empty or not mine["q_value"].iloc[0] < 0.05:
        return None
    shift = len(first["matrix"]) + first["best_hit"]["offset"] - WIDTH - second["best_hit"]["offset"]
    return int(mine["spacing"].iloc[0]) + shift


def areas(folder: Path, truth: dict[str, dict[str, int]]) -> dict[str, dict[str, float]]:
    """Return by motif and head the AUROC of attention at planted sites, positions apart."""
    held = np.load(folder / "examples.npz")
    attention = dict(zip(held["heads"].tolist(), held["attention"], strict=True))
    starts = [truth.get(name, {}) for name in held["ids"].tolist()]
    found = {}
    for motif in (*SINGLE, *PAIR):
        sites = [[(each[motif], each[motif] + WIDTH)] if motif in each else [] for each in starts]
        areas = site_auroc({head: list(score_NL) for head, score_NL in attention.items()}, sites)
        found[motif] = {head: round(area.auroc, 4) for head, area in areas.items()}
    return found


def one_seed(folder: Path, options, seed: int) -> dict[str, Any]:
    """Return what was found of a world, and what the controls gave."""
    truth = simulate(folder, options.rows, seed)
    corpus, classifier = trained(folder, options, seed)
    names = [*SINGLE, *PAIR]
    config = MotifsConfig(
        output=folder / "motifs",
        checkpoint=classifier,
        data=corpus,
        positive="yes",
        q_value=0.05,
        database=[folder / "database.meme"],
        expected=names,
        max_motifs=12,
        seed=seed,
    )
    result = motifs.run(config)
    metric = result.metrics()["motifs_recovered"]
    return {
        "simulated": True,
        "seed": seed,
        "classifier_auroc": finetune_area(classifier),
        "found": metric["found"],
        "motifs": metric["motifs"],
        "spacing": spacing(result.folder),
        "planted_spacing": SPACING,
        "controls": metric["controls"],
        "auroc_at_planted_sites": areas(result.folder, truth),
    }


def finetune_area(classifier: Path) -> float:
    """Return the AUROC of the classifier on its test rows."""
    return json.loads((classifier / "metrics.json").read_text())["yes_auroc"]["value"]


def main() -> None:
    """Run all seeds and print one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4000, help="positives, and as many negatives")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    results = []
    for seed in range(options.seeds):
        path = options.output / f"seed-{seed}.json"
        if not path.is_file():
            result = one_seed(options.output / f"seed-{seed}", options, seed)
            write_json(path, result)
        results.append(json.loads(path.read_text()))
    right = [r["spacing"] is not None and abs(r["spacing"] - SPACING) <= 1 for r in results]
    found = sum(len(r["found"]) for r in results)
    of = len(results) * (len(SINGLE) + len(PAIR))
    blind = sum(r["controls"]["no_attention"]["recovered"] for r in results)
    line = {
        "simulated": True,
        "found": found,
        "of": of,
        "spacings_right": sum(right),
        "without_attention": blind,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
