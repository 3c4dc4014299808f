"""ESM-2 and ESM C as strand networks, and a strand network as ESM: what their tensors and settings are here.

A layout says which of their modules each of ours is; where it is several, theirs are rows of ours, one below
the other. ESM-2 is that of Lin et al. 2023 (doi:10.1126/science.ade2574) and ESM C that of EvolutionaryScale
2024, both as transformers has them (``esm`` with rotary positions, ``esmc``).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import EsmcConfig, EsmConfig

from pipeline.errors import UserError
from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.model.modeling_strand import StrandRotaryEmbedding
from pipeline.training.weights import sizes

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """How another class calls what we have: modules by ours (# is the layer), tensors that differ."""

    kind: str
    modules: Mapping[str, tuple[str, ...]]
    tensors: Mapping[str, str] = field(default_factory=dict)

    def names(self, model: StrandForMaskedLM) -> dict[str, tuple[str, ...]]:
        """Return their names of each of our tensors, of tied ones once."""
        ours = [name for name in model.state_dict() if name not in model.all_tied_weights_keys]
        return {name: self._theirs(name) for name in ours}

    def _theirs(self, name: str) -> tuple[str, ...]:
        if name in self.tensors:
            return (self.tensors[name],)
        module, _, kind = name.rpartition(".")
        layer = "".join(re.findall(r"\.(\d+)\.", module))
        modules = self.modules[re.sub(r"\.\d+\.", ".#.", module)]
        return tuple(f"{theirs.replace('#', layer)}.{kind}" for theirs in modules)


REGRESSION = "esm.contact_head.regression"
_SELF = "esm.encoder.layer.#.attention.self"
ESM2 = Layout(
    "EsmForMaskedLM",
    {
        "model.embeddings": ("esm.embeddings.word_embeddings",),
        "model.embedding_norm": ("esm.embeddings.layer_norm",),
        "model.layers.#.attention_norm": ("esm.encoder.layer.#.attention.LayerNorm",),
        "model.layers.#.attention.qkv": (f"{_SELF}.query", f"{_SELF}.key", f"{_SELF}.value"),
        "model.layers.#.attention.out": ("esm.encoder.layer.#.attention.output.dense",),
        "model.layers.#.mlp_norm": ("esm.encoder.layer.#.LayerNorm",),
        "model.layers.#.mlp.up": ("esm.encoder.layer.#.intermediate.dense",),
        "model.layers.#.mlp.down": ("esm.encoder.layer.#.output.dense",),
        "model.norm": ("esm.encoder.emb_layer_norm_after",),
        "head.dense": ("lm_head.dense",),
        "head.norm": ("lm_head.layer_norm",),
        "decoder": ("lm_head.decoder",),
        "contact_head.regression": (REGRESSION,),
    },
    {"decoder.bias": "lm_head.bias"},
)
_LAYER = "esmc.layers.#"
ESMC = Layout(
    "EsmcForMaskedLM",
    {
        "model.embeddings": ("esmc.embed_tokens",),
        "model.layers.#.attention_norm": (f"{_LAYER}.input_layernorm",),
        "model.layers.#.attention.qkv": tuple(f"{_LAYER}.self_attn.{part}_proj" for part in "qkv"),
        "model.layers.#.attention.query_norm": (f"{_LAYER}.self_attn.q_norm",),
        "model.layers.#.attention.key_norm": (f"{_LAYER}.self_attn.k_norm",),
        "model.layers.#.attention.out": (f"{_LAYER}.self_attn.o_proj",),
        "model.layers.#.mlp_norm": (f"{_LAYER}.post_attention_layernorm",),
        "model.layers.#.mlp.up": (f"{_LAYER}.mlp.gate_proj", f"{_LAYER}.mlp.up_proj"),
        "model.layers.#.mlp.down": (f"{_LAYER}.mlp.down_proj",),
        "model.norm": ("esmc.norm",),
        "head.dense": ("lm_head.dense",),
        "head.norm": ("lm_head.layer_norm",),
        "decoder": ("lm_head.decoder",),
    },
)
LAYOUTS = {"esm2": ESM2, "esmc": ESMC}
DECODER, TABLE = "lm_head.decoder.weight", "esm.embeddings.word_embeddings.weight"
FREQUENCIES = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
# Of their tensors, those that are computed from the settings, and those that such a network does not use.
COMPUTED = re.compile(r"(.*\.)?(position_ids|inv_freq)")
IDLE = re.compile(r"(.*\.)?(position_embeddings\.weight|pooler\.dense\.(weight|bias))")
SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "initializer_range",
)
RESIDUES: dict[str, Any] = {"alphabet": "protein", "pad_token_id": 1, "mask_token_id": 32}
CONTACTS: dict[str, Any] = {"contact_head": True, "framing_token_ids": [0, 2]}


# -- their settings as ours


def strand_config(theirs: EsmConfig | EsmcConfig, tensors: Tensors) -> StrandConfig:
    """Return the configuration of the strand network that computes what theirs does.

    Args:
        theirs: their configuration.
        tensors: their weights, which tell whether the decoder is tied and how frequencies are rounded.

    Raises:
        UserError: names the setting that our network has nothing for.
    """
    for key in ("pad_token_id", "mask_token_id"):
        _demand(theirs, key, RESIDUES[key], None)
    shared = {key: getattr(theirs, key) for key in SHARED} | RESIDUES
    settings = _of_esm2(theirs, tensors) if isinstance(theirs, EsmConfig) else _of_esmc(theirs)
    return StrandConfig(**shared, **settings, norm="layernorm", lm_head="dense")


def _demand(theirs: Any, key: str, *allowed: Any) -> None:
    value = getattr(theirs, key)
    if value not in allowed:
        raise UserError(f"source: {key} is {value}; only {allowed[0]} can be taken over")


def _of_esm2(theirs: EsmConfig, tensors: Tensors) -> dict[str, Any]:
    _demand(theirs, "position_embedding_type", "rotary")
    for key in ("is_folding_model", "is_decoder", "add_cross_attention"):
        _demand(theirs, key, False, None)
    tied = theirs.tie_word_embeddings and torch.equal(tensors.get(DECODER, tensors[TABLE]), tensors[TABLE])
    return {
        "norm_eps": theirs.layer_norm_eps,
        "embedding_norm": bool(theirs.emb_layer_norm_before),
        "activation": "gelu",
        "use_bias": True,
        "token_dropout": bool(theirs.token_dropout),
        "attention_dropout": theirs.attention_probs_dropout_prob or 0.0,
        "hidden_dropout": theirs.hidden_dropout_prob or 0.0,
        "tie_word_embeddings": tied,
        "rope_parameters": _rotation(theirs, tensors),
        **(CONTACTS if _has_regression(tensors) else {}),
    }


def _has_regression(tensors: Tensors) -> bool:
    """Tell whether their contact regression was fitted: a head that never was is all zero, or not there."""
    names = [f"{REGRESSION}.{kind}" for kind in ("weight", "bias")]
    return all(name in tensors for name in names) and any(bool(tensors[name].any()) for name in names)


def _rotation(theirs: EsmConfig, tensors: Tensors) -> dict[str, Any]:
    """Return the rotary parameters; where the stored frequencies are rounded ones, the factors that round.

    ESM-2 keeps its frequencies among the weights, in the precision it was trained with; computed anew they
    would turn distant positions by other angles. A factor for each is LongRoPE's form (Ding et al. 2024,
    arXiv:2402.13753), here the same at every length.
    """
    plain = {"rope_type": "default", "rope_theta": float(theirs.rope_theta)}
    stored = next((value for name, value in tensors.items() if name.endswith("inv_freq")), None)
    if stored is None:
        return plain
    exact = exact_frequencies(theirs.hidden_size // theirs.num_attention_heads, theirs.rope_theta)
    if stored.shape != exact.shape:
        raise UserError(
            f"source: {len(exact)} rotary frequencies by hidden_size and num_attention_heads, but "
            f"{len(stored)} are stored; put the config.json there that was saved with these weights"
        )
    if torch.allclose(stored.double(), exact, rtol=1e-6, atol=0):
        return plain
    factors = (exact / stored.double()).tolist()
    length = theirs.max_position_embeddings
    rounding = {"short_factor": factors, "long_factor": factors, "factor": 1.0, "attention_factor": 1.0}
    return {**plain, "rope_type": "longrope", "original_max_position_embeddings": length, **rounding}


def exact_frequencies(head_size: int, theta: float) -> torch.Tensor:
    """Return theta^(-2i/K) for i = 0..K/2-1 in float64."""
    return theta ** -(torch.arange(0, head_size, 2, dtype=torch.double) / head_size)


def _of_esmc(theirs: EsmcConfig) -> dict[str, Any]:
    _demand(theirs, "hidden_act", "silu")
    _demand(theirs, "mlp_bias", theirs.attention_bias)
    _demand(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    return {
        "norm_bias": "layers",
        "use_bias": theirs.attention_bias,
        "qk_norm": True,
        "qk_norm_over": "model",
        "residual_scale": (36 / theirs.num_hidden_layers) ** 0.5,
        "attention_dropout": theirs.attention_dropout or 0.0,
        "tie_word_embeddings": False,
        "rope_parameters": theirs.rope_parameters,
    }


# -- their weights as ours


def take(tensors: Tensors, layout: Layout, config: StrandConfig) -> tuple[StrandForMaskedLM, Tensors]:
    """Return the strand network with their weights, and those of their tensors that it has no place for.

    Raises:
        UserError: names a tensor that is missing or has another shape.
    """
    with torch.device("meta"):
        model = StrandForMaskedLM(config)
    shapes, state, rest = model.state_dict(), {}, dict(tensors)
    for name, sources in layout.names(model).items():
        absent = [source for source in sources if source not in rest]
        if absent:
            raise UserError(f"source: no tensor {absent[0]}; only a whole {layout.kind} can be taken over")
        state[name] = torch.cat([rest.pop(source) for source in sources])
        if state[name].shape != shapes[name].shape:
            found, wanted = (sizes(each.shape) for each in (state[name], shapes[name]))
            raise UserError(
                f"source: {' + '.join(sources)}: {found}, which is not what config.json says ({wanted}); put "
                "the config.json there that was saved with these weights"
            )
    if config.tie_word_embeddings:
        rest.pop(DECODER, None)
    rest = {name: value for name, value in rest.items() if not COMPUTED.fullmatch(name)}
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary = StrandRotaryEmbedding(config)  # its tables are no weights, so still without memory
    return model, rest


# -- ours as theirs


def esm_config(config: StrandConfig) -> EsmConfig:
    """Return the configuration of the ESM network that computes what the strand network does.

    Raises:
        UserError: names every option that ESM does not have.
    """
    rope = config.rope_parameters or {}
    alike = {
        "norm": config.norm == "layernorm",
        "norm_bias": config.norm_bias == "all",
        "norm_placement": config.norm_placement == "pre",
        "final_norm": config.final_norm,
        "activation": config.activation == "gelu",
        "use_bias": config.use_bias,
        "qk_norm": not config.qk_norm,
        "residual_scale": config.residual_scale == 1,
        "positions": config.positions == "rotary",
        "rope_parameters": config.positions != "rotary" or _has_one_frequency_each(rope),
        "sliding_window": not any(map(config.is_windowed, range(config.num_hidden_layers))),
        "lm_head": config.lm_head == "dense",
    }
    unlike = [f"{key} {getattr(config, key)}" for key, fits in alike.items() if not fits]
    if unlike:
        raise UserError(f"to: esm has nothing for {', '.join(unlike)}; the checkpoint stays a strand model")
    return EsmConfig(
        **{key: getattr(config, key) for key in SHARED},
        pad_token_id=config.pad_token_id,
        mask_token_id=config.mask_token_id,
        layer_norm_eps=config.norm_eps,
        position_embedding_type="rotary",
        rope_theta=rope["rope_theta"],
        emb_layer_norm_before=config.embedding_norm,
        token_dropout=config.token_dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        hidden_dropout_prob=config.hidden_dropout,
        tie_word_embeddings=config.tie_word_embeddings,
    )


def _has_one_frequency_each(rope: Mapping[str, Any]) -> bool:
    """Tell whether frequencies do not depend on the length, as those of ESM do not."""
    fixed = rope["rope_type"] == "longrope" and rope["short_factor"] == rope["long_factor"]
    return rope["rope_type"] == "default" or (fixed and rope.get("attention_factor") == 1)


def give(model: StrandForMaskedLM) -> Tensors:
    """Return the tensors of a strand network under ESM's names, as safetensors has them (tied ones once).

    A network without a contact regression gives zeros for it, by which every pair is a contact with
    probability 1/2.

    Args:
        model: a network whose options ESM has.
    """
    state, tensors = model.state_dict(), {}
    for name, targets in ESM2.names(model).items():
        parts = state[name].chunk(len(targets))
        tensors |= {target: part.clone() for target, part in zip(targets, parts, strict=True)}
    frequencies = _stored_frequencies(model)
    layers = range(model.config.num_hidden_layers)
    tensors |= {FREQUENCIES.format(layer): frequencies.clone() for layer in layers}
    heads = len(layers) * model.config.num_attention_heads
    weight, bias = torch.zeros(1, heads, dtype=model.dtype), torch.zeros(1, dtype=model.dtype)
    return {f"{REGRESSION}.weight": weight, f"{REGRESSION}.bias": bias} | tensors


def _stored_frequencies(model: StrandForMaskedLM) -> torch.Tensor:
    """Return the frequencies (K/2,) as transformers computes them, or the rounded ones, to the last bit."""
    rope, size = model.config.rope_parameters or {}, model.config.hidden_size
    head_size, theta = size // model.config.num_attention_heads, rope["rope_theta"]
    if rope["rope_type"] == "default":
        return 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float) / head_size)
    return (
        exact_frequencies(head_size, theta) / torch.tensor(rope["short_factor"], dtype=torch.double)
    ).float()
