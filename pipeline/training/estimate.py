"""What a run will take, before it starts: parameters, steps, work and memory.

Symbols: D model width, F feed-forward width, H heads, L tokens of a sequence, C columns and R residues of an
aligned family.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from pipeline.config import MaskingConfig, PretrainConfig

UNITS = ("", "k", "M", "G", "T", "P", "E")


@dataclass(frozen=True)
class Memory:
    """Bytes on one device while training."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of them together."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Plan:
    """A run in numbers.

    ``letters`` and ``windows`` are those of an epoch; ``length`` is the mean number of tokens of a window.
    ``letters_per_step`` is over all processes, ``memory`` that of each.
    """

    parameters: int
    without_embeddings: int
    flops_per_token: float
    letters: int
    windows: int
    letters_per_step: int
    steps: int
    tokens_per_letter: float
    length: float
    memory: Memory
    processes: int

    @property
    def tokens_per_step(self) -> float:
        """Tokens in an optimizer step, over all processes."""
        return self.letters_per_step * self.tokens_per_letter

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps in which the training text is read once."""
        return self.letters / self.letters_per_step

    @property
    def epochs(self) -> float:
        """How often the run reads the training text."""
        return self.steps / self.steps_per_epoch

    @property
    def flops(self) -> float:
        """Work of the whole run, recomputation not counted."""
        return self.flops_per_token * self.tokens_per_step * self.steps

    def lines(self) -> list[str]:
        """Return the plan in words."""
        memory = self.memory
        parts = {name: _bytes(getattr(memory, name)) for name in memory.__dataclass_fields__}
        held = ", ".join(f"{name} {size}" for name, size in parts.items())
        return [
            f"{self.parameters:,} parameters, {self.without_embeddings:,} without embeddings",
            f"{self.letters:,} letters of training text, {self.windows:,} windows of {self.length:,.0f} "
            "tokens on average",
            f"{self.steps:,} steps of {self.letters_per_step:,} letters ({self.tokens_per_step:,.0f} tokens) "
            f"are {self.epochs:,.2f} epochs ({self.steps_per_epoch:,.1f} steps in an epoch)",
            f"{_scaled(self.flops_per_token)}FLOPs per token, {_scaled(self.flops)}FLOPs in all (6 for each "
            "weight of a layer and 12 L D for its attention; the head on targets only)",
            f"about {_bytes(memory.total)} of memory for each of {self.processes} process(es): {held}",
        ]


def _scaled(number: float) -> str:
    """Return three digits and the prefix of the unit that follows."""
    power = 0
    while number >= 999.5 and power < len(UNITS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {UNITS[power]}"


def _bytes(number: float) -> str:
    return f"{_scaled(number)}B"


def targets_share(masking: MaskingConfig, k: int, overlapping: bool) -> float:
    """Return the share of tokens that are targets; k - 1 more than bases for a run in overlapping k-mers."""
    run = masking.run or k
    return min(1.0, masking.fraction * ((run + k - 1) / run if overlapping else 1))


def _linear_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def _strand_flops(model, length: float, targets: float) -> float:
    config = model.config
    window = 2 * (config.sliding_window or 0) + 1
    seen = [min(length, window) if windowed else length for windowed in model.model.windowed]
    body = _linear_weights(model.model)
    head = _linear_weights(model) - body
    return 6 * (body + targets * head) + 12 * config.hidden_size * sum(seen)


def _factored_flops(model, rows: float) -> float:
    config = model.config
    C, R, H = config.num_columns, len(config.residue_token_ids), config.num_attention_heads
    couplings = C * (6 * config.hidden_size + 6 * H * R**2)  # for each column, once in a micro-batch
    return 4 * C * R**2 + couplings / rows


def flops_per_token(model, length: float, targets: float, rows: float) -> float:
    """Return the work of a training step for one token; the backward pass is twice the forward pass.

    Args:
        model: a masked language model of either architecture.
        length: tokens of a sequence, mean.
        targets: share of tokens that the head is computed for.
        rows: sequences in a micro-batch, which is when a factored model's couplings are computed once.

    A weight costs 6 FLOPs for every token that is multiplied with it (2 forward, 4 backward), attention 12 L
    D in each layer, where L is what a token sees: ``6 N + 12 layers D L`` (Kaplan et al. 2020,
    arXiv:2001.08361, 2.1; Chowdhery et al. 2022, arXiv:2204.02311, appendix B). N are the weights of all
    linear maps; those of the head count for the share of tokens that are targets. Norms, activations,
    embeddings and what gradient checkpointing computes again are not counted.

    A factored model multiplies seen residues, which have no gradient, with couplings, 4 C R^2, which it
    computes once in a micro-batch:
    6 C^2 H R^2 for values and 6 C^2 D for attention.
    """
    if model.config.model_type == "strand":
        return _strand_flops(model, length, targets)
    return _factored_flops(model, rows)


def _strand_activations(model, tokens: float, targets: float, width: int, recomputed: bool) -> float:
    """Return the bytes that are kept for the backward pass of a micro-batch, and those of the head's logits.

    In a layer, for each token: the residual stream before either part (2 x 4 D bytes, in float32), and in the
    precision of the run the outputs of both norms, queries, keys, values and what was attended to (6 D), and
    of the feed-forward part the two inputs of the product, SiLU's output and the product (4 F), or GELU's
    input and output (2 F); attention's weights are computed again (Dao et al. 2022, arXiv:2205.14135; counted
    as in Korthikanti et al. 2022, arXiv:2205.05198). As much as in one more layer is in use on the way. With
    gradient checkpointing there are these two layers, and of each other one the 4 D before it. The logits of
    targets are held four times, in float32.
    """
    config = model.config
    D, F = config.hidden_size, config.intermediate_size
    feed_forward = 4 * F if config.activation == "swiglu" else 2 * F
    layer = 8 * D + width * (6 * D + feed_forward)
    layers = config.num_hidden_layers
    kept = 2 * layer + 4 * D * (layers - 1) if recomputed else layer * (layers + 1)
    return tokens * (kept + 16 * targets * config.vocab_size)


def _factored_activations(model, tokens: float) -> float:
    """Return the bytes of couplings and attention, their gradients, residues as ones, and logits."""
    config = model.config
    C, R, H = config.num_columns, len(config.residue_token_ids), config.num_attention_heads
    return 4 * (2 * (C * R) ** 2 + 4 * H * C**2 + tokens * (3 * R + 4 * config.vocab_size))


def memory_of(model, config: PretrainConfig, tokens: float, targets: float, processes: int) -> Memory:
    """Return the memory of training on a micro-batch of ``tokens``, as every process holds the whole network.

    With P parameters of 4 bytes: weights 4 P, and in bf16 2 P more, autocast's copies; gradients 4 P, twice
    that with several processes, whose exchange has buffers of its own; AdamW's two means 8 P, or Muon's one,
    4, for the matrices of the layers. Activations: see the formula of each architecture.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    bf16 = config.precision == "bf16"
    muon = _linear_weights(model.model) if config.optimizer.method == "muon" else 0
    if model.config.model_type == "strand":
        width, recomputed = 2 if bf16 else 4, config.gradient_checkpointing
        activations = _strand_activations(model, tokens, targets, width, recomputed)
    else:
        activations = _factored_activations(model, tokens)
    return Memory(
        weights=(6 if bf16 else 4) * size,
        gradients=(8 if processes > 1 else 4) * size,
        optimizer=8 * size - 4 * muon,
        activations=activations,
    )


def _embeddings(model: Any) -> int:
    return sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Embedding))


def estimate(
    model: Any,
    config: PretrainConfig,
    letters: int,
    windows_per_epoch: int,
    tokens_per_letter: float,
    processes: int,
) -> Plan:
    """Return the plan of a run.

    Args:
        model: the masked language model to be trained.
        config: its settings.
        letters: letters of training text read in an epoch.
        windows_per_epoch: pieces that they are read in.
        tokens_per_letter: tokens of a letter, special tokens included.
        processes: how many share a step's micro-batches.
    """
    length = letters / windows_per_epoch * tokens_per_letter
    own_letters = min(config.micro_batch_tokens, config.tokens_per_step / processes)
    tokens = max(length, own_letters * tokens_per_letter)
    if model.config.model_type == "strand":
        targets = targets_share(config.masking, model.config.k, model.config.overlapping)
    else:
        targets = 1.0
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Plan(
        parameters=parameters,
        without_embeddings=parameters - _embeddings(model),
        flops_per_token=flops_per_token(model, length, targets, tokens / length),
        letters=letters,
        windows=windows_per_epoch,
        letters_per_step=config.tokens_per_step,
        steps=config.steps,
        tokens_per_letter=tokens_per_letter,
        length=length,
        memory=memory_of(model, config, tokens, targets, processes),
        processes=processes,
    )
