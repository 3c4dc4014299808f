"""ESM-2's and ESM C's weights in our encoder give their numbers; each option of shape does what it says."""

import itertools

import pytest
import torch
from torch.nn.functional import layer_norm

from pipeline.model import StrandConfig, StrandForMaskedLM, StrandModel
from pipeline.model.modeling_strand import sinusoids
from pipeline.training.foreign import ESM2, ESMC, REGRESSION, strand_config, take

MASK = 32
SIZES = [
    {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    {"hidden_size": 60, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 3},
]


def stirred(model):
    """In evaluation mode, with biases and norms that an error would show in."""
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.shape[1] ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(torch.randn_like(parameter) * spread + (parameter.ndim == 1) * parameter)
    return model.eval()


def padded(lengths=(5, 50, 17), masked=0.3):
    ids = torch.randint(4, MASK, (len(lengths), max(lengths)))
    ids[torch.rand(ids.shape) < masked] = MASK
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": torch.where(mask, ids, 1), "attention_mask": mask.long()}


def taken(theirs, layout):
    """Our network with all of their weights; the contact regression is no parameter of ours."""
    tensors = {name: value.detach().clone() for name, value in theirs.state_dict().items()}
    ours, rest = take(tensors, layout, strand_config(theirs.config, tensors))
    assert not rest
    regression = [value for name, value in tensors.items() if name.startswith(REGRESSION)]
    assert ours.num_parameters() == theirs.num_parameters() - sum(value.numel() for value in regression)
    return ours.eval()


def esm_pair(size, **options):
    from transformers import EsmConfig, EsmForMaskedLM

    config = EsmConfig(
        **{"vocab_size": 33, "pad_token_id": 1, "mask_token_id": MASK} | size | options,
        layer_norm_eps=1e-5,
        position_embedding_type="rotary",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = stirred(EsmForMaskedLM(config))
    return taken(theirs, ESM2), theirs


def esmc_pair(size):
    from transformers import EsmcConfig, EsmcForMaskedLM

    theirs = stirred(EsmcForMaskedLM(EsmcConfig(**size)))
    return taken(theirs, ESMC), theirs


@torch.no_grad()
def assert_equal(ours, theirs, batch):
    """Computed in float64, so that the order in which a machine's kernels add is no part of the answer.

    What stays is that both keep rotation tables in float32.
    """
    ours.double(), theirs.double()
    real = batch["attention_mask"].bool()
    mine, yours = (model(**batch, output_hidden_states=True) for model in (ours, theirs))
    for a, b in zip(mine.hidden_states, yours.hidden_states, strict=True):
        torch.testing.assert_close(a[real], b[real], rtol=0, atol=1e-6)
    torch.testing.assert_close(mine.logits[real], yours.logits[real], rtol=0, atol=1e-6)
    assert mine.logits[real].std() > 0.1


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options", [{}, {"token_dropout": True}, {"emb_layer_norm_before": True}, {"tie_word_embeddings": False}]
)
def test_esm2s_weights_give_esm2s_numbers(size, options, kernel):
    torch.manual_seed(0)
    ours, theirs = esm_pair(size, **options)
    for model in (ours, theirs):
        model.set_attn_implementation(kernel)
    for training, masked, lengths in (
        (False, 0.0, (9,)),
        (False, 0.3, (5, 50, 17)),
        (True, 0.3, (5, 50, 17)),
    ):
        ours.train(training), theirs.train(training)
        assert_equal(ours, theirs, padded(lengths, masked))


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("size", SIZES)
def test_esm_cs_weights_give_esm_cs_numbers(size, kernel):
    torch.manual_seed(0)
    ours, theirs = esmc_pair(size)
    for model in (ours, theirs):
        model.set_attn_implementation(kernel)
    for lengths in ((9,), (5, 50, 17)):
        assert_equal(ours, theirs, padded(lengths))


@torch.no_grad()
def test_token_dropout_counts_each_packed_sequence_and_survives_nothing_visible():
    torch.manual_seed(0)
    shape = {"vocab_size": 33, "mask_token_id": MASK, "token_dropout": True, "pad_token_id": 1}
    model = stirred(StrandModel(StrandConfig(**SIZES[0] | shape)))
    first, second = padded((20,), 0.5)["input_ids"], padded((9,), 0.1)["input_ids"]
    packed = torch.cat((first, second), 1)
    together = model(packed, sequence_offsets=torch.tensor([0, 20, 29])).last_hidden_state
    alone = torch.cat([model(ids).last_hidden_state for ids in (first, second)], 1)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert model(torch.full((1, 6), MASK)).last_hidden_state.isfinite().all()
    given = model(inputs_embeds=model.embeddings(first)).last_hidden_state
    assert (given - alone[:, :20]).abs().max() > 1e-2, "which vectors are masks is not known"


# -- the other options


@torch.no_grad()
def test_post_norm_is_the_transformer_of_2017(tiny_model):
    """Each layer is torch's own, which norms after the addition."""
    options = {"norm": "layernorm", "activation": "gelu", "use_bias": True, "positions": "sinusoidal"}
    model = tiny_model(StrandModel, norm_placement="post", final_norm=False, **options)
    ids = torch.randint(5, 40, (2, 11))
    places = torch.arange(11)[None]
    x = model.embeddings(ids) * 32**0.5 + sinusoids(places, 32)
    for ours in model.layers:
        layer = torch.nn.TransformerEncoderLayer(32, 2, 48, 0.0, "gelu", batch_first=True).train()
        theirs = [layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias]
        parts = (layer.self_attn.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2)
        theirs += [tensor for part in parts for tensor in (part.weight, part.bias)]
        a = ours.attention
        mine = (a.qkv, a.out, ours.mlp.up, ours.mlp.down, ours.attention_norm, ours.mlp_norm)
        for to, value in zip(theirs, (t for part in mine for t in (part.weight, part.bias)), strict=True):
            to.copy_(value)
        x = layer(x)
    torch.testing.assert_close(model(ids).last_hidden_state, x, rtol=1e-4, atol=1e-5)


def test_sinusoids_are_those_of_the_definition():
    places, size = [0, 3, 7.25], 6
    table = sinusoids(torch.tensor([places]), size)[0]
    for row, place in enumerate(places):
        for i in range(size // 2):
            angle = torch.tensor(place / 10_000 ** (2 * i / size))
            torch.testing.assert_close(table[row, 2 * i], angle.sin())
            torch.testing.assert_close(table[row, 2 * i + 1], angle.cos())


@torch.no_grad()
def test_without_positions_order_is_not_seen(tiny_model):
    model, ids, order = (
        tiny_model(StrandModel, positions="none"),
        torch.randint(5, 40, (1, 9)),
        torch.randperm(9),
    )
    plain = model(ids).last_hidden_state
    torch.testing.assert_close(model(ids[:, order]).last_hidden_state, plain[:, order])
    assert torch.equal(model(ids, position_ids=torch.rand(1, 9) * 50).last_hidden_state, plain)


@torch.no_grad()
@pytest.mark.parametrize("scale", [0.5, 2])
def test_the_residual_scale_multiplies_what_a_layer_adds(tiny_model, scale):
    model, scaled = (tiny_model(StrandModel, residual_scale=s) for s in (1.0, scale))
    for layer in scaled.layers:
        for last in (layer.attention.out, layer.mlp.down):
            last.weight /= scale
    ids = torch.randint(5, 40, (2, 11))
    torch.testing.assert_close(scaled(ids).last_hidden_state, model(ids).last_hidden_state)


@torch.no_grad()
def test_embedding_norm_and_final_norm_are_at_the_ends(tiny_model):
    model = tiny_model(StrandModel, norm="layernorm", embedding_norm=True, final_norm=False)
    ids = torch.randint(5, 40, (1, 7))
    states = model(ids, output_hidden_states=True).hidden_states
    norm = model.embedding_norm
    torch.testing.assert_close(
        states[0], layer_norm(model.embeddings(ids), (32,), norm.weight, norm.bias, 1e-5)
    )
    ends = []
    model.layers[-1].register_forward_hook(lambda *call: ends.append(call[2]))
    assert torch.equal(model(ids).last_hidden_state, ends[0])


@pytest.mark.parametrize(
    ("bias", "qk", "layers", "ends"),
    [("all", True, True, True), ("layers", False, True, False), ("none", False, False, False)],
)
def test_norm_bias_says_which_norms_have_one(bias, qk, layers, ends):
    model = StrandModel(StrandConfig(norm="layernorm", norm_bias=bias, qk_norm=True, embedding_norm=True))
    layer = model.layers[0]
    has = [
        m.bias is not None for m in (layer.attention.query_norm, layer.attention_norm, model.embedding_norm)
    ]
    assert has == [qk, layers, ends]
    assert (model.norm.bias is not None, layer.mlp_norm.bias is not None) == (ends, layers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm_bias": "some"}, "'some' is not one of all, layers, none"),
        ({"norm_placement": "both"}, "not one of pre, post"),
        ({"qk_norm_over": "layer"}, "not one of head, model"),
        ({"positions": "learned"}, "not one of rotary, sinusoidal, none"),
        ({"lm_head": "deep"}, "not one of linear, dense"),
        ({"token_dropout": True}, "token_dropout needs mask_token_id"),
        ({"sliding_window": 0}, "must be at least 1"),
        ({"sliding_window": 8, "global_every": 0}, "must be at least 1"),
        ({"positions": "sinusoidal", "hidden_size": 9, "num_attention_heads": 3}, "come in pairs"),
    ],
)
def test_options_that_do_not_exist_or_fit_are_refused(options, message):
    with pytest.raises(Exception, match=message):
        StrandConfig(**options)


def test_an_odd_head_is_fine_where_nothing_turns():
    assert StrandConfig(positions="none", hidden_size=12, num_attention_heads=4).hidden_size == 12


# -- every parameter is used (DDP asks for it) and starts in proportion


SHAPES = [
    {"token_dropout": True, "mask_token_id": 4, "lm_head": "dense", "embedding_norm": True, "use_bias": True},
    {"norm_placement": "post", "final_norm": False, "positions": "sinusoidal", "activation": "gelu"},
    {"qk_norm": True, "qk_norm_over": "model", "norm": "layernorm", "sliding_window": 4, "global_every": 2},
    {"tie_word_embeddings": False, "positions": "none", "norm": "layernorm", "norm_bias": "none"},
]


@pytest.mark.parametrize("options", SHAPES)
def test_no_parameter_is_without_gradient_under_ddp(tiny_model, tmp_path, options):
    """DDP fails at the second step if one is; it is asked to, with an unused layer."""
    from torch.nn.parallel import DistributedDataParallel

    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        model, ids = tiny_model(**options).train(), torch.randint(5, 40, (2, 11))

        def two_steps(model):
            wrapped = DistributedDataParallel(model)
            for _ in range(2):
                wrapped(ids, labels=ids).loss.backward()

        two_steps(model)
        assert all(parameter.grad is not None for parameter in model.parameters())
        model.unused = torch.nn.Linear(2, 2)
        with pytest.raises(RuntimeError, match="finished reduction"):
            two_steps(model)
    finally:
        torch.distributed.destroy_process_group()


def first_step(depth, **options):
    """RMS of the residual stream after each layer, and of each layer's gradients, of a new network."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 168, "num_attention_heads": 2, "vocab_size": 100}
    model = StrandForMaskedLM(StrandConfig(**sizes, num_hidden_layers=depth, **options))
    ids = torch.randint(5, 100, (4, 48))
    output = model(ids, labels=ids, output_hidden_states=True)
    output.loss.backward()
    gradients = [
        [part.weight.grad.square().mean().sqrt() for part in (layer.attention.qkv, layer.mlp.up)]
        for layer in model.model.layers
    ]
    states = [x.square().mean().sqrt() for x in output.hidden_states[:-1]]
    return torch.stack(states), torch.tensor(gradients)


@pytest.mark.parametrize("options", [{}, {"norm": "layernorm", "activation": "gelu", "use_bias": True}])
def test_depth_changes_neither_states_nor_gradients_by_an_order_of_magnitude(options):
    last = {}
    for depth in (2, 12, 48):
        states, gradients = first_step(depth, **options)
        assert states.max() / states.min() < 10, depth
        assert (gradients.max(0).values / gradients.min(0).values < 10).all(), depth
        last[depth] = states[-1]
    for one, other in itertools.combinations(last.values(), 2):
        assert 0.2 < one / other < 5


@pytest.mark.parametrize("depth", [2, 12, 48])
def test_every_depth_learns(depth):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 20}
    model = StrandForMaskedLM(StrandConfig(**sizes, num_hidden_layers=depth))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        ids = torch.randint(5, 20, (4, 16))
        loss = model(ids, labels=ids.roll(1, 1)).loss  # the letter before: attention is needed
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
