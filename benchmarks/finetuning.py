"""Fine-tuning: ours, and transformers' usual recipe with BertForSequenceClassification, in turns.

    python benchmarks/finetuning.py core/train.csv.gz 300/train.csv.gz --proteins uniprot.fasta.gz

Two sets of many lengths: windows of 70 to 300 bases out of the tables' column ``sequence`` (GUE's core
promoters have 70 bases, its others 300), read as overlapping 6-mers; and proteins, cut to their first 510
residues. Ours is ``fit`` as the stage calls it, from letters on: encoding, batches of similar lengths, and
Trainer. The recipe gives ids to a Trainer in random order, padded to the longest of the set (some 300 and 512
tokens, ``padding="max_length"``), or to the longest of each batch (dynamic). Vocabulary, width, layers,
heads, batch, AdamW and float32 on a CPU are the same for both; BERT's feed-forward part is 4 times as wide as
its states, ours has three matrices of 8/3, which are as many weights; BERT has its usual dropout. With one
thread CPU time is counted, for shared machines; with more, time on the clock.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

from pipeline.config import FinetuneConfig
from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.resources import resource
from pipeline.sequences.readers import read_files
from pipeline.tokens.kmers import codec_of
from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
from pipeline.training import tuning
from pipeline.training.classifier import encode_all

CONTEXT, NAMES = 512, ["no", "yes"]
PADDED, DYNAMIC = "BERT, padded to the longest of all", "BERT, padded to the longest of a batch"


def windows(tables: list[Path], count: int) -> list[str]:
    """Return random pieces of 70 to 300 bases, or of as many as a sequence has, from each table in turn."""
    rng = np.random.default_rng(0)
    texts = [pd.read_csv(table)["sequence"].str.upper().to_numpy() for table in tables]
    pieces = []
    for i in range(count):
        text = rng.choice(texts[i % len(texts)])
        size = min(len(text), rng.integers(70, 301))
        begin = rng.integers(0, len(text) - size + 1)
        pieces.append(text[begin : begin + size])
    return pieces


def proteins(fasta: Path, count: int) -> list[str]:
    """Return random proteins, cut to what fits."""
    texts = [record.sequence.upper()[: CONTEXT - 2] for record in read_files([fasta])]
    return list(np.random.default_rng(0).choice(texts, count))


class Contest:
    """Classifiers of one shape and what they are trained on, for one epoch each time."""

    def __init__(self, texts: list[str], tokenizer: str, options, folder: Path):
        self.folder, self.options = folder, options
        self.rows = {"sequence": texts, "label": [i % 2 for i in range(len(texts))]}
        self.tokenizer = load_tokenizer(resource("tokenizers") / tokenizer)
        self.codec = codec_of(resource("tokenizers") / tokenizer)
        self.ids = encode_all(texts, self.codec)
        self.checkpoint = folder / tokenizer
        sizes = {
            "vocab_size": len(self.codec.vocabulary),
            "hidden_size": options.width,
            "num_hidden_layers": options.layers,
            "num_attention_heads": options.heads,
            "max_position_embeddings": CONTEXT,
        }
        self.bert = BertConfig(**sizes, intermediate_size=4 * options.width, pad_token_id=0)
        inner = round(options.width / 3) * 8
        StrandForMaskedLM(StrandConfig(**sizes, intermediate_size=inner)).save_pretrained(self.checkpoint)
        save_tokenizer(self.tokenizer, self.checkpoint)

    def ours(self) -> None:
        """Train ours."""
        config = FinetuneConfig(
            output=self.folder / "out",
            checkpoint=self.checkpoint,
            data=self.folder,
            epochs=1,
            batch_size=self.options.batch,
        )
        model = tuning.new_model(config, NAMES, self.codec, pretrained=True)
        tuning.fit(config, model, self.codec, {"train": self.rows}, self.folder / "work")

    def recipe(self, padding: str) -> None:
        """Train BERT; padding is ``max_length`` or ``longest``."""
        longest = max(map(len, self.ids))
        collator = DataCollatorWithPadding(self.tokenizer, padding=padding, max_length=longest)
        rows = [
            {"input_ids": ids.tolist(), "label": label}
            for ids, label in zip(self.ids, self.rows["label"], strict=True)
        ]
        arguments = TrainingArguments(
            output_dir=str(self.folder / "bert"),
            num_train_epochs=1,
            per_device_train_batch_size=self.options.batch,
            learning_rate=3e-4,
            use_cpu=True,
            dataloader_pin_memory=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
        )
        trainer = Trainer(
            BertForSequenceClassification(self.bert),
            arguments,
            data_collator=collator,
            train_dataset=rows,  # type: ignore[arg-type]  a list of rows is a data set
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    def runs(self) -> dict[str, Callable[[], None]]:
        """Return what is compared, by name."""
        return {
            "ours": self.ours,
            PADDED: lambda: self.recipe("max_length"),
            DYNAMIC: lambda: self.recipe("longest"),
        }


def in_turns(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the seconds of each: the median of rounds, in which they alternate, after one that warms up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            began = clock()
            run()
            taken[name].append(clock() - began)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def measure(name: str, contest: Contest, rounds: int) -> dict[str, float]:
    """Print a set's rows of the table; return how many times as fast ours is as the recipe's two forms."""
    taken = in_turns(contest.runs(), rounds)
    tokens = np.mean([len(ids) for ids in contest.ids])
    for run, seconds in taken.items():
        speed = len(contest.ids) / seconds
        print(
            f"| {name}, {tokens:.0f} tokens | {run} | {speed:.1f} | {seconds / taken['ours']:.2f} |",
            flush=True,
        )
    return {"padded": taken[PADDED] / taken["ours"], "dynamic": taken[DYNAMIC] / taken["ours"]}


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="+", help="CSV with a column sequence")
    parser.add_argument("--proteins", type=Path, required=True, help="FASTA")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sequences", type=int, default=256, help="in a round")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    sets = {
        "DNA": (windows(options.tables, options.sequences), "dna-6mer-overlap"),
        "proteins": (proteins(options.proteins, options.sequences), "protein"),
    }
    print("| set | run | sequences/s | time, ours = 1 |\n|---|---|---|---|")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (texts, tokenizer) in sets.items():
            found[name] = measure(name, Contest(texts, tokenizer, options, Path(folder)), options.rounds)
    summary = {
        "threads": options.threads,
        **{f"vs_bert_{how}": min(ratios[how] for ratios in found.values()) for how in ("padded", "dynamic")},
        **{f"{name.lower()}_{how}": ratio for name, by in found.items() for how, ratio in by.items()},
    }
    print(json.dumps({name: round(value, 3) for name, value in summary.items()}))


if __name__ == "__main__":
    main()
