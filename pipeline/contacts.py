"""The stage that draws a protein's contact map from a model and scores it against the truth.

Shapes: C columns of the alignment, n residues of the query, N rows. The scores are label-free: no regression
on known structures is behind them, and they are no probabilities.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import ContactsConfig
from pipeline.errors import UserError
from pipeline.log import say, track

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
GAP = "-"
CANDIDATES = 20
SCORES = {
    "factored": "coupling norms of factored attention, average-product corrected",
    "strand": "attention, symmetrised, average-product corrected, mean of heads and layers",
}


@dataclass(frozen=True)
class Family:
    """The records of the data, and which of them the map is about."""

    rows: list[tuple[str, str]]
    query: int

    @property
    def name(self) -> str:
        """Return the query's id."""
        return self.rows[self.query][0]

    @property
    def columns(self) -> np.ndarray:
        """Return the places of the query's residues in its row, (n,)."""
        return np.flatnonzero(np.array(list(self.rows[self.query][1])) != GAP)

    @property
    def aligned(self) -> bool:
        """Tell whether the rows are those of an alignment: several, all of one length."""
        return len(self.rows) > 1 and len({len(row) for _, row in self.rows}) == 1


@dataclass(frozen=True)
class Truth:
    """Contacts between the query's residues: which pairs touch, and of which pairs that is known, (n, n)."""

    contacts: np.ndarray
    known: np.ndarray


def run(config: ContactsConfig) -> Result:
    """Write contacts.tsv, map.png and metrics.json.

    The map of a factored checkpoint is the family's; that of a strand checkpoint is its attention, averaged
    over rows of the alignment, or on the query alone if the data is no alignment. Beside it stand an
    untrained network of the same shape, mutual information on the same alignment, and the share of contacts.

    Raises:
        UserError: data, structure and checkpoint do not fit together, or the query is not there.
    """
    if config.structure and config.contacts:
        raise UserError("structure and contacts: both given; keep the one that is the truth")
    named = {name: getattr(config, name) for name in ("checkpoint", "data", "structure", "contacts")}
    inputs = {name: path for name, path in named.items() if path is not None}
    return produce("contacts", config, inputs, lambda workspace: _build(config, workspace))


def _build(config: ContactsConfig, workspace: Workspace) -> None:
    from pipeline.attention.contacts import average_product_correction, mutual_information, sequence_weights

    family, truth = _read(config)
    model = _load_model(config.checkpoint)
    maps: dict[str, np.ndarray | None] = {"value": _predict(model, family, config)}
    maps["untrained"] = _predict(_untrained(model, config.seed), family, config)
    maps["baseline"] = None
    if family.aligned:
        codes_NC = _codes(family.rows)
        information = mutual_information(codes_NC, sequence_weights(codes_NC))
        maps["baseline"] = average_product_correction(information)[np.ix_(family.columns, family.columns)]
    score = SCORES["factored" if _is_factored(model) else "strand"]
    metrics = _metrics(maps, truth, config.min_separation)
    predicted = maps["value"]
    assert predicted is not None
    _write_table(workspace.path / "contacts.tsv", predicted, truth, config.min_separation)
    _draw(workspace.path / "map.png", predicted, truth, config.min_separation, f"{family.name}: {score}")
    workspace.write_json("metrics.json", {"contact_precision_at_l": metrics})
    workspace.counts |= {"query": family.name, "score": score, "rows": len(family.rows)}
    _say_summary(family, metrics)


def _read(config: ContactsConfig) -> tuple[Family, Truth | None]:
    """Return the records with the query chosen, and the truth about it, if any is given."""
    from pipeline.sequences.structure import align_to, contact_map, read_structure

    rows = _read_rows(config.data)
    if config.structure is None:
        family = Family(rows, _find(rows, config) if config.query else 0)
        n = len(family.columns)
        return family, _read_contacts(config.contacts, n) if config.contacts else None
    structure = read_structure(config.structure, config.chain)
    if structure.label_chain != structure.chain:
        say(f"{config.structure}: chain {structure.chain} (author), {structure.label_chain} (label)")
    family = Family(rows, _find(rows, config) if config.query else _closest(rows, structure))
    index = align_to(rows[family.query][1].replace(GAP, ""), structure)
    pairs = np.ix_(index, index)
    contacts, known = contact_map(structure, config.distance)
    found = np.outer(index >= 0, index >= 0)
    return family, Truth(contacts[pairs] & found, known[pairs] & found)


def _read_rows(path: Path) -> list[tuple[str, str]]:
    """Return (id, clean sequence, gaps kept) of every record of a FASTA file or a corpus."""
    from pipeline.sequences.alphabets import BadSequenceError, clean
    from pipeline.sequences.readers import is_a3m, read_files

    if path.is_dir():
        return _read_corpus(path)
    rows = []
    for record in read_files([path], duplicate_ids="rename"):
        try:
            cleaned = clean(record.sequence, "protein", aligned=True, insertions=is_a3m(record.path))
        except BadSequenceError as error:
            raise UserError(f"{record.where()}: {error}; correct or remove it") from None
        rows.append((record.id, cleaned.sequence.decode()))
    return rows


def _read_corpus(path: Path) -> list[tuple[str, str]]:
    from datasets import load_from_disk

    try:
        splits: Any = load_from_disk(path)
    except FileNotFoundError:
        raise UserError(f"{path}: neither a corpus written by prepare nor a FASTA file") from None
    return [
        pair for split in splits.values() for pair in zip(split["id"][:], split["sequence"][:], strict=True)
    ]


def _find(rows: list[tuple[str, str]], config: ContactsConfig) -> int:
    for number, (name, _) in enumerate(rows):
        if name == config.query:
            return number
    raise UserError(
        f"{config.data}: no record {config.query!r}; correct --query (the first record is {rows[0][0]!r})"
    )


def _words(sequence: str) -> set[str]:
    return {sequence[i : i + 3] for i in range(len(sequence) - 2)}


def _closest(rows: list[tuple[str, str]], structure) -> int:
    """Return the row with most residues identical to the structure's, aligning the likeliest rows only."""
    from pipeline.sequences.structure import identities

    bare = [row.replace(GAP, "") for _, row in rows]
    words = _words(structure.sequence)
    likely = sorted(range(len(rows)), key=lambda n: -len(words & _words(bare[n])))[:CANDIDATES]
    return max(likely, key=lambda n: (identities(bare[n], structure), -n))


def _read_contacts(path: Path, n: int) -> Truth:
    """Return the truth in a table with the columns i and j, in 1-based residues of the query."""
    contacts = np.zeros((n, n), bool)
    with path.open(newline="") as file:
        header = file.readline()
        delimiter = "," if "," in header else "\t"
        columns = [name.strip() for name in header.split(delimiter)]
        if not {"i", "j"} <= set(columns):
            raise UserError(f"{path}: line 1: columns {', '.join(columns)}, but i and j are needed")
        for line, row in enumerate(csv.DictReader(file, columns, delimiter=delimiter), 2):
            i, j = (_residue_number(path, line, row[column], n) for column in "ij")
            contacts[i - 1, j - 1] = contacts[j - 1, i - 1] = True
    return Truth(contacts, np.ones((n, n), bool))


def _residue_number(path: Path, line: int, value: str | None, n: int) -> int:
    if value is None or not value.strip().isdecimal() or not 1 <= int(value) <= n:
        raise UserError(
            f"{path}: line {line}: residue {value!r}, but the query has residues 1 to {n}; correct the row"
        )
    return int(value)


def _load_model(checkpoint: Path):
    """Return the network of a checkpoint, ready to tell its attention."""
    from transformers import AutoModelForMaskedLM
    from transformers.utils import logging

    import pipeline.model  # noqa: F401  registers our classes

    if not (checkpoint / "config.json").is_file():
        raise UserError(f"{checkpoint}: no config.json in it; give a checkpoint written by pretrain")
    logging.disable_progress_bar()
    model = AutoModelForMaskedLM.from_pretrained(
        checkpoint.absolute(), attn_implementation="eager", local_files_only=True
    )
    if getattr(model.config, "alphabet", "protein") != "protein":
        raise UserError(f"{checkpoint}: a model of {model.config.alphabet}; contacts need a protein model")
    return model.eval()


def _untrained(model, seed: int):
    """Return the same network with new random weights."""
    import torch

    torch.manual_seed(seed)
    return type(model)(model.config).eval()


def _is_factored(model) -> bool:
    return model.config.model_type == "strand-factored"


def _predict(model, family: Family, config: ContactsConfig) -> np.ndarray:
    """Return the model's scores between the query's residues, (n, n)."""
    if not _is_factored(model):
        return _attention_map(model, family, config)
    name, row = family.rows[family.query]
    if len(row) != model.config.num_columns:
        raise UserError(
            f"{config.data}: record {name!r} has {len(row)} columns, but the model was trained on an "
            f"alignment of {model.config.num_columns}; give that alignment"
        )
    return model.predict_contacts().numpy()[np.ix_(family.columns, family.columns)]


def _attention_map(model, family: Family, config: ContactsConfig) -> np.ndarray:
    """Average the corrected attention on single rows, read without gaps, in columns of the alignment."""
    from pipeline.tokens.vocabulary import load_tokenizer

    tokenizer = load_tokenizer(config.checkpoint)
    rows = [family.query]
    if family.aligned:
        others = np.delete(np.arange(len(family.rows)), family.query)
        rng = np.random.default_rng(config.seed)
        rows += sorted(rng.permutation(others)[: config.max_sequences - 1].tolist())
    width = len(family.rows[family.query][1])
    total, seen = np.zeros((width, width)), np.zeros((width, width))
    for number in track(rows, len(rows), "attention"):
        name, row = family.rows[number]
        columns = np.flatnonzero(np.array(list(row)) != GAP)
        pairs = np.ix_(columns, columns)
        total[pairs] += _row_attention(model, tokenizer, name, row.replace(GAP, ""))
        seen[pairs] += 1
    pairs = np.ix_(family.columns, family.columns)
    return total[pairs] / seen[pairs]


def _row_attention(model, tokenizer, name: str, sequence: str) -> np.ndarray:
    """Return the mean over heads and layers of one sequence's corrected attention, special tokens removed."""
    import torch

    from pipeline.attention.contacts import average_product_correction, symmetrise

    encoded = tokenizer(sequence, return_tensors="pt", return_special_tokens_mask=True)
    residues = np.flatnonzero(encoded["special_tokens_mask"][0].numpy() == 0)
    tokens, context = encoded["input_ids"].shape[1], model.config.max_position_embeddings
    if tokens > context:
        raise UserError(
            f"record {name!r}: {tokens} tokens, but the model reads {context}; give a shorter one"
        )
    assert len(residues) == len(sequence), "the tokenizer does not give one token for each residue"
    with torch.no_grad():
        layers = model(encoded["input_ids"], encoded["attention_mask"], output_attentions=True).attentions
    assert len(layers) == model.config.num_hidden_layers, "the network did not tell its attention"
    maps = [layer[0].double().numpy()[:, residues[:, None], residues] for layer in layers]
    return np.mean([average_product_correction(symmetrise(a)).mean(0) for a in maps], 0)


def _codes(rows: Iterable[tuple[str, str]]) -> np.ndarray:
    """Return letters as 0 to 19, and gaps and unknown residues as 20, (N, C)."""
    table = np.full(256, len(LETTERS), np.uint8)
    table[list(LETTERS.encode())] = np.arange(len(LETTERS))
    return table[np.array([list(row.encode()) for _, row in rows])]


def _metrics(maps: dict[str, np.ndarray | None], truth: Truth | None, separation: int) -> dict[str, Any]:
    """Return precision at L of every map, at L/2 and L/5 of the first; None where the truth is not known."""
    from pipeline.attention.contacts import precision_at, random_precision, scored_pairs

    keys = ("value", "at_l2", "at_l5", "untrained", "baseline", "random", "length", "contacts")
    metrics: dict[str, Any] = dict.fromkeys(keys)
    metrics["separation"] = separation
    if truth is None:
        return metrics
    i, j = scored_pairs(truth.known, separation)
    if not len(i):
        raise UserError(f"no residue pair with |i - j| >= {separation} is resolved; lower --min-separation")

    def precision(scores: np.ndarray | None, fraction: float = 1.0) -> float | None:
        if scores is None:
            return None
        return precision_at(scores, truth.contacts, truth.known, fraction, separation)

    metrics |= {name: precision(scores) for name, scores in maps.items()}
    metrics |= {"at_l2": precision(maps["value"], 0.5), "at_l5": precision(maps["value"], 0.2)}
    metrics["random"] = random_precision(truth.contacts, truth.known, separation)
    metrics["length"] = int(truth.known.diagonal().sum())
    metrics["contacts"] = int(truth.contacts[i, j].sum())
    return metrics


def _say_summary(family: Family, metrics: dict[str, Any]) -> None:
    if metrics["value"] is None:
        say(
            f"{family.name}: map of {len(family.columns)} residues; no structure or contacts to score it with"
        )
        return
    baseline = f"mutual information {metrics['baseline']:.2f}, " if metrics["baseline"] is not None else ""
    say(
        f"{family.name}: contact precision {metrics['value']:.2f} at L = {metrics['length']} "
        f"(|i - j| >= {metrics['separation']}), {metrics['at_l5']:.2f} at L/5; untrained "
        f"{metrics['untrained']:.2f}, {baseline}random {metrics['random']:.2f}"
    )


def _write_table(path: Path, scores: np.ndarray, truth: Truth | None, separation: int) -> None:
    """Write the pairs, best first: 1-based residues of the query, score, and 1 or 0 where it is known."""
    i, j = np.triu_indices(len(scores), separation)
    lines = ["i\tj\tscore\tcontact\n"]
    for n in np.argsort(-scores[i, j], kind="stable"):
        a, b = i[n], j[n]
        contact = int(truth.contacts[a, b]) if truth is not None and truth.known[a, b] else ""
        lines.append(f"{a + 1}\t{b + 1}\t{scores[a, b]:.6g}\t{contact}\n")
    path.write_text("".join(lines))


def _draw(path: Path, scores: np.ndarray, truth: Truth | None, separation: int, title: str) -> None:
    """Draw scores above the diagonal, true contacts below it; beside them the L best pairs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n = len(scores)
    figure = Figure(figsize=(11, 5.6) if truth else (6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2 if truth else 1, squeeze=False)[0]
    far = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) >= separation
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
        _draw_best(axes[1], scores, truth, separation)
        axes[1].set(xlim=extent[:2], ylim=extent[2:], aspect="equal")
    for ax in axes:
        ax.set(xlabel="residue", ylabel="residue")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw_best(ax, scores: np.ndarray, truth: Truth, separation: int) -> None:
    from pipeline.attention.contacts import scored_pairs

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


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="contacts")
