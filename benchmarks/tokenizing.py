"""How fast sequences become tokens and tokens become masked batches, beside the Hugging Face routes.

All on one thread, on simulated sequences, in rounds: each round times every route, and the median over the
rounds is reported, so that what else the machine does meets all routes alike.

    python benchmarks/tokenizing.py [--megabases 8] [--rounds 15]
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import gzip
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

import pipeline.encode
import pipeline.prepare
from pipeline.config import MaskingConfig, PrepareConfig, TokenizeConfig
from pipeline.keyed import keys
from pipeline.resources import resource
from pipeline.tokens.kmers import Codec, KmerCodec
from pipeline.tokens.masking import mask_batch
from pipeline.tokens.vocabulary import load_tokenizer

WINDOW = 1000
BATCH, CONTEXT = 32, 1024
CALLS = 100  # of a masking route in a row, as one call is short
PIECE = 100_000  # letters encoded at once


def letters(alphabet: bytes, number: int) -> bytes:
    choice = np.random.default_rng(0).integers(0, len(alphabet), number)
    return np.frombuffer(alphabet, np.uint8)[choice].tobytes()


def interleaved(routes: dict[str, Callable[[], object]], rounds: int, calls: int = 1) -> dict[str, float]:
    """Return the median seconds of one call of each route."""
    seconds: dict[str, list[float]] = {name: [] for name in routes}
    for _ in range(rounds + 1):  # the first round warms up
        for name, route in routes.items():
            begin = time.perf_counter()
            for _ in range(calls):
                route()
            seconds[name].append((time.perf_counter() - begin) / calls)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def word_tokenizer(codec: KmerCodec) -> Tokenizer:
    """Return the fastest Hugging Face tokenizer of overlapping k-mers: they come as words."""
    tokenizer = Tokenizer(models.WordLevel(codec.vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def encoding(megabases: int, rounds: int) -> dict[str, float]:
    """Return million letters per second of each route; the Hugging Face ones read a tenth of the text."""
    dna, protein = letters(b"ACGT", megabases * 10**6), letters(b"ACDEFGHIKLMNPQRSTVWY", megabases * 10**6)
    small = len(dna) // 10
    pieces = [dna[i : i + WINDOW].decode() for i in range(0, small, WINDOW)]
    residues = [protein[i : i + WINDOW].decode() for i in range(0, small, WINDOW)]
    overlapping, apart = KmerCodec("dna", 6, True), KmerCodec("dna", 6, False)
    single = KmerCodec("protein", 1, False)
    words = [" ".join(piece[i : i + 6] for i in range(len(piece) - 5)) for piece in pieces]
    by_words = word_tokenizer(overlapping)
    shipped = {n: AutoTokenizer.from_pretrained(resource("tokenizers") / n) for n in ("dna-6mer", "protein")}
    fast = {name: tokenizer.backend_tokenizer for name, tokenizer in shipped.items()}
    cuts = range(0, len(dna), PIECE)
    long_dna, long_protein = ([text[i : i + PIECE] for i in cuts] for text in (dna, protein))
    routes = {
        "overlapping 6-mers": lambda: [overlapping.track(overlapping.codes(x)) for x in long_dna],
        "overlapping 6-mers, Hugging Face, given as words": lambda: by_words.encode_batch_fast(words),
        "6-mers": lambda: [apart.tokens(apart.codes(x)) for x in long_dna],
        "6-mers, Hugging Face": lambda: fast["dna-6mer"].encode_batch_fast(pieces),
        "residues": lambda: [single.track(single.codes(x)) for x in long_protein],
        "residues, Hugging Face": lambda: fast["protein"].encode_batch_fast(residues),
    }
    seconds = interleaved(routes, rounds)
    return {n: (small if "Hugging" in n else len(dna)) / s / 1e6 for n, s in seconds.items()}


def masking(rounds: int) -> dict[str, float]:
    """Return milliseconds for a batch of 32 x 1024 tokens, from tokens to inputs and targets."""
    name = "dna-6mer-overlap"
    codec: Codec = KmerCodec("dna", 6, True)
    rng = np.random.default_rng(0)
    windows = [rng.integers(0, 4, CONTEXT - 2 + codec.k - 1).astype(np.uint8) for _ in range(BATCH)]
    truth = codec.batch(windows)
    rows = [
        {"input_ids": torch.from_numpy(row.astype(np.int64))} for row in truth.ids.reshape(BATCH, CONTEXT)
    ]
    collator = DataCollatorForLanguageModeling(load_tokenizer(resource("tokenizers") / name))
    key_B = keys(1, np.arange(BATCH))
    routes = {
        "masks in bases": lambda: mask_batch(truth, codec, MaskingConfig(), key_B),
        "DataCollatorForLanguageModeling": lambda: collator(rows),
    }
    return {name: 1000 * s for name, s in interleaved(routes, rounds, CALLS).items()}


def stages(megabases: int, rounds: int) -> dict[str, float]:
    """Return million bases per second from FASTA.gz to a token folder, by prepare and tokenize.

    Once all is for training; once blocks are held out as by default, so that repeats have to be looked for.
    """
    held_out = {"FASTA.gz to token folder": 0.0, "the same, with splits that share no repeat": 0.05}
    rates: dict[str, list[float]] = {name: [] for name in held_out}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fasta = folder / "genome.fa.gz"
        dna = letters(b"ACGT", megabases * 10**6)
        with gzip.open(fasta, "wb", 6) as file:
            file.write(b">chromosome\n" + b"\n".join(dna[i : i + 70] for i in range(0, len(dna), 70)) + b"\n")
        for name, share in (item for item in held_out.items() for _ in range(rounds + 1)):
            corpus, tokens = folder / "corpus", folder / "tokens"
            shares = {"validation": share, "test": share}
            begin = time.perf_counter()
            pipeline.prepare.run(PrepareConfig(output=corpus, input=[fasta], block=10_000, **shares))
            pipeline.encode.run(TokenizeConfig(output=tokens, corpus=corpus, tokenizer="dna-6mer-overlap"))
            rates[name].append(len(dna) / (time.perf_counter() - begin) / 1e6)
            shutil.rmtree(corpus)
            shutil.rmtree(tokens)
    return {name: statistics.median(each[1:]) for name, each in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabases", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fasta = stages(10 * arguments.megabases, 3)
    rates = encoding(arguments.megabases, arguments.rounds)
    masks = masking(arguments.rounds)
    print("encoding, million letters per second")
    for name, rate in {**rates, **fasta}.items():
        print(f"  {name:50} {rate:8.1f}")
    print("masking 32 x 1024 tokens, milliseconds")
    for name, milliseconds in masks.items():
        print(f"  {name:50} {milliseconds:8.2f}")
    ours, theirs = masks.values()
    summary = {
        "overlapping_mbases_per_s": rates["overlapping 6-mers"],
        "nonoverlapping_mbases_per_s": rates["6-mers"],
        "protein_mresidues_per_s": rates["residues"],
        "overlapping_vs_fast_hf": rates["overlapping 6-mers"]
        / rates["overlapping 6-mers, Hugging Face, given as words"],
        "masking_vs_hf": theirs / ours,
        "fasta_gz_mbases_per_s": fasta["FASTA.gz to token folder"],
    }
    print(json.dumps({name: round(value, 1) for name, value in summary.items()}))


if __name__ == "__main__":
    main()
