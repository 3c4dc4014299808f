"""Configuration of factored attention, the network for one aligned family.

This file is copied into every checkpoint, so it imports only from transformers and its dependencies, and
from sibling files in the form the copying understands (one relative import of a name).
"""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

AUTO_MAP = {
    "AutoConfig": "configuration_factored.FactoredConfig",
    "AutoModel": "modeling_factored.FactoredModel",
    "AutoModelForMaskedLM": "modeling_factored.FactoredForMaskedLM",
}
# Of the settings, of the weights and of what they mean; in 1 couplings had a direction, in 2 values no scale.
VERSION = 3
UNNAMED = 1  # the version of a checkpoint that names none
# Keys that are no field of the class but that transformers itself writes or passes.
FROM_TRANSFORMERS = (
    "attn_implementation",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "torch_dtype",
)


@strict
class FactoredConfig(PreTrainedConfig):
    """Shape of one layer of factored attention (see FactoredModel).

    What would show a position its own letter (a residual stream, attention to itself, more layers) does not
    exist, and a key that asks for it is refused, as is every unknown key.

    Attributes:
        num_columns: columns of the alignment; every input row has exactly so many tokens and no special ones.
        residue_token_ids: tokens of the amino acids; only these are seen, and only these are told apart.
        vocab_size: number of tokens.
        num_attention_heads: number of heads.
        hidden_size: channels of all heads' queries together.
        initializer_range: standard deviation of new queries and keys.
        value_initializer_range: standard deviation of new value maps.
        coupling_decay: what the sum of the couplings' squares, each pair of columns counted once, is times
            before it joins the mean loss of the targets, in training alone.
        pad_token_id: token of padding; like every other token that is no residue, it tells nothing.
        factored_version: that of the code that wrote a checkpoint; code of another version refuses it.
    """

    model_type = "strand-factored"

    num_columns: int
    residue_token_ids: list[int]
    vocab_size: int = 33
    num_attention_heads: int = 64
    hidden_size: int = 2048
    initializer_range: float | int = 1.0
    value_initializer_range: float | int = 0.4
    coupling_decay: float | int = 0.0
    pad_token_id: int | None = 1
    factored_version: int = VERSION
    auto_map: dict | None = None

    def __post_init__(self, **kwargs):
        unknown = [key for key in kwargs if key not in FROM_TRANSFORMERS and not key.startswith("_")]
        if unknown:
            raise ValueError(
                f"{', '.join(sorted(unknown))}: factored attention has no such option; remove it"
            )
        if self.auto_map is None:
            self.auto_map = dict(AUTO_MAP)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """Return the configuration of a checkpoint."""
        return super().from_dict({"factored_version": UNNAMED} | config_dict, **kwargs)

    def validate_architecture(self):
        """Refuse sizes that leave nothing to attend to, or tokens that do not exist."""
        if self.factored_version != VERSION:
            age = "newer" if self.factored_version > VERSION else "older"
            raise ValueError(
                f"factored_version={self.factored_version}: written by {age} code, and this reads {VERSION}: "
                "train again, use the strandlm that wrote it, or, without strandlm, its own code "
                "(trust_remote_code=True)"
            )
        if self.num_columns < 2:
            raise ValueError(
                f"num_columns={self.num_columns}: a column is predicted from others, so two are needed"
            )
        if (
            self.num_attention_heads < 1
            or self.hidden_size % self.num_attention_heads
            or self.hidden_size < 1
        ):
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a positive multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.coupling_decay < 0:
            raise ValueError(f"coupling_decay={self.coupling_decay}: a penalty is not negative")
        tokens = self.residue_token_ids
        if len(tokens) < 2 or len(set(tokens)) != len(tokens):
            raise ValueError(f"residue_token_ids={tokens}: needs two or more different tokens")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise ValueError(f"residue_token_ids={tokens} are not all tokens of vocab_size={self.vocab_size}")
