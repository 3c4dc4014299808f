"""Single-base changes that break a promoter's box, ranked by what they do to the scores of a network.

    strandlm run --config configs/demo.yaml --output demo-run
    python benchmarks/variants.py demo-run --output variants

``demo-run`` gives the language model and the classifier of a simulated world. New promoters of that world
are drawn, with their boxes where they are known to be. Changes of a box's consensus base break it; those of a
base outside of both boxes are neutral. The optimum ranks by the change of the exact log odds of the window
(promoter against everything else).
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline import score
from pipeline.artifacts import write_json
from pipeline.config import ScoreConfig
from pipeline.worlds import BASES, to_text
from pipeline.worlds.genome import WINDOW
from pipeline.worlds.promoters import BOX, CONSENSUS, auroc, layouts, log_odds, sample_windows

SEEDS = (1, 2, 3)


def promoters(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return windows (N, W) of base codes and where the two boxes of each begin (N, 2)."""
    layout = layouts(WINDOW)["promoter"]
    starts_N2 = layout.starts[rng.choice(len(layout.weights), count, p=layout.weights / layout.weights.sum())]
    placed = [
        replace(layout, starts=pair[None], tss=np.zeros(1, int), weights=np.ones(1)) for pair in starts_N2
    ]
    return np.concatenate([sample_windows(one, 1, WINDOW, rng)[0] for one in placed]), starts_N2


def changes(codes_NW: np.ndarray, starts_N2: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Return one breaking and one neutral change for each window that has a consensus base to break."""
    rows = []
    for number, (codes_W, starts) in enumerate(zip(codes_NW, starts_N2, strict=True)):
        in_box = {
            at + i: text[i] for at, text in zip(starts, CONSENSUS.values(), strict=True) for i in range(BOX)
        }
        consensus = [at for at, letter in in_box.items() if BASES[codes_W[at]] == letter]
        outside = np.setdiff1d(np.arange(WINDOW), list(in_box))
        for breaks, places in ((True, consensus), (False, outside)):
            at = int(rng.choice(places))
            other = (int(codes_W[at]) + int(rng.integers(1, 4))) % 4
            rows.append((number, at, int(codes_W[at]), other, breaks))
    return pd.DataFrame(rows, columns=["window", "at", "reference", "alternative", "breaks"])


def exact_change(codes_NW: np.ndarray, table: pd.DataFrame) -> np.ndarray:
    """Return the change of the exact log odds of each row's window."""
    before_MW = codes_NW[table["window"]]
    after_MW = before_MW.copy()
    after_MW[np.arange(len(table)), table["at"]] = table["alternative"]
    kinds = layouts(WINDOW)
    return log_odds(after_MW, kinds) - log_odds(before_MW, kinds)


def write_files(codes_NW: np.ndarray, table: pd.DataFrame, folder: Path) -> None:
    """Write every window as a record of windows.fa, and the changes as changes.vcf."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "windows.fa").write_text("".join(f">w{i}\n{to_text(row)}\n" for i, row in enumerate(codes_NW)))
    rows = [
        f"w{row.window}\t{row.at + 1}\t.\t{BASES[row.reference]}\t{BASES[row.alternative]}\t.\t.\t.\n"
        for row in table.itertuples()
    ]
    header = "##fileformat=VCFv4.5\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    (folder / "changes.vcf").write_text(header + "".join(rows))


def areas(run: Path, folder: Path, count: int, seed: int) -> dict[str, float]:
    """Return how well each score ranks changes that break a box below neutral ones."""
    rng = np.random.default_rng(seed)
    codes_NW, starts_N2 = promoters(count, rng)
    table = changes(codes_NW, starts_N2, rng)
    write_files(codes_NW, table, folder)
    config = ScoreConfig(
        output=folder / "scores",
        checkpoint=run / "genome_model",
        variants=folder / "changes.vcf",
        genome=folder / "windows.fa",
        window=WINDOW,
        classifier=run / "promoter_model",
        positive="promoter",
        classifier_window=WINDOW,
        strand="+",
        on_bad_record="error",
    )
    scores = pd.read_csv(score.run(config).folder / "scores.tsv", sep="\t")
    breaks_M = table["breaks"].to_numpy()
    ranked = {
        "optimum": exact_change(codes_NW, table),
        "classifier": scores["classifier_change"].to_numpy(),
        "language model": scores["log_likelihood_change"].to_numpy(),
    }
    return {name: auroc(-change_M[breaks_M], -change_M[~breaks_M]) for name, change_M in ranked.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("run", type=Path, help="folder that strandlm run wrote with configs/demo.yaml")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--promoters", type=int, default=1000, help="windows, each with two changes")
    given = parser.parse_args()
    found = pd.DataFrame([areas(given.run, given.output / f"seed-{s}", given.promoters, s) for s in SEEDS])
    of_optimum = found.div(found["optimum"], axis=0)
    print(f"\n| score | AUROC | of the optimum's |\n{'|---' * 3}|")
    for name in found:
        cells = [f"{t[name].mean():.3f} +- {t[name].std():.3f}" for t in (found, of_optimum)]
        print(f"| {name} | {' | '.join(cells)} |")
    write_json(given.output / "results.json", found.to_dict("list"))


if __name__ == "__main__":
    main()
