"""The promoter and transcription-factor sets of GUE, on their official splits, beside simple controls.

    python benchmarks/gue.py DATA --output gue --sets prom_core_tata prom_300_tata

``DATA`` holds genomes/ (pieces of the human genome) and promoters/gue/. The language model is pretrained on
those pieces, and goes on with the training rows of the sets, without their labels; rows that share 30 bases
with a validation or test row of any set are left out. Each set is then fine-tuned with several seeds.
Figures are given of the whole test split and of its sequences that share no 30 bases (on either strand) with
a training sequence. Everything is a stage of strandlm, so the same command goes on where it was stopped;
every set has a result file of its own.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from small_models import language_model, tokens_of

from pipeline import finetune, prepare
from pipeline.artifacts import write_json
from pipeline.config import FinetuneConfig, PrepareConfig
from pipeline.sequences.corpus import load_corpus
from pipeline.sequences.readers import read_files
from pipeline.sequences.similarity import close_to
from pipeline.training.metrics import against_rest, bootstrap

GENOMES = ("human_grch37_chrX_12Mb", "human_hg38_chr2_1-2333275")
CONTROLS = ["gc", "kmers", "positions", "pwm", "cnn"]
SHARED = 30  # bases
SETS = {name: f"prom/{name}" for name in ("prom_core_tata", "prom_300_tata", "prom_core_all")}
SETS |= {f"tf_{number}": f"tf_human/{number}" for number in range(5)}
EPOCHS = {"prom_core_tata": 6, "prom_300_tata": 6, "tf_0": 2, "tf_1": 2, "tf_3": 2}  # 3 of all others
# What kept networks from learning rows by heart, for sets whose names begin so. Binding sites lie anywhere.
SETTINGS: dict[str, dict[str, Any]] = {
    "prom": {"hide": 0.15, "freeze_embeddings": True},
    "tf": {"pooling": "attention"},
}
# MCC as given in the figure of results of DNABERT-2's repository (Zhou et al. 2023, arXiv:2306.15006).
PUBLISHED = {
    "prom_core_tata": {"DNABERT, 3-mers": 0.7815, "DNABERT, 6-mers": 0.7606, "DNABERT-2": 0.7417},
    "prom_core_all": {"DNABERT, 3-mers": 0.7092, "DNABERT, 6-mers": 0.6890, "DNABERT-2": 0.6937},
    "prom_300_tata": {
        "DNABERT, 3-mers": 0.6983,
        "DNABERT, 6-mers": 0.6156,
        "Nucleotide Transformer 2.5B": 0.7943,
        "DNABERT-2": 0.7159,
    },
}


def kind_of(name: str) -> str:
    """Return what the name of a set begins with: a key of SETTINGS."""
    return name.partition("_")[0]


def pretrained(data: Path, output: Path, steps: int) -> Path:
    """Return the checkpoint of the language model of the human pieces, made if need be."""
    files = [data / "genomes" / f"{name}.fa.gz" for name in GENOMES]
    tokens = tokens_of(files, output, "human", block=10_000, validation=0.02, test=0.02)
    return language_model([tokens], output / "model", window=320, steps=steps, weights=[])


def write_unlabelled(data: Path, paths: dict[str, Path]) -> None:
    """Write the training rows, without labels, as FASTA; ``paths`` are by kind of set.

    Rows that share 30 bases (on either strand) with a validation or test row of any set are left out.
    """
    tables = [
        pd.read_csv(data / "promoters" / "gue" / place / f"{split}.csv.gz").assign(set=name, split=split)
        for name, place in SETS.items()
        for split in ("train", "dev", "test")
    ]
    rows = pd.concat(tables, ignore_index=True)
    train_N = (rows["split"] == "train").to_numpy()
    texts = pa.chunked_array([rows["sequence"].tolist()])
    kept = rows[train_N & ~close_to(texts, train_N, ~train_N, SHARED, both_strands=True)]
    for kind, path in paths.items():
        chosen = kept.loc[kept["set"].map(kind_of) == kind, "sequence"]
        path.write_text("".join(f">row_{row}\n{text}\n" for row, text in chosen.items()))


def adapted(data: Path, output: Path, start: Path, steps: int) -> Path:
    """Return the checkpoint that goes on with training rows, without labels, made if need be.

    Gururangan et al. 2020, arXiv:2004.10964.
    """
    paths = {kind: output / f"{kind}-rows.fa" for kind in SETTINGS}
    write_unlabelled(data, paths)
    shares = {"split_by": "cluster", "validation": 0.02, "test": 0.02}
    tokens = [tokens_of([path], output, f"{kind}-rows", **shares) for kind, path in paths.items()]
    weights = [1.0] * len(tokens)
    return language_model(tokens, output / "adapted", window=320, steps=steps, weights=weights, start=start)


def corpus_of(data: Path, name: str, output: Path) -> Path:
    """Return the corpus of a set: all of its rows, as they are split."""
    config = PrepareConfig(
        output=output / name / "corpus",
        input=[data / "promoters" / "gue" / SETS[name]],
        split_by="file",
        label_column="label",
        deduplicate=False,
    )
    return prepare.run(config).folder


def unlike_train(corpus: Path) -> np.ndarray:
    """Return which test sequences share no 30 bases with a training sequence."""
    splits = load_corpus(corpus)
    texts = [list(splits[name]["sequence"]) for name in ("train", "test")]
    is_test = np.repeat([False, True], [len(part) for part in texts])
    close = close_to(pa.chunked_array(texts), is_test, ~is_test, SHARED, both_strands=True)
    return ~close[is_test]


def pretraining_holds(data: Path, corpus: Path) -> int:
    """Return how many test sequences lie whole in the pieces that the language model was pretrained on."""
    from pipeline.sequences.genomes import GenomeInMemory, locate

    tests = [text.upper() for text in load_corpus(corpus)["test"]["sequence"]]
    found = np.zeros(len(tests), bool)
    for name in GENOMES:
        genome = GenomeInMemory(
            (record.id, record.sequence) for record in read_files([data / "genomes" / f"{name}.fa.gz"])
        )
        found |= [bool(places) for places in locate(genome, tests)]
    return int(found.sum())


def measured(scores: pd.DataFrame, runs: pd.DataFrame, kept_N: np.ndarray, ours: str) -> dict[str, Any]:
    """Return MCC and AUROC of some of the test sequences by classifier: means and deviations over seeds."""
    labels_N, found = (scores["label"] == scores["label"].max()).to_numpy().astype(int), {}
    for name, rows in runs.groupby("classifier", sort=False):
        judged = []
        for row in rows.itertuples():
            stem = "score" if name == ours else f"score_{name}"
            column = f"{stem}_seed_{row.seed}" if len(rows) > 1 else stem
            score_N = scores[column].to_numpy()
            scores_NC = np.stack([1 - score_N, score_N], 1)[kept_N]
            judged.append(against_rest(labels_N[kept_N], scores_NC, 1, row.threshold))
        over_seeds = bootstrap(judged, None, 0)
        spread = over_seeds.spread or dict.fromkeys(over_seeds.point, 0.0)
        found[name] = {key: [over_seeds.point[key], spread[key]] for key in ("mcc", "auroc")}
    return {"n": int(kept_N.sum()), "classifiers": found}


def run_set(data: Path, name: str, checkpoint: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune on one set; return and write its results."""
    corpus = corpus_of(data, name, given.output)
    config = FinetuneConfig(
        output=given.output / name / "classifier",
        checkpoint=checkpoint,
        data=corpus,
        positive="1",
        seeds=given.seeds,
        controls=CONTROLS,
        epochs=EPOCHS.get(name, 3) if given.epochs is None else given.epochs,
        learning_rate=1e-3,
        batch_size=32,
        shuffled_negatives=False,
        seed=1,
        **SETTINGS[kind_of(name)],
    )
    folder = finetune.run(config).folder
    scores, runs = (pd.read_csv(folder / f"{table}.tsv", sep="\t") for table in ("scores", "runs"))
    unlike_N = unlike_train(corpus)
    result = {
        "metrics": json.loads((folder / "metrics.json").read_text())["1_auroc"],
        "all": measured(scores, runs, np.ones(len(scores), bool), "ours"),
        "unlike train": measured(scores, runs, unlike_N, "ours"),
        "test sequences in the pretraining text": pretraining_holds(data, corpus),
        "epochs": config.epochs,
    }
    write_json(given.output / name / "results.json", result)
    return result


def print_table(results: dict[str, Any]) -> None:
    header = ["set", "classifier", "MCC, all of test", "AUROC", "ours is ahead, MCC"]
    header += [f"MCC, no {SHARED} bases shared with train"]
    print(f"\n| {' | '.join(header)} |\n{'|---' * len(header)}|")
    for name, result in results.items():
        classifiers = result["all"]["classifiers"]
        for classifier in sorted(classifiers, key=lambda each: -classifiers[each]["mcc"][0]):
            every = classifiers[classifier]
            unlike = result["unlike train"]["classifiers"][classifier]
            mcc, auroc, mcc_unlike = (spread(each) for each in (every["mcc"], every["auroc"], unlike["mcc"]))
            print(f"| {name} | {classifier} | {mcc} | {auroc} | {ahead(result, classifier)} | {mcc_unlike} |")
        for source, mcc in PUBLISHED.get(name, {}).items():
            print(f"| {name} | *{source}* | *{mcc:.3f}* | | | |")
    of_sets = pd.DataFrame(
        {
            name: {classifier: found["mcc"][0] for classifier, found in result["all"]["classifiers"].items()}
            for name, result in results.items()
        }
    )
    print(f"\nmean MCC over sets:\n{of_sets.T.groupby(kind_of).mean().T.round(3)}")


def spread(of_seeds: list[float]) -> str:
    mean, deviation = of_seeds
    return f"{mean:.3f} +- {deviation:.3f}" if deviation else f"{mean:.3f}"


def ahead(result: dict[str, Any], control: str) -> str:
    """Return by how much ours is ahead of a control, with the interval of the paired bootstrap."""
    if control == "ours":
        return ""
    found = result["metrics"]["controls"][control]["ours_minus_it"]["mcc"]
    low, high = found["interval"]
    return f"{found['difference']:+.3f} ({low:+.3f} to {high:+.3f})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with genomes/ and promoters/gue/")
    parser.add_argument("--output", type=Path, required=True, help="folder of all results")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4000, help="of pretraining, and again on training rows")
    parser.add_argument("--epochs", type=float, help="of every set, instead of 2, 3 or 6")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    genome = pretrained(given.data, given.output, given.steps)
    checkpoint = adapted(given.data, given.output, genome, given.steps)
    for name in given.sets:
        run_set(given.data, name, checkpoint, given)
    done = {name: given.output / name / "results.json" for name in SETS}
    results = {name: json.loads(path.read_text()) for name, path in done.items() if path.exists()}
    print_table(results)


if __name__ == "__main__":
    main()
