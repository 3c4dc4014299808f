"""The strand encoder: a bidirectional Transformer; heads for masked tokens, whole sequences and each token.

Shape suffixes: B batch, L tokens, S packed sequences, D model width, H heads, K channels per head, V
vocabulary, T targets, C classes. This file is copied into every checkpoint: it imports only torch,
transformers and siblings.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from transformers import PreTrainedModel, initialization
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    packed_sequence_mask_function,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import (
    can_return_tuple,
    is_flash_attention_requested,
    merge_with_config_defaults,
)
from transformers.utils.output_capturing import capture_outputs

from .attention_strand import CPU, VARLEN
from .configuration_strand import StrandConfig
from .contacts_strand import ContactHead, ContactRegression, PredictsContacts

DROPPED_IN_TRAINING = 0.15 * 0.8  # share of tokens that ESM-2 showed as mask


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


class Rotation(torch.autograd.Function):
    """Turning channel pairs (i, i + K/2) by their angles; its gradient is turned back by the same angles.

    Three passes over memory, where autograd's own backward pass of the formula takes as many again as copies.
    """

    @staticmethod
    def forward(ctx, x_BHLK, cos_BLK, sin_BLK):
        """Return (B, H, L, K) in the type of x, computed in float32 or finer."""
        ctx.save_for_backward(cos_BLK, sin_BLK)
        fine_BHLK = x_BHLK.to(torch.promote_types(x_BHLK.dtype, cos_BLK.dtype))
        first, second = fine_BHLK.chunk(2, dim=-1)
        less, more = sin_BLK[:, None].to(fine_BHLK.dtype).chunk(2, dim=-1)
        turned_BHLK = fine_BHLK * cos_BLK[:, None]
        swapped_BHLK, signed_B1LK = torch.cat((second, first), -1), torch.cat((-less, more), -1)
        return turned_BHLK.addcmul_(swapped_BHLK, signed_B1LK).to(x_BHLK.dtype)

    @staticmethod
    def backward(ctx, g_BHLK):
        """Return the gradient of x alone."""
        cos_BLK, sin_BLK = ctx.saved_tensors
        return Rotation.apply(g_BHLK, cos_BLK, -sin_BLK), None, None


def rotate(x_BHLK: torch.Tensor, cos_BLK: torch.Tensor, sin_BLK: torch.Tensor) -> torch.Tensor:
    """Turn channel pairs (i, i + K/2) by their angles, in float32 or finer."""
    turned_BHLK = Rotation.apply(x_BHLK, cos_BLK, sin_BLK)
    assert isinstance(turned_BHLK, torch.Tensor)
    return turned_BHLK


def eager_attention_forward(
    module, query, key, value, attention_mask, scaling, dropout=0.0, **_
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that keeps its weights; ``attention_mask`` is additive, or None."""
    scores_BHLL = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores_BHLL = scores_BHLL + attention_mask
    fine = torch.promote_types(query.dtype, torch.float32)
    weights_BHLL = scores_BHLL.softmax(dim=-1, dtype=fine).to(query.dtype)
    dropped_BHLL = nn.functional.dropout(weights_BHLL, p=dropout, training=module.training)
    return (dropped_BHLL @ value).transpose(1, 2).contiguous(), weights_BHLL


def sinusoids(position_ids: torch.Tensor, size: int) -> torch.Tensor:
    """Return (B, L, size) sines and cosines in turn (Vaswani et al. 2017, arXiv:1706.03762), in float32."""
    exponents = torch.arange(0, size, 2, dtype=torch.float, device=position_ids.device) / size
    angles = position_ids[..., None].float() * 10_000.0**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def make_norm(config: StrandConfig, size: int, of_layer: bool = False) -> nn.Module:
    """Return the configured normalisation over ``size`` channels."""
    if config.norm == "layernorm":
        bias = config.norm_bias == "all" or (of_layer and config.norm_bias == "layers")
        return nn.LayerNorm(size, eps=config.norm_eps, bias=bias)
    return nn.RMSNorm(size, eps=config.norm_eps)


class BranchEnd(nn.Linear):
    """The last map of a branch, whose outputs are added to the residual stream."""


class StrandAttention(nn.Module):
    """Multi-head self-attention in both directions; ``config._attn_implementation`` names the kernel."""

    is_causal = False

    def __init__(self, config: StrandConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.use_bias)
        self.out = BranchEnd(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.norm_size = self.head_dim if config.qk_norm_over == "head" else config.hidden_size
        self.query_norm = make_norm(config, self.norm_size) if config.qk_norm else None
        self.key_norm = make_norm(config, self.norm_size) if config.qk_norm else None
        self.sliding_window = config.sliding_window if config.is_windowed(layer_idx) else None

    def _heads(self, x_BLD: torch.Tensor, norm: nn.Module | None = None) -> torch.Tensor:
        B, L, _ = x_BLD.shape
        if norm is not None:  # in the type of its weights: autocast leaves none of it to half precision
            x_BLD = norm(x_BLD.view(B, L, -1, self.norm_size).to(self.qkv.weight.dtype)).view(B, L, -1)
        return x_BLD.view(B, L, -1, self.head_dim).transpose(1, 2)

    def forward(self, x_BLD, position_embeddings=None, attention_mask=None, **kwargs):
        """Return the attended states (B, L, D), and the weights (B, H, L, L) where the kernel has them."""
        B, L, D = x_BLD.shape
        q_BLD, k_BLD, v_BLD = self.qkv(x_BLD).chunk(3, dim=-1)
        q_BHLK, k_BHLK = self._heads(q_BLD, self.query_norm), self._heads(k_BLD, self.key_norm)
        if position_embeddings is not None:
            q_BHLK, k_BHLK = (rotate(x_BHLK, *position_embeddings) for x_BHLK in (q_BHLK, k_BHLK))
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention_forward
        )
        mixed_BLHK, weights_BHLL = attend(
            self,
            q_BHLK,
            k_BHLK,
            self._heads(v_BLD),
            attention_mask,
            scaling=self.head_dim**-0.5,
            sliding_window=self.sliding_window,
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
        self.down = BranchEnd(config.intermediate_size, config.hidden_size, bias=config.use_bias)

    def forward(self, x_BLD):
        """Return the update of the residual stream."""
        if not self.gated:
            return self.down(nn.functional.gelu(self.up(x_BLD)))
        gate, up = self.up(x_BLD).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


class StrandLayer(GradientCheckpointingLayer):
    """Attention, then a feed-forward part, each added to the residual stream and normed before or after."""

    def __init__(self, config: StrandConfig, layer_idx: int):
        super().__init__()
        self.pre_norm = config.norm_placement == "pre"
        self.scale = config.residual_scale
        self.attention_norm = make_norm(config, config.hidden_size, of_layer=True)
        self.attention = StrandAttention(config, layer_idx)
        self.mlp_norm = make_norm(config, config.hidden_size, of_layer=True)
        self.mlp = StrandFeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def _add(self, x_BLD, norm: nn.Module, part: Callable) -> torch.Tensor:
        update_BLD = self.dropout(part(norm(x_BLD) if self.pre_norm else x_BLD))
        x_BLD = torch.add(x_BLD, update_BLD, alpha=self.scale)
        return x_BLD if self.pre_norm else norm(x_BLD)

    def forward(self, x_BLD, position_embeddings=None, attention_mask=None, **kwargs):
        """Return the updated residual stream."""

        def attend(x_BLD):
            return self.attention(x_BLD, position_embeddings, attention_mask, **kwargs)[0]

        return self._add(self._add(x_BLD, self.attention_norm, attend), self.mlp_norm, self.mlp)


def check_offsets(offsets_S: torch.Tensor, B: int, L: int, attention_mask) -> dict:
    """Return what kernels want to know of packed sequences.

    Raises:
        ValueError: if the offsets do not cut one row of L tokens into sequences.
    """
    edges = offsets_S.tolist()
    lengths = [stop - start for start, stop in pairwise(edges)]
    if B != 1 or attention_mask is not None:
        raise ValueError("sequence_offsets: packed sequences are one row without an attention_mask")
    if edges[0] != 0 or edges[-1] != L or min(lengths) < 0:
        raise ValueError(f"sequence_offsets: {edges} do not rise from 0 to the number of tokens, {L}")
    return {"sequence_offsets": offsets_S, "longest_sequence": max(lengths)}


class PoolingQuery(nn.Linear):
    """One query that scores the tokens of a sequence; it starts at zero, where all weigh the same."""


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
    _keys_to_ignore_on_load_unexpected = [r"^contact_head\."]  # where tokens are not what is predicted
    _can_record_outputs = {"hidden_states": StrandLayer, "attentions": StrandAttention}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, output_loading_info=False, **kwargs):
        """Load a checkpoint of safetensors; see transformers for the arguments.

        Raises:
            OSError: most of the encoder is not in it, so that it would be random.
        """
        kwargs.setdefault("use_safetensors", True)  # nothing is unpickled
        loaded = super().from_pretrained(
            pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
        )
        assert isinstance(loaded, tuple)
        model, report = loaded
        model._check_encoder(pretrained_model_name_or_path, report)
        return (model, report) if output_loading_info else model

    def _check_encoder(self, source, report: dict) -> None:
        encoder = self.base_model
        prefix = "" if encoder is self else f"{self.base_model_prefix}."
        new = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
        names = [prefix + name for name in encoder.state_dict()]
        absent = [name for name in names if name in new]
        if len(absent) > len(names) / 2:
            strange = "".join(f", but {name} is" for name in sorted(report["unexpected_keys"])[:1])
            raise OSError(
                f"{source}: {len(absent)} of {len(names)} weights of the encoder are not in it: {absent[0]} "
                f"is not{strange}; save the network itself, without what wraps it"
            )

    def _init_weights(self, module: nn.Module):
        """Keep the sum of 2N pre-norm branches from growing with N layers (Radford et al. 2019, GPT-2)."""
        super()._init_weights(module)
        if isinstance(module, BranchEnd) and self.config.norm_placement == "pre":
            std = self.config.initializer_range / (2 * self.config.num_hidden_layers) ** 0.5
            initialization.normal_(module.weight, std=std)
        if isinstance(module, PoolingQuery):
            initialization.zeros_(module.weight)
        if isinstance(module, ContactRegression):  # not fitted
            initialization.zeros_(module.weight)
            initialization.zeros_(module.bias)


class StrandModel(StrandPreTrainedModel):
    """The encoder: token ids in, one vector for each token out."""

    def __init__(self, config: StrandConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.embedding_norm = (
            make_norm(config, config.hidden_size) if config.embedding_norm else nn.Identity()
        )
        self.layers = nn.ModuleList(StrandLayer(config, i) for i in range(config.num_hidden_layers))
        self.windowed = [config.is_windowed(i) for i in range(config.num_hidden_layers)]
        self.norm = make_norm(config, config.hidden_size) if config.final_norm else nn.Identity()
        self.rotary = StrandRotaryEmbedding(config) if config.positions == "rotary" else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token table."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        """Replace the token table."""
        self.embeddings = value

    def _drop_masked(self, x_BLD, input_ids, attention_mask, sequence_BL) -> torch.Tensor:
        """Make mask tokens zero and scale the others as if as many were hidden as when ESM-2 was trained."""
        masked_BL = input_ids == self.config.mask_token_id
        real_BL = torch.ones_like(input_ids) if attention_mask is None else attention_mask.to(input_ids.dtype)

        def count(x_BL: torch.Tensor) -> torch.Tensor:
            counts = torch.zeros_like(input_ids.flatten())  # there are no more sequences than tokens
            return counts.index_add(0, sequence_BL.flatten(), x_BL.flatten().to(counts))[sequence_BL]

        total_BL = count(real_BL)
        visible_BL = (total_BL - count(masked_BL)).clamp(min=1)
        scale_BL = ((1 - DROPPED_IN_TRAINING) * total_BL / visible_BL).masked_fill(masked_BL, 0.0)
        return x_BLD * scale_BL[..., None].to(x_BLD.dtype)

    def _embed(self, x_BLD, input_ids, attention_mask, sequence_BL, position_ids) -> torch.Tensor:
        if self.config.token_dropout and input_ids is not None:
            x_BLD = self._drop_masked(x_BLD, input_ids, attention_mask, sequence_BL)
        if self.config.positions == "sinusoidal":
            size = self.config.hidden_size
            x_BLD = x_BLD * size**0.5 + sinusoids(position_ids, size).to(x_BLD.dtype)
        return self.embedding_norm(x_BLD)

    def _mask(self, x_BLD, attention_mask, sequence_BL, packed: bool, windowed: bool):
        """Return the mask in the form the kernel takes; our own kernels are told the rest in words."""
        kernel = self.config._attn_implementation
        if kernel in (CPU, VARLEN):
            return create_bidirectional_mask(self.config, x_BLD, attention_mask)
        create = create_bidirectional_sliding_window_mask if windowed else create_bidirectional_mask
        together = packed_sequence_mask_function(sequence_BL) if packed else None
        mask = create(self.config, x_BLD, attention_mask, and_mask_function=together)
        unable = is_flash_attention_requested(self.config) or (packed and mask is None)
        if (packed or windowed) and unable:
            raise ValueError(
                f"{'sequence_offsets' if packed else 'sliding_window'}: {kernel} attention takes no such "
                "mask; use sdpa, flex_attention, strand_cpu or strand_varlen"
            )
        return mask

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        sequence_offsets: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode a padded batch, or sequences packed end to end in one row.

        Args:
            input_ids: (B, L) token ids.
            attention_mask: (B, L), 1 on tokens and 0 on padding; taken from the pad id where absent.
            position_ids: (B, L) places of the tokens, real numbers allowed; 0, 1, 2... where absent, from
                the beginning of each sequence. They turn queries and keys (or make sinusoids), no more.
            inputs_embeds: (B, L, D), instead of ``input_ids``.
            sequence_offsets: (S + 1,) where each packed sequence begins, and the end of the last, which is
                L; B is then 1. Tokens of different sequences do not see each other.
            **kwargs: passed to the attention kernel.

        Raises:
            ValueError: if not exactly one of ids and embeddings is given, or the offsets do not fit.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        x_BLD = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        B, L = x_BLD.shape[:2]
        packed = sequence_offsets is not None
        place_L = torch.arange(L, device=x_BLD.device)
        if packed:
            kwargs |= check_offsets(sequence_offsets, B, L, attention_mask)
            sequence_offsets = sequence_offsets.to(x_BLD.device)
            sequence_BL = torch.bucketize(place_L, sequence_offsets[1:], right=True)[None]
            place_L = place_L - sequence_offsets[sequence_BL[0]]
        else:
            sequence_BL = torch.arange(B, device=x_BLD.device)[:, None].expand(B, L)
            if attention_mask is None and input_ids is not None and self.config.pad_token_id is not None:
                attention_mask = (input_ids != self.config.pad_token_id).long()
        position_ids = place_L[None] if position_ids is None else position_ids
        x_BLD = self._embed(x_BLD, input_ids, attention_mask, sequence_BL, position_ids)
        position_embeddings = None if self.rotary is None else self.rotary(x_BLD, position_ids)
        masks = {w: self._mask(x_BLD, attention_mask, sequence_BL, packed, w) for w in set(self.windowed)}
        for layer, windowed in zip(self.layers, self.windowed, strict=True):
            x_BLD = layer(x_BLD, position_embeddings, masks[windowed], **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(x_BLD))


class StrandHead(nn.Module):
    """ESM's layer between the encoder and the decoder."""

    def __init__(self, config: StrandConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, states):
        """Return vectors of the same shape."""
        return self.norm(nn.functional.gelu(self.dense(states)))


class StrandForMaskedLM(PredictsContacts, StrandPreTrainedModel):
    """The encoder with a token-prediction head."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.weight"}

    def __init__(self, config: StrandConfig):
        super().__init__(config)
        self.model = StrandModel(config)
        self.head = StrandHead(config) if config.lm_head == "dense" else nn.Identity()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.contact_head = ContactHead(config) if config.contact_head else None
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
            **kwargs: passed to the encoder (``sequence_offsets``) and to the loss.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        states = outputs.last_hidden_state
        if target_positions is not None:
            states = states.flatten(0, 1)[target_positions]
        logits = self.decoder(self.head(states))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class StrandForSequenceClassification(StrandPreTrainedModel):
    """The encoder with a linear classifier on its first token's vector, or on a mean of them.

    The mean is that of all tokens but padding; or one with learned weights (Yang et al. 2016,
    doi:10.18653/v1/N16-1174), of which special tokens at the ends have none.
    """

    def __init__(self, config: StrandConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels or 2
        self.model = StrandModel(config)
        if config.classifier_pooling == "attention":
            self.pooling_query = PoolingQuery(config.hidden_size, 1, bias=False)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    def _attend(self, states_BLD, input_ids, keep_BL) -> torch.Tensor:
        """Return the mean weighted by the query, over tokens that are kept and do not frame the sequence."""
        keep_BL = keep_BL.bool()
        if self.config.framing_token_ids and input_ids is not None:
            framing = torch.tensor(self.config.framing_token_ids, device=input_ids.device)
            inner_BL = keep_BL & ~torch.isin(input_ids, framing)
            keep_BL = torch.where(inner_BL.any(1, keepdim=True), inner_BL, keep_BL)
        scores_BL = self.pooling_query(states_BLD)[..., 0].float()
        weights_BL = scores_BL.masked_fill(~keep_BL, torch.finfo(scores_BL.dtype).min).softmax(1)
        return (states_BLD * weights_BL[..., None].to(states_BLD)).sum(1)

    def _pool(self, states_BLD, input_ids, attention_mask) -> torch.Tensor:
        keep_BL = torch.ones_like(states_BLD[..., 0])
        if attention_mask is not None:
            keep_BL = attention_mask.to(states_BLD)
        elif input_ids is not None and self.config.pad_token_id is not None:
            keep_BL = (input_ids != self.config.pad_token_id).to(states_BLD)
        if self.config.classifier_pooling == "cls":
            first_B = keep_BL.argmax(dim=1)  # not 0 where padding is on the left
            return states_BLD[torch.arange(len(states_BLD), device=states_BLD.device), first_B]
        if self.config.classifier_pooling == "attention":
            return self._attend(states_BLD, input_ids, keep_BL)
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
        if kwargs.get("sequence_offsets") is not None:
            raise ValueError("sequence_offsets: the classifier takes padded batches")
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        logits_BC = self.classifier(self._pool(outputs.last_hidden_state, input_ids, attention_mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits_BC, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits_BC, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class StrandForTokenClassification(StrandPreTrainedModel):
    """The encoder with a linear classifier on the vector of every token."""

    def __init__(self, config: StrandConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels or 2
        self.model = StrandModel(config)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs,
    ) -> TokenClassifierOutput:
        """Classify each token; logits are (B, L, C), ``labels`` is (B, L), -100 where no loss is wanted."""
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        logits_BLC = self.classifier(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits_BLC, labels, self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits_BLC, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
