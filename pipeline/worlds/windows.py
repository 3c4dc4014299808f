"""The table of labelled promoter and background windows of a simulated world."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.worlds import to_text
from pipeline.worlds.promoters import BACKGROUND_KINDS, auroc, layouts, log_odds, sample_windows

SPLITS = {"train": 0.80, "validation": 0.05, "test": 0.15}
COLUMNS = ("id", "sequence", "label", "kind", "log_odds", "split", "tss")


def kind_counts(promoters: int) -> dict[str, int]:
    """Return the number of windows of each kind; as many background windows as promoters in all."""
    decoys = {kind: round(promoters * share) for kind, share in BACKGROUND_KINDS.items() if kind != "plain"}
    return {"promoter": promoters, "plain": promoters - sum(decoys.values()), **decoys}


def assign_splits(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return train, validation or test for each of ``count`` records, at random in fixed shares."""
    ends = np.round(np.cumsum(list(SPLITS.values())) * count).astype(int)
    return np.array(list(SPLITS))[np.searchsorted(ends, rng.permutation(count), side="right")]


def windows_table(promoters: int, window: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Draw labelled windows, one row for each in random order; every kind is split in the same shares."""
    kinds = layouts(window)
    rows = []
    for kind, count in kind_counts(promoters).items():
        codes_NW, tss_N = sample_windows(kinds[kind], count, window, rng)
        columns = (codes_NW, tss_N, log_odds(codes_NW, kinds), assign_splits(count, rng))
        rows += [_row(kind, *values) for values in zip(*columns, strict=True)]
    rows = [rows[i] for i in rng.permutation(len(rows))]
    numbers = {"promoter": 0, "background": 0}
    for row in rows:
        row["id"] = f"simulated_{row['label']}_{numbers[row['label']]:06d}"
        numbers[row["label"]] += 1
    return rows


def _row(kind: str, codes_W: np.ndarray, tss: int, odds: float, split: str) -> dict[str, Any]:
    is_promoter = kind == "promoter"
    return {
        "sequence": to_text(codes_W),
        "label": "promoter" if is_promoter else "background",
        "kind": kind,
        "log_odds": round(float(odds), 4),
        "split": str(split),
        "tss": int(tss) if is_promoter else "",
    }


def write_windows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as a table with tabs and a header."""
    with path.open("w") as file:
        file.write("\t".join(COLUMNS) + "\n")
        for row in rows:
            values = {**row, "log_odds": f"{row['log_odds']:.4f}"}
            file.write("\t".join(str(values[column]) for column in COLUMNS) + "\n")


def bayes_auroc(rows: list[dict[str, Any]], split: str = "test") -> dict[str, Any]:
    """Return the AUROC of the exact log odds on one split, against all background and each kind of it.

    The score is the same throughout: the best one against the mixture of all kinds.
    """
    scores: dict[str, list[float]] = {kind: [] for kind in ("promoter", *BACKGROUND_KINDS)}
    for row in rows:
        if row["split"] == split:
            scores[row["kind"]].append(row["log_odds"])
    arrays = {kind: np.array(values) for kind, values in scores.items()}
    positive = arrays.pop("promoter")
    return {
        "overall": auroc(positive, np.concatenate(list(arrays.values()))),
        "by_kind": {kind: auroc(positive, negative) for kind, negative in arrays.items()},
    }
