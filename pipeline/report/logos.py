"""Sequence logos of motifs."""

from pathlib import Path

import numpy as np

LETTERS = "ACGT"
DOTS_PER_INCH = 150


def information(frequencies: np.ndarray) -> np.ndarray:
    """Return the height of every letter in a logo, in bits.

    A column is as high as its information, 2 bits minus its entropy; letters share it by frequency
    (Schneider and Stephens 1990, doi:10.1093/nar/18.20.6097). No small-sample correction is made.

    Args:
        frequencies: (w, 4) frequencies of A, C, G, T, each column summing to 1.

    Returns:
        (w, 4) heights; a column sums to between 0 and 2.
    """
    logs = np.log2(frequencies, out=np.zeros_like(frequencies, dtype=float), where=frequencies > 0)
    bits = 2 + (frequencies * logs).sum(axis=1, keepdims=True)
    return frequencies * np.maximum(bits, 0.0)


def draw_logo(frequencies: np.ndarray, path_png: Path, title: str) -> None:
    """Draw a motif as a sequence logo, positions counted from 1.

    Args:
        frequencies: (w, 4) frequencies of A, C, G, T.
        path_png: file to write.
        title: line above the logo.
    """
    import logomaker
    import pandas as pd
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = len(frequencies)
    figure = Figure(figsize=(1.1 + 0.36 * max(width, 7), 1.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    heights = pd.DataFrame(information(frequencies), index=np.arange(1, width + 1), columns=list(LETTERS))
    logomaker.Logo(heights, ax=axes, color_scheme="classic", show_spines=False)
    axes.spines[["left", "bottom"]].set_visible(True)
    axes.set(ylim=(0, 2), yticks=[0, 1, 2], ylabel="bits", xticks=range(1, width + 1))
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=8)
    figure.savefig(path_png, dpi=DOTS_PER_INCH)
