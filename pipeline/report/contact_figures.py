"""Pictures of contact maps.

Shapes: n residues of the query; maps are (n, n).
"""

from pathlib import Path

import numpy as np

from pipeline.attention.contact_files import Map, Truth
from pipeline.attention.contacts import scored_pairs


def draw_map(path: Path, found: Map, title: str) -> None:
    """Draw scores above the diagonal, true contacts below it; beside them the L best pairs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scores, truth, n = found.scores, found.truth, len(found.scores)
    figure = Figure(figsize=(11, 5.6) if truth else (6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2 if truth else 1, squeeze=False)[0]
    far = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) >= found.separation
    shown = np.where(far, scores, np.nan)
    limits = np.nanpercentile(shown, [5, 99.5]) if far.any() else (0, 1)
    if truth:
        shown[np.tril_indices(n)] = np.nan
        j, i = np.nonzero(np.tril(truth.contacts & far))
        axes[0].scatter(i + 1, j + 1, s=5, color="black", marker="s")
    extent = (0.5, n + 0.5, n + 0.5, 0.5)
    axes[0].imshow(shown, cmap="Blues", vmin=limits[0], vmax=limits[1], extent=extent)
    axes[0].set_title("score" + (" (above), true contacts (below)" if truth else ""))
    if truth:
        _draw_best(axes[1], scores, truth, found.separation)
        axes[1].set(xlim=extent[:2], ylim=extent[2:], aspect="equal")
    for ax in axes:
        ax.set(xlabel="residue", ylabel="residue")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw_best(ax, scores: np.ndarray, truth: Truth, separation: int) -> None:
    i, j = scored_pairs(truth.known, separation)
    best = np.argsort(-scores[i, j], kind="stable")[: int(truth.known.diagonal().sum())]
    i, j = i[best], j[best]
    right = truth.contacts[i, j]
    b, a = np.nonzero(truth.contacts)
    ax.scatter(a + 1, b + 1, s=5, color="0.8", marker="s", label="true contact")
    ax.scatter(j[right] + 1, i[right] + 1, s=9, color="tab:blue", label=f"predicted, right ({right.sum()})")
    ax.scatter(
        j[~right] + 1, i[~right] + 1, s=9, color="tab:red", label=f"predicted, wrong ({(~right).sum()})"
    )
    ax.set_title(f"the {len(i)} best pairs")
    ax.legend(fontsize=7, loc="lower left")
