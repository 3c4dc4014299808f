"""E. coli promoters: a pretrained network, its controls and an annotation rule, on the same folds.

    python benchmarks/ecoli_promoters.py DATA --output ecoli

``DATA`` holds genomes/ (ecoli_k12_mg1655.fna.gz and .gff.gz, other bacteria) and promoters/ecoli/
(regulondb93_positive2860.fa.gz, regulondb93_negative2860.fa.gz: the set behind MULTiPly and others).

Classifiers are trained and judged in folds that keep windows of one cluster (a shared 30-mer on either
strand) together, with several seeds, on two kinds of negatives: the published ones, nine of ten of which lie
inside genes, and windows of the genome between genes that match the positives in GC content and lie 200 bases
or more from every known start, of genes and of transcripts. There is room for fewer of the second kind than
there are positives, so that set has as many positives, drawn at random. The language model of a set reads
bacterial genomes without any positive, any of the set's negatives, and 500 bases on either side of them.
Everything is a stage of strandlm, so the same command goes on where it was stopped.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from small_models import language_model, tokens_of

from pipeline import finetune, negatives, prepare
from pipeline.artifacts import write_json
from pipeline.config import FinetuneConfig, NegativesConfig, PrepareConfig
from pipeline.sequences.genomes import GenomeInMemory, locate
from pipeline.sequences.places import Places, read_places, strata
from pipeline.sequences.readers import read_files
from pipeline.sequences.records import Notes
from pipeline.training.metrics import Judged, measure

GENOME, OTHERS = "ecoli_k12_mg1655", ("vcholerae_o395", "hpylori_g27", "saureus_n315")
FLANK, SHORTEST = 500, 200  # bases withheld beside a window, and of a piece that is left
UPSTREAM = 60  # bases of a positive before its start of transcription
BETWEEN, AWAY = 1200, 200  # windows between genes, and bases from them to the nearest known start
CONTROLS = ["gc", "kmers", "positions", "pwm", "cnn"]
SETS = {"published": "the published negatives", "intergenic": "intergenic negatives of the same GC content"}
# Of fine-tuning, chosen for each set by the loss of the validation rows of a fold or two.
SETTINGS: dict[str, dict[str, Any]] = {
    "published": {"epochs": 6, "learning_rate": 2e-3, "batch_size": 64, "hide": 0.25},
    "intergenic": {"epochs": 12, "learning_rate": 2e-3, "batch_size": 32, "hide": 0.25},
}
RULE = "coding"  # the stratum whose windows the annotation rule calls negative


def windows(data: Path) -> dict[str, list[str]]:
    """Return the upper-case windows of both classes."""
    found = {}
    for kind in ("positive", "negative"):
        path = data / "promoters" / "ecoli" / f"regulondb93_{kind}2860.fa.gz"
        records = read_files([path], duplicate_ids="rename", notes=Notes())
        found[kind] = [record.sequence.decode().upper() for record in records]
    return found


def rest_of_genome(genome: GenomeInMemory, given: dict[str, list[str]], path: Path) -> None:
    """Write the pieces of the genome that hold no window, nor the bases beside one, as FASTA."""
    places = [place for kind in given.values() for found in locate(genome, kind) for place in found]
    withheld_L = np.zeros(len(genome.letters_L), bool)
    for begin, end in zip(*genome.spans(Places.of(places), FLANK), strict=True):
        withheld_L[begin:end] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[True], withheld_L, [True]]).astype(np.int8)))
    with path.open("w") as file:
        for begin, end in edges.reshape(-1, 2).tolist():
            if end - begin >= SHORTEST:
                place = genome.place(begin, end, "+")
                file.write(f">ecoli_{place.start}\n{genome.fetch(place)}\n")


def pretrained(
    data: Path, genome: GenomeInMemory, given: dict[str, list[str]], output: Path, name: str, steps: int
) -> Path:
    """Return the checkpoint of the language model of a set, made if need be."""
    rest = output / f"{name}-rest.fa"
    rest_of_genome(genome, given, rest)
    others = [data / "genomes" / f"{other}.fa.gz" for other in OTHERS]
    shares = {"validation": 0.03, "test": 0.03}
    tokens = [
        tokens_of([rest], output, f"{name}-rest", split_by="record", **shares),
        tokens_of(others, output, "others", block=10_000, **shares),
    ]
    return language_model(tokens, output / f"{name}-model", window=128, steps=steps, weights=[1, 2])


def table_of(genome: GenomeInMemory, genes: Places, classes: dict[str, list[str]], path: Path) -> None:
    """Write a table of labelled windows with the stratum of each; of several places, the first one's."""
    rows = []
    for label, sequences in classes.items():
        for number, (sequence, found) in enumerate(zip(sequences, locate(genome, sequences), strict=True)):
            stratum = strata(Places.of(found[:1]), genes)[0] if found else "unplaced"
            rows.append((f"{label}_{number}", sequence, label, stratum))
    pd.DataFrame(rows, columns=["id", "sequence", "label", "stratum"]).to_csv(path, sep="\t", index=False)


def corpus_of(output: Path, name: str) -> Path:
    """Return the corpus of a table, in clusters."""
    columns = {"label_column": "label", "keep_columns": ["stratum"], "split_by": "cluster"}
    table = output / f"{name}.tsv"
    return prepare.run(PrepareConfig(output=output / f"{name}-corpus", input=[table], **columns)).folder


def intergenic(
    data: Path, genome: GenomeInMemory, genes: Places, positives: list[str], output: Path
) -> dict[str, list[str]]:
    """Return some of the positives, and as many windows between genes, away from the starts of all."""
    places = Places.of(place for found in locate(genome, positives) for place in found)
    start_N = np.where(places.strand == "+", places.start + UPSTREAM, places.end - UPSTREAM - 1)
    of_transcripts = Places(places.chromosome, start_N, start_N + 1, places.strand)
    starts = Places.join([genes.starts(), of_transcripts])
    columns = {"chromosome": starts.chromosome, "start": starts.start, "end": starts.end}
    columns |= {"name": ".", "score": 0, "strand": starts.strand}
    pd.DataFrame(columns).to_csv(output / "starts.bed", sep="\t", header=False, index=False)
    drawn = sorted(np.random.default_rng(1).permutation(len(positives))[:BETWEEN].tolist())
    chosen = [positives[i] for i in drawn]
    (output / "positives.fa").write_text("".join(f">positive_{i}\n{positives[i]}\n" for i in drawn))
    config = NegativesConfig(
        output=output / "negatives",
        positives=[output / "positives.fa"],
        genome=data / "genomes" / f"{GENOME}.fna.gz",
        annotation=data / "genomes" / f"{GENOME}.gff.gz",
        starts=output / "starts.bed",
        where="intergenic",
        away=AWAY,
        seed=1,
    )
    found = read_files([negatives.run(config).folder / "negatives.fa"])
    return {"negative": [record.sequence.decode() for record in found], "positive": chosen}


def rule(folder: Path) -> dict[str, Any]:
    """Return how good it is to call what is not inside a gene of the same strand."""
    scores = pd.read_csv(folder / "scores.tsv", sep="\t")
    called_N = (scores["group"] != RULE).to_numpy().astype(int)
    labels_N = (scores["label"] == "positive").to_numpy().astype(int)
    judged = Judged(labels_N, np.stack([1 - called_N, called_N], 1).astype(float), called_N)
    return {name: float(value[0]) for name, value in measure(judged, np.ones((1, len(labels_N)))).items()}


def classified(checkpoint: Path, corpus: Path, output: Path, name: str, seeds: int) -> Path:
    """Return the folder of the classifiers of a set."""
    config = FinetuneConfig(
        output=output / f"{name}-classifier",
        checkpoint=checkpoint,
        data=corpus,
        positive="positive",
        group_column="stratum",
        folds=5,
        fold_by="cluster",
        seeds=seeds,
        controls=CONTROLS,
        freeze_embeddings=True,
        seed=1,
        **SETTINGS[name],
    )
    return finetune.run(config).folder


def number(measured: dict[str, Any], name: str) -> str:
    low, high = measured["intervals"][name]
    return f"{measured[name]:.3f} ({low:.3f} to {high:.3f})"


def rows_of(metrics: dict[str, Any]) -> dict[str, list[str]]:
    """Return what a table says of ours and of every control."""
    ours = metrics["at_threshold"]
    rows = {"ours": [number(ours, "mcc"), number(ours, "auroc"), number(ours, "accuracy"), ""]}
    for name, control in metrics["controls"].items():
        ahead = control["ours_minus_it"]["mcc"]
        low, high = ahead["interval"]
        rows[name] = [number(control, "mcc"), number(control, "auroc"), number(control, "accuracy")]
        rows[name].append(f"{ahead['difference']:+.3f} ({low:+.3f} to {high:+.3f})")
    return rows


def print_tables(results: dict[str, Any]) -> None:
    """Print the figures of each set of negatives as a table in Markdown, then the strata."""
    for name, found in results.items():
        print(
            f"\n{SETS[name]}\n\n| classifier | MCC | AUROC | accuracy | ours is ahead, MCC |\n{'|---' * 5}|"
        )
        for classifier, cells in rows_of(found["metrics"]).items():
            print(f"| {classifier} | {' | '.join(cells)} |")
        print(f"| not inside a gene of the same strand | {found['rule']['mcc']:.3f} | | "
              f"{found['rule']['accuracy']:.3f} | |")  # fmt: skip
        print("\n| negatives | n | AUROC, ours | untrained |\n|---|---|---|---|")
        for stratum, areas in found["metrics"]["by_group"].items():
            print(f"| {stratum} | {areas['n']} | {areas['value']:.3f} | {areas['untrained']:.3f} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with genomes/ and promoters/ecoli/")
    parser.add_argument("--output", type=Path, required=True, help="folder of all results")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--checkpoint", type=Path, help="a language model, instead of pretraining one")
    parser.add_argument("--steps", type=int, default=4000, help="of pretraining")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    given.output.mkdir(parents=True, exist_ok=True)
    genomes = given.data / "genomes"
    genome = GenomeInMemory.read(genomes / f"{GENOME}.fna.gz")
    genes = read_places(genomes / f"{GENOME}.gff.gz", genomes / f"{GENOME}.fna.gz", feature="gene")
    classes = windows(given.data)
    results = {}
    for name in given.sets:
        published = name == "published"
        labelled = (
            classes if published else intergenic(given.data, genome, genes, classes["positive"], given.output)
        )
        withheld = {"negative": labelled["negative"], "positive": classes["positive"]}
        checkpoint = given.checkpoint or pretrained(
            given.data, genome, withheld, given.output, name, given.steps
        )
        table_of(genome, genes, labelled, given.output / f"{name}.tsv")
        folder = classified(checkpoint, corpus_of(given.output, name), given.output, name, given.seeds)
        metrics = json.loads((folder / "metrics.json").read_text())["positive_auroc"]
        results[name] = {"metrics": metrics, "rule": rule(folder)}
        write_json(given.output / f"{name}-results.json", results[name])
    print_tables(results)


if __name__ == "__main__":
    main()
