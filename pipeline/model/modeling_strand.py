"""The strand encoder: bidirectional, pre-norm, rotary; heads for masked tokens and for whole sequences.

Shape suffixes: B batch, L tokens, D model width, H heads, K channels per head, V vocabulary, T targets,
C classes. This file is copied into every checkpoint: it imports only torch, transformers and its sibling.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_strand import StrandConfig


class StrandRotaryEmbedding(nn.Module):
    """Rotary tables (Su et al. 2021, arXiv:2104.09864), always in float32.

    Loading builds the model without memory and then refills only the buffers of modules whose class name
    contains RotaryEmbedding and which own ``original_inv_freq``: both names are needed.
    """

    inv_freq: torch.Tensor

    def __init__(self, config: StrandConfig):
        super().__init__()
        self.config = config
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
        self.rope_type: str = (config.rope_parameters or {})["rope_type"]
        default = self.rope_type == "default"
        initialise = self.compute_default_rope_parameters if default else ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = initialise(config)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.register_buffer("original_inv_freq", inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config: StrandConfig, **_) -> tuple[torch.Tensor, float]:
        """Return theta^(-2i/K) for i = 0..K/2-1, and an attention scaling of one."""
        head_size = config.hidden_size // config.num_attention_heads
        exponent = torch.arange(0, head_size, 2, dtype=torch.float) / head_size
        return (config.rope_parameters or {})["rope_theta"] ** -exponent, 1.0

    def _apply(self, fn, recurse=True):
        """Follow the model to its device but not to half precision, where far positions lose their angles."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x_BLD: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the angles at ``position_ids`` (B, L), which may be real numbers."""
        inv_freq = self.inv_freq.to(device=x_BLD.device, dtype=torch.float)
        with torch.autocast(x_BLD.device.type, enabled=False):
            angles_BLK = (position_ids[..., None].float() * inv_freq).repeat(1, 1, 2)
            return angles_BLK.cos() * self.attention_scaling, angles_BLK.sin() * self.attention_scaling


def rotate(x_BHLK: torch.Tensor, cos_BLK: torch.Tensor, sin_BLK: torch.Tensor) -> torch.Tensor:
    """Turn channel pairs (i, i + K/2) by their angles, in float32."""
    first, second = x_BHLK.float().chunk(2, dim=-1)
    turned_BHLK = torch.cat((-second, first), dim=-1)
    return (x_BHLK * cos_BLK[:, None] + turned_BHLK * sin_BLK[:, None]).to(x_BHLK.dtype)


def eager_attention_forward(
    module, query, key, value, attention_mask, scaling, dropout=0.0, **_
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that keeps its weights; ``attention_mask`` is additive, or None."""
    scores_BHLL = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores_BHLL = scores_BHLL + attention_mask
    weights_BHLL = scores_BHLL.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    dropped_BHLL = nn.functional.dropout(weights_BHLL, p=dropout, training=module.training)
    return (dropped_BHLL @ value).transpose(1, 2).contiguous(), weights_BHLL


def make_norm(config: StrandConfig, size: int) -> nn.Module:
    """Return the configured normalisation over ``size`` channels."""
    if config.norm == "layernorm":
        return nn.LayerNorm(size, eps=config.norm_eps)
    return nn.RMSNorm(size, eps=config.norm_eps)


class StrandAttention(nn.Module):
    """Multi-head self-attention in both directions; ``config._attn_implementation`` names the kernel."""

    is_causal = False

    def __init__(self, config: StrandConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.use_bias)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.query_norm = make_norm(config, self.head_dim) if config.qk_norm else nn.Identity()
        self.key_norm = make_norm(config, self.head_dim) if config.qk_norm else nn.Identity()

    def forward(self, x_BLD, position_embeddings, attention_mask=None, **kwargs):
        """Return the attended states (B, L, D), and the weights (B, H, L, L) where the kernel has them."""
        B, L, D = x_BLD.shape
        q_BHLK, k_BHLK, v_BHLK = self.qkv(x_BLD).view(B, L, 3, -1, self.head_dim).transpose(1, 3).unbind(2)
        q_BHLK = rotate(self.query_norm(q_BHLK), *position_embeddings)
        k_BHLK = rotate(self.key_norm(k_BHLK), *position_embeddings)
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention_forward
        )
        mixed_BLHK, weights_BHLL = attend(
            self,
            q_BHLK,
            k_BHLK,
            v_BHLK,
            attention_mask,
            scaling=self.head_dim**-0.5,
            dropout=self.config.attention_dropout if self.training else 0.0,
            **kwargs,
        )
        if weights_BHLL is None and kwargs.get("output_attentions"):
            raise ValueError(
                f"output_attentions: {self.config._attn_implementation} attention keeps no weights; load the "
                "model with attn_implementation='eager'"
            )
        return self.out(mixed_BLHK.reshape(B, L, D)), weights_BHLL


class StrandFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202) or a GELU layer."""

    def __init__(self, config: StrandConfig):
        super().__init__()
        self.gated = config.activation == "swiglu"
        width = config.intermediate_size * (2 if self.gated else 1)
        self.up = nn.Linear(config.hidden_size, width, bias=config.use_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.use_bias)

    def forward(self, x_BLD):
        """Return the update of the residual stream."""
        if not self.gated:
            return self.down(nn.functional.gelu(self.up(x_BLD)))
        gate, up = self.up(x_BLD).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


class StrandLayer(GradientCheckpointingLayer):
    """Pre-norm attention, then a pre-norm feed-forward part."""

    def __init__(self, config: StrandConfig, layer_idx: int):
        super().__init__()
        self.attention_norm = make_norm(config, config.hidden_size)
        self.attention = StrandAttention(config, layer_idx)
        self.mlp_norm = make_norm(config, config.hidden_size)
        self.mlp = StrandFeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x_BLD, position_embeddings, attention_mask=None, **kwargs):
        """Return the updated residual stream."""
        attended_BLD, _ = self.attention(
            self.attention_norm(x_BLD), position_embeddings, attention_mask, **kwargs
        )
        x_BLD = x_BLD + self.dropout(attended_BLD)
        return x_BLD + self.dropout(self.mlp(self.mlp_norm(x_BLD)))


class StrandPreTrainedModel(PreTrainedModel):
    """What every strand model shares: its config class, kernels, and what can be recorded."""

    config: StrandConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["StrandLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": StrandLayer, "attentions": StrandAttention}


class StrandModel(StrandPreTrainedModel):
    """The encoder: token ids in, one vector for each token out."""

    def __init__(self, config: StrandConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(StrandLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = make_norm(config, config.hidden_size)
        self.rotary = StrandRotaryEmbedding(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token table."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        """Replace the token table."""
        self.embeddings = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode a padded batch.

        Args:
            input_ids: (B, L) token ids.
            attention_mask: (B, L), 1 on tokens and 0 on padding; taken from the pad id where absent.
            position_ids: (B, L) places of the tokens, real numbers allowed; 0, 1, 2... where absent.
            inputs_embeds: (B, L, D), instead of ``input_ids``.
            **kwargs: passed to the attention kernel.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        x_BLD = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is None and input_ids is not None and self.config.pad_token_id is not None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        if position_ids is None:
            position_ids = torch.arange(x_BLD.shape[1], device=x_BLD.device)[None]
        mask = create_bidirectional_mask(self.config, x_BLD, attention_mask)
        position_embeddings = self.rotary(x_BLD, position_ids)
        for layer in self.layers:
            x_BLD = layer(x_BLD, position_embeddings, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(x_BLD))


class StrandForMaskedLM(StrandPreTrainedModel):
    """The encoder with a token-prediction head."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.weight"}

    def __init__(self, config: StrandConfig):
        super().__init__(config)
        self.model = StrandModel(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """Return the decoder."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        """Replace the decoder."""
        self.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        target_positions: torch.Tensor | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        """Predict tokens.

        Args:
            input_ids: (B, L) token ids.
            attention_mask: (B, L), 1 on tokens and 0 on padding.
            position_ids: (B, L) places of the tokens.
            inputs_embeds: (B, L, D), instead of ``input_ids``.
            labels: (B, L), -100 where no loss is wanted.
            target_positions: (T,) places in the flattened batch; logits are then (T, V), for these alone.
            **kwargs: passed to the encoder and to the loss.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        states = outputs.last_hidden_state
        if target_positions is not None:
            states = states.flatten(0, 1)[target_positions]
        logits = self.decoder(states)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class StrandForSequenceClassification(StrandPreTrainedModel):
    """The encoder with a linear classifier on its first token's vector, or on the mean without padding."""

    def __init__(self, config: StrandConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels or 2
        self.model = StrandModel(config)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    def _pool(self, states_BLD, input_ids, attention_mask) -> torch.Tensor:
        keep_BL = torch.ones_like(states_BLD[..., 0])
        if attention_mask is not None:
            keep_BL = attention_mask.to(states_BLD)
        elif input_ids is not None and self.config.pad_token_id is not None:
            keep_BL = (input_ids != self.config.pad_token_id).to(states_BLD)
        if self.config.classifier_pooling == "cls":
            first_B = keep_BL.argmax(dim=1)  # not 0 where padding is on the left
            return states_BLD[torch.arange(len(states_BLD), device=states_BLD.device), first_B]
        return (states_BLD * keep_BL[..., None]).sum(1) / keep_BL.sum(1, keepdim=True).clamp(min=1)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """Classify each sequence; ``labels`` is (B,), logits are (B, C)."""
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        logits_BC = self.classifier(self._pool(outputs.last_hidden_state, input_ids, attention_mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits_BC, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits_BC, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
