"""The stage that fits ESM's contact regression on known structures and stores it in the checkpoint.

Shapes: n residues of a protein, P pairs, N features (layers x heads).
"""

import csv
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.attention.contact_files import FITTED_ON
from pipeline.config import ContactHeadConfig
from pipeline.errors import UserError
from pipeline.log import say, track
from pipeline.report.card import CARD, write_card

if TYPE_CHECKING:
    from pipeline.attention.regression import Protein, Regression

FORMATS = {".pdb", ".ent", ".cif", ".mmcif"}
KEYS = ["pairs", "contacts", "at_l", "at_l2", "at_l5", "ceiling_at_l", "ceiling_at_l2", "ceiling_at_l5"]
KEYS += ["random", "auc"]
Scores = dict[str, list[dict[str, dict[str, Any]]]]


def run(config: ContactHeadConfig) -> Result:
    """Write a copy of the checkpoint with a fitted contact regression, metrics.json and precision.tsv.

    Scores are of proteins whose family the regression did not see. Beside them stand the same regression on
    an untrained network of the same shape, one on |i - j| alone, and the mean of all heads without any.

    Raises:
        UserError: a structure cannot be read, too few of them, or the checkpoint is no protein model of ours.
    """
    paths, left_out = _files(config.structures)
    inputs = {"checkpoint": config.checkpoint, **{f"structure {path.name}": path for path in paths}}
    inputs |= {"families": config.families} if config.families else {}

    def build(workspace: Workspace) -> None:
        workspace.counts |= {"structures": len(paths), "other_files": left_out}
        _build(config, paths, workspace)
        write_card(workspace, "contact-head", config)

    return produce("contact-head", config, inputs, build, volatile=(CARD,))


def _files(given: list[Path]) -> tuple[list[Path], int]:
    """Return the structure files, by name, and how many other files lie in the folders.

    Raises:
        UserError: there is none, or two have one name.
    """
    paths, others = [], 0
    for place in given:
        inside = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
        chosen = [path for path in inside if path == place or FORMATS & {s.lower() for s in path.suffixes}]
        others += len(inside) - len(chosen)
        paths += chosen
    twice = [name for name, count in Counter(map(_name, paths)).items() if count > 1]
    if twice:
        raise UserError(f"structures: two files are called {twice[0]}; rename one")
    if not paths:
        raise UserError(f"structures: {given[0]}: no PDB or mmCIF file in it")
    if others:
        say(f"structures: {others} other files are not read")
    return sorted(paths, key=_name), others


def _name(path: Path) -> str:
    return path.name.split(".")[0]


def _build(config: ContactHeadConfig, paths: list[Path], workspace: Workspace) -> None:
    from pipeline.attention.regression import fit
    from pipeline.tokens.kmers import codec_of
    from pipeline.training.weights import STRAND, load_protein_model

    model, codec = load_protein_model(config.checkpoint, STRAND), codec_of(config.checkpoint)
    proteins = _read(config, paths)
    features = _features(model, codec, proteins, "attention")
    scores = _evaluate(config, model, codec, proteins, features)
    metric = _metric(scores, config.seed)
    metric |= {
        "families": len({one.family for one in proteins}),
        "separation_at_least": config.min_separation,
    }
    chosen = np.random.default_rng(config.seed).permutation(len(proteins))[: config.fit_on]
    fitted = fit([features[n] for n in chosen], [proteins[n].labels for n in chosen], config.strength)
    _store(model, codec, fitted, config.checkpoint, workspace.path)
    _write_fasta(workspace.path / FITTED_ON, [proteins[n] for n in sorted(chosen)])
    _write_table(workspace.path / "precision.tsv", proteins, scores)
    workspace.write_json("metrics.json", {"contact_precision_at_l": metric})
    workspace.counts |= {
        "proteins_fitted_on": sorted(proteins[n].name for n in chosen),
        "pairs_fitted_on": int(sum(len(proteins[n].labels) for n in chosen)),
        "contacts_fitted_on": int(sum(proteins[n].labels.sum() for n in chosen)),
        "heads": len(fitted.weights),
        "heads_used": int(np.count_nonzero(fitted.weights)),
    }
    _say_summary(metric, workspace.counts)


def _read(config: ContactHeadConfig, paths: list[Path]) -> "list[Protein]":
    """Return the proteins of all structures with their families.

    Raises:
        UserError: one cannot be used, they are fewer than wanted, or all are of one family.
    """
    from dataclasses import replace

    from pipeline.attention.regression import group, protein
    from pipeline.sequences.structure import read_structure

    if config.fit_on and config.fit_on > len(paths):
        raise UserError(f"fit_on={config.fit_on}: only {len(paths)} structures; add others")
    proteins = []
    for path in paths:
        structure = read_structure(path)
        say(f"{path.name}: {structure.describe()}")
        proteins.append(protein(_name(path), structure, config.min_separation, config.distance))
    if config.families:
        family = _families(config.families, [one.name for one in proteins])
    else:
        family = group({one.name: one.structure.sequence for one in proteins}, config.similarity)
    if len(set(family.values())) < 2:
        raise UserError("structures: all are of one family, so none can be held out; add others")
    for name, count in Counter(family.values()).items():
        if count > 1:
            say(f"held out together: {', '.join(one for one, of in family.items() if of == name)}")
    return [replace(one, family=family[one.name]) for one in proteins]


def _families(path: Path, names: list[str]) -> dict[str, str]:
    """Return the family of each structure out of a table."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = "," if "," in file.readline() else "\t"
        file.seek(0)
        rows = csv.DictReader(file, delimiter=delimiter)
        if not {"structure", "family"} <= set(rows.fieldnames or ()):
            raise UserError(f"{path}: line 1: the columns structure and family are needed")
        family = {row["structure"]: row["family"] for row in rows}
    absent = next((name for name in names if not family.get(name)), None)
    if absent:
        raise UserError(f"{path}: no family of structure {absent}; add a row")
    return {name: family[name] for name in names}


def _features(model, codec, proteins: "list[Protein]", what: str) -> list[np.ndarray]:
    """Return the corrected maps of all heads at the pairs of each protein, (P, N)."""
    from pipeline.attention.maps import pair_features
    from pipeline.training.classifier import check_lengths, encode, pad

    named = [(one.name, one.structure.sequence) for one in proteins]
    check_lengths(named, codec, model.config.max_position_embeddings)
    features = []
    for (_, sequence), one in track(zip(named, proteins, strict=True), len(proteins), what):
        inputs = pad([encode(sequence, codec)], codec)
        assert inputs["input_ids"].shape[1] == len(sequence) + 2, "a token is a residue"
        features += pair_features(model, inputs, [np.arange(1, len(sequence) + 1)], [one.pairs])
    return features


def _evaluate(config, model, codec, proteins: "list[Protein]", features: list[np.ndarray]) -> Scores:
    """Return the scores of each protein by each route, its family held out."""
    from functools import partial

    from pipeline.attention.regression import fit, fit_separation, held_out, judge, separation_features
    from pipeline.training.network import untrained

    fitter = partial(fit, strength=config.strength)
    settings = {"most": config.fit_on, "seed": config.seed}
    twin = untrained(model.config, codec, config.seed).eval()
    twin_features = _features(twin, codec, proteins, "attention, untrained")
    separations = [separation_features(one) for one in proteins]
    maps = {
        "regression": held_out(proteins, features, fitter, **settings),
        "untrained": held_out(proteins, twin_features, fitter, **settings),
        "separation": held_out(proteins, separations, fit_separation, **settings),
        "label_free": [one.unfold(seen.mean(1)) for one, seen in zip(proteins, features, strict=True)],
    }
    return {route: judge(proteins, of) for route, of in maps.items()}


def _metric(scores: Scores, seed: int) -> dict[str, Any]:
    """Return the means over proteins of every route and range, and the headline, precision at L."""
    from pipeline.attention.contacts import mean_ranges
    from pipeline.attention.regression import above

    ranges = {route: mean_ranges(of, seed) for route, of in scores.items()}
    ours = ranges["regression"]["all"]
    controls = [route for route in scores if route != "regression"]
    return {
        "value": ours["at_l"],
        "interval": ours["intervals"].get("at_l"),
        "at_l2": ours["at_l2"],
        "at_l5": ours["at_l5"],
        "ceiling": ours["ceiling_at_l"],
        "random": ours["random"],
        **{route: ranges[route]["all"]["at_l"] for route in controls},
        "above": {route: above(scores["regression"], scores[route], seed) for route in controls},
        "proteins": ours["proteins"],
        "ranges": ranges,
    }


def _store(model, codec, fitted: "Regression", checkpoint: Path, folder: Path) -> None:
    """Write the checkpoint in the precision that it had, with the regression in it."""
    import torch

    from pipeline.model import StrandConfig
    from pipeline.model.contacts_strand import ContactHead
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer

    model.config.contact_head = True
    model.config.framing_token_ids = [codec.special("cls"), codec.special("eos")]
    model.contact_head = ContactHead(model.config)
    model.contact_head.regression.weight[0] = torch.from_numpy(fitted.weights)
    model.contact_head.regression.bias[0] = fitted.bias
    stored: Any = StrandConfig.from_pretrained(checkpoint.absolute()).dtype
    model.to(stored or torch.float32).save_pretrained(folder)
    save_tokenizer(load_tokenizer(checkpoint), folder)


def _write_fasta(path: Path, proteins: "list[Protein]") -> None:
    """Write what the regression was fitted on, so that nobody scores it there."""
    path.write_text("".join(f">{one.name}\n{one.structure.sequence}\n" for one in proteins))


def _write_table(path: Path, proteins: "list[Protein]", scores: Scores) -> None:
    """Write a row for each protein, route and range."""
    head = ["protein", "chain", "family", "residues", "route", "range", *KEYS]
    lines = ["\t".join(head)]
    for route, of in scores.items():
        for one, ranges in zip(proteins, of, strict=True):
            resolved = int(one.structure.resolved.sum())
            for name, found in ranges.items():
                values = [_shown(found[key]) for key in KEYS]
                named = [one.name, one.structure.chain, one.family, str(resolved), route, name]
                lines.append("\t".join([*named, *values]))
    path.write_text("\n".join(lines) + "\n")


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _say_summary(metric: dict[str, Any], counts: dict[str, Any]) -> None:
    say(
        f"{counts['pairs_fitted_on']} pairs, {counts['contacts_fitted_on']} of them contacts: "
        f"{counts['heads_used']} of {counts['heads']} heads are used"
    )
    for name, ours in metric["ranges"]["regression"].items():
        if ours["at_l"] is not None:
            others = (
                f"{route.replace('_', '-')} {ranges[name]['at_l']:.3f}"
                for route, ranges in metric["ranges"].items()
                if route != "regression"
            )
            say(
                f"{name} range, {ours['proteins']} proteins held out: precision {ours['at_l']:.3f} at L (at "
                f"most {ours['ceiling_at_l']:.3f}), {ours['at_l2']:.3f} at L/2, {ours['at_l5']:.3f} at L/5; "
                f"at L {', '.join(others)}, random {ours['random']:.3f}"
            )


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="contact-head")
