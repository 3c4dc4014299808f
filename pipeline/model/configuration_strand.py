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
    "AutoModelForTokenClassification": "modeling_strand.StrandForTokenClassification",
}
VERSION = 1  # of the settings and of the names and shapes of the weights
CHOICES = {
    "norm": ("rmsnorm", "layernorm"),
    "norm_bias": ("all", "layers", "none"),
    "norm_placement": ("pre", "post"),
    "activation": ("swiglu", "gelu"),
    "qk_norm_over": ("head", "model"),
    "positions": ("rotary", "sinusoidal", "none"),
    "lm_head": ("linear", "dense"),
    "classifier_pooling": ("cls", "mean", "attention"),
}


@strict
class StrandConfig(PreTrainedConfig):
    """Shape of a bidirectional Transformer encoder; as it stands, pre-norm with rotary positions.

    ``max_position_embeddings`` is the context in tokens, special tokens included. ``alphabet``, ``k`` and
    ``overlapping`` say what a token is; the network itself does not use them.

    ``norm_bias`` says which layer norms have a bias: all, those of the layers (before or after attention and
    feed-forward part), or none; RMSNorm has none. ``qk_norm`` normalises queries and keys over each head's
    channels or, with ``qk_norm_over`` model, over all. ``residual_scale`` multiplies what a layer adds to the
    residual stream. With ``sliding_window`` a token sees that many tokens to either side, except in every
    ``global_every``-th layer, the first among them. ``token_dropout`` (Lin et al. 2023,
    doi:10.1126/science.ade2574) makes ``mask_token_id``'s vectors zero and rescales the others for it.
    ``lm_head`` dense puts a layer with GELU and layer norm before the decoder. ``classifier_pooling``
    attention weighs tokens by a learned query, all but padding and ``framing_token_ids``, which stand before
    and after a sequence. With ``contact_head`` the checkpoint holds a regression on attention, which tells
    contacts; what stands between framing tokens is then a residue.

    ESM-2's shape is layernorm, gelu, use_bias, token_dropout and a dense head; ESM C's is layernorm with
    norm_bias layers, qk_norm over the model, residual_scale (36 / layers)^0.5 and a dense, untied head.

    ``strand_version`` is that of the code that wrote a checkpoint; code of another version refuses it.
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
    norm_bias: str = "all"
    norm_placement: str = "pre"
    embedding_norm: bool = False
    final_norm: bool = True
    activation: str = "swiglu"
    use_bias: bool = False
    qk_norm: bool = False
    qk_norm_over: str = "head"
    residual_scale: float | int = 1.0
    positions: str = "rotary"
    sliding_window: int | None = None
    global_every: int = 3
    token_dropout: bool = False
    mask_token_id: int | None = None
    lm_head: str = "linear"
    attention_dropout: float | int = 0.0
    hidden_dropout: float | int = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    classifier_pooling: str = "cls"
    framing_token_ids: list[int] | None = None
    contact_head: bool = False
    pad_token_id: int | None = 0
    alphabet: str = "dna"
    k: int = 1
    overlapping: bool = False
    strand_version: int = VERSION
    auto_map: dict | None = None

    def __post_init__(self, **kwargs):
        if self.auto_map is None:
            self.auto_map = dict(AUTO_MAP)
        super().__post_init__(**kwargs)

    def is_windowed(self, layer: int) -> bool:
        """Whether the layer's attention is within ``sliding_window``."""
        return self.sliding_window is not None and layer % self.global_every != 0

    def validate_architecture(self):
        """Refuse sizes that the heads cannot have, and options that do not exist or do not go together."""
        if self.strand_version != VERSION:
            age = "newer" if self.strand_version > VERSION else "older"
            raise ValueError(
                f"strand_version={self.strand_version}: written by {age} code, and this reads {VERSION}: "
                "use the strandlm that wrote it, or, without strandlm, its own code (trust_remote_code=True)"
            )
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by "
                f"num_attention_heads={self.num_attention_heads}"
            )
        head_size = self.hidden_size // self.num_attention_heads
        if self.positions == "rotary" and head_size % 2:
            raise ValueError(
                f"hidden_size / num_attention_heads = {head_size} is odd: rotary heads turn pairs of channels"
            )
        if self.positions == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(f"hidden_size={self.hidden_size} is odd: sinusoidal positions come in pairs")
        if self.contact_head and not self.framing_token_ids:
            raise ValueError("contact_head needs framing_token_ids, the tokens that are no residues")
        if self.token_dropout and self.mask_token_id is None:
            raise ValueError("token_dropout needs mask_token_id")
        if (self.sliding_window is not None and self.sliding_window < 1) or self.global_every < 1:
            raise ValueError("sliding_window and global_every must be at least 1")
