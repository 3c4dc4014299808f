"""Motifs found, compared with known ones, and with those that controls give."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.attention.controls import ABOUT
from pipeline.attention.discovery import Discovery
from pipeline.attention.matrices import SAME, Motif, correlation
from pipeline.attention.motif_files import Hit, best_hits

LARGEST_OFFSET = 2
SHOWN = ("runs", "runs_with_motifs", "motifs", "best_q_value")


@dataclass(frozen=True)
class Known:
    """A database of matrices, and which of them should be found."""

    database: Mapping[str, np.ndarray]
    expected: Sequence[str]
    both_strands: bool = False

    def hits(self, motifs: Sequence[Motif]) -> dict[str, Hit]:
        """Return the best hit of each motif, by its name; none without a database."""
        if not motifs or not self.database:
            return {}
        found = best_hits({motif.name: motif.frequencies for motif in motifs}, self.database)
        return {hit.query: hit for hit in found}

    def recovered(self, hits: Mapping[str, Hit]) -> list[str]:
        """Return the expected motifs that are best hits of found ones, in place and the right way round."""
        good = {
            hit.target
            for hit in hits.values()
            if (self.both_strands or hit.strand == "+") and abs(hit.offset) <= LARGEST_OFFSET
        }
        return [name for name in self.expected if name in good]

    def control(self, name: str, runs: Sequence[Discovery]) -> dict[str, Any]:
        """Return what a control gave; of several runs the numbers of motifs and words are sums."""
        recovered = [len(self.recovered(self.hits(run.motifs))) for run in runs]
        return {
            "about": ABOUT[name],
            "runs": len(runs),
            "runs_with_motifs": sum(bool(run.motifs) for run in runs),
            "motifs": sum(len(run.motifs) for run in runs),
            "consensus": [motif.consensus for run in runs for motif in run.motifs],
            "recovered": max(recovered),
            "best_q_value": min(run.best_q for run in runs),
            "words_significant": sum(run.significant for run in runs),
        }

    def metrics(
        self, found: Discovery, hits: Mapping[str, Hit], controls: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the object for metrics.json; ``controls`` are as `control` gives them, by name."""
        untrained = controls.get("untrained")
        kept = (*SHOWN, "recovered") if self.expected else SHOWN
        beside = {name: {key: control[key] for key in kept} for name, control in controls.items()}
        if not self.expected:
            control = {"untrained": untrained["motifs"]} if untrained else {}
            return {"motifs_found": {"value": len(found.motifs), **control, "controls": beside}}
        control = {}
        if untrained:
            control = {"untrained": untrained["recovered"], "motifs_untrained": untrained["motifs"]}
        names = self.recovered(hits)
        numbers = {"of": len(self.expected), "found": names, "motifs": len(found.motifs)}
        more = {"best_q_value": found.best_q, "controls": beside}
        return {"motifs_recovered": {"value": len(names), **control, **numbers, **more}}


def record(motif: Motif, hit: Hit | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what motifs.json says of a motif."""
    best = {key: asdict(hit)[key] for key in ("target", "p_value", "offset", "strand")} if hit else None
    return {
        "name": motif.name,
        "consensus": motif.consensus,
        "n_sites": round(motif.n_sites, 1),
        "seed_word": motif.word,
        "p_value": motif.p_value,
        "q_value": motif.q_value,
        "heads": motif.heads,
        "matrix": np.round(motif.frequencies, 4).tolist(),
        "best_hit": best,
        **more,
    }


def same_in(motif: Motif, controls: Mapping[str, Sequence[Discovery]]) -> list[str]:
    """Return the controls in which a motif like this one was found (correlation of 0.8 at least)."""
    return [
        name
        for name, runs in controls.items()
        if any(
            correlation(motif.frequencies, other.frequencies) >= SAME for run in runs for other in run.motifs
        )
    ]
