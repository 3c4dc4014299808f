"""Embedding and fine-tuning with ESM-2-8M's weights: our engine against Hugging Face's classes, in turns.

    python benchmarks/inference.py proteins.fasta.gz                  real residues per second on a CPU
    python benchmarks/inference.py proteins.fasta.gz --crop 512       of shorter pieces

Both have the same random weights of ESM-2-8M's shape. Embedding gives the mean over the residues of each
protein of the last layer: ours as ``strandlm embed`` does it (a shard's proteins by length, packed end to
end), EsmModel (SDPA) on padded batches in the order of the input, of as many tokens, padding included.
Fine-tuning is a step of forward, backward and fused AdamW on all weights under a classifier: ours on batches
of similar lengths, as ``strandlm finetune`` draws them, EsmForSequenceClassification's on the same rows in
random order, padded; what is compared is residues per second, over some of the batches. With one thread CPU
time is counted, for shared machines; with more, time on the clock. The vectors of both are compared.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from training import RATE, SHAPES, TYPES, groups, in_turns
from transformers import EsmConfig, EsmForMaskedLM, EsmForSequenceClassification
from transformers.trainer_pt_utils import LengthGroupedSampler

from pipeline.model import StrandForSequenceClassification
from pipeline.model.attention_strand import fastest_attention
from pipeline.sequences.alphabets import clean
from pipeline.sequences.readers import read_files
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.windows import Context, Reading
from pipeline.training.classifier import frame, pad
from pipeline.training.foreign import ESM2, strand_config, take
from pipeline.training.vectors import Encoder, vectors_of

CODEC = KmerCodec("protein", 1, False)
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2}  # of the vectors' standard deviation
UNITS = ("amx_bf16", "avx512_bf16", "bf16")


def esm_settings(crop: int) -> EsmConfig:
    """Return ESM-2-8M's configuration, without dropout."""
    width, layers, heads, inner = SHAPES["8M"]
    return EsmConfig(
        vocab_size=len(CODEC.vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=max(1026, crop + 2),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        position_embedding_type="rotary",
        emb_layer_norm_before=False,
        token_dropout=True,
        pad_token_id=CODEC.special("pad"),
        mask_token_id=CODEC.special("mask"),
        num_labels=2,
        attn_implementation="sdpa",
    )


def proteins(fasta: Path, count: int, crop: int) -> list[Reading]:
    """Return proteins of the file in random order, the beginnings of long ones."""
    records = list(read_files([fasta]))
    context = Context(CODEC, crop, "truncate")
    chosen = [records[i] for i in np.random.default_rng(0).permutation(len(records))[:count]]
    cropped = (clean(record.sequence, "protein").sequence[:crop].decode() for record in chosen)
    return [context.read(record.id, text) for record, text in zip(chosen, cropped, strict=True)]


class Ours:
    """Embedding by our engine, a shard at a time."""

    def __init__(self, model, shards: Sequence[Sequence[Reading]], budget: int):
        self.encoder, self.shards = Encoder(model, CODEC, [-1], budget), shards

    def step(self, i: int) -> np.ndarray:
        """Return the vectors (N, D) of a shard."""
        return vectors_of(self.encoder, self.shards[i], "mean")[0]


class Theirs:
    """Embedding by EsmModel on padded batches in the order of the input."""

    def __init__(self, model, shards: Sequence[Sequence[Reading]], budget: int):
        self.model, self.budget = model.eval(), budget
        self.shards = [[frame(reading.tokens.ids, CODEC) for reading in shard] for shard in shards]

    def _batches(self, framed: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        batches: list[list[np.ndarray]] = []
        for ids in framed:
            longest = max([len(ids), *map(len, batches[-1])]) if batches else 0
            if not batches or (len(batches[-1]) + 1) * longest > self.budget:
                batches.append([])
            batches[-1].append(ids)
        return batches

    @torch.inference_mode()
    def step(self, i: int) -> np.ndarray:
        """Return the vectors (N, D) of a shard."""
        found = []
        for batch in self._batches(self.shards[i]):
            inputs = pad(batch, CODEC)
            states_BLD = self.model(**inputs).last_hidden_state.float()
            ends = torch.tensor([len(ids) - 1 for ids in batch])
            place_L = torch.arange(states_BLD.shape[1])
            own_BL = (place_L > 0) & (place_L < ends[:, None])
            found.append((states_BLD * own_BL[..., None]).sum(1) / own_BL.sum(1, keepdim=True))
        return torch.cat(found).numpy()


class Tuner:
    """A classifier, its optimizer and its batches of rows."""

    def __init__(self, model, batches: Sequence[Sequence[np.ndarray]], dtype: torch.dtype):
        self.model, self.batches, self.dtype = model.train(), batches, dtype
        self.residues = sum(len(ids) - 2 for batch in batches for ids in batch)
        self.optimizer = torch.optim.AdamW(model.parameters(), RATE, fused=True)

    def step(self, i: int) -> None:
        """Take a step; labels are whether a protein is longer than 300."""
        batch = self.batches[i]
        labels = torch.tensor([int(len(ids) > 300) for ids in batch])
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            logits = self.model(**pad(batch, CODEC)).logits
        cross_entropy(logits.float(), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def pair(crop: int):
    """Return EsmForMaskedLM with random weights, and our network with the same."""
    torch.manual_seed(0)
    theirs = EsmForMaskedLM(esm_settings(crop)).eval()
    tensors = {name: value.clone() for name, value in theirs.state_dict().items()}
    ours, _ = take(tensors, ESM2, strand_config(theirs.config, tensors))
    return ours.eval(), theirs


def classifiers(crop: int, kind: torch.dtype):
    """Return our classifier, as fine-tuning sets it up, and theirs, on the same encoder."""
    ours, theirs = pair(crop)
    ours.config.num_labels = 2
    classifier = StrandForSequenceClassification(ours.config)
    classifier.model.load_state_dict(ours.model.state_dict())
    classifier.set_attn_implementation(fastest_attention("cpu", kind, training=True))
    other = EsmForSequenceClassification(theirs.config)
    other.esm.load_state_dict(theirs.esm.state_dict(), strict=False)
    return classifier, other


def embedding(
    shards: Sequence[Sequence[Reading]], options: argparse.Namespace, kind: str
) -> dict[str, float]:
    """Return residues per second of both, their ratio, and the largest difference of their vectors."""
    ours, theirs = (model.to(TYPES[kind]) for model in pair(options.crop))
    runners = {
        "ours": Ours(ours.model, shards, options.tokens),
        "theirs": Theirs(theirs.esm, shards, options.tokens),
    }
    own, other = (np.concatenate([run.step(i) for i in range(len(shards))]) for run in runners.values())
    difference = float(np.abs(own - other).max() / other.std())
    assert difference < TOLERANCE[kind], f"the vectors differ by {difference:g} of their standard deviation"
    taken = in_turns(runners, len(shards), options.rounds)
    residues = sum(len(reading.tokens.ids) for shard in shards for reading in shard)
    return {
        "embed_residues_per_s": residues / taken["ours"],
        "esm_residues_per_s": residues / taken["theirs"],
        "embed_vs_esm": taken["theirs"] / taken["ours"],
        "difference": difference,
    }


def tuning(readings: Sequence[Reading], options: argparse.Namespace, kind: str) -> dict[str, float]:
    """Return how many more residues we read per second."""
    rows = [frame(reading.tokens.ids, CODEC) for reading in readings]
    order = LengthGroupedSampler(
        options.batch, lengths=[len(row) for row in rows], generator=torch.Generator().manual_seed(0)
    )
    ours, theirs = classifiers(options.crop, TYPES[kind])
    runners = {
        "ours": Tuner(ours, some([rows[i] for i in order], options), TYPES[kind]),
        "theirs": Tuner(theirs, some(rows, options), TYPES[kind]),
    }
    taken = in_turns(runners, options.steps, options.rounds)
    speed = {name: run.residues / taken[name] for name, run in runners.items()}
    return {"finetune_vs_esm": speed["ours"] / speed["theirs"]}


def some(rows: list, options: argparse.Namespace) -> list[list]:
    """Return batches at equal distances among those that the rows make, in their order."""
    whole = [batch for batch in groups(rows, options.batch) if len(batch) == options.batch]
    return [whole[i] for i in np.linspace(0, len(whole) - 1, options.steps).round().astype(int)]


def usual_type() -> str:
    """Return bf16 where the processor has units for it, else fp32."""
    path = Path("/proc/cpuinfo")
    flags = set(path.read_text().split()) if path.is_file() else set()
    return "bf16" if flags.intersection(UNITS) else "fp32"


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("fasta", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--types", choices=TYPES, default=usual_type())
    parser.add_argument("--crop", type=int, default=1022, help="residues")
    parser.add_argument("--tokens", type=int, default=8192, help="in a batch of embedding, padding included")
    parser.add_argument("--proteins", type=int, default=512, help="that are embedded")
    parser.add_argument("--shard", type=int, default=128, help="proteins that are sorted together")
    parser.add_argument(
        "--rows", type=int, default=2048, help="proteins that batches of tuning are drawn from"
    )
    parser.add_argument("--steps", type=int, default=16, help="of tuning that are measured")
    parser.add_argument("--batch", type=int, default=16, help="proteins in a step of tuning")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    readings = proteins(options.fasta, max(options.proteins, options.rows), options.crop)
    shards = groups(readings[: options.proteins], options.shard)
    found = embedding(shards, options, options.types)
    found |= tuning(readings[: options.rows], options, options.types)
    digits = {name: float(f"{value:.4g}") for name, value in found.items()}
    print(json.dumps({"threads": options.threads, "type": options.types, **digits}))


if __name__ == "__main__":
    main()
