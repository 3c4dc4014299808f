"""Figures of motifs: where their sites begin, how far apart two of them lie, and p-values under no effect."""

from collections.abc import Sequence

import numpy as np

from pipeline.attention.instances import Positions
from pipeline.attention.pairs import Pair, Spacing
from pipeline.report.figures import COLOURS, Picture, as_svg

SIZE = (4.8, 2.4)


def draw_positions(name: str, where: Positions, origin: str) -> Picture:
    """Draw how many sites of a motif begin at each position, counted from ``origin`` (in words)."""

    def draw(axes) -> None:
        at = where.first + np.arange(len(where.counts))
        axes.bar(at, where.counts, width=1, color=COLOURS["value"])
        if where.best_bin:
            low, high = where.best_bin
            axes.axvspan(low - 0.5, high + 0.5, color=COLOURS["untrained"], alpha=0.2, linewidth=0)
        axes.set(xlabel=f"first base of the site, from {origin}", ylabel="sequences")

    text = f"Sites of {name} in {where.sequences} sequences, by their first base."
    if where.mode is not None:
        text += f" Most begin at {where.mode}; shaded are the five positions that chance explains least"
        text += f" ({where.in_bin} sites, {where.expected:.1f} expected, p {where.p_value:.2g})."
    return as_svg(draw, f"positions of {name}", text, SIZE)


def draw_spacings(pair: Pair, spacings: Sequence[Spacing], max_spacing: int) -> Picture:
    """Draw how many sequences have a pair of motifs at each spacing, beside what chance gives."""
    key = pair.first, pair.second, pair.orientation
    own = [each for each in spacings if (each.first, each.second, each.orientation) == key]

    def draw(axes) -> None:
        axes.bar([e.spacing for e in own], [e.sequences for e in own], width=0.9, color=COLOURS["value"])
        expected = [e.expected for e in own]
        axes.plot([e.spacing for e in own], expected, "_", color=COLOURS["untrained"], label="by chance")
        axes.set(xlabel="bases between the two", ylabel="sequences", xlim=(-1, max_spacing + 1))
        axes.legend()

    title = f"{pair.first} before {pair.second} ({pair.orientation})"
    text = f"Bases between {title}, in {pair.sequences} sequences with both."
    if pair.spacing is not None:
        text += (
            f" {pair.at_spacing} have {pair.spacing} ({pair.expected:.1f} by chance, q {pair.q_value:.2g})."
        )
    return as_svg(draw, title, text, SIZE)


def draw_calibration(p_values: np.ndarray, motifs: Sequence[int]) -> Picture:
    """Draw the quantiles of p-values of words under permuted labels against those of a uniform distribution.

    Args:
        p_values: (n,) of all words, heads and permutations.
        motifs: number of motifs reported under each permutation.
    """
    from scipy.stats import uniform

    p = np.sort(p_values)
    rank = uniform.ppf((np.arange(len(p)) + 0.5) / max(len(p), 1))
    shown = np.unique(np.geomspace(1, len(p), 400).astype(int)) - 1 if len(p) else np.zeros(0, int)

    def draw(axes) -> None:
        axes.loglog(rank[shown], p[shown], ".", color=COLOURS["value"], label="words")
        ends = [rank[0] if len(rank) else 0.001, 1]
        axes.loglog(ends, ends, color=COLOURS["random"], linestyle=":", label="uniform")
        axes.set(xlabel="expected quantile", ylabel="p-value")
        axes.legend()

    found = sum(number > 0 for number in motifs)
    text = (
        f"P-values of {len(p)} tests of words under {len(motifs)} permutations of the labels; above the line "
    )
    text += f"they are conservative. {found} permutations gave a motif."
    return as_svg(draw, "p-values under permuted labels", text)
