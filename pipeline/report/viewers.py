"""What the page's script draws: a sequence with its attention and effects, and a contact map.

Numbers travel inside the page, as base64 of little-endian arrays.

Shapes: N sequences, H heads, L letters of the longest one, n residues, P = n (n - 1) / 2 pairs of them.
"""

import base64
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.report.collect import FinishedStage
from pipeline.report.markup import data_block

MOST_NUMBERS = 250_000  # of attention and effects in the page
MOST_RESIDUES = 2000
APART, CONTACT, UNKNOWN = range(3)
DARKEST = (5, 99.5)  # percentiles of scores with the lightest and the darkest colour
SEPARATION = 6  # where the stage does not tell
NEEDS = "<noscript><p>This part is drawn by a script, and scripts are switched off.</p></noscript>"


def read_viewers(stage: FinishedStage) -> str:
    """Return as HTML what a script can draw of a stage: of motifs examples.npz, of contacts map.npz.

    Raises:
        UserError: an array is missing in one of them.
    """
    content = ""
    if stage.kind == "motifs" and (path := stage.folder / "examples.npz").is_file():
        content += _sequences(stage, path)
    if stage.kind == "contacts" and (path := stage.folder / "map.npz").is_file():
        content += _map(stage, path)
    return content


def _arrays(path: Path, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    if missing := [name for name in needed if name not in arrays]:
        raise UserError(f"{path}: no array {missing[0]!r} in it; run the stage that wrote it again")
    return arrays


def _packed(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


# -- a sequence along its bases


def _sequences(stage: FinishedStage, path: Path) -> str:
    arrays = _arrays(path, ("ids", "sequences", "heads", "effect", "attention"))
    number = len(arrays["ids"])
    if not number:
        return ""
    each = (len(arrays["heads"]) + 1) * arrays["effect"].shape[1]
    shown = min(number, max(1, MOST_NUMBERS // max(each, 1)))
    left = f" The page holds the first {shown} of {number}; all are in {path.name}." if shown < number else ""
    return (
        '<div class="viewer sequences"><h4>Attention and mutational effect along a sequence</h4>'
        '<p class="meaning">Above: attention of one head. Below: by how much a substitution of the base '
        "lowers the log-odds of the class, on average. Sites of motifs are marked. Point at a base, or use "
        f"the arrow keys.{left}</p>{NEEDS}{data_block(_examples(stage, arrays, shown))}"
        '<div class="choice"><label>sequence <select></select></label>'
        "<label>head <select></select></label></div>"
        '<div class="scroll bars"></div><output aria-live="polite"></output></div>'
    )


def _examples(stage: FinishedStage, arrays: dict[str, np.ndarray], shown: int) -> dict[str, Any]:
    """Return the data of the first sequences: attention is (H, N, L), effects are (N, L)."""
    positions = stage.read("positions.json") or {}
    first = [each["first"] for each in positions.get("motifs", {}).values()]
    sites = arrays.get("sites", np.zeros((0, 5), np.int64))
    return {
        "ids": arrays["ids"][:shown].tolist(),
        "sequences": arrays["sequences"][:shown].tolist(),
        "heads": arrays["heads"].tolist(),
        "size": arrays["effect"].shape[1],
        "origin": -first[0] if first else 0,
        "from": positions.get("from", "the first base"),
        "effect": _packed(arrays["effect"][:shown], "<f4"),
        "attention": _packed(arrays["attention"][:, :shown], "<f4"),
        "motifs": arrays.get("motifs", np.zeros(0, "U")).tolist(),
        "sites": sites[sites[:, 0] < shown].tolist(),
    }


# -- a contact map


def _map(stage: FinishedStage, path: Path) -> str:
    arrays = _arrays(path, ("scores", "sequence"))
    n = len(arrays["scores"])
    title = '<div class="viewer map"><h4>Contact map, pair by pair</h4>'
    if n < 2:
        return ""
    if n > MOST_RESIDUES:
        return f"{title}<p>{n} residues are too many for this page; the scores are in {path.name}.</p></div>"
    known = "contacts" in arrays
    below = "true contacts (grey: not known)" if known else "no truth is known"
    return (
        f'{title}<p class="meaning">Above the diagonal: scores, the darker the higher. Below it: {below}. '
        "Point at a pair, tap it, or use the arrow keys.</p>"
        f'{NEEDS}{data_block(_pairs(stage, arrays))}<output aria-live="polite"></output>'
        '<canvas tabindex="0" role="application" aria-label="Contact map; arrow keys move from pair to pair">'
        "</canvas></div>"
    )


def _pairs(stage: FinishedStage, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the data of a map: scores (P,) and truths (P,), of pairs i < j row by row."""
    scores = arrays["scores"]
    i, j = np.triu_indices(len(scores), 1)
    far = j - i >= (stage.manifest.get("config", {}).get("min_separation") or SEPARATION)
    low, high = np.percentile(scores[i, j][far] if far.any() else scores[i, j], DARKEST)
    truth, numbers, chain = None, arrays.get("numbers"), arrays.get("chain")
    if "contacts" in arrays:
        contacts, known = (
            arrays["contacts"][i, j],
            arrays.get("known", np.ones_like(arrays["contacts"]))[i, j],
        )
        truth = _packed(np.where(known, np.where(contacts, CONTACT, APART), UNKNOWN), "u1")
    return {
        "letters": "".join(arrays["sequence"].tolist()),
        "numbers": None if numbers is None else numbers.tolist(),
        "chain": "" if chain is None else str(chain).strip(),
        "low": float(low),
        "high": float(high),
        "scores": _packed(scores[i, j], "<f4"),
        "truth": truth,
    }
