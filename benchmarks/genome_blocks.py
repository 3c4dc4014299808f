"""Start sites of E. coli, called in blocks of its genome that nothing was trained on.

    python benchmarks/genome_blocks.py DATA --output blocks

``DATA`` is that of ecoli_promoters.py. Every seventh of 20 blocks of the genome is masked. The language
model reads the rest and other bacteria; the classifier learns from the known starts of the rest (those that
share no 30 bases with a masked block) against windows from anywhere in it. Then the masked blocks are scanned
on both strands, and the calls compared with their known starts and genes, beside those of AT content, of
weight matrices of the aligned starts, of the two boxes that sigma 70 reads, and calls swapped and moved.
Stages and scans that are done are not done again.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from ecoli_promoters import GENOME, OTHERS, windows
from small_models import language_model, tokens_of

from pipeline import finetune, negatives, prepare
from pipeline.artifacts import write_json
from pipeline.attention.words import encode_text
from pipeline.config import FinetuneConfig, NegativesConfig, PredictConfig, PrepareConfig
from pipeline.sequences.annotation import read_annotation
from pipeline.sequences.calls import Axis, Scored, threshold_at
from pipeline.sequences.genomes import GenomeInMemory, locate
from pipeline.sequences.places import Place
from pipeline.sequences.readers import read_files
from pipeline.sequences.records import Notes
from pipeline.sequences.similarity import close_to
from pipeline.settings.sections import ScanConfig
from pipeline.training.controls import Rows, weight_matrices
from pipeline.training.genome_scan import NULL, OURS, GenomeScan, open_scan
from pipeline.training.scan import unread
from pipeline.training.site_agreement import compare
from pipeline.training.site_calls import collect, null_maxima
from pipeline.worlds import BASES
from pipeline.worlds.promoters import CONSENSUS, CONSERVATION

BLOCKS, EVERY, FIRST = 20, 7, 3  # of the genome; every seventh is withheld, from the fourth on
OFFSET, SHARED = (
    60,
    30,
)  # bases before the start in a window; bases that no training window shares with a block
RATE = 0.1  # false calls per kilobase at which the strand of calls is compared
SPACERS = (15, 16, 17, 18, 19)  # bases between the boxes
TEN_BOX = range(-15, -8)  # where the second box may begin, the start being 0


# -- what is withheld


def withheld(length: int) -> list[tuple[int, int]]:
    """Return the blocks that nothing is trained on."""
    edges = np.linspace(0, length, BLOCKS + 1).astype(int).tolist()
    return [(edges[i], edges[i + 1]) for i in range(FIRST, BLOCKS, EVERY)]


def write_blocks(genome: GenomeInMemory, name: str, output: Path) -> list[str]:
    """Write blocks.bed and rest.fa, the genome with its blocks masked; return the letters of the blocks."""
    blocks = withheld(genome.lengths[name])
    (output / "blocks.bed").write_text("".join(f"{name}\t{a}\t{b}\n" for a, b in blocks))
    texts = [genome.fetch(Place(name, a, b, "+")) for a, b in blocks]
    rest, at = [], 0
    for begin, end in blocks:
        rest += [genome.fetch(Place(name, at, begin, "+")), "N" * (end - begin)]
        at = end
    rest.append(genome.fetch(Place(name, at, genome.lengths[name], "+")))
    (output / "rest.fa").write_text(f">{name}\n{''.join(rest)}\n")
    return texts


def write_starts(places: list[Place], path: Path) -> None:
    """Write the start sites of windows as BED."""
    sites = [
        (p.chromosome, p.start + OFFSET if p.strand == "+" else p.end - 1 - OFFSET, p.strand) for p in places
    ]
    path.write_text(
        "".join(f"{name}\t{at}\t{at + 1}\tstart\t0\t{sign}\n" for name, at, sign in sorted(set(sites)))
    )


def trained_on(positives: list[str], blocks: list[str]) -> list[str]:
    """Return the windows that share no 30 bases with a block, on either strand."""
    texts = pa.chunked_array([positives, blocks])
    asked_N = np.arange(len(texts)) < len(positives)
    near_N = close_to(texts, asked_N, ~asked_N, SHARED, both_strands=True)
    return [text for text, near in zip(positives, near_N, strict=False) if not near]


# -- what is trained


def pretrained(data: Path, output: Path, steps: int) -> Path:
    """Return the checkpoint of the language model, made if need be."""
    others = [data / "genomes" / f"{name}.fa.gz" for name in OTHERS]
    shares = {"block": 10_000, "validation": 0.03, "test": 0.03}
    tokens = [
        tokens_of([output / "rest.fa"], output, "rest", **shares),
        tokens_of(others, output, "others", **shares),
    ]
    return language_model(tokens, output / "model", window=128, steps=steps, weights=[1, 2])


def background(data: Path, output: Path, ratio: int) -> list[str]:
    """Return windows from anywhere in the rest of the genome, whatever their composition."""
    config = NegativesConfig(
        output=output / "negatives",
        positives=[output / "positives.fa"],
        genome=output / "rest.fa",
        annotation=data / "genomes" / f"{GENOME}.gff.gz",
        starts=output / "starts.bed",
        away=1,
        gc_tolerance=0.99,
        ratio=ratio,
        seed=1,
    )
    found = read_files([negatives.run(config).folder / "negatives.fa"])
    return [record.sequence.decode() for record in found]


def classified(checkpoint: Path, classes: dict[str, list[str]], output: Path, epochs: float) -> Path:
    """Return the checkpoint of the classifier, made if need be."""
    rows = [(f"{label}_{i}", text, label) for label, texts in classes.items() for i, text in enumerate(texts)]
    table = output / "windows.tsv"
    pd.DataFrame(rows, columns=["id", "sequence", "label"]).to_csv(table, sep="\t", index=False)
    shares = {"validation": 0.1, "test": 0.1}
    corpus = PrepareConfig(
        output=output / "corpus", input=[table], label_column="label", split_by="cluster", seed=1, **shares
    )
    config = FinetuneConfig(
        output=output / "classifier",
        checkpoint=checkpoint,
        data=prepare.run(corpus).folder,
        positive="positive",
        start_site=OFFSET,
        controls=[],
        untrained_control=False,
        epochs=epochs,
        learning_rate=2e-3,
        hide=0.25,
        freeze_embeddings=True,
        shuffled_negatives=False,
        seed=1,
    )
    return finetune.run(config).folder


# -- simpler ways of scoring


class Matrices:
    """Log-odds of aligned starts: each class's weight matrix, the negatives' taken from the positives'."""

    def __init__(self, positives: list[str], others: list[str]):
        codes = [encode_text(text) for text in positives + others]
        labels_N = np.repeat([1, 0], [len(positives), len(others)])
        self.size, self._score = len(codes[0]), weight_matrices(Rows(codes, labels_N), len(BASES))

    def __call__(self, letters: bytes, start_N: np.ndarray) -> np.ndarray:
        return both_strands(letters, start_N, self.size, self._read)

    def _read(self, code_L: np.ndarray, start_N: np.ndarray) -> np.ndarray:
        scores_N2 = self._score(code_L[start_N[:, None] + np.arange(self.size)])
        return scores_N2[:, 1] - scores_N2[:, 0]


class Boxes:
    """Log-odds of the best pair of boxes that sigma 70 reads before the start of a window."""

    def __init__(self, size: int, gc_share: float):
        base = np.array([1 - gc_share, gc_share, gc_share, 1 - gc_share]) / 2
        self.size, self._tables = size, [box_table(name, base) for name in CONSENSUS]

    def __call__(self, letters: bytes, start_N: np.ndarray) -> np.ndarray:
        return both_strands(letters, start_N, self.size, self._read)

    def _read(self, code_L: np.ndarray, start_N: np.ndarray) -> np.ndarray:
        far_L, near_L = (
            sum(table[i, code_L[i : len(code_L) - 5 + i]] for i in range(6)) for table in self._tables
        )
        sites_N = start_N + OFFSET
        pairs = [near_L[sites_N + at] + far_L[sites_N + at - 6 - gap] for at in TEN_BOX for gap in SPACERS]
        return np.max(pairs, 0)


def box_table(name: str, base: np.ndarray) -> np.ndarray:
    """Return the log-odds (6, 5) of letters at the columns of a box; other letters have 0.

    Its consensus letters are as frequent as in real promoters; the other letters share the rest alike.
    """
    table = np.zeros((6, 5))
    for column, (letter, kept) in enumerate(zip(CONSENSUS[name], CONSERVATION[name], strict=True)):
        share = np.full(4, (1 - kept) / 3)
        share[BASES.index(letter)] = kept
        table[column, :4] = np.log(share / base)
    return table


def both_strands(letters: bytes, start_N: np.ndarray, size: int, read) -> np.ndarray:
    """Return the scores (2, N) of windows and of their reverse complements, NaN where letters are others."""
    code_L = encode_text(letters.decode())
    other_L = np.where(code_L > 3, code_L, 3 - code_L)[::-1]
    known_N = ~unread(code_L, start_N, size)
    scores_2N = np.full((2, len(start_N)), np.nan, np.float32)
    scores_2N[0, known_N] = read(code_L, start_N[known_N])
    scores_2N[1, known_N] = read(other_L, len(code_L) - size - start_N[known_N])
    return scores_2N


# -- the scan


@dataclass(frozen=True)
class BesideMatrices(GenomeScan):
    """A scan that also scores by simpler ways, in the genome and in its shuffled sample."""

    simple: dict[str, Any]

    def parts(self):
        found = {key: part for key, part in super().parts().items() if key in (OURS, NULL)}
        (_, genome, targets), (_, sample, shuffled) = found[OURS], found[NULL]
        for name, scorer in self.simple.items():
            found |= {name: (scorer, genome, targets), f"{name}_null": (scorer, sample, shuffled)}
        return found


def scanned(classifier: Path, genome: Path, genes: Path, simple: dict[str, Any], given) -> dict[str, Any]:
    """Scan the blocks by all ways; return how their calls agree with what is known."""
    from pipeline.training.scan import AtContent

    output: Path = given.output
    scan_settings = ScanConfig(
        stride=given.stride, regions=output / "blocks.bed", starts=output / "starts.bed", genes=genes
    )
    config = PredictConfig(output=output, checkpoint=classifier, genome=genome, scan=scan_settings, seed=1)
    with open_scan(config, torch.device("cpu"), Notes()) as opened:
        simple = {"at_content": AtContent(opened.windows.size), **simple}
        scan = BesideMatrices(**vars(opened), simple=simple)
        files = {"checkpoint": classifier, "genome": genome, "scan.regions": output / "blocks.bed"}
        work = scan.scores_folder(output / "scores", files)
        scan.score(work, 0, 1)
        axis = Axis(scan.genome.lengths)

        def found(part: str, null: str) -> Scored:
            return Scored(*collect(scan, part, work, axis), *null_maxima(scan, null, work))

        ours, counts = found(OURS, NULL), {}
        others = {name: found(name, f"{name}_null") for name in simple}
        threshold = threshold_at(ours.null, ours.null_kilobases, RATE)
        annotation = read_annotation(config.scan, genome, axis)
        metrics = compare(scan, ours, others, threshold, annotation, work, counts)
    return {"metrics": metrics, "counts": counts, "kilobases": ours.kilobases, "stride": given.stride}


def print_table(result: dict[str, Any]) -> None:
    """Print recall, and the share of calls on the strand of the gene downstream, by way of scoring."""
    metrics = result["metrics"]
    named = {
        "recall, .1 false per kb (shuffled bases)": "recall_at_0.1_false_calls_per_kb",
        "1 (shuffled)": "recall_at_1_false_calls_per_kb",
        ".1 (calls > 100 bases from any start)": "recall_at_0.1_calls_outside_per_kb",
        "1 (outside)": "recall_at_1_calls_outside_per_kb",
        "strand of the gene downstream": "strand_agreement",
    }
    print(
        f"\n{result['counts']['starts']} starts in {result['kilobases']:.0f} kb, stride {result['stride']}\n"
    )
    print(f"| calls | {' | '.join(named)} |\n{'|---' * (len(named) + 1)}|")
    for way in ("ours", *metrics["recall"]["controls"]):
        figures = [metrics[key] if way == "ours" else metrics[key]["controls"][way] for key in named.values()]
        cells = [f"{f['value']:.3f} ({f['low']:.3f} to {f['high']:.3f})" for f in figures]
        print(f"| {way.replace('_', ' ')} | {' | '.join(cells)} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with genomes/ and promoters/ecoli/")
    parser.add_argument("--output", type=Path, required=True, help="folder of all results")
    parser.add_argument("--steps", type=int, default=4000, help="of pretraining")
    parser.add_argument("--ratio", type=int, default=10, help="windows of background for each start")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--stride", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    output: Path = given.output
    (output / "scores").mkdir(parents=True, exist_ok=True)
    path = given.data / "genomes" / f"{GENOME}.fna.gz"
    genome = GenomeInMemory.read(path)
    (name,) = genome.lengths
    blocks = write_blocks(genome, name, output)
    known = windows(given.data)["positive"]
    write_starts([place for found in locate(genome, known) for place in found], output / "starts.bed")
    positives = trained_on(known, blocks)
    (output / "positives.fa").write_text("".join(f">start_{i}\n{text}\n" for i, text in enumerate(positives)))
    classes = {"negative": background(given.data, output, given.ratio), "positive": positives}
    checkpoint = pretrained(given.data, output, given.steps)
    classifier = classified(checkpoint, classes, output, given.epochs)
    simple = {
        "weight_matrices": Matrices(positives, classes["negative"]),
        "sigma_70_boxes": Boxes(len(positives[0]), genome.gc_share()),
    }
    genes = given.data / "genomes" / f"{GENOME}.gff.gz"
    result = scanned(classifier, path, genes, simple, given)
    result |= {"starts_trained_on": len(positives), "windows_of_background": len(classes["negative"])}
    write_json(output / "results.json", result)
    print_table(result)


if __name__ == "__main__":
    main()
