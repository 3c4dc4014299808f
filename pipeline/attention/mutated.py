"""Mutagenesis beside the motifs and heads of a classifier: which of them it needs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.attention.evidence import Agreement, Support, agreement, as_rows, support
from pipeline.attention.halves import Rows
from pipeline.attention.heads import Scores
from pipeline.attention.instances import Sites
from pipeline.attention.mutagenesis import classifier_changes, position_effects, write_effects
from pipeline.keyed import generator
from pipeline.log import track

if TYPE_CHECKING:
    from pipeline.tokens.kmers import Codec

CHOSEN = 0x3074  # what a generator is for


@dataclass(frozen=True, eq=False)
class Mutated:
    """Rows whose bases were all mutated, and what that says of motifs and heads."""

    rows: Rows
    effects: list[np.ndarray]
    """(L,) of each row: by how much a substitution lowers the log-odds of the class, on average"""
    attention: Scores
    support: dict[str, Support]
    """by motif"""
    agreement: dict[str, Agreement]
    """by head"""
    sites: dict[str, Sites]
    """by motif, the best sites of these rows"""


def mutate(
    model,
    codec: "Codec",
    rows: Rows,
    scores: Scores,
    sites: Mapping[str, Sites],
    positive: int,
    number: int,
    batch_size: int,
    seed: int,
) -> Mutated:
    """Make every single substitution in some rows, and compare its effects with motifs and attention.

    Args:
        model: a classifier.
        codec: codec of its tokenizer.
        rows: N positives.
        scores: attention of their letters, by head.
        sites: by motif, their best sites.
        positive: number of the class whose log-odds count.
        number: rows that are mutated, at most; drawn at random.
        batch_size: mutants read at once.
        seed: of what is drawn.
    """
    order = generator(CHOSEN, seed).permutation(len(rows.ids))
    chosen = np.sort(order[:number])
    some = rows.chosen(chosen)
    changes = classifier_changes(model, codec, some.sequences, positive, batch_size)
    effects = [position_effects(change) for change in track(changes, len(chosen), "mutagenesis")]
    attention = {head: [found[i] for i in chosen.tolist()] for head, found in scores.items()}
    own = {
        name: replace(each, start=each.start[chosen], strand=each.strand[chosen])
        for name, each in sites.items()
    }
    places = {name: each.regions for name, each in own.items()}
    supported = support(places, effects, seed) if places else {}
    return Mutated(some, effects, attention, supported, agreement(attention, effects, seed), own)


def write_mutated(folder: Path, mutated: Mutated) -> None:
    """Write agreement.tsv, examples.npz and, for rows with a place in a genome, bedGraph files of effects.

    examples.npz has ``ids`` and ``sequences`` (N,), ``heads`` (H,), ``effect`` (N, L) and ``attention``
    (H, N, L), not a number behind the end of a sequence and where nothing is known. ``motifs`` (M,) and
    ``sites`` (S, 5) say where motifs lie: sequence, motif, first base, end, strand.
    """
    import pandas as pd

    rows = [{"head": head, **asdict(each)} for head, each in mutated.agreement.items()]
    pd.DataFrame(rows).to_csv(folder / "agreement.tsv", sep="\t", index=False, float_format="%.6g")
    attention = [as_rows(found) for found in mutated.attention.values()]
    arrays: dict[str, Any] = {
        "ids": np.array(mutated.rows.ids, "U"),
        "sequences": np.array(mutated.rows.sequences, "U"),
        "heads": np.array(list(mutated.attention), "U"),
        "effect": as_rows(mutated.effects).astype(np.float32),
        "attention": np.array(attention, np.float32),
        "motifs": np.array(list(mutated.sites), "U"),
        "sites": _marked(list(mutated.sites.values())),
    }
    np.savez_compressed(folder / "examples.npz", **arrays)
    frames = [frame if frame.genomic and not frame.gaps else None for frame in mutated.rows.frames]
    places = [frame and frame.place for frame in frames]
    lengths = [len(text) for text in mutated.rows.sequences]
    whole = [p if p and p.end - p.start == n else None for p, n in zip(places, lengths, strict=True)]
    write_effects(folder, whole, mutated.effects)


def _marked(sites: list[Sites]) -> np.ndarray:
    """Return (S, 5): number of the sequence and of the motif, first base, end, strand of every site."""
    rows = [
        (i, number, int(each.start[i]), int(each.start[i]) + each.width, int(each.strand[i]))
        for number, each in enumerate(sites)
        for i in np.flatnonzero(each.found).tolist()
    ]
    return np.array(rows, np.int64).reshape(-1, 5)
