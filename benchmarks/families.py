"""Contacts of protein families: factored attention beside mutual information, mean field, pseudo-likelihood.

    python benchmarks/families.py kortemme40 --output families
    python benchmarks/families.py kortemme40 --output families --families PF00381 --methods mean_field

The folder holds index.json and for each family an alignment, a structure and a table of alignment columns
and residue numbers (Kortemme-Lab/covariation). All methods see the same rows of a family, weighted by one
over the rows that are 80 % identical to it; gaps are in no norm, and the correction is the same. Gaps are
missing letters to factored attention and to pseudo-likelihood, and letters of their own to the other two.
Precision is that of the L and L/5 best pairs with |i - j| >= 6, L being the resolved residues in the
alignment: of corrected scores in the context of the map, as FactoredForMaskedLM gives them, and of corrected
scores alone, as others give them. Hyper-parameters were chosen on the families of CHOSEN_ON alone, and the
headline is about the others.

There is one result file for each family, and one of its maps; the same command goes on where it was stopped,
and what was computed with other settings is computed again. Factored attention is trained by the stage
itself, once with each seed: ``precision`` is the mean over seeds, and ``of_seeds`` has that of each.
``seconds`` says how long one of them took on average, the limit being eight minutes on two cores, and
``cpu_seconds`` what it took of them.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import load_from_disk
from xopen import xopen

from pipeline import encode, prepare, pretrain
from pipeline.artifacts import write_json
from pipeline.attention.contacts import (
    average_product_correction,
    in_context,
    mutual_information,
    precision_at,
    sequence_weights,
    symmetrise,
)
from pipeline.attention.couplings import coupling_scores, mean_field, pseudo_likelihood
from pipeline.attention.jacobian import categorical_jacobian, logits_of
from pipeline.config import ModelConfig, OptimizerConfig, PrepareConfig, PretrainConfig, TokenizeConfig
from pipeline.model import FactoredForMaskedLM
from pipeline.sequences.structure import contact_map, read_structure
from pipeline.tokens.vocabulary import RESIDUES
from pipeline.training.resampling import interval

CHOSEN_ON = ("PF00072", "PF00179", "PF00381", "PF00013", "PF00486")  # 15260, 338, 626, 1013, 5396 rows
CONTROLS = ("mutual_information", "mean_field", "pseudo_likelihood")
LEARNT = ("factored", "attention", "jacobian")
FRACTIONS = {"at_l": 1.0, "at_l5": 0.2}
KINDS = ("in_context", "alone")
ROWS, RESAMPLES, GAP = 2048, 10_000, len(RESIDUES)
HEAD_SIZE = 16


class Family(NamedTuple):
    """Rows of a family (N, C) as codes, their weights, and the truth about n of the C columns.

    ``codes`` has residues in the order of RESIDUES, and GAP for all else; ``columns`` (n,) are those with a
    resolved residue, ``letters`` its codes, ``contacts`` and ``known`` (n, n).
    """

    codes: np.ndarray
    weights: np.ndarray
    columns: np.ndarray
    letters: np.ndarray
    contacts: np.ndarray
    known: np.ndarray

    def score(self, scores_CC: np.ndarray) -> dict[str, dict[str, float]]:
        """Return the precision of the scores at L and L/5, in the context of the map and alone."""
        here = np.ix_(self.columns, self.columns)
        maps = {"in_context": in_context(scores_CC)[here], "alone": scores_CC[here]}
        return {
            kind: {key: precision_at(m, self.contacts, self.known, share) for key, share in FRACTIONS.items()}
            for kind, m in maps.items()
        }


def mean_of(precisions: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the mean of each figure."""
    return {
        kind: {key: float(np.mean([found[kind][key] for found in precisions])) for key in FRACTIONS}
        for kind in KINDS
    }


def encoded(texts: list[str]) -> np.ndarray:
    """Return sequences of one length as codes."""
    table = np.full(256, GAP, np.uint8)
    table[list(RESIDUES.encode())] = np.arange(GAP)
    return table[np.array([list(text.encode()) for text in texts])]


def read_family(data: Path, stem: str, corpus: Path) -> Family:
    """Return a family's rows, as they are in the corpus, and its truth."""
    structure = read_structure(data / f"{stem}.pdb.gz", stem[-1])
    place = {number: index for index, number in enumerate(structure.numbers) if number}
    with xopen(data / f"{stem}.indices.gz") as file:
        fields = [line.rstrip("\n").split("\t") for line in file]
    pairs = [(int(row[0]), place[row[3].split()[0]]) for row in fields if row[3].split()[0] in place]
    columns, index = np.array(pairs).T
    codes = encoded(load_from_disk(corpus)["train"]["sequence"][:])  # pyright: ignore
    contacts, known = contact_map(structure)
    here = np.ix_(index, index)
    letters = encoded([structure.sequence])[0][index]
    return Family(codes, sequence_weights(codes), columns, letters, contacts[here], known[here])


def controls(family: Family) -> dict[str, Callable[[], np.ndarray]]:
    """Return how the maps (C, C) of the controls are made."""
    codes, weights = family.codes, family.weights
    return {
        "mutual_information": lambda: average_product_correction(mutual_information(codes, weights)),
        "mean_field": lambda: coupling_scores(mean_field(codes, weights)),
        "pseudo_likelihood": lambda: coupling_scores(pseudo_likelihood(codes, weights)),
    }


def trained(
    tokens: Path, output: Path, family: Family, settings: dict[str, Any], seed: int
) -> FactoredForMaskedLM:
    """Return factored attention trained on a family."""
    N, C = family.codes.shape
    config = PretrainConfig(
        output=output,
        data=[tokens],
        steps=settings["steps"],
        tokens_per_step=min(N, ROWS) * C,
        micro_batch_tokens=min(N, ROWS) * C,
        checkpoint_every=settings["steps"],
        log_every=50,
        seed=seed,
        model=ModelConfig(
            architecture="factored",
            num_attention_heads=settings["heads"],
            hidden_size=HEAD_SIZE * settings["heads"],
            coupling_decay=settings["decay"],
        ),
        optimizer=OptimizerConfig(learning_rate=settings["learning_rate"], weight_decay=0, warmup=10),
    )
    return FactoredForMaskedLM.from_pretrained(pretrain.run(config).folder).eval()


def learnt(model: FactoredForMaskedLM, family: Family) -> dict[str, np.ndarray]:
    """Return the maps (C, C) of a trained model, without context.

    The Jacobian is that of the structure's own sequence; for a model that is linear in its letters it has to
    tell what the couplings tell.
    """
    C, residues = family.codes.shape[1], model.config.residue_token_ids
    attention = symmetrise(model.model.attention().detach().numpy().mean(0))
    row = np.full(C, model.config.pad_token_id)
    row[family.columns] = np.array([*residues, model.config.pad_token_id])[family.letters]
    jacobian = categorical_jacobian(logits_of(model), row, family.columns, residues, ROWS * C)
    jacobian_CC = np.zeros((C, C))
    jacobian_CC[np.ix_(family.columns, family.columns)] = coupling_scores(jacobian)
    return {
        "factored": coupling_scores(model.model.couplings().detach().numpy()),
        "attention": average_product_correction(attention),
        "jacobian": jacobian_CC,
    }


def run_family(data: Path, stem: str, output: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the result of a family, of which what is not in its files yet is computed."""
    name, path, maps_path = stem.split("_")[0], output / f"{stem}.json", output / f"{stem}.npz"
    settings = {key: getattr(given, key) for key in ("heads", "decay", "learning_rate", "steps", "seeds")}
    result: dict[str, Any] = {"precision": {}, "of_seeds": {}, "seconds": {}}
    maps: dict[str, np.ndarray] = {}
    if path.exists():
        result, maps = json.loads(path.read_text()), dict(np.load(maps_path))
    if result.get("settings", settings) != settings:
        result["precision"] = {key: value for key, value in result["precision"].items() if key in CONTROLS}
    wanted = [method for method in given.methods if method not in result["precision"]]
    if not wanted:
        return result
    corpus, tokens = output / f"{name}-corpus", output / f"{name}-tokens"
    aligned = {"alphabet": "protein", "aligned": True, "duplicate_ids": "rename", "validation": 0, "test": 0}
    prepare.run(PrepareConfig(output=corpus, input=[data / f"{stem}.align80.fa.gz"], seed=1, **aligned))
    family = read_family(data, stem, corpus)
    result |= {"rows": len(family.codes), "effective_rows": round(family.weights.sum(), 1)}
    result |= {"columns": family.codes.shape[1], "residues": int(family.known.diagonal().sum())}

    def keep(found: dict[str, list[np.ndarray]]) -> None:
        maps.update({method: np.stack(each).astype(np.float32) for method, each in found.items()})
        result["of_seeds"] |= {m: [family.score(scores) for scores in each] for m, each in found.items()}
        result["precision"] |= {method: mean_of(result["of_seeds"][method]) for method in found}
        np.savez_compressed(maps_path, **maps)
        write_json(path, result)

    for method, compute in controls(family).items():
        if method in wanted:
            began = time.monotonic()
            scores = compute()
            result["seconds"][method] = round(time.monotonic() - began, 1)
            keep({method: [scores]})
    if "factored" in wanted:
        began, used = time.monotonic(), time.process_time()
        encode.run(TokenizeConfig(output=tokens, corpus=corpus, tokenizer="protein"))
        models = [
            trained(tokens, output / f"{name}-model-{seed}", family, settings, seed) for seed in given.seeds
        ]
        result["seconds"]["factored"] = round((time.monotonic() - began) / len(models), 1)
        result["cpu_seconds"] = {"factored": round((time.process_time() - used) / len(models), 1)}
        result["settings"] = settings
        found = [learnt(model, family) for model in models]
        keep({method: [of_seed[method] for of_seed in found] for method in LEARNT})
    return result


def headline(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return means over the families that nothing was chosen on, and how far factored is above mean field.

    Mean field is given the context, too, or is taken as it is published, alone. Intervals are 95 % of
    resamples of families, both methods on the same ones.
    """
    others = [found for name, found in results.items() if name not in CHOSEN_ON]
    held = [found["precision"] for found in others]
    methods = [m for m in (*LEARNT, *CONTROLS) if held and all(m in found for found in held)]

    def values(method: str, kind: str, key: str) -> np.ndarray:
        return np.array([found[method][kind][key] for found in held])

    mean = {m: mean_of([found[m] for found in held]) for m in methods}
    summary: dict[str, Any] = {"families": len(held), "mean": mean}
    if "factored" in methods:
        summary["of_seeds"] = [
            mean_of(list(seeds)) for seeds in zip(*(f["of_seeds"]["factored"] for f in others), strict=True)
        ]
    if {"factored", "mean_field"} <= set(methods):
        for kind, key in itertools.product(KINDS, FRACTIONS):
            ahead = values("factored", "in_context", key) - values("mean_field", kind, key)
            spread = interval(lambda draw, ahead=ahead: ahead[draw].mean(1), len(ahead), RESAMPLES, 1)
            summary[f"above_mean_field_{kind}_{key}"] = {"mean": float(ahead.mean()), "interval": spread}
    return summary


def print_table(results: dict[str, dict[str, Any]], summary: dict[str, Any]) -> None:
    """Print precision at L and L/5 of every family and method, in context, as a table in Markdown."""

    def cells(precision: dict[str, dict[str, dict[str, float]]], kind: str) -> str:
        found = [precision[m][kind] if m in precision else None for m in (*LEARNT, *CONTROLS)]
        return " | ".join(f"{p['at_l']:.2f} / {p['at_l5']:.2f}" if p else "" for p in found)

    heads = " | ".join(method.replace("_", " ") for method in (*LEARNT, *CONTROLS))
    print(f"\n| family | rows | L | {heads} | seconds |\n{'|---' * 10}|")
    for name, found in results.items():
        star, seconds = "*" if name in CHOSEN_ON else "", found["seconds"].get("factored", "")
        sizes = f"{found['rows']} | {found['residues']}"
        print(f"| {name}{star} | {sizes} | {cells(found['precision'], 'in_context')} | {seconds} |")
    for kind in KINDS:
        name = f"mean of {summary['families']}, {kind.replace('_', ' ')}"
        print(f"| {name} | | | {cells(summary['mean'], kind)} | |")
    print("\n* hyper-parameters were chosen on it")
    print(json.dumps(summary))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with index.json")
    parser.add_argument("--output", type=Path, required=True, help="folder of all results")
    parser.add_argument("--families", nargs="+", help="Pfam accessions (default: all)")
    methods = ("factored", *CONTROLS)
    parser.add_argument("--methods", nargs="+", choices=methods, default=list(methods))
    parser.add_argument("--heads", type=int, default=256)
    parser.add_argument(
        "--decay", type=float, default=0.05, help="penalty of couplings, as in model.coupling_decay"
    )
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of factored attention")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    given.output.mkdir(parents=True, exist_ok=True)
    entries = json.loads((given.data / "index.json").read_text())
    stems = {entry["pfam"]: f"{entry['pfam']}_{entry['id']}" for entry in entries}
    if unknown := set(given.families or ()) - stems.keys():
        raise SystemExit(
            f"--families {' '.join(sorted(unknown))}: not in index.json ({' '.join(sorted(stems))})"
        )
    results = {}
    for name in sorted(given.families or stems):
        results[name] = run_family(given.data, stems[name], given.output, given)
    print_table(results, headline(results))


if __name__ == "__main__":
    main()
