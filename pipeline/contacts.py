"""The stage that draws a protein's contact map from a model and scores it against the truth.

Shapes: C columns of the alignment, n residues of the query, N rows. Scores are probabilities where the
checkpoint holds a contact regression; else they are label-free, with no known structure behind them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.attention.contact_files import (
    FITTED_ON,
    Map,
    Truth,
    write_arrays,
    write_chimerax,
    write_pymol,
    write_rr,
    write_table,
)
from pipeline.attention.contact_inputs import GAP, Family, read_inputs
from pipeline.config import ContactsConfig
from pipeline.errors import UserError
from pipeline.log import say, track

SCORES = {
    "factored": "coupling norms of factored attention, average-product corrected, in the context of the map",
    "strand": "attention, symmetrised, average-product corrected, mean of heads and layers",
    "fitted": "probability by the regression on attention that the checkpoint holds",
    "jacobian": "categorical Jacobian, symmetrised, coupling norms, average-product corrected",
}
RELATED = 1e-3  # E-value


@dataclass(frozen=True)
class _Encoded:
    """A row as a model reads it: its tokens, where residues are among them, and their columns (both (L,))."""

    inputs: dict[str, Any]
    residues: np.ndarray
    columns: np.ndarray


def run(config: ContactsConfig) -> Result:
    """Write contacts.tsv, contacts.rr, map.npz, map.png and metrics.json; of a structure also scripts.

    The map of a factored checkpoint is the family's; that of a strand checkpoint is what its contact
    regression says or, where it has none, its attention; or, if that is asked for, its categorical Jacobian.
    Each is a mean over rows of the alignment, or of the query alone if the data is no alignment. Beside it
    stand an untrained network of the same shape (without regression), mutual information and mean-field
    couplings of the same alignment, and the share of contacts.

    Raises:
        UserError: data, structure and checkpoint do not fit together, or the query is not there.
    """
    if config.structure and config.contacts:
        raise UserError("structure and contacts: both given; keep the one that is the truth")
    named = {name: getattr(config, name) for name in ("checkpoint", "data", "structure", "contacts")}
    inputs = {name: path for name, path in named.items() if path is not None}
    return produce("contacts", config, inputs, lambda workspace: _build(config, workspace))


def _build(config: ContactsConfig, workspace: Workspace) -> None:
    from pipeline.sequences.intake import BASES
    from pipeline.training.weights import load_protein_model

    family, truth, numbering = read_inputs(config)
    model = load_protein_model(config.checkpoint)
    if not family.letters.encode().translate(None, BASES):
        say(f"warning: {config.data}: {family.name!r} looks like DNA (nothing but A C G T U N)")
    kind = _kind(model, config)
    say(f"score: {SCORES[kind]}")
    maps = _maps(model, family, config, kind)
    predicted = maps["value"]
    assert predicted is not None
    letters = family.letters
    fitted = kind == "fitted"
    found = Map(family.name, letters, predicted, config.min_separation, fitted, truth, numbering)
    metrics = _metrics(maps, truth, config.min_separation)
    _write(found, SCORES[kind], workspace.path)
    workspace.write_json("metrics.json", {"contact_precision_at_l": metrics})
    workspace.counts |= {"query": family.name, "score": SCORES[kind], "rows": len(family.rows)}
    if fitted and truth is not None:
        workspace.counts["fitted_on_relatives"] = _relatives(config.checkpoint, letters)
    _say_summary(family, metrics)


def _kind(model, config: ContactsConfig) -> str:
    """Return the key in SCORES of what the map is made of.

    Raises:
        UserError: the Jacobian of factored attention is asked for.
    """
    if model.config.model_type == "strand-factored":
        if config.jacobian:
            raise UserError("jacobian: is for the strand architecture; factored attention has couplings")
        return "factored"
    if config.jacobian:
        return "jacobian"
    return "fitted" if model.contact_head is not None and model.contact_head.fitted else "strand"


def _maps(model, family: Family, config: ContactsConfig, kind: str) -> dict[str, np.ndarray | None]:
    """Return the scores (n, n) of the model and of its controls, by their names in metrics.json."""
    from pipeline.tokens.kmers import codec_of
    from pipeline.training.network import untrained

    label_free = "strand" if kind == "fitted" else kind
    maps: dict[str, np.ndarray | None] = {"value": _predict(model, family, config, kind)}
    twin = untrained(model.config, codec_of(config.checkpoint), config.seed).eval()
    maps["untrained"] = _predict(twin, family, config, label_free)
    if kind == "fitted":
        maps["label_free"] = _predict(model, family, config, label_free)
    maps["baseline"] = None
    if family.aligned:
        maps |= _controls(family, kind)
    return maps


def _controls(family: Family, kind: str) -> dict[str, np.ndarray]:
    """Return maps (n, n) of the alignment without a network, corrected as the model's is."""
    from pipeline.attention import contacts
    from pipeline.attention.couplings import coupling_scores, mean_field

    codes_NC, pairs = _codes(family.rows), np.ix_(family.columns, family.columns)
    weights_N = contacts.sequence_weights(codes_NC)
    information = contacts.mutual_information(codes_NC, weights_N)
    found = {
        "baseline": contacts.average_product_correction(information),
        "mean_field": coupling_scores(mean_field(codes_NC, weights_N)),
    }
    if kind == "factored":
        found = {name: contacts.in_context(scores) for name, scores in found.items()}
    return {name: scores[pairs] for name, scores in found.items()}


def _write(found: Map, score: str, folder: Path) -> None:
    from pipeline.report.contact_figures import draw_map

    write_table(folder / "contacts.tsv", found)
    write_rr(folder / "contacts.rr", found, score)
    write_arrays(folder / "map.npz", found)
    draw_map(folder / "map.png", found, f"{found.name}: {score}")
    if found.numbering is not None:
        write_chimerax(folder / "contacts.pb", found, found.numbering)
        write_pymol(folder / "contacts.pml", found, found.numbering)


def _relatives(checkpoint: Path, letters: str) -> list[str]:
    """Return which proteins that the regression was fitted on are like the query, and say so."""
    from pipeline.sequences.readers import read_files
    from pipeline.sequences.structure import expectation

    path = checkpoint / FITTED_ON
    if not path.is_file():
        say(f"{checkpoint}: does not tell which proteins its regression was fitted on")
        return []
    known = [(record.id, record.sequence.decode()) for record in read_files([path])]
    names = [name for name, sequence in known if expectation(letters, sequence) < RELATED]
    if names:
        say(f"the regression was fitted on relatives of the query, which flatters it: {', '.join(names)}")
    return names


def _predict(model, family: Family, config: ContactsConfig, kind: str) -> np.ndarray:
    """Return the model's scores between the query's residues, (n, n)."""
    if kind != "factored":
        read = _jacobian_map if kind == "jacobian" else partial(_attention_map, kind=kind)
        return read(model, family, config)
    name, row = family.rows[family.query]
    if len(row) != model.config.num_columns:
        raise UserError(
            f"{config.data}: record {name!r} has {len(row)} columns, but the model was trained on an "
            f"alignment of {model.config.num_columns}; give that alignment"
        )
    return model.predict_contacts().numpy()[np.ix_(family.columns, family.columns)]


def _sampled(model, family: Family, config: ContactsConfig, what: str) -> Iterator[_Encoded]:
    """Return the query and, of an alignment, as many other rows as are wanted, read without gaps.

    Raises:
        UserError: one of them is longer than the model's context; before any is read.
    """
    from pipeline.tokens.vocabulary import load_tokenizer

    tokenizer, rows = load_tokenizer(config.checkpoint), [family.query]
    if family.aligned:
        others = np.delete(np.arange(len(family.rows)), family.query)
        rng = np.random.default_rng(config.seed)
        rows += sorted(rng.permutation(others)[: config.max_sequences - 1].tolist())
    room = model.config.max_position_embeddings - tokenizer.num_special_tokens_to_add()
    for name, row in (family.rows[number] for number in rows):
        if (length := len(row.replace(GAP, ""))) > room:
            raise UserError(
                f"{config.data}: record {name!r}: {length} residues, but the model reads {room}; "
                "give a shorter one"
            )
    return (_encoded(tokenizer, family.rows[number][1]) for number in track(rows, len(rows), what))


def _encoded(tokenizer: Any, row: str) -> _Encoded:
    encoded = tokenizer(row.replace(GAP, ""), return_tensors="pt", return_special_tokens_mask=True)
    residues = np.flatnonzero(encoded.pop("special_tokens_mask")[0].numpy() == 0)
    inputs = {key: encoded[key] for key in ("input_ids", "attention_mask")}
    columns = np.flatnonzero(np.array(list(row)) != GAP)
    assert len(residues) == len(columns), "the tokenizer does not give one token for each residue"
    return _Encoded(inputs, residues, columns)


def _attention_map(model, family: Family, config: ContactsConfig, kind: str) -> np.ndarray:
    """Average what attention says of single rows, in columns of the alignment."""
    rows = _sampled(model, family, config, "attention")
    width = len(family.rows[family.query][1])
    total, seen = np.zeros((width, width)), np.zeros((width, width))
    for row in rows:
        pairs = np.ix_(row.columns, row.columns)
        total[pairs] += _row_map(model, row, kind)
        seen[pairs] += 1
    pairs = np.ix_(family.columns, family.columns)
    return total[pairs] / seen[pairs]


def _row_map(model, row: _Encoded, kind: str) -> np.ndarray:
    """Return of one sequence the probabilities of contact, or the mean of all heads' corrected attention."""
    from pipeline.attention.maps import count_heads, weighted_maps

    if kind == "fitted":
        return model.predict_contacts(**row.inputs)[0].double().numpy()
    heads = int(np.prod(count_heads(model)))
    return weighted_maps(model, row.inputs, [row.residues], np.full(heads, 1 / heads))[0].astype(float)


def _jacobian_map(model, family: Family, config: ContactsConfig) -> np.ndarray:
    """Return the coupling scores of the Jacobian, averaged over rows, of the columns that the query has."""
    from pipeline.attention.couplings import coupling_scores
    from pipeline.attention.jacobian import Row, logits_of, mean_jacobian
    from pipeline.tokens.vocabulary import RESIDUES, load_tokenizer

    place_C = np.full(len(family.rows[family.query][1]), -1)
    place_C[family.columns] = np.arange(len(family.columns))

    def rows() -> Iterator[Row]:
        for row in _sampled(model, family, config, "Jacobian"):
            place_L = place_C[row.columns]
            yield Row(row.inputs["input_ids"][0].numpy(), row.residues[place_L >= 0], place_L[place_L >= 0])

    letters: Any = load_tokenizer(config.checkpoint).convert_tokens_to_ids(list(RESIDUES))
    return coupling_scores(mean_jacobian(logits_of(model), rows(), len(family.columns), letters))


def _codes(rows: Iterable[tuple[str, str]]) -> np.ndarray:
    """Return letters as 0 to 19, and gaps and unknown residues as 20, (N, C)."""
    from pipeline.tokens.vocabulary import RESIDUES

    table = np.full(256, len(RESIDUES), np.uint8)
    table[list(RESIDUES.encode())] = np.arange(len(RESIDUES))
    return table[np.array([list(row.encode()) for _, row in rows])]


def _metrics(maps: dict[str, np.ndarray | None], truth: Truth | None, separation: int) -> dict[str, Any]:
    """Return precision at L of every map, and by range all there is; None where the truth is not known."""
    from pipeline.attention.contacts import score_ranges, scored_pairs

    keys = ("at_l2", "at_l5", "auc", "ceiling", "random", "length", "pairs", "contacts", "ranges")
    metrics: dict[str, Any] = dict.fromkeys((*maps, *keys))
    metrics["separation"] = separation
    if truth is None:
        return metrics
    if not len(scored_pairs(truth.known, separation)[0]):
        raise UserError(f"no residue pair with |i - j| >= {separation} is resolved; lower --min-separation")
    ranges = {
        name: score_ranges(scores, truth.contacts, truth.known, separation)
        for name, scores in maps.items()
        if scores is not None
    }
    ours = ranges["value"]["all"]
    metrics |= {name: found["all"]["at_l"] for name, found in ranges.items()}
    metrics |= {key: ours[key] for key in ("at_l2", "at_l5", "auc", "random", "pairs", "contacts")}
    metrics |= {"ceiling": ours["ceiling_at_l"], "ranges": ranges}
    metrics["length"] = int(truth.known.diagonal().sum())
    return metrics


def _say_summary(family: Family, metrics: dict[str, Any]) -> None:
    if metrics["value"] is None:
        say(
            f"{family.name}: map of {len(family.columns)} residues; no structure or contacts to score it with"
        )
        return
    baseline = ""
    if metrics["baseline"] is not None:
        baseline = f"mutual information {metrics['baseline']:.2f}, mean field {metrics['mean_field']:.2f}, "
    if "label_free" in metrics:
        baseline += f"the heads' mean without regression {metrics['label_free']:.2f}, "
    say(
        f"{family.name}: contact precision {metrics['value']:.2f} at L = {metrics['length']} "
        f"(|i - j| >= {metrics['separation']}), {metrics['at_l5']:.2f} at L/5; untrained "
        f"{metrics['untrained']:.2f}, {baseline}random {metrics['random']:.2f}"
    )
    for name, ours in metrics["ranges"]["value"].items():
        if ours["pairs"]:
            say(
                f"{name} range: {ours['contacts']} contacts of {ours['pairs']} pairs; precision "
                f"{ours['at_l']:.2f} at L (at most {ours['ceiling_at_l']:.2f}), {ours['at_l2']:.2f} at L/2, "
                f"{ours['at_l5']:.2f} at L/5{_area(ours['auc'])}"
            )


def _area(auc: float | None) -> str:
    return "" if auc is None else f"; AUC {auc:.2f}"


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="contacts")
