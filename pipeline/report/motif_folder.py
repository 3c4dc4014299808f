"""The folder of files that say what was found of motifs: matrices, logos, sites, tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pipeline.artifacts import write_json
from pipeline.attention.discovery import Discovery
from pipeline.attention.findings import Findings
from pipeline.attention.halves import Rows
from pipeline.attention.heads import Reading
from pipeline.attention.instance_files import instances, write_instances
from pipeline.attention.matrices import Motif
from pipeline.attention.motif_files import write_jaspar, write_meme
from pipeline.attention.pairs import Pair, Spacing
from pipeline.report.figures import Picture
from pipeline.report.logos import draw_logo
from pipeline.report.motif_figures import draw_positions, draw_spacings

DRAWN_PAIRS = 4  # pairs whose spacings are drawn, at most
HEADS_SHOWN = 4  # in the title of a logo
WORD = "foreground_count background_count n_foreground n_background p_value q_value"


def write_motifs(folder: Path, motifs: Sequence[Motif], both_strands: bool) -> None:
    """Write motifs.meme, motifs.jaspar and logos/."""
    frequencies = {motif.name: motif.frequencies for motif in motifs}
    sites = {motif.name: max(1, round(motif.n_sites)) for motif in motifs}
    background = motifs[0].background if motifs else None
    strands = "+ -" if both_strands else "+"
    write_meme(folder / "motifs.meme", frequencies, sites, background, strands=strands)
    counts = {motif.name: motif.counts for motif in motifs}
    write_jaspar(folder / "motifs.jaspar", counts, {motif.name: motif.consensus for motif in motifs})
    (folder / "logos").mkdir()
    for motif in motifs:
        heads = ", ".join(motif.heads[:HEADS_SHOWN]) + ("..." if len(motif.heads) > HEADS_SHOWN else "")
        draw_logo(motif.frequencies, folder / "logos" / f"{motif.name}.png", f"{motif.name} (heads {heads})")


def write_words(folder: Path, found: Discovery) -> None:
    """Write words.tsv: every word of every head that was tested."""
    rows = [{"head": s.head, **asdict(s.word), "q_value": s.q_value} for s in found.tested]
    _save(folder / "words.tsv", rows, ["head", "word", *WORD.split()])


def write_findings(folder: Path, findings: Findings, rows: tuple[Rows, Rows], origin: str) -> int:
    """Write the instances, positions.json and the tables of pairs, spacings and heads.

    Args:
        folder: where.
        findings: what is written.
        rows: of the first and of the second half.
        origin: what positions count from, in words.

    Returns:
        How many instances there are.
    """
    ids, texts, frames = (
        [*getattr(rows[0], k), *getattr(rows[1], k)] for k in ("ids", "sequences", "frames")
    )
    consensus = {motif.name: motif.consensus for motif in findings.motifs}
    tables: dict[str, tuple[Sequence[Any], type]] = {
        "pairs": (findings.pairs, Pair),
        "spacings": (findings.spacings, Spacing),
        "heads": (findings.readings, Reading),
    }
    for name, (records, kind) in tables.items():
        columns = [field.name for field in fields(kind)]
        _save(folder / f"{name}.tsv", [asdict(record) for record in records], columns)
    where = {name: asdict(each) for name, each in findings.positions.items()}
    write_json(folder / "positions.json", {"from": origin, "motifs": where})
    return write_instances(folder, instances(findings.instances, consensus, ids, texts, frames))


def draw_findings(folder: Path, findings: Findings, origin: str, max_spacing: int) -> None:
    """Draw figures/: where sites lie, and the spacings of the first pairs."""
    drawn: dict[str, Picture] = {}
    for name, where in findings.positions.items():
        drawn[f"positions-{name}"] = draw_positions(name, where, origin)
    pairs = [pair for pair in findings.pairs if pair.spacing is not None]
    for rank, pair in enumerate(pairs[:DRAWN_PAIRS], 1):
        drawn[f"spacings-{rank}"] = draw_spacings(pair, findings.spacings, max_spacing)
    (folder / "figures").mkdir()
    for name, picture in drawn.items():
        (folder / "figures" / f"{name}.svg").write_bytes(picture.content)


def _save(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    import pandas as pd

    pd.DataFrame(rows, columns=list(columns)).to_csv(path, sep="\t", index=False, float_format="%.6g")
