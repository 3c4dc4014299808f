"""The small language model that the promoter benchmarks fine-tune: 4 layers of 96, overlapping 6-mers."""

from pathlib import Path

from pipeline import encode, prepare, pretrain
from pipeline.config import (
    MixtureConfig,
    ModelConfig,
    OptimizerConfig,
    PrepareConfig,
    PretrainConfig,
    TokenizeConfig,
)

TOKENIZER = "dna-6mer-overlap"


def tokens_of(files: list[Path], output: Path, name: str, **how) -> Path:
    """Return the token folder of sequence files, made if need be."""
    prepare.run(PrepareConfig(output=output / name, input=files, seed=1, **how))
    config = TokenizeConfig(output=output / f"{name}-tokens", corpus=output / name, tokenizer=TOKENIZER)
    return encode.run(config).folder


def language_model(
    data: list[Path], output: Path, window: int, steps: int, weights: list[float], start: Path | None = None
) -> Path:
    """Return the checkpoint of a language model of token folders, made if need be (from another one)."""
    config = PretrainConfig(
        output=output,
        data=data,
        start_from=start,
        mixture=MixtureConfig(weights=weights),
        window=window,
        steps=steps,
        tokens_per_step=4096,
        micro_batch_tokens=4096,
        evaluate_every=500,
        log_every=50,
        seed=1,
        model=ModelConfig(hidden_size=96, num_hidden_layers=4, num_attention_heads=3),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup=100),
    )
    return pretrain.run(config).folder
