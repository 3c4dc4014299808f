"""The categorical Jacobian of one protein with a network of ESM-2 8M's shape: seconds, as one JSON line.

    python benchmarks/jacobian.py

The network is ours with random weights: 6 layers of 320 channels and 20 heads.
"""

import argparse
import json
import resource
import time

import numpy as np
import torch

from pipeline.attention.couplings import coupling_scores
from pipeline.attention.jacobian import TOKENS, categorical_jacobian, logits_of
from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.model.attention_strand import fastest_attention

RESIDUE_IDS = range(4, 24)


def network(attention: str | None) -> StrandForMaskedLM:
    """Return the network with random weights."""
    torch.manual_seed(0)
    config = StrandConfig(
        vocab_size=33,
        alphabet="protein",
        hidden_size=320,
        intermediate_size=856,
        num_hidden_layers=6,
        num_attention_heads=20,
    )
    model = StrandForMaskedLM(config).eval()
    kernel = attention or fastest_attention(torch.device("cpu"), torch.float32, training=False)
    model.set_attn_implementation(kernel)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--length", type=int, default=120)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="read at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--attention", help="kernel (default: the fastest)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = network(given.attention)
    residues = np.random.default_rng(0).choice(list(RESIDUE_IDS), given.length)
    ids_T, positions_L = np.concatenate([[0], residues, [2]]), np.arange(1, given.length + 1)
    began, cpu = time.monotonic(), time.process_time()
    jacobian = categorical_jacobian(logits_of(model), ids_T, positions_L, RESIDUE_IDS, given.tokens)
    scores_LL = coupling_scores(jacobian)
    found = {
        "length": given.length,
        "parameters": model.num_parameters(),
        "threads": given.threads,
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "finite": bool(np.isfinite(scores_LL).all()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
