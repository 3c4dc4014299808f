"""Small things that many tests use. Heavy imports stay inside fixtures."""

import os
from pathlib import Path

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
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
