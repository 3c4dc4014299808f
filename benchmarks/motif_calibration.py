"""How often motifs are reported where labels mean nothing, and p-values of words under permuted labels.

    python benchmarks/motif_calibration.py CLASSIFIER CORPUS --output calibration

Attention of a classifier, which stays as it is, is read once for both halves of the corpus. Then the labels
of each half are put into random order a hundred times, and motifs are sought each time as the stage does. One
line of permutations.jsonl for each, kept if the script is started again; calibration.json and
calibration.svg, the quantiles of all p-values. Target: at most a tenth of the permutations give a motif at
q < 0.05.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from pipeline.artifacts import write_json
from pipeline.attention.discovery import Half, Search, discover, relabelled
from pipeline.attention.halves import read_halves
from pipeline.attention.heads import Reader, attended, chosen_heads
from pipeline.config import MotifsConfig
from pipeline.report.motif_figures import draw_calibration
from pipeline.training.classifier import load_classifier

LEVELS = (0.001, 0.01, 0.05, 0.2, 0.5)


def halves(options, config: MotifsConfig, search: Search) -> list[Half]:
    """Return both halves with their attended regions."""
    model, codec = load_classifier(config.checkpoint)
    splits = {"discover_on": config.discover_on, "test_on": config.test_on}
    first, second, _ = read_halves(config.data, splits, config.positive, config.max_sequences, config.seed)
    read = Reader(codec, chosen_heads(model.config, config.heads), config.queries, config.batch_size)
    found = []
    for rows in (first, second):
        regions = attended(read(model, rows.sequences), config.min_region)
        found.append(Half.of(rows.sequences, rows.positive, regions, search))
    return found


def run(options) -> list[dict]:
    """Return what each permutation gave, making those that are not there yet."""
    path = options.output / "permutations.jsonl"
    options.output.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.is_file() else []
    done = [json.loads(line) for line in lines if line.endswith("}")]
    path.write_text("".join(json.dumps(one) + "\n" for one in done))  # without half a line
    if len(done) >= options.permutations:
        return done[: options.permutations]
    splits = {"discover_on": options.discover_on, "test_on": options.test_on}
    config = MotifsConfig(
        output=options.output,
        checkpoint=options.checkpoint,
        data=options.data,
        positive=options.positive,
        max_sequences=options.rows,
        **splits,
    )
    search = Search(config.word_length, config.words_per_head, options.q_value, config.max_motifs)
    first, second = halves(options, config, search)
    with path.open("a") as file:
        for number in range(len(done), options.permutations):
            labels = (relabelled(half, 0, 2 * number + i) for i, half in enumerate((first, second)))
            found = discover(*labels, search)
            one = {"motifs": len(found.motifs), "p_values": [seed.word.p_value for seed in found.tested]}
            file.write(json.dumps(one) + "\n")
            file.flush()
            done.append(one)
    return done


def main() -> None:
    """Write calibration.json and calibration.svg, and print the former as a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="written by finetune")
    parser.add_argument("data", type=Path, help="labelled corpus")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--positive", default=None)
    parser.add_argument("--discover-on", nargs="+", default=["train"])
    parser.add_argument("--test-on", nargs="+", default=["validation", "test"])
    parser.add_argument("--rows", type=int, default=1000, help="of each class and half, at most")
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--q-value", type=float, default=0.05)
    options = parser.parse_args()
    done = run(options)
    p = np.concatenate([np.array(one["p_values"], float) for one in done])
    motifs = [one["motifs"] for one in done]
    summary = {
        "permutations": len(done),
        "with_motifs": sum(number > 0 for number in motifs),
        "tests": len(p),
        "share_of_p_values_up_to": {str(level): float((p <= level).mean()) for level in LEVELS},
    }
    write_json(options.output / "calibration.json", summary)
    (options.output / "calibration.svg").write_bytes(draw_calibration(p, motifs).content)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
