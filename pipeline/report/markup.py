"""Values and tables as HTML, everything escaped."""

import base64
import json
from html import escape
from typing import Any

from pipeline.report.figures import Picture
from pipeline.report.texts import is_number

LEAST_DECIMAL = 0.001


def shown(value: Any) -> str:
    """Return a value as plain text: numbers short, lists and dictionaries in one line, None as a dash."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < LEAST_DECIMAL else f"{value:,.3f}"
    if isinstance(value, dict):
        return "; ".join(f"{words(key)}: {shown(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return (
            ", ".join(f"({shown(item)})" if isinstance(item, list) else shown(item) for item in value)
            or "none"
        )
    return str(value)


def words(key: Any) -> str:
    """Return a key with spaces for underscores."""
    return str(key).replace("_", " ")


def table(
    head: list[str], rows: list[list[Any]], caption: str, kind: str = "grid", sortable: bool = False
) -> str:
    """Return a table whose first column holds the names of its rows; wide ones scroll.

    Columns of numbers are aligned to the right; ``kind`` is the table's class. The page's script lets a
    sortable one be sorted by any column; its cells hold their numbers with all digits for that.
    """
    right = [' class="number"' if _numeric(rows, n) else "" for n in range(len(head))]
    columns = "".join(
        f'<th scope="col"{side}>{escape(name)}</th>' for name, side in zip(head, right, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(shown(row[0]))}</th>'
        + "".join(
            f"<td{right[n]}{_digits(value) if sortable else ''}>{escape(shown(value))}</td>"
            for n, value in enumerate(row[1:], 1)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="{kind}{" sortable" if sortable else ""}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _digits(value: Any) -> str:
    return f' data-value="{value!r}"' if is_number(value) else ""


def _numeric(rows: list[list[Any]], column: int) -> bool:
    values = [row[column] for row in rows]
    return column > 0 and any(map(is_number, values)) and all(is_number(v) or v is None for v in values)


def grid(content: dict[str, dict[str, Any]], first: str, caption: str) -> str:
    """Return a table of dictionaries that share keys, one to a row; what is nested gets its own columns."""
    flat = {name: _flatten(inner) for name, inner in content.items()}
    keys = list(dict.fromkeys(key for inner in flat.values() for key in inner))
    return table([first, *keys], [[n, *(inner.get(k) for k in keys)] for n, inner in flat.items()], caption)


def _flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = prefix + words(key)
        flat |= _flatten(value, f"{name}: ") if isinstance(value, dict) else {name: value}
    return flat


def listing(content: dict[str, Any], caption: str) -> str:
    """Return names with values as a table, or nothing if there are none."""
    rows = [[words(key), value] for key, value in content.items()]
    return table(["what", "value"], rows, caption, "listing") if rows else ""


def nested(content: dict[str, Any], caption: str) -> str:
    """Return a listing of the plain values, and a grid for every group of like dictionaries."""
    if _is_group(content):
        return grid(content, "part", caption)
    groups = {key: value for key, value in content.items() if _is_group(value)}
    plain: dict[str, Any] = {}
    for key, value in content.items():
        if key not in groups:
            plain |= _flatten(value, f"{words(key)}: ") if isinstance(value, dict) and value else {key: value}
    parts = [listing(plain, caption)]
    parts += [grid(value, words(key), f"{caption}: {words(key)}") for key, value in groups.items()]
    return f'<div class="tables">{"".join(parts)}</div>' if any(parts) else ""


def _is_group(value: Any) -> bool:
    """Tell dictionaries of dictionaries with the same keys, which make a grid."""
    if not isinstance(value, dict) or not all(isinstance(inner, dict) and inner for inner in value.values()):
        return False
    return len({frozenset(inner) for inner in value.values()}) == 1


def image(content: bytes, media_type: str, text: str) -> str:
    """Return an image that lies inside the page."""
    data = base64.b64encode(content).decode("ascii")
    return f'<img src="data:{media_type};base64,{data}" alt="{escape(text)}">'


def figure(picture: Picture) -> str:
    """Return a picture with its title and what it shows in words."""
    kind = ' class="wide"' if picture.wide else ""
    content = image(picture.content, picture.media_type, picture.title)
    title = picture.title[:1].upper() + picture.title[1:]
    caption = f"<strong>{escape(title)}.</strong> {escape(picture.text)}"
    return f"<figure{kind}><div>{content}</div><figcaption>{caption}</figcaption></figure>"


def data_block(content: Any) -> str:
    """Return JSON for the page's script; no text in it can end the block or begin another."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return f'<script type="application/json">{text}</script>'
