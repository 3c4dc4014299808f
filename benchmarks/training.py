"""Training steps of ESM-2's shapes: ours, EsmForMaskedLM's and ModernBertForMaskedLM's, in turns.

    python benchmarks/training.py proteins.fasta.gz                  real tokens per second on a CPU
    python benchmarks/training.py proteins.fasta.gz --losses 200     and losses on the same batches
    python benchmarks/training.py proteins.fasta.gz --device cuda    tokens per second, share of the peak

A step is forward, backward and fused AdamW on 4 proteins (crop 512, 15 % targets, the same masks for all).
Ours has ESM-2's options (biases, LayerNorm, GELU, token dropout, dense head), so it is the same function; it
packs a batch into one row. EsmForMaskedLM pads batches in random order; ModernBertForMaskedLM gets batches of
one length, as if many proteins had been sorted. Both use SDPA. With one thread CPU time is counted, for
shared machines; with more, time on the clock. The ceiling is what matrix products of the network's own shapes
reach, forward and backward, in the same turns.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.model.attention_strand import fastest_attention
from pipeline.sequences.readers import read_files
from pipeline.training.estimate import flops_per_token
from pipeline.training.peaks import peak_of

SHAPES = {"8M": (320, 6, 20, 1280), "150M": (640, 30, 20, 2560), "650M": (1280, 33, 20, 5120)}
LETTERS, CLS, PAD, EOS, FIRST, MASK, VOCABULARY = b"LAGVSERTIDPKQNFYMHWCXBUZO", 0, 1, 2, 4, 32, 33
CROP, RATE = 512, 4e-4
SORTED = 16  # batches of one length are every 16th of so many times more proteins, sorted
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Example:
    """A masked protein: ``ids`` and ``labels`` (L,), -100 where nothing is to be predicted."""

    ids: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """What a network is given, the labels of its logits, and how many tokens of it are real."""

    inputs: dict[str, torch.Tensor]
    labels: torch.Tensor
    real: int
    slots: int

    def to(self, device: str) -> "Batch":
        """Return the batch on a device; offsets stay where they can be read at once."""
        inputs = {k: x if k == "sequence_offsets" else x.to(device) for k, x in self.inputs.items()}
        return Batch(inputs, self.labels.to(device), self.real, self.slots)


def example(sequence: bytes, rng: np.random.Generator) -> Example:
    """Return a random crop with 15 % of its residues as targets: 80 % masked, 10 % replaced, 10 % kept."""
    table = np.full(256, FIRST + LETTERS.index(b"X"), np.int64)
    table[np.frombuffer(LETTERS, np.uint8)] = np.arange(FIRST, FIRST + len(LETTERS))
    begin = rng.integers(0, max(1, len(sequence) - CROP + 3))
    truth = table[np.frombuffer(sequence[begin : begin + CROP - 2], np.uint8)]
    targets = rng.permutation(len(truth))[: max(1, round(0.15 * len(truth)))]
    fate, seen, labels = rng.random(len(targets)), truth.copy(), np.full(len(truth), -100)
    labels[targets] = truth[targets]
    seen[targets[fate < 0.9]] = rng.integers(FIRST, FIRST + 20, (fate < 0.9).sum())
    seen[targets[fate < 0.8]] = MASK
    framed = np.pad(seen, 1, constant_values=(CLS, EOS)), np.pad(labels, 1, constant_values=-100)
    return Example(*map(torch.from_numpy, framed))


def examples(fasta: Path, count: int, seed: int) -> list[Example]:
    """Return proteins of the file in random order, as often as is needed for so many."""
    rng, sequences = np.random.default_rng(seed), [r.sequence.upper() for r in read_files([fasta])]
    order = np.concatenate([rng.permutation(len(sequences)) for _ in range(-(-count // len(sequences)))])
    return [example(sequences[i], rng) for i in order[:count]]


def packed(group: list[Example]) -> Batch:
    """Return sequences end to end in one row, longest first, with logits of targets alone."""
    group = sorted(group, key=len, reverse=True)
    ids, labels = (torch.cat([getattr(e, name) for e in group]) for name in ("ids", "labels"))
    places, offsets = (labels != -100).nonzero().flatten(), np.cumsum([0, *map(len, group)])
    inputs = {"input_ids": ids[None], "sequence_offsets": torch.tensor(offsets), "target_positions": places}
    return Batch(inputs, labels[places], len(ids), len(ids))


def padded(group: list[Example]) -> Batch:
    """Return sequences as rows filled up to the longest."""
    ids = pad_sequence([e.ids for e in group], batch_first=True, padding_value=PAD)
    labels = pad_sequence([e.labels for e in group], batch_first=True, padding_value=-100)
    real = (torch.arange(ids.shape[1]) < torch.tensor([len(e) for e in group])[:, None]).long()
    return Batch({"input_ids": ids, "attention_mask": real}, labels.flatten(), int(real.sum()), ids.numel())


def strand(shape: tuple[int, ...], heads: int | None = None):
    """Return our network with ESM-2's options."""
    width, layers, own_heads, inner = shape
    config = StrandConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads or own_heads,
        intermediate_size=inner,
        norm="layernorm",
        activation="gelu",
        use_bias=True,
        token_dropout=True,
        lm_head="dense",
        pad_token_id=PAD,
        mask_token_id=MASK,
    )
    return StrandForMaskedLM(config)


def esm(shape: tuple[int, ...]):
    """Return EsmForMaskedLM as ESM-2 is configured."""
    from transformers import EsmConfig, EsmForMaskedLM

    width, layers, heads, inner = shape
    config = EsmConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        position_embedding_type="rotary",
        emb_layer_norm_before=False,
        token_dropout=True,
        pad_token_id=PAD,
        mask_token_id=MASK,
        attn_implementation="sdpa",
    )
    return EsmForMaskedLM(config)


def modernbert(shape: tuple[int, ...]):
    """Return ModernBertForMaskedLM with as many weights; its gated layers have three matrices, not two."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    width, layers, heads, inner = shape
    config = ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=round(inner * 2 / 3 / 8) * 8,
        pad_token_id=PAD,
        cls_token_id=CLS,
        bos_token_id=CLS,
        sep_token_id=EOS,
        eos_token_id=EOS,
        attn_implementation="sdpa",
    )
    return ModernBertForMaskedLM(config)


class Trainer:
    """A network, its optimizer and its batches."""

    def __init__(self, model, batches: list[Batch], dtype: torch.dtype, device: str = "cpu"):
        self.model, self.dtype, self.device = model.to(device).train(), dtype, device
        if isinstance(model, StrandForMaskedLM):
            model.set_attn_implementation(fastest_attention(device, dtype, training=True))
        self.batches = [batch.to(device) for batch in batches]
        self.optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01, fused=True)

    def step(self, i: int) -> torch.Tensor:
        """Take a step on batch i and return its loss."""
        batch = self.batches[i % len(self.batches)]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            logits = self.model(**batch.inputs).logits
        loss = cross_entropy(logits.float().flatten(0, -2), batch.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @property
    def tokens(self) -> int:
        """Real tokens of all batches."""
        return sum(batch.real for batch in self.batches)

    @property
    def padding(self) -> float:
        """Share of the places that are not real tokens."""
        return 1 - self.tokens / sum(batch.slots for batch in self.batches)


class Ceiling:
    """The matrix products of one layer, forward and backward, for the tokens of each batch."""

    def __init__(self, shape: tuple[int, ...], batches: list[Batch], dtype: torch.dtype):
        width, _, _, inner = shape
        maps = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
        self.weights = [torch.randn(rows, columns).to(dtype) for columns, rows in maps]
        self.tokens, self.dtype = [batch.real for batch in batches], dtype
        self.flops = sum(6 * T * w.numel() for T in self.tokens for w in self.weights)
        self.states = {size: torch.randn(max(self.tokens), size).to(dtype) for m in maps for size in m}

    def step(self, i: int) -> None:
        """Multiply for batch i."""
        T = self.tokens[i % len(self.tokens)]
        for weight in self.weights:
            rows, columns = weight.shape
            x, gradient = self.states[columns][:T], self.states[rows][:T]
            torch.mm(x, weight.T)
            torch.mm(gradient, weight)
            torch.mm(gradient.T, x)


def in_turns(runners: dict, batches: int, rounds: int) -> dict[str, float]:
    """Return the seconds that each needs for all batches: the median of rounds, in which they alternate."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    taken = {name: [0.0] * rounds for name in runners}
    for runner in runners.values():
        runner.step(0)
    for turn in range(rounds):
        for i in range(batches):
            for name, runner in runners.items():
                began = clock()
                runner.step(i)
                taken[name][turn] += clock() - began
    return {name: statistics.median(times) for name, times in taken.items()}


def groups(pool: list[Example], size: int) -> list[list[Example]]:
    """Cut the pool into batches."""
    return [pool[i : i + size] for i in range(0, len(pool), size)]


def contestants(fasta: Path, count: int, size: int, kind: str) -> dict:
    """Return everything that takes turns in one type."""
    shape, dtype, mixed = SHAPES["8M"], TYPES[kind], groups(examples(fasta, count, seed=0), size)
    by_length = groups(sorted(examples(fasta, SORTED * count, seed=1), key=len), size)
    own = [packed(group) for group in mixed]
    return {
        f"ours {kind}": Trainer(strand(shape), own, dtype),
        f"ours, head size 64, {kind}": Trainer(strand(shape, heads=5), own, dtype),
        f"EsmForMaskedLM {kind}": Trainer(esm(shape), [padded(group) for group in mixed], dtype),
        f"ModernBertForMaskedLM {kind}": Trainer(
            modernbert(shape), [padded(group) for group in by_length[SORTED // 2 :: SORTED]], dtype
        ),
        f"ceiling {kind}": Ceiling(shape, own, dtype),
    }


def useful(model, pool: list[Example]) -> float:
    """Return the FLOPs of one step on each batch of the pool, as counted for ours, padding left out."""
    lengths = np.array([len(e) for e in pool], float)
    targets = sum(int((e.labels != -100).sum()) for e in pool) / lengths.sum()
    per_token = flops_per_token(model, (lengths**2).sum() / lengths.sum(), targets, len(pool))
    return per_token * lengths.sum()


def table(runners: dict, taken: dict[str, float], pool: list[Example]) -> tuple[dict, dict]:
    """Print a row for each network; return real tokens per second and shares of the ceiling by name."""
    print("| step | parameters | padding | real tokens/s | useful share of the ceiling |")
    print("|---|---|---|---|---|")
    speeds, shares = {}, {}
    for name, run in runners.items():
        if isinstance(run, Ceiling):
            continue
        ceiling = f"ceiling {name.split()[-1]}"
        speeds[name], share = run.tokens / taken[name], ""
        if name.startswith("ours"):
            best = runners[ceiling].flops / taken[ceiling]
            shares[name] = useful(run.model, pool) / taken[name] / best
            share = f"{shares[name]:.0%}"
        size = sum(p.numel() for p in run.model.parameters())
        print(f"| {name} | {size:,} | {run.padding:.0%} | {speeds[name]:.0f} | {share} |")
    return speeds, shares


def compare(fasta: Path, count: int, size: int, rounds: int, kinds: list[str]) -> dict[str, float | None]:
    """Print the table of a run and return its ratios; None where a type was not asked for."""
    runners = {name: run for kind in kinds for name, run in contestants(fasta, count, size, kind).items()}
    taken = in_turns(runners, -(-count // size), rounds)
    speeds, shares = table(runners, taken, examples(fasta, count, seed=0))
    ceilings = {k: runners[f"ceiling {k}"].flops / taken[f"ceiling {k}"] / 1e9 for k in kinds}
    print("\nceiling: " + ", ".join(f"{kind} {x:.0f} GFLOP/s" for kind, x in ceilings.items()) + "\n")
    if len(kinds) == 2 and ceilings["bf16"] < ceilings["fp32"]:
        print("This CPU has no units for bf16: rows in bf16 say nothing of CPUs that have.\n")

    def ratio(one: str, other: str) -> float | None:
        return speeds[one] / speeds[other] if one in speeds and other in speeds else None

    return {
        "vs_esm_bf16": ratio("ours bf16", "EsmForMaskedLM bf16"),
        "vs_esm_fp32": ratio("ours bf16", "EsmForMaskedLM fp32"),
        "vs_modernbert_bf16": ratio("ours bf16", "ModernBertForMaskedLM bf16"),
        "ceiling_share_head64": shares.get("ours, head size 64, bf16"),
        "fp32_vs_esm_fp32": ratio("ours fp32", "EsmForMaskedLM fp32"),
        "fp32_vs_modernbert_fp32": ratio("ours fp32", "ModernBertForMaskedLM fp32"),
        "fp32_ceiling_share_head64": shares.get("ours, head size 64, fp32"),
        **{f"ceiling_gflops_{kind}": x for kind, x in ceilings.items()},
    }


def losses(pool: list[Example], size: int, kind: str) -> dict[str, float]:
    """Train ours and ESM's on the same batches, print the mean losses of tenths, and return the last."""
    mixed, dtype = groups(pool, size), TYPES[kind]
    ours = Trainer(strand(SHAPES["8M"]), [packed(group) for group in mixed], dtype)
    theirs = Trainer(esm(SHAPES["8M"]), [padded(group) for group in mixed], dtype)
    found = np.array([(ours.step(i).item(), theirs.step(i).item()) for i in range(len(mixed))])
    print(f"| steps, {kind} | ours | EsmForMaskedLM |\n|---|---|---|")
    tenths = np.array_split(np.arange(len(mixed)), min(10, len(mixed)))
    for part in tenths:
        print(f"| {part[0] + 1}-{part[-1] + 1} | {found[part, 0].mean():.3f} | {found[part, 1].mean():.3f} |")
    print()
    last = found[tenths[-1]].mean(0)
    return {"loss_ours": float(last[0]), "loss_esm": float(last[1])}


def fill(pool: list[Example], tokens: int) -> list[list[Example]]:
    """Cut the pool into rows of at most so many tokens; what is left at its end does not count."""
    rows: list[list[Example]] = [[]]
    for one in pool:
        if sum(map(len, rows[-1])) + len(one) > tokens:
            rows.append([])
        rows[-1].append(one)
    return rows[:-1]


def on_device(pool, device: str, name: str, tokens: int, steps: int, peak: float) -> dict[str, float]:
    """Return tokens per second of packed rows in bf16, and the share of the device's peak."""
    rows = fill(pool, tokens)
    trainer = Trainer(strand(SHAPES[name]), [packed(row) for row in rows], torch.bfloat16, device)
    wait = torch.get_device_module(device).synchronize
    for i in range(5):
        trainer.step(i)
    wait()
    began = time.perf_counter()
    for i in range(steps):
        trainer.step(i)
    wait()
    seconds, read = time.perf_counter() - began, [rows[i % len(rows)] for i in range(steps)]
    done = sum(useful(trainer.model, row) for row in read)
    return {
        "tokens_per_s": sum(len(e) for row in read for e in row) / seconds,
        "share_of_peak": done / seconds / peak,
    }


def difference(pool: list[Example], device: str, name: str, steps: int) -> float:
    """Return the largest relative difference of losses in bf16 on the device and in float32 on the CPU."""
    batches = [packed(row) for row in fill(pool, 2048)]
    model = strand(SHAPES[name])
    start = {key: value.clone() for key, value in model.state_dict().items()}
    found = []
    for where, dtype in ((device, torch.bfloat16), ("cpu", torch.float32)):
        model = strand(SHAPES[name])
        model.load_state_dict(start)
        trainer = Trainer(model, batches, dtype, where)
        found.append(torch.stack([trainer.step(i).cpu() for i in range(steps)]))
    return float(((found[0] - found[1]).abs() / found[1]).max())


def accelerator(pool: list[Example], options) -> dict[str, float]:
    """Print the table of a GPU and return its numbers."""
    peak, source = peak_of(torch.device(options.device), "bf16")
    if options.peak_tflops:
        peak, source = options.peak_tflops * 1e12, "given"
    print(f"peak: {peak / 1e12:.0f} TFLOP/s in bf16, {source}\n")
    print("| shape | tokens/s | share of the peak |\n|---|---|---|")
    found = {}
    for name in options.shapes:
        numbers = on_device(pool, options.device, name, options.tokens, options.steps, peak)
        print(f"| {name} | {numbers['tokens_per_s']:.0f} | {numbers['share_of_peak']:.1%} |", flush=True)
        found |= {f"{key}_{name}": value for key, value in numbers.items()}
    found["loss_difference"] = difference(pool, options.device, options.shapes[0], 20)
    print(f"\nlargest difference of 20 losses, {options.shapes[0]}: {found['loss_difference']:.2%}\n")
    return found


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("fasta", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--batch", type=int, default=4, help="sequences in a step")
    parser.add_argument("--sequences", type=int, default=32, help="that all go through in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--losses", type=int, default=0, metavar="STEPS", help="in the first of the types")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="on a GPU")
    parser.add_argument("--tokens", type=int, default=16_384, help="in a row on a GPU")
    parser.add_argument("--steps", type=int, default=20, help="measured on a GPU")
    parser.add_argument("--peak-tflops", type=float, help="of a GPU that is not in the list")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.device != "cpu":
        # Enough for the rows that are measured: proteins have some 330 tokens.
        pool = examples(options.fasta, 4 * options.tokens // 100, seed=0)
        summary = accelerator(pool, options)
    else:
        run = (options.sequences, options.batch, options.rounds, options.types)
        summary = compare(options.fasta, *run)
        if options.losses:
            pool = examples(options.fasta, options.losses * options.batch, seed=1)
            summary |= losses(pool, options.batch, options.types[0])
    digits = {name: None if value is None else round(value, 4) for name, value in summary.items()}
    print(json.dumps({"threads": options.threads, **digits}))


if __name__ == "__main__":
    main()
