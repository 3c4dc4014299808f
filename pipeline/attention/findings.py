"""What is said of motifs once they are found: their sites, where these gather, which heads read them.

All of it is measured on the second half of the rows, which the motifs were not grown from. Its positives give
positions, pairs and readings; the shares of positives and of others with a site are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.attention.discovery import Half
from pipeline.attention.halves import Rows
from pipeline.attention.heads import Reading, Scores, head_table
from pipeline.attention.instances import Positions, Sites, Windows, best_sites, positions, scan
from pipeline.attention.matrices import Motif
from pipeline.attention.pairs import Pair, Spacing, find_pairs, together


@dataclass(frozen=True)
class Enrichment:
    """In how many rows of the second half a motif has a site, and how unlikely that is by chance."""

    positives: int
    of_positives: int
    others: int
    of_others: int
    odds_ratio: float
    """with half a row added to each cell of the table"""
    p_value: float
    """Fisher's exact test, one-sided"""


@dataclass(frozen=True, eq=False)
class Findings:
    """Motifs and what is known of them; all mappings are by a motif's name."""

    motifs: list[Motif]
    instances: dict[str, Windows]
    """windows with a small p-value, of all rows: those of the first half, then those of the second"""
    sites: dict[str, Sites]
    """the best site of each positive of the second half"""
    enrichment: dict[str, Enrichment]
    positions: dict[str, Positions]
    pairs: list[Pair]
    spacings: list[Spacing]
    readings: list[Reading]


@dataclass(frozen=True)
class Measure:
    """How sites are measured."""

    site_p_value: float
    max_spacing: int
    both_strands: bool
    origin: int
    """base that positions count from"""
    seed: int


def examine(
    motifs: Sequence[Motif], rows: tuple[Rows, Rows], half: Half, scores: Scores, how: Measure
) -> Findings:
    """Look for the sites of motifs in all rows, and measure them on the second half.

    Args:
        motifs: as found on the first half.
        rows: of the first and of the second half.
        half: the second half with its attended regions.
        scores: attention of its positives, by head, in their order.
        how: the settings.
    """
    texts, second = [*rows[0].sequences, *rows[1].sequences], rows[1]
    begin = len(rows[0].sequences)
    place = np.flatnonzero(second.positive).tolist()
    found, sites, shares = {}, {}, {}
    for motif in motifs:
        windows = scan(texts, motif.frequencies, motif.background, how.both_strands)
        windows = windows.chosen(np.flatnonzero(windows.p_value <= how.site_p_value))
        best = best_sites(windows, len(texts), how.site_p_value, how.seed)
        best = replace(best, start=best.start[begin:], strand=best.strand[begin:])
        found[motif.name], shares[motif.name] = windows, _enrichment(best.found, second.positive)
        sites[motif.name] = replace(best, start=best.start[place], strand=best.strand[place])
    lengths = [len(second.sequences[i]) for i in place]
    regions = {head: [each[i] for i in place] for head, each in half.regions.items()}
    return Findings(
        list(motifs),
        found,
        sites,
        shares,
        {name: positions(each, lengths, how.origin) for name, each in sites.items()},
        *find_pairs(sites, how.max_spacing, how.both_strands),
        head_table(scores, regions, sites, how.seed),
    )


def _enrichment(found_N: np.ndarray, positive_N: np.ndarray) -> Enrichment:
    a, b = int((found_N & positive_N).sum()), int((found_N & ~positive_N).sum())
    n, m = int(positive_N.sum()), int((~positive_N).sum())
    return Enrichment(a, n, b, m, *together(found_N, positive_N))


def summary(findings: Findings, motif: Motif) -> dict[str, object]:
    """Return what is said of one motif, as JSON: whole numbers, texts, and floats."""
    place = findings.positions[motif.name]
    share = findings.enrichment[motif.name]
    readings = [reading for reading in findings.readings if reading.motif == motif.name and reading.sites]
    best = max(readings, key=lambda reading: reading.specialisation, default=None)
    return {
        "sites_in_positives": f"{share.positives} of {share.of_positives}",
        "sites_in_others": f"{share.others} of {share.of_others}",
        "site_odds_ratio": round(share.odds_ratio, 3),
        "site_p_value": share.p_value,
        "modal_start": place.mode,
        "gathers_at": place.best_bin,
        "gathering_p_value": place.p_value,
        "most_specialised_head": best
        and {"head": best.head, "specialisation": round(best.specialisation, 3)},
    }
