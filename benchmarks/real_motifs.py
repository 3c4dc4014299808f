"""Motifs of real promoters and binding sites, found by the stage motifs and compared with what is published.

    python benchmarks/real_motifs.py DATA --output real-motifs --sets sigma70 prom_core_tata

``DATA`` holds genomes/, motifs/ (JASPAR) and promoters/ (ecoli/sigma70.fa.gz, gue/). sigma70: the promoters
of E. coli against windows inside genes that match them in GC content and against shuffled promoters; the
boxes have to be found as published, where they lie, as far apart, and in no search among the negatives.
prom_core_tata: the box of human promoters has to be TBP's in JASPAR, and to lie where TBP binds. tf_0 to
tf_4: the best motif of each set of binding sites and what JASPAR calls it. A classifier of each set is
fine-tuned from a language model of the same kind of genome. One result file for each set; what is finished is
not made again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ecoli_promoters import GENOME, pretrained, windows
from gue import pretrained as pretrained_on_human

from pipeline import finetune, motifs, negatives, prepare
from pipeline.artifacts import write_json
from pipeline.attention.motif_files import best_hits, read_motifs, write_meme
from pipeline.attention.words import false_discovery
from pipeline.config import FinetuneConfig, MotifsConfig, NegativesConfig, PrepareConfig
from pipeline.sequences.genomes import GenomeInMemory
from pipeline.worlds.matrices import sample_decoys
from pipeline.worlds.promoters import box_matrix

SIGMA70_START, CORE_START = 60, 34  # bases of a window before its start site
# Of each box: where its first base should lie (the start site is 0), and by how much it may miss that.
BOXES = {"minus35": (-36, 3), "minus10": (-12, 2)}
SPACER, LEAST_CORRELATION, DECOYS = (17, 1), 0.75, 200
OUTSIDE = 2  # columns of a box that a matrix may lack on either side
TATA, TATA_CENTRE, TATA_Q = "TBP", (-35, -25), 0.01
TF = {f"tf_{number}": f"tf_human/{number}" for number in range(5)}
SETS = ("sigma70", "prom_core_tata", *TF)
EMPTY = ("shuffled_positives", "permuted_labels")  # controls without anything to find


# -- rows, classifiers, motifs


def others(data: Path, folder: Path) -> Path:
    """Return windows inside genes alike in GC content and promoters shuffled, as many of each as promoters.

    Windows inside genes alone are told from promoters by composition, and a classifier need not read boxes.
    """
    positives = [data / "promoters" / "ecoli" / "sigma70.fa.gz"]
    config = NegativesConfig(
        output=folder / "coding",
        positives=positives,
        genome=data / "genomes" / f"{GENOME}.fna.gz",
        annotation=data / "genomes" / f"{GENOME}.gff.gz",
        where="coding",
        seed=1,
    )
    shuffled = NegativesConfig(output=folder / "shuffled", positives=positives, kind="shuffled", seed=1)
    path = folder / "others.fa"
    path.write_text(
        "".join((negatives.run(kind).folder / "negatives.fa").read_text() for kind in (config, shuffled))
    )
    return path


def sigma70_corpus(data: Path, folder: Path) -> Path:
    promoters = data / "promoters" / "ecoli" / "sigma70.fa.gz"
    config = PrepareConfig(
        output=folder / "corpus",
        classes={"other": others(data, folder), "site": promoters},
        split_by="cluster",
        validation=0.1,
        test=0.3,
        duplicate_ids="rename",
    )
    return prepare.run(config).folder


def gue_corpus(data: Path, folder: Path, name: str, most: int) -> Path:
    """Return the rows of a set of GUE as they are split, of the training rows ``most`` of each class."""
    source, parts = data / "promoters" / "gue" / TF.get(name, f"prom/{name}"), []
    for file, split in {"train": "train", "dev": "validation", "test": "test"}.items():
        rows = pd.read_csv(source / f"{file}.csv.gz").assign(split=split)
        if split == "train":
            rows = rows.sample(frac=1, random_state=1).groupby("label").head(most).sort_index()
        parts.append(rows)
    table = pd.concat(parts)
    table["class"] = np.where(table["label"] == 1, "site", "other")
    table.insert(0, "id", [f"{name}_{number}" for number in range(len(table))])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.tsv"
    table.drop(columns="label").to_csv(path, sep="\t", index=False)
    config = PrepareConfig(output=folder / "corpus", input=[path], label_column="class", split_column="split")
    return prepare.run(config).folder


def classifier(folder: Path, checkpoint: Path, corpus: Path, epochs: float, start: int | None) -> Path:
    config = FinetuneConfig(
        output=folder / "classifier",
        checkpoint=checkpoint,
        data=corpus,
        positive="site",
        epochs=epochs,
        learning_rate=2e-3,
        hide=0.25,
        freeze_embeddings=True,
        untrained_control=False,
        controls=[],
        shuffled_negatives=False,
        start_site=start,
        seed=1,
    )
    return finetune.run(config).folder


def found_in(output: Path, trained: Path, corpus: Path, database: Path, **how: Any) -> Path:
    """Return the folder of the stage motifs, run as it is shipped."""
    settings = {"positive": "site", "database": [database], "seed": 1} | how
    return motifs.run(MotifsConfig(output=output, checkpoint=trained, data=corpus, **settings)).folder


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of motifs.json with what is worth a row of the table."""
    return json.loads((folder / "motifs.json").read_text())


def short(motif: dict[str, Any]) -> dict[str, Any]:
    """Return what a result file says of any motif."""
    keys = ("name", "consensus", "q_value", "sites_in_positives", "sites_in_others", "modal_start")
    keys += ("gathers_at", "gathering_p_value", "supported", "also_found_in", "best_hit")
    return {key: motif.get(key) for key in keys}


def area(trained: Path) -> float:
    return json.loads((trained / "metrics.json").read_text())["site_auroc"]["value"]


# -- E. coli


def aligned(found: np.ndarray, box: np.ndarray) -> tuple[float, int]:
    """Return the correlation of a matrix with all columns of a box, and the column where the box begins.

    The box is read on its strand and may begin or end two columns outside the matrix, whose columns there say
    nothing.
    """
    around = np.full((OUTSIDE, 4), 0.25)
    padded, width = np.concatenate([around, found, around]), len(box)
    values = [
        float(np.corrcoef(padded[at : at + width].ravel(), box.ravel())[0, 1])
        for at in range(len(padded) - width + 1)
    ]
    best = int(np.argmax(values))
    return values[best], best - OUTSIDE


def box_found(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the motif that is most like a published box, and whether it is as it should be."""
    (where, within), box = BOXES[name], box_matrix(name)
    rows = [(*aligned(np.array(motif["matrix"]), box), motif) for motif in records]
    value, begin, motif = max(rows, key=lambda row: row[0], default=(-1.0, 0, None))
    if motif is None:
        return {"correlation": None, "right": False}
    start = None if motif["modal_start"] is None else motif["modal_start"] + begin
    there = start is not None and abs(start - where) <= within
    right = value >= LEAST_CORRELATION and there and bool(motif["supported"])
    right = right and not set(motif["also_found_in"]) & set(EMPTY)
    more = {"correlation": round(value, 3), "box_begins_in_column": begin, "box_starts_at": start}
    return short(motif) | more | {"width": len(motif["matrix"]), "right": right}


def spacer(folder: Path, boxes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the commonest number of bases between the boxes, and its q-value as a pair of motifs."""
    first, second = (boxes[name] for name in BOXES)
    names = first.get("name"), second.get("name")
    table = pd.read_csv(folder / "pairs.tsv", sep="\t").to_dict("records")
    mine = [pair for pair in table if (pair["first"], pair["second"]) == names and pair["at_spacing"]]
    if not mine:
        return {"spacer": None, "right": False}
    pair = mine[0]
    beyond = first["width"] - first["box_begins_in_column"] - len(box_matrix("minus35"))
    between = int(pair["spacing"]) + beyond + second["box_begins_in_column"]
    right = abs(between - SPACER[0]) <= SPACER[1] and float(pair["q_value"]) < 0.05
    numbers = {"promoters": int(pair["at_spacing"]), "expected": round(float(pair["expected"]), 2)}
    return {"spacer": between, "q_value": float(pair["q_value"]), **numbers, "right": bool(right)}


def boxes_database(path: Path) -> Path:
    """Write the published boxes with decoys beside them."""
    database = {name: box_matrix(name) for name in BOXES} | sample_decoys(DECOYS, np.random.default_rng(0))
    write_meme(path, database, dict.fromkeys(database, 100))
    return path


def sigma70(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    data, corpus = options.data, sigma70_corpus(options.data, folder)
    genome = GenomeInMemory.read(data / "genomes" / f"{GENOME}.fna.gz")
    model = options.checkpoint or pretrained(data, genome, windows(data), folder, options.steps)
    trained = classifier(folder, model, corpus, options.epochs, SIGMA70_START)
    database = boxes_database(folder / "boxes.meme")
    site = found_in(folder / "motifs", trained, corpus, database, expected=list(BOXES))
    other = found_in(folder / "other-motifs", trained, corpus, database, positive="other", mutagenesis=0,
                     controls=[])  # fmt: skip
    boxes = {name: box_found(read(site), name) for name in BOXES}
    found_there = [np.array(motif["matrix"]) for motif in read(other)]
    for name, box in boxes.items():
        nearest = max((aligned(matrix, box_matrix(name))[0] for matrix in found_there), default=-1.0)
        box["best_correlation_in_negatives"] = round(nearest, 3)
        box["right"] = box["right"] and nearest < LEAST_CORRELATION
    found = {"boxes": boxes, "spacer": spacer(site, boxes), "motifs": [short(m) for m in read(site)]}
    found["controls"] = json.loads((site / "controls.json").read_text())
    right = all(box["right"] for box in boxes.values()) and found["spacer"]["right"]
    return {"auroc": area(trained), "right": right, **found}


# -- human


def jaspar(data: Path) -> Path:
    return data / "motifs" / "jaspar2026_core_nr_vertebrates.jaspar.gz"


def matched(motif: dict[str, Any], database: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return what a result file says of a motif, with the best match and its q-value over the database."""
    hits = best_hits({motif["name"]: np.array(motif["matrix"])}, database, len(database))
    q_value = float(false_discovery([hit.p_value for hit in hits])[0])
    width = len(motif["matrix"])
    centre = None if motif["modal_start"] is None else motif["modal_start"] + (width - 1) / 2
    return short(motif) | {
        "match": hits[0].target,
        "match_q_value": q_value,
        "width": width,
        "centre": centre,
    }


def prom_core_tata(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    corpus = gue_corpus(options.data, folder, "prom_core_tata", options.rows)
    trained = classifier(folder, human_model(options), corpus, options.epochs, CORE_START)
    file = jaspar(options.data)
    site, database = found_in(folder / "motifs", trained, corpus, file), read_motifs(file)
    rows = [matched(motif, database) for motif in read(site)]
    boxes = [row for row in rows if row["match"].split()[-1] == TATA and row["match_q_value"] < TATA_Q]
    low, high = TATA_CENTRE
    placed = [row for row in boxes if row["centre"] is not None and row["gathering_p_value"] < TATA_Q]
    right = [row for row in placed if low <= row["centre"] <= high]
    controls = json.loads((site / "controls.json").read_text())
    return {"auroc": area(trained), "right": bool(right), "tata": boxes, "motifs": rows, "controls": controls}


def tf(options: argparse.Namespace, folder: Path, name: str) -> dict[str, Any]:
    corpus = gue_corpus(options.data, folder, name, options.rows)
    trained = classifier(folder, human_model(options), corpus, options.epochs, None)
    file = jaspar(options.data)
    how = {"strands": "both", "max_motifs": 4, "controls": ["shuffled_positives", "no_attention"]}
    site = found_in(folder / "motifs", trained, corpus, file, **how)
    rows, database = read(site), read_motifs(file)
    return {"auroc": area(trained), "motifs": [matched(motif, database) for motif in rows]}


def human_model(options: argparse.Namespace) -> Path:
    return options.human_checkpoint or pretrained_on_human(
        options.data, options.output / "human", options.human_steps
    )


# -- what is printed


def print_table(results: dict[str, Any]) -> None:
    header = ("set", "AUROC", "motif", "match", "q", "mutagenesis", "starts at", "also without attention")
    print(f"\n| {' | '.join(header)} |\n{'|---' * len(header)}|")
    for name, result in results.items():
        for motif in result["motifs"]:
            hit = motif.get("match") or (motif["best_hit"] or {}).get("target", "")
            cells = [name, f"{result['auroc']:.3f}", motif["consensus"], hit, f"{motif['q_value']:.1e}"]
            cells += ["yes" if motif["supported"] else "no", str(motif["modal_start"])]
            cells.append("yes" if "no_attention" in motif["also_found_in"] else "no")
            print(f"| {' | '.join(cells)} |")


def line(results: dict[str, Any]) -> dict[str, Any]:
    """Return what one line says: whether each goal is met, and the numbers that say so."""
    found: dict[str, Any] = {"simulated": False}
    for name, result in results.items():
        if name == "sigma70":
            boxes = {
                box: (one["correlation"], one.get("box_starts_at")) for box, one in result["boxes"].items()
            }
            found[name] = {"right": result["right"], "spacer": result["spacer"]["spacer"], **boxes}
        elif name == "prom_core_tata":
            found[name] = {"right": result["right"]}
        else:
            found[name] = result["motifs"][0]["match"] if result["motifs"] else None
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with genomes/, motifs/ and promoters/")
    parser.add_argument("--output", type=Path, required=True, help="folder of all results")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument(
        "--checkpoint", type=Path, help="a language model of bacteria, instead of pretraining"
    )
    parser.add_argument("--steps", type=int, default=4000, help="of pretraining on bacteria")
    parser.add_argument("--human-checkpoint", type=Path, help="a language model of human DNA")
    parser.add_argument("--human-steps", type=int, default=4000, help="of pretraining on human DNA")
    parser.add_argument("--epochs", type=float, default=6, help="of fine-tuning")
    parser.add_argument("--rows", type=int, default=3000, help="training rows of each class, sets of GUE")
    return parser.parse_args()


def main() -> None:
    """Run what is not finished; print a table and one line of JSON."""
    options = arguments()
    results = {}
    for name in options.sets:
        path, folder = options.output / f"{name}.json", options.output / name
        if not path.is_file():
            run = {"sigma70": sigma70, "prom_core_tata": prom_core_tata}.get(name)
            write_json(path, run(options, folder) if run else tf(options, folder, name))
        results[name] = json.loads(path.read_text())
    print_table(results)
    print(json.dumps(line(results)))


if __name__ == "__main__":
    main()
