"""Configuration of the strand encoder.

This file is copied into every checkpoint, so it imports only from transformers and its dependencies, and
from sibling files in the form the copying understands (one relative import of a name).
"""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

# Every Auto class that a checkpoint answers to; saving one head alone would record only that head.
AUTO_MAP = {
    "AutoConfig": "configuration_strand.StrandConfig",
    "AutoModel": "modeling_strand.StrandModel",
    "AutoModelForMaskedLM": "modeling_strand.StrandForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_strand.StrandForSequenceClassification",
}
CHOICES = {
    "norm": ("rmsnorm", "layernorm"),
    "activation": ("swiglu", "gelu"),
    "classifier_pooling": ("cls", "mean"),
}


@strict
class StrandConfig(PreTrainedConfig):
    """Shape of a bidirectional, pre-norm Transformer encoder with rotary positions.

    ``max_position_embeddings`` is the context in tokens, special tokens included. ``alphabet``, ``k`` and
    ``overlapping`` say what a token is; the network itself does not use them.
    """

    model_type = "strand"
    default_theta = 10_000.0

    vocab_size: int = 33
    hidden_size: int = 128
    intermediate_size: int = 344
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    max_position_embeddings: int = 512
    rope_parameters: dict | None = None
    norm: str = "rmsnorm"
    norm_eps: float = 1e-5
    activation: str = "swiglu"
    use_bias: bool = False
    qk_norm: bool = False
    attention_dropout: float | int = 0.0
    hidden_dropout: float | int = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    classifier_pooling: str = "cls"
    pad_token_id: int | None = 0
    alphabet: str = "dna"
    k: int = 1
    overlapping: bool = False
    auto_map: dict | None = None

    def __post_init__(self, **kwargs):
        if self.auto_map is None:
            self.auto_map = dict(AUTO_MAP)
        super().__post_init__(**kwargs)

    def validate_architecture(self):
        """Refuse sizes that rotary heads cannot have, and options that do not exist."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by "
                f"num_attention_heads={self.num_attention_heads}"
            )
        head_size = self.hidden_size // self.num_attention_heads
        if head_size % 2:
            raise ValueError(
                f"hidden_size / num_attention_heads = {head_size} is odd: rotary heads turn pairs of channels"
            )
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
