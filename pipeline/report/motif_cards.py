"""Motifs on the page: each with its evidence, which heads read them, and which lie together."""

from html import escape
from typing import Any

from pipeline.report.figures import Picture
from pipeline.report.markup import figure, listing, shown, table, words
from pipeline.report.texts import control_name

HEADS_NOTE = (
    "Attention on the sites of each motif: how many times what the same head gives the same places in other "
    "sequences, and the chance that a site has more attention than its place in a sequence without one "
    "(AUROC). Mutational effect: how a head's attention agrees with the effects of substitutions, beside its "
    "agreement with those of other sequences, which positions alone explain."
)
OF_HEADS = {
    "spearman": "mutational effect: rank correlation",
    "spearman_elsewhere": "the same, other sequences",
    "auroc": "mutational effect: AUROC",
    "auroc_elsewhere": "the same, other sequences (AUROC)",
}
OF_PAIRS = {
    "sequences": "sequences with both",
    "odds_ratio": "odds ratio",
    "together_p": "p of being together",
    "spacing": "spacing",
    "at_spacing": "sequences at it",
    "expected": "by chance",
    "q_value": "q of the spacing",
}
# What a card says elsewhere, or in other words.
TOLD = {"name", "consensus", "matrix", "also_found_in", "supported", "best_hit", "mutagenesis"}
TOLD |= {"p_value", "q_value", "sites_in_positives", "sites_in_others", "site_odds_ratio", "site_p_value"}
TOLD |= {"modal_start", "gathers_at", "gathering_p_value", "most_specialised_head"}


def motif_part(entry: dict[str, Any], pictures: dict[str, Picture]) -> str:
    """Return the motifs of a stage.

    Args:
        entry: what report.json says of the stage.
        pictures: of the stage; logos and positions of sites are taken from them.
    """
    motifs = entry["motifs"]
    cards = "".join(_card(motif, entry, pictures) for motif in motifs)
    found = f'<div class="motifs">{cards}</div>' if cards else "<p>No motif was found.</p>"
    return f"{_added(entry)}{found}{_heads(entry)}{_pairs(entry)}"


def _added(entry: dict[str, Any]) -> str:
    """Say whether attention added anything to plain enrichment."""
    motifs, controls = entry["motifs"], entry.get("motif_controls") or {}
    if not controls:
        return ""
    plain = controls.get("no_attention")
    if plain is None:
        text = "Plain enrichment was not run, so this does not tell whether attention adds anything to it."
    else:
        new = [m["consensus"] for m in motifs if "no_attention" not in m.get("also_found_in", [])]
        if new:
            of = f"{len(new)} of {len(motifs)} motifs" if len(new) < len(motifs) else f"{len(new)} motifs"
            text = f"Attention added {of} to plain enrichment in whole sequences: {', '.join(new)}."
        else:
            every = ": it finds all of these, too" if motifs else ""
            text = f"Attention added nothing to plain enrichment in whole sequences{every}."
        text += f" Plain enrichment gives {', '.join(plain['consensus']) or 'no motif'}."
    unsupported = [m["consensus"] for m in motifs if m.get("supported") is False]
    if unsupported:
        text += f" Mutagenesis does not support {', '.join(unsupported)}."
    return f'<p class="added">{escape(text)}</p>'


def _card(motif: dict[str, Any], entry: dict[str, Any], pictures: dict[str, Picture]) -> str:
    name = motif["name"]
    drawn = [pictures.get(f"{kind}:{name}") for kind in ("logo", "positions")]
    logo, positions = (figure(picture) if picture else "" for picture in drawn)
    kind = "motif unsupported" if motif.get("supported") is False else "motif"
    consensus = escape(shown(motif.get("consensus")))
    return (
        f'<article class="{kind}"><h4>{escape(name)} <code>{consensus}</code></h4>'
        f"{_support(motif)}{logo}{listing(_evidence(motif, entry), f'Evidence for {name}')}{positions}"
        f"{_controls(motif, entry)}</article>"
    )


def _support(motif: dict[str, Any]) -> str:
    supported = motif.get("supported")
    if supported is None:
        return '<p class="badge">not tested by mutagenesis</p>'
    kind, word = ("out", "") if supported else ("open", "not ")
    return f'<p class="badge"><span class="{kind}">{word}supported by mutagenesis</span></p>'


def _evidence(motif: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Return what speaks for a motif, in words."""
    facts = {"p on the test half": motif.get("p_value"), "q, all heads and words": motif.get("q_value")}
    for key, sites in (("sites_in_positives", "sites in the class"), ("sites_in_others", "sites in others")):
        if key in motif:
            facts[sites] = motif[key]
    if "site_odds_ratio" in motif:
        facts["their odds ratio"] = _with_p(shown(motif["site_odds_ratio"]), motif.get("site_p_value"))
    facts |= _places(motif, entry) | {"known motif": _hit(motif.get("best_hit"))}
    if best := motif.get("most_specialised_head"):
        facts["most specialised head"] = f"{best['head']} ({shown(best['specialisation'])} times expected)"
    facts |= _mutagenesis(motif.get("mutagenesis") or {})
    return facts | {words(key): value for key, value in motif.items() if key not in TOLD}


def _with_p(text: str, p_value: float | None) -> str:
    return text if p_value is None else f"{text} (p {shown(p_value)})"


def _places(motif: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    origin = (entry.get("positions") or {}).get("from", "the first base")
    facts = {}
    if motif.get("modal_start") is not None:
        facts["most begin at"] = f"{motif['modal_start']} from {origin}"
    if gathers := motif.get("gathers_at"):
        facts["they gather at"] = _with_p(f"{gathers[0]} to {gathers[1]}", motif.get("gathering_p_value"))
    return facts


def _hit(hit: dict[str, Any] | None) -> str:
    if not hit:
        return "none"
    place = f"offset {hit['offset']}, strand {hit['strand']}"
    return f"{hit['target']} (p {shown(hit['p_value'])}, {place})"


def _mutagenesis(found: dict[str, Any]) -> dict[str, Any]:
    if not found:
        return {}
    facts: dict[str, Any] = {
        "effect of its bases": f"{shown(found['effect'])}, mean of {found['sites']} sites"
    }
    facts["q of the effect"] = found["q_value"]
    for key, where in (
        ("within", "above the rest of the sequence"),
        ("at_position", "above its place elsewhere"),
    ):
        facts[where] = _with_p(shown(found[key]["difference"]), found[key]["p_value"])
    return facts


def _controls(motif: dict[str, Any], entry: dict[str, Any]) -> str:
    """Say of every control whether the motif was found there too."""
    controls, also = entry.get("motif_controls") or {}, motif.get("also_found_in", [])
    lines = [
        f"<li><strong>{escape(control_name('motifs_found', name))}</strong> ({escape(control['about'])}): "
        + (
            '<span class="open">found there too</span>'
            if name in also
            else '<span class="out">not found</span>'
        )
        + "</li>"
        for name, control in controls.items()
    ]
    return f'<ul class="controls">{"".join(lines)}</ul>' if lines else ""


def _heads(entry: dict[str, Any]) -> str:
    """Return the table of heads and motifs, which can be sorted."""
    readings = {(row["head"], row["motif"]): row for row in entry.get("heads") or []}
    agreement = {row["head"]: row for row in entry.get("agreement") or []}
    heads = list(dict.fromkeys([head for head, _ in readings] + list(agreement)))
    if not heads:
        return ""
    names = {motif["name"]: motif.get("consensus") or motif["name"] for motif in entry["motifs"]}
    columns = ["head"]
    columns += [f"{name} {letters}: {kind}" for name, letters in names.items() for kind in ("times", "AUROC")]
    columns += OF_HEADS.values() if agreement else []
    rows = [
        [head]
        + [readings.get((head, name), {}).get(key) for name in names for key in ("specialisation", "auroc")]
        + [agreement.get(head, {}).get(key) for key in (OF_HEADS if agreement else ())]
        for head in heads
    ]
    return f'<p class="meaning">{HEADS_NOTE}</p>' + table(columns, rows, "Heads and motifs", sortable=True)


def _pairs(entry: dict[str, Any]) -> str:
    rows = [
        [f"{pair['first']} before {pair['second']}", pair["orientation"], *(pair[key] for key in OF_PAIRS)]
        for pair in entry.get("pairs") or []
    ]
    head = ["pair", "strands", *OF_PAIRS.values()]
    return table(head, rows, "Motifs that lie together", sortable=True) if rows else ""
