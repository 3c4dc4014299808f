"""In-silico mutagenesis of promoters: seconds for 1000 of them with a small classifier and language model.

    python benchmarks/mutagenesis.py                       simulated promoters of 81 bases, 40 of 1000
    python benchmarks/mutagenesis.py --promoters 1000      all of them
    python benchmarks/mutagenesis.py --tokenizer dna-6mer --threads 2

The networks have random weights and the shape of configs/dna-6mer-tiny.yaml and dna-6mer-overlap-tiny.yaml.
Every base of every promoter is replaced by each of the three others, each mutant read by itself. What fewer
promoters take is scaled up to 1000: what one takes does not depend on the others. With one thread CPU time is
counted, for shared machines; with more, time on the clock.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from pipeline.attention.mutagenesis import classifier_changes, likelihood_changes
from pipeline.model import StrandConfig, StrandForMaskedLM, StrandForSequenceClassification
from pipeline.tokens.kmers import codec_of
from pipeline.worlds import to_text
from pipeline.worlds.promoters import layouts, sample_windows

TOKENIZERS = Path(__file__).parent.parent / "tokenizers"
WINDOW, WANTED = 81, 1000


def promoters(number: int) -> list[str]:
    """Return simulated promoters."""
    codes_NW, _ = sample_windows(layouts(WINDOW)["promoter"], number, WINDOW, np.random.default_rng(0))
    return [to_text(codes) for codes in codes_NW]


def seconds(changes: Callable[[list[str]], Iterator[np.ndarray]], texts: list[str], threads: int) -> float:
    """Return how long 1000 promoters would take, after a first one to warm up."""
    clock = time.process_time if threads == 1 else time.perf_counter
    for _ in changes(texts[:1]):
        pass
    begin = clock()
    for change_LA in changes(texts):
        assert change_LA.shape == (WINDOW, 4)
    return (clock() - begin) * WANTED / len(texts)


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--promoters", type=int, default=40, help="that are read")
    parser.add_argument("--tokenizer", default="dna-6mer-overlap", help="one that comes with strandlm")
    parser.add_argument("--batch", type=int, default=64, help="mutants read at once")
    parser.add_argument("--tokens", type=int, default=4096, help="read at once by the language model")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    codec = codec_of(TOKENIZERS / options.tokenizer)
    config = StrandConfig(
        vocab_size=len(codec.vocabulary),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        pad_token_id=codec.special("pad"),
        mask_token_id=codec.special("mask"),
    )
    classifier, masked = (
        kind(config).eval() for kind in (StrandForSequenceClassification, StrandForMaskedLM)
    )
    texts = promoters(options.promoters)
    of_classes = seconds(
        lambda some: classifier_changes(classifier, codec, some, 1, options.batch), texts, options.threads
    )
    of_text = seconds(
        lambda some: likelihood_changes(masked, codec, some, options.tokens), texts, options.threads
    )
    found = {
        "tokenizer": options.tokenizer,
        "threads": options.threads,
        "promoters_read": options.promoters,
        "classifier_s_per_1000": round(of_classes, 1),
        "mutants_per_s": round(3 * WINDOW * WANTED / of_classes),
        "language_model_s_per_1000": round(of_text, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
