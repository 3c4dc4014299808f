"""Small things that many tests use. Heavy imports stay inside fixtures."""

import os
from pathlib import Path

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # numba sets the number of torch's threads, too
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TOKENIZERS = Path(__file__).parent.parent / "tokenizers"


@pytest.fixture(scope="session")
def tokenizer_folder():
    """Folder of a tokenizer that comes with strandlm, by name."""
    return TOKENIZERS.joinpath


@pytest.fixture
def tiny_model():
    """Factory of small strand models in evaluation mode, with weights large enough to tell errors apart."""
    import torch

    from pipeline.model import StrandConfig, StrandForMaskedLM

    def build(kind=StrandForMaskedLM, seed=0, **changes):
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
        torch.manual_seed(seed)
        model = kind(StrandConfig(**sizes | {"vocab_size": 40} | changes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=parameter.shape[1] ** -0.5)
                else:
                    parameter.add_(0.3 * torch.randn(parameter.shape))
        return model

    return build


@pytest.fixture(scope="session")
def token_folder(tmp_path_factory):
    """A token folder of simulated random DNA (1-mers), made by the stages themselves."""
    import pipeline.encode
    import pipeline.prepare
    from pipeline.config import PrepareConfig, TokenizeConfig

    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(0)
    records = ["".join(rng.choice(list("ACGT"), size)) for size in rng.integers(20, 90, 40)]
    records[3] = records[3][:10] + "N" * 15 + records[3][10:]
    fasta = folder / "random.fasta"
    fasta.write_text("".join(f">r{i}\n{letters}\n" for i, letters in enumerate(records)))
    prepared = PrepareConfig(output=folder / "corpus", input=[fasta], validation=0.2, test=0.2)
    pipeline.prepare.run(prepared)
    tokens = TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer="dna-1mer")
    pipeline.encode.run(tokens)
    return folder / "tokens"


WORD, PLACE, LENGTH = "TATAAT", 20, 40


@pytest.fixture(scope="session")
def rule_folder(tmp_path_factory):
    """``rule.tsv``, its ``corpus`` and a masked model ``lm`` (3-mers, 10 steps): simulated promoters.

    Every other sequence of 40 random bases has TATAAT at bases 20 to 25 (from 0): those are promoters. Others
    are of two kinds, without meaning; ``match`` counts the bases that are as in the word, the best score.
    """
    import pipeline.encode
    import pipeline.prepare
    import pipeline.pretrain
    from pipeline.config import ModelConfig, OptimizerConfig, PrepareConfig, PretrainConfig, TokenizeConfig

    folder = tmp_path_factory.mktemp("rule")
    rng = np.random.default_rng(0)
    rows = ["id\tsequence\tclass\tsplit\tkind\tmatch\tnumber"]
    for i in range(800):
        letters = "".join(rng.choice(list("ACGT"), LENGTH))
        if i % 2 == 0:
            letters = letters[:PLACE] + WORD + letters[PLACE + len(WORD) :]
        match = sum(a == b for a, b in zip(letters[PLACE:], WORD, strict=False))
        split = "train" if i < 600 else "validation" if i < 680 else "test"
        name, kind = ("promoter", "") if i % 2 == 0 else ("background", "early" if i % 4 == 1 else "late")
        rows.append(f"s{i}\t{letters}\t{name}\t{split}\t{kind}\t{match}\t{i % 4}")
    (folder / "rule.tsv").write_text("\n".join(rows) + "\n")
    columns = {"label_column": "class", "split_column": "split", "keep_columns": ["kind", "match", "number"]}
    pipeline.prepare.run(PrepareConfig(output=folder / "corpus", input=[folder / "rule.tsv"], **columns))
    pipeline.encode.run(
        TokenizeConfig(output=folder / "tokens", corpus=folder / "corpus", tokenizer="dna-3mer-overlap")
    )
    pipeline.pretrain.run(
        PretrainConfig(
            output=folder / "lm",
            data=folder / "tokens",
            model=ModelConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
            optimizer=OptimizerConfig(warmup=2),
            steps=10,
            window=LENGTH,
            tokens_per_step=1000,
        )
    )
    return folder


@pytest.fixture(scope="session")
def finetune_settings(rule_folder):
    """Settings under which fine-tuning learns the rule of ``rule_folder`` within seconds."""
    return {
        "checkpoint": rule_folder / "lm",
        "data": rule_folder / "corpus",
        "positive": "promoter",
        "epochs": 4,
        "learning_rate": 5e-3,
        "batch_size": 32,
        "untrained_control": False,
    }


@pytest.fixture(scope="session")
def classifier_folder(rule_folder, finetune_settings):
    """The classifier of that rule, with its control, groups and best score."""
    import pipeline.finetune
    from pipeline.config import FinetuneConfig

    columns = {"group_column": "kind", "reference_column": "match", "untrained_control": True}
    config = FinetuneConfig(output=rule_folder / "classifier", **finetune_settings | columns)
    return pipeline.finetune.run(config).folder
