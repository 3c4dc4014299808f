"""All attention kernels against a slow one: padded, packed, within windows, forward and backward."""

import subprocess
import sys

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

import pipeline.model.attention_strand as kernels
from pipeline.model import StrandForMaskedLM, StrandForSequenceClassification, StrandModel
from pipeline.model.attention_strand import BlockedAttention, fastest_attention
from pipeline.model.modeling_strand import rotate

CPU_KERNELS = ["eager", "sdpa", "strand_cpu"]
WINDOW = {"sliding_window": 3, "global_every": 2, "num_hidden_layers": 3}
LENGTHS = (5, 50, 17, 1)


def padded(lengths=LENGTHS, vocab=40):
    ids = torch.randint(5, vocab, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def packed(batch):
    """The same sequences end to end."""
    real = batch["attention_mask"].bool()
    offsets = torch.nn.functional.pad(real.sum(1).cumsum(0), (1, 0))
    return {"input_ids": batch["input_ids"][real][None], "sequence_offsets": offsets}


def slow_attention(
    module, query, key, value, attention_mask, scaling, sliding_window=None, sequence_offsets=None, **_
):
    """The definition, one query at a time; ``attention_mask`` is (B, 1, 1, L)."""
    B, _, L, _ = query.shape
    which = [0] * L
    if sequence_offsets is not None:
        which = [sum(place >= edge for edge in sequence_offsets.tolist()) for place in range(L)]
    rows = []
    for b in range(B):
        for i in range(L):
            keys = [
                j
                for j in range(L)
                if (attention_mask[b, 0, 0, j] and which[i] == which[j])
                and (sliding_window is None or abs(i - j) <= sliding_window)
            ] or [i]
            weights = (key[b, :, keys] @ query[b, :, i, :, None] * scaling).softmax(1)
            rows.append((weights * value[b, :, keys]).sum(1))
    return torch.stack(rows).view(B, L, *rows[0].shape), None


def slow_mask(batch_size, q_length, attention_mask=None, **_):
    return (torch.ones(batch_size, q_length) if attention_mask is None else attention_mask)[:, None, None]


AttentionInterface.register("slow", slow_attention)
AttentionMaskInterface.register("slow", slow_mask)


def states(model, kernel, **batch):
    model.set_attn_implementation(kernel)
    return model(**batch).last_hidden_state


@torch.no_grad()
@pytest.mark.parametrize("kernel", [*CPU_KERNELS, pytest.param("flex_attention", marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, WINDOW, {"positions": "sinusoidal"}])
def test_kernels_give_what_the_definition_says(tiny_model, kernel, options):
    torch.manual_seed(0)
    model, batch = tiny_model(StrandModel, **options), padded()
    real = batch["attention_mask"].bool()
    expected = states(model, "slow", **batch)[real]
    torch.testing.assert_close(states(model, kernel, **batch)[real], expected, rtol=1e-5, atol=1e-5)
    together = states(model, kernel, **packed(batch))
    torch.testing.assert_close(states(model, "slow", **packed(batch))[0], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together[0], expected, rtol=1e-5, atol=1e-5)
    alone = [
        states(model, kernel, input_ids=ids[None, :n])[0]
        for ids, n in zip(batch["input_ids"], LENGTHS, strict=True)
    ]
    torch.testing.assert_close(together[0], torch.cat(alone), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_windows_leave_every_nth_layer_global(tiny_model):
    model = tiny_model(StrandModel, sliding_window=3, global_every=2, num_hidden_layers=5)
    assert [layer.attention.sliding_window for layer in model.layers] == [None, 3, None, 3, None]
    near = tiny_model(StrandModel, **WINDOW).layers[1]
    x = torch.randn(1, 20, 32)
    mask = (torch.arange(20) - torch.arange(20)[:, None]).abs()[None, None] > 3
    apart = near(x, attention_mask=mask.float() * torch.finfo(torch.float).min)
    x[0, 10] += 1
    changed = (near(x, attention_mask=mask.float() * torch.finfo(torch.float).min) - apart).abs().amax(-1)[
        0
    ] > 0
    assert changed.nonzero().flatten().tolist() == list(range(7, 14))


@torch.no_grad()
@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_on_any_side_and_whole_rows_of_it(tiny_model, kernel, side):
    model, ids = tiny_model(StrandModel), torch.randint(5, 40, (1, 9))
    alone = states(model, kernel, input_ids=ids)
    around = {"left": (4, 0), "right": (0, 4), "both": (2, 2)}[side]
    row = torch.nn.functional.pad(ids, around)
    batch = torch.cat((row, torch.zeros_like(row)))
    output = states(model, kernel, input_ids=batch)
    assert output.isfinite().all()
    torch.testing.assert_close(output[:1][row > 0], alone[0], rtol=1e-5, atol=1e-5)
    assert states(model, kernel, input_ids=torch.zeros(2, 5, dtype=torch.long)).isfinite().all()


# -- gradients


def gradients(model, kernel, **batch):
    model.set_attn_implementation(kernel)
    model.zero_grad()
    labels = batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)
    model(**batch, labels=labels).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that sequences are cut by heads, and longer ones by queries, too."""
    monkeypatch.setattr(kernels, "BLOCK", 600)


@pytest.fixture
def by_hand(monkeypatch):
    """Our own backward pass in float32, too, where SDPA is used for being faster."""

    def attend(q, k, v, scaling, window):
        return BlockedAttention.apply(q, k, v, scaling, window)

    monkeypatch.setattr(kernels, "_attend", attend)


@pytest.mark.parametrize("lengths", [LENGTHS, (9, 9, 9), (4, 7, 7, 7, 1, 1, 7)])
@pytest.mark.parametrize("options", [{}, WINDOW])
def test_gradients_are_eagers(tiny_model, options, lengths):
    torch.manual_seed(0)
    model, batch = tiny_model(**options).train(), padded(lengths)
    expected = gradients(model, "eager", **batch)
    for kernel in ("sdpa", "strand_cpu"):
        for form in (batch, packed(batch)):
            for name, gradient in gradients(model, kernel, **form).items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("lengths", [LENGTHS, (4, 7, 7, 7, 1, 1, 7)])
@pytest.mark.parametrize("options", [{}, WINDOW])
def test_our_backward_pass_is_eagers(tiny_model, by_hand, small_blocks, options, lengths):
    test_gradients_are_eagers(tiny_model, options, lengths)


@torch.no_grad()
def test_neighbours_of_one_length_are_computed_together(tiny_model, monkeypatch):
    """Packed, with empty ones between them, as full rows, and as rows padded alike."""
    seen = []
    attend = kernels._attend
    monkeypatch.setattr(kernels, "_attend", lambda q, *rest: seen.append(q.shape) or attend(q, *rest))
    model = tiny_model(StrandModel, num_hidden_layers=1)
    row, offsets = torch.randint(5, 40, (1, 22)), torch.tensor([0, 5, 10, 10, 15, 18, 20, 22])
    states(model, "strand_cpu", input_ids=row, sequence_offsets=offsets)
    states(model, "strand_cpu", input_ids=torch.randint(5, 40, (3, 6)))
    states(model, "strand_cpu", **padded((4, 4, 8)))
    runs = [(3, 5), (1, 3), (2, 2), (3, 6), (2, 4), (1, 8)]
    assert seen == [(sequences, 2, length, 16) for sequences, length in runs]


@pytest.mark.parametrize("window", [None, 3])
def test_our_backward_pass_is_the_derivative(small_blocks, window):
    torch.manual_seed(0)
    for sequences, length in ((1, 1), (2, 5), (1, 25)):  # in one block; by heads; by queries
        qkv = [torch.randn(sequences, 2, length, 2, dtype=torch.double, requires_grad=True) for _ in range(3)]
        assert torch.autograd.gradcheck(lambda *x: BlockedAttention.apply(*x, 0.7, window), qkv)


@pytest.mark.parametrize("length", [40, 600])
@pytest.mark.parametrize("size", [16, 64])
def test_bf16_is_as_exact_as_bf16_can_be(length, size):
    """Against float32 of the same rounded numbers; 8 bits of mantissa are good for 0.4 %."""
    torch.manual_seed(0)
    qkv = [torch.randn(1, 2, length, size).bfloat16().requires_grad_() for _ in range(3)]
    fine = [x.detach().float().requires_grad_() for x in qkv]
    up = torch.randn(1, 2, length, size).bfloat16()
    ours = BlockedAttention.apply(*qkv, size**-0.5, None)
    ours.backward(up)
    expected = (fine[0] @ fine[1].mT * size**-0.5).softmax(-1) @ fine[2]
    expected.backward(up.float())
    pairs = [(ours, expected), *((x.grad, y.grad) for x, y in zip(qkv, fine, strict=True))]
    for mine, exact in pairs:
        assert (mine.float() - exact).norm() / exact.norm() < 0.01


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}])
def test_autocast_decides_what_the_kernel_computes_in(tiny_model, monkeypatch, options, inside):
    """Also where the backward pass runs under autocast; queries may come out of their norm in float32."""
    seen = []
    attend = kernels._attend
    monkeypatch.setattr(kernels, "_attend", lambda q, *rest: seen.append(q.dtype) or attend(q, *rest))
    model, batch = tiny_model(**options).train(), padded()
    exact = gradients(model, "eager", **batch)
    model.set_attn_implementation("strand_cpu")
    model.zero_grad()
    labels = batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch, labels=labels).loss
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert set(seen) == {torch.bfloat16}
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32
        assert (parameter.grad - exact[name]).norm() / exact[name].norm() < 0.05, name


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_gradient_checkpointing_leaves_packed_gradients_alone(tiny_model, kernel):
    model, batch = tiny_model(**WINDOW).train(), packed(padded())
    plain = gradients(model, kernel, **batch)
    model.activation_checkpointing_enable()
    for name, gradient in gradients(model, kernel, **batch).items():
        torch.testing.assert_close(gradient, plain[name], msg=name)


def test_double_precision_is_double_throughout(tiny_model):
    model, batch = tiny_model(StrandModel).double(), padded()
    real = batch["attention_mask"].bool()
    expected = states(model, "slow", **batch)[real]
    assert expected.dtype == torch.double
    for kernel in CPU_KERNELS:
        torch.testing.assert_close(states(model, kernel, **batch)[real], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_finite_in_empty_rows(tiny_model, kernel, dtype):
    model, batch = tiny_model().to(dtype).train(), padded((1, 30, 0))
    for gradient in gradients(model, kernel, **batch).values():
        assert gradient.isfinite().all()


# -- positions


def test_turned_heads_have_the_derivative_of_the_formula():
    torch.manual_seed(0)
    angles = torch.rand(1, 3, 2, dtype=torch.double).repeat(1, 1, 2)
    x = torch.randn(1, 2, 3, 4, dtype=torch.double, requires_grad=True)

    def turn(x):
        return rotate(x, angles.cos(), angles.sin())

    pairs = torch.complex(x[..., :2], x[..., 2:]) * torch.exp(1j * angles[:, None, :, :2])
    torch.testing.assert_close(turn(x), torch.cat((pairs.real, pairs.imag), -1), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(turn, x)
    assert torch.autograd.gradgradcheck(turn, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_turning_rounds_once(dtype):
    """In half precision as in float32, rounded at the end, forward and backward."""
    torch.manual_seed(0)
    x, up = torch.randn(2, 2, 3, 50, 16).to(dtype)
    angles = torch.rand(1, 50, 8).repeat(1, 1, 2) * 1000
    tables = angles.cos(), angles.sin()
    results = []
    for kind in (dtype, torch.float32):
        leaf = x.detach().to(kind).requires_grad_()
        turned = rotate(leaf, *tables)
        turned.backward(up.to(kind))
        results.append((turned.to(dtype), leaf.grad.to(dtype)))
    for mine, exact in zip(*results, strict=True):
        assert torch.equal(mine, exact)


def llama_states(model, ids, places):
    """Our layers with Llama's rotary tables at these places and full attention, one sequence."""
    c = model.config
    llama = LlamaConfig(hidden_size=c.hidden_size, num_attention_heads=c.num_attention_heads)
    x = model.embeddings(ids)
    tables = LlamaRotaryEmbedding(llama)(x, places)
    for layer in model.layers:
        q, k, v = layer.attention.qkv(layer.attention_norm(x)).chunk(3, -1)
        q, k, v = (y.view(1, ids.shape[1], 2, -1).transpose(1, 2) for y in (q, k, v))
        q, k = apply_rotary_pos_emb(q, k, *tables)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        x = x + layer.attention.out((weights @ v).transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.mlp_norm(x))
    return model.norm(x)


@torch.no_grad()
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_real_valued_places_of_one_sequence_turn_heads_and_do_nothing_else(tiny_model, kernel):
    """Places that begin anew at 0 would look packed to transformers, and split the sequence."""
    model, ids = tiny_model(StrandModel), torch.randint(5, 40, (1, 8))
    places = torch.tensor([[0, 0.5, 0, 7.25, 0, 1, 2, -3.5]])
    model.set_attn_implementation(kernel)
    output = model(ids, position_ids=places).last_hidden_state
    torch.testing.assert_close(output, llama_states(model, ids, places), rtol=1e-5, atol=1e-5)
    whole = model(ids, position_ids=torch.arange(8.0)[None]).last_hidden_state
    assert torch.equal(whole, model(ids).last_hidden_state)


@torch.no_grad()
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_packed_sequences_may_have_places_of_their_own(tiny_model, kernel):
    model, batch = tiny_model(StrandModel), packed(padded((6, 9)))
    model.set_attn_implementation(kernel)
    places = torch.rand(1, 15) * 30
    together = model(**batch, position_ids=places).last_hidden_state
    for start, stop in ((0, 6), (6, 15)):
        ids = batch["input_ids"][:, start:stop]
        alone = model(ids, position_ids=places[:, start:stop]).last_hidden_state
        torch.testing.assert_close(together[:, start:stop], alone, rtol=1e-5, atol=1e-5)


# -- what cannot be, and what to choose


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"sequence_offsets": torch.tensor([0, 4])},
            r"\[0, 4\] do not rise from 0 to the number of tokens, 9",
        ),
        ({"sequence_offsets": torch.tensor([1, 9])}, "do not rise from 0"),
        ({"sequence_offsets": torch.tensor([0, 5, 3, 9])}, "do not rise from 0"),
        ({"attention_mask": torch.ones(1, 9)}, "one row without an attention_mask"),
        ({"input_ids": torch.ones(2, 9, dtype=torch.long)}, "one row without"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(tiny_model, change, message):
    batch = {"input_ids": torch.full((1, 9), 7), "sequence_offsets": torch.tensor([0, 4, 9])}
    with pytest.raises(ValueError, match=message):
        tiny_model()(**batch | change)


@torch.no_grad()
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_an_empty_sequence_among_packed_ones_is_no_matter(tiny_model, kernel):
    model, ids = tiny_model(StrandModel), torch.randint(5, 40, (1, 9))
    expected = states(model, kernel, input_ids=ids, sequence_offsets=torch.tensor([0, 4, 9]))
    with_empty = states(model, kernel, input_ids=ids, sequence_offsets=torch.tensor([0, 0, 4, 4, 9]))
    torch.testing.assert_close(with_empty, expected)


def test_kernels_that_would_mix_packed_sequences_are_refused(tiny_model):
    AttentionInterface.register("maskless", slow_attention)
    batch = packed(padded((3, 4)))
    model = tiny_model()
    model.set_attn_implementation("maskless")
    with pytest.raises(ValueError, match="sequence_offsets: maskless attention takes no such mask; use sdpa"):
        model(**batch)
    with pytest.raises(ValueError, match="the classifier takes padded batches"):
        tiny_model(StrandForSequenceClassification)(**batch)


@pytest.mark.parametrize("name", ["strand_cpu", "strand_varlen"])
def test_attention_dropout_is_refused_by_kernels_without_it(tiny_model, name):
    model = tiny_model(attention_dropout=0.1).train()
    model.set_attn_implementation(name)
    with pytest.raises(ValueError, match=f"{name} attention has none; use attn_implementation='eager'"):
        model(**padded())


def test_the_fastest_kernel_is_one_that_exists(tiny_model):
    for dtype in (torch.float32, torch.bfloat16):
        for training in (True, False):
            tiny_model().set_attn_implementation(fastest_attention("cpu", dtype, training))
    assert fastest_attention("cpu", torch.bfloat16, training=True) == "strand_cpu"
    assert fastest_attention("cpu", torch.float32, training=False) == "sdpa"
    assert fastest_attention("mps", torch.bfloat16, training=True) == "sdpa"


def test_a_checkpoint_does_not_remember_the_kernel_it_was_trained_with(tiny_model, tmp_path):
    model = tiny_model()
    model.set_attn_implementation("strand_cpu")
    model.save_pretrained(tmp_path)
    assert StrandForMaskedLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's variable-length kernel needs a GPU")
@pytest.mark.parametrize("options", [{}, WINDOW])
def test_the_variable_length_kernel_is_sdpa_on_a_gpu(tiny_model, options):
    model, batch = tiny_model(**options).cuda().train(), {k: v.cuda() for k, v in padded().items()}
    with torch.autocast("cuda", torch.bfloat16):
        expected = gradients(model, "sdpa", **batch)
        for form in (batch, packed(batch)):
            for name, gradient in gradients(model, "strand_varlen", **form).items():
                assert (gradient - expected[name]).norm() / expected[name].norm() < 0.05, name
    assert fastest_attention("cuda", torch.bfloat16, training=True) == "strand_varlen"
    assert fastest_attention("cuda", torch.float32, training=True) == "sdpa"


# -- compiled

COMPILED = """
import torch
from pipeline.model import StrandConfig, StrandForMaskedLM
torch.manual_seed(0)
sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=40)
model = StrandForMaskedLM(StrandConfig(**sizes))
ids = torch.randint(5, 40, (2, 24))
for kernel in ("sdpa", "strand_cpu"):
    model.set_attn_implementation(kernel)
    compiled = torch.compile(model)
    given = []
    for network in (model, compiled):
        model.zero_grad()
        loss = network(ids, labels=ids).loss
        loss.backward()
        given.append((loss.detach(), model.decoder.weight.grad.clone()))
    torch.testing.assert_close(*given, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
def test_compiled_models_give_the_same_losses_and_gradients():
    finished = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
