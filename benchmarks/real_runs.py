"""Pretraining on a real genome and on real proteins, beside count models of every useful order.

    python benchmarks/real_runs.py dna genome.fna.gz --output real
    python benchmarks/real_runs.py protein proteins.fasta.gz --output real
    python benchmarks/real_runs.py dna genome.fna.gz --output real --name wide \\
        --set model.hidden_size=192 --set optimizer.learning_rate=1e-3

The networks are those of configs/dna-6mer-tiny.yaml and configs/protein-tiny.yaml, with what ``--set``
changes: half an hour each on 2 cores. The genome is cut into blocks, and those that share a repeat of 100
bases stay in one split, as do proteins that are half identical over 80 % of their length. All models are
scored on the same hidden runs of the whole test split; a count model's order and the strength of its priors
are chosen on the validation split. Each run has a folder of its own and can be stopped at any time: the same
command goes on. Every call puts all runs that are done into results.json, a figure and a table.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import encode, prepare, pretrain
from pipeline.artifacts import write_json
from pipeline.cli import read_yaml, resolve
from pipeline.config import PrepareConfig, PretrainConfig, TokenizeConfig
from pipeline.resources import resource
from pipeline.tokens.bits import Bits, HiddenText, hidden_text, score
from pipeline.tokens.counts import STRENGTHS, CountModel, composition_bits
from pipeline.tokens.store import load_tokens
from pipeline.training.scores import load_language_model

ALL = 1 << 40  # letters scored: those of the whole split
KINDS = {
    "dna": ("dna-6mer-tiny", "dna-6mer", {"block": 10_000}),
    "protein": ("protein-tiny", "protein", {"alphabet": "protein", "split_by": "cluster"}),
}
SIDES = {"two-sided": True, "left": False}
LETTER = {"dna": "base", "protein": "residue"}


def tokens_of(kind: str, data: Path, folder: Path) -> Path:
    """Return the folder with the tokens of a sequence file, made if need be."""
    _, tokenizer, cleaning = KINDS[kind]
    prepare.run(PrepareConfig(output=folder / "corpus", input=[data], seed=1, **cleaning))
    encode.run(TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer=tokenizer))
    return folder / "tokens"


def counted(model: CountModel, tuning: HiddenText, text: HiddenText) -> tuple[list[Bits], int]:
    """Return what hidden text costs a fitted count model up to every order, and the order that is best.

    Which is best, and for each order the strength of the priors, is chosen on ``tuning``.
    """
    on_tuning_SO, on_text_SON = [], []
    for model.strength in STRENGTHS:
        on_tuning_SO.append(model.bits_by_order(tuning).mean(1))
        on_text_SON.append(model.bits_by_order(text))
    strength_O = np.argmin(on_tuning_SO, axis=0)
    bits = [text.bits(on_text_SON[strength][order]) for order, strength in enumerate(strength_O)]
    return bits, int(np.argmin(np.min(on_tuning_SO, axis=0)))


def references(kind: str, tokens: Path, window: int, folder: Path) -> tuple[dict[str, Bits], dict[str, str]]:
    """Return the bits of composition and of all count models by name, and the name of the best of each side.

    They are kept in a file, as counting takes a minute.
    """
    splits, codec = load_tokens(tokens)
    text, tuning = (hidden_text(splits[name], codec, window, ALL) for name in ("test", "validation"))
    path = folder / f"references-{window}.npz"
    if not path.exists():
        found = {"composition": composition_bits(splits["train"], codec, text)}
        for side, two_sided in SIDES.items():
            model = CountModel(codec, text.run, two_sided).fit(splits["train"], codec)
            orders, best = counted(model, tuning, text)
            found |= {f"{side} order {order}": bits.bits for order, bits in enumerate(orders)}
            found[f"best {side}"] = np.array(best)
        np.savez(path.with_suffix(".partial.npz"), **found)
        path.with_suffix(".partial.npz").rename(path)
    with np.load(path) as file:
        best = {side: f"{side} order {file[f'best {side}']}" for side in SIDES}
        return {name: text.bits(file[name]) for name in file.files if not name.startswith("best")}, best


def compared(bits: Bits, other: Bits) -> dict[str, float]:
    """Return the other model's mean, and how far above it ``bits`` are, with the error over windows."""
    above = bits.above(other)
    return {"bits": other.per_letter, "difference": above.per_letter, "standard_error": above.standard_error}


def curve(model_folder: Path) -> dict[str, list[float]]:
    """Return the validation score by letters seen and the training loss by letters seen, from the log."""
    rows = [json.loads(line) for line in (model_folder / "metrics.jsonl").read_text().splitlines()]
    key = next((key for row in rows for key in row if key.startswith("validation_bits")), None)
    return {
        "steps": [row["step"] for row in rows if key in row],
        "validation": [row[key] for row in rows if key in row],
        "loss_steps": [row["step"] for row in rows if "loss" in row],
        "loss": [row["loss"] for row in rows if "loss" in row],
    }


def timed(config: PretrainConfig, clock: Path) -> float:
    """Train, and return the seconds that all calls together took; those of a call that is killed are lost."""
    begun = time.monotonic()
    before = json.loads(clock.read_text()) if clock.exists() else 0.0
    try:
        if pretrain.run(config).up_to_date:
            return before
    finally:
        clock.parent.mkdir(parents=True, exist_ok=True)
        write_json(clock, before + time.monotonic() - begun)
    return json.loads(clock.read_text())


def run_one(kind: str, name: str, data: Path, output: Path, **overrides: Any) -> dict[str, Any]:
    """Train one network and score it; return its row of the results.

    Args:
        kind: dna or protein.
        name: what the run is called, and its folder.
        data: sequence file.
        output: folder of all runs.
        **overrides: settings of pretrain by their dotted keys, instead of the configuration's.
    """
    folder = output / kind
    tokens = tokens_of(kind, data, folder)
    path = resource("configs") / f"{KINDS[kind][0]}.yaml"
    flags = [part for key, value in overrides.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    places = {"data": tokens, "output": folder / name / "model", "count_model": False}
    config = resolve(PretrainConfig, read_yaml(path) | places, flags, str(path), "pretrain")
    seconds = timed(config, folder / name / "seconds.json")
    row = scores(kind, config, tokens, folder)
    row |= {"overrides": overrides, "curve": curve(config.output), "seconds": seconds}
    write_json(folder / name / "results.json", row)
    return row


def scores(kind: str, config: PretrainConfig, tokens: Path, folder: Path) -> dict[str, Any]:
    """Return the bits of a finished run beside those of the simple models, on the whole test split."""
    model, codec = load_language_model(config.output)
    splits, _ = load_tokens(tokens)
    bits = score(model, codec, hidden_text(splits["test"], codec, config.window, ALL)).letters
    others, best = references(kind, tokens, config.window, folder)
    assert bits is not None
    return {
        "bits": bits.per_letter,
        "standard_error": bits.standard_error,
        "hidden_letters": bits.total,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "letters_read": config.steps * config.tokens_per_step,
        "references": {name: compared(bits, other) for name, other in others.items()},
        "best": best,
    }


def print_table(kind: str, results: dict[str, Any]) -> None:
    """Print all runs of a kind as a table in Markdown, then the simple models that they are compared with."""
    unit = f"bits per hidden {LETTER[kind]}"
    best = next(iter(results.values()))["best"]
    columns = {f"above {side} counting": name for side, name in best.items()}
    columns["above composition"] = "composition"
    print(f"\n| run | {unit} | {' | '.join(columns)} | minutes |\n|{'---|' * (len(columns) + 3)}")
    for name, row in results.items():
        cells = [row["references"][column] for column in columns.values()]
        differences = [f"{cell['difference']:+.4f} +- {cell['standard_error']:.4f}" for cell in cells]
        bits = f"{row['bits']:.4f} +- {row['standard_error']:.4f}"
        print(f"| {' | '.join([name, bits, *differences, format(row['seconds'] / 60, '.0f')])} |")
    print(f"\n| model | {unit} |\n|---|---|")
    for name, other in row["references"].items():
        note = " (chosen on validation)" if name in best.values() else ""
        print(f"| {name}{note} | {other['bits']:.4f} |")


def draw(kind: str, results: dict[str, Any], output: Path) -> None:
    """Draw the validation scores of all runs, with what the simple models come to on the test split."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "strandlm"
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, row in results.items():
        per_step = row["letters_read"] / max(row["curve"]["steps"])
        letters = np.array(row["curve"]["steps"][1:]) * per_step / 1e6
        axes.plot(letters, row["curve"]["validation"][1:], marker=".", label=f"{name} (validation)")
    lines = {"composition": ":"} | dict(zip(row["best"].values(), ("-", "--"), strict=True))
    for name, style in lines.items():
        axes.axhline(
            row["references"][name]["bits"], color="#6b7280", linestyle=style, label=f"{name} (test)"
        )
    axes.set_xlabel(f"million {LETTER[kind]}s read")
    axes.set_ylabel(f"bits per hidden {LETTER[kind]}")
    axes.legend(frameon=False, fontsize=8)
    for ending in ("png", "svg"):
        metadata = {"Date": None} if ending == "svg" else None
        figure.savefig(output / f"{kind}-curve.{ending}", dpi=150, metadata=metadata)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("data", type=Path, help="sequence file")
    parser.add_argument("--output", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--name", default="base", help="what this run is called")
    parser.add_argument("--steps", type=int, help="instead of the configuration's")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of pretrain"
    )
    return parser.parse_args()


def main() -> None:
    given = arguments()
    overrides: dict[str, Any] = dict(pair.split("=", 1) for pair in given.set)
    if given.steps:
        overrides["steps"] = given.steps
    run_one(given.kind, given.name, given.data, given.output, **overrides)
    done = sorted((given.output / given.kind).glob("*/results.json"), key=lambda path: path.stat().st_mtime)
    results = {path.parent.name: json.loads(path.read_text()) for path in done}
    everything = given.output / "results.json"
    earlier = json.loads(everything.read_text()) if everything.exists() else {}
    write_json(everything, earlier | {given.kind: results})
    draw(given.kind, results, given.output)
    print_table(given.kind, results)


if __name__ == "__main__":
    main()
