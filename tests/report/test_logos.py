import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import entropy

from pipeline.report.logos import draw_logo, information

FREQUENCIES = np.array([[1, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4]])


def test_heights_are_bits_shared_by_frequency():
    heights = information(FREQUENCIES)
    expected = [2 - entropy(column, base=2) for column in FREQUENCIES]
    assert heights.sum(axis=1) == pytest.approx(expected, abs=1e-12)
    assert heights[3] == pytest.approx(FREQUENCIES[3] * expected[3], abs=1e-12)
    assert heights[0].tolist() == [2, 0, 0, 0]
    assert heights[1].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("width", [1, 6, 20])
def test_a_logo_is_a_small_png_with_colour(tmp_path, width):
    path = tmp_path / "logo.png"
    assert draw_logo(np.tile([[0.85, 0.05, 0.05, 0.05]], (width, 1)), path, "motif-1 AAA") is None
    pixels = imread(path)[..., :3]
    assert 200 < pixels.shape[0] < 400
    assert pixels.shape[1] < 1400
    green = (pixels[..., 1] > pixels[..., 0] + 0.3) & (pixels[..., 1] > pixels[..., 2] + 0.3)
    assert green.mean() > 0.03  # the A's of the classic colours


def test_a_higher_letter_covers_more(tmp_path):
    painted = []
    for share in (0.55, 0.97):
        path = tmp_path / f"{share}.png"
        draw_logo(np.tile([[share, *[(1 - share) / 3] * 3]], (6, 1)), path, "x")
        pixels = imread(path)[..., :3]
        painted.append(((pixels[..., 1] > pixels[..., 0] + 0.3) & (pixels[..., 1] > 0.3)).mean())
    assert painted[1] > 2 * painted[0]


def test_importing_is_light():
    code = "import sys, pipeline.report.logos; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
