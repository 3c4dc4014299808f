"""Attention kernels of the strand encoder, beside those that transformers brings.

``strand_cpu`` is for training on a CPU, ``strand_varlen`` for training on a GPU with torch's kernel for
sequences of many lengths. Both are in transformers' registry under these names, and neither computes padding.
They take padded batches, and sequences packed end to end in one row: sequence i is then tokens ``offsets[i]``
to ``offsets[i + 1]``. Windows are counted over the real tokens of a sequence.

Shape suffixes: B batch, S sequences, L tokens of a row or sequence, T real tokens of all sequences, H heads
(N of all sequences of a run), K channels per head, W keys rounded up to whole vectors, Q queries of a block.
This file is copied into every checkpoint.
"""

from itertools import groupby, pairwise

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

CPU, VARLEN = "strand_cpu", "strand_varlen"
VECTOR = 32  # softmax over rows of bf16 takes twice as long where their length is no multiple of this
BLOCK = 2**21  # scores computed at a time


def fastest_attention(device: torch.device | str, dtype: torch.dtype, training: bool) -> str:
    """Return the name of the attention kernel to use.

    Args:
        device: where the model is.
        dtype: what it computes in; under autocast, autocast's type.
        training: whether gradients are wanted.

    CPU time of a forward and backward pass in bf16, SDPA's divided by ``strand_cpu``'s, without padding
    (``benchmarks/attention.py``: one thread of a Xeon with AMX, torch 2.13, 320 channels, 2048 tokens, each
    sequence computed by itself; neighbours of one length are now computed together):

    =========  ====  ====  ====  ====
    head size  L128   350   512  1024
    =========  ====  ====  ====  ====
    16          3.7   1.7   1.6   1.2
    32          2.5   1.5   1.3   1.1
    64          1.6   1.3   1.3   1.2
    =========  ====  ====  ====  ====

    In float32 SDPA's own backward pass is the better one: there ``strand_cpu`` calls SDPA, once for
    neighbouring sequences of one length. Where nothing is padded that is about as fast as SDPA alone (0.8 to
    1.1), and it wins by not computing padding: a training step on lengths of proteins is about twice as fast
    as EsmForMaskedLM's padded one.

    A CPU without units for bf16 is far slower in it than in float32, with either kernel (``strand_cpu`` has
    0.3 to 0.6 of SDPA's speed there): train in float32 on one.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return CPU if training else "sdpa"
    half = dtype in (torch.bfloat16, torch.float16)
    return VARLEN if training and half and _has_varlen(device) else "sdpa"


def _has_varlen(device: torch.device) -> bool:
    """Whether torch's variable-length kernel runs there: on NVIDIA's Ampere or later."""
    nvidia = device.type == "cuda" and torch.version.hip is None and torch.cuda.is_available()
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


# -- sequences of one length on a CPU


def _near(L: int, window: int | None) -> torch.Tensor | None:
    """Return (L, L), whether a token sees another; None where all do."""
    place = torch.arange(L)
    return None if window is None else (place - place[:, None]).abs() <= window


def _blocks(N: int, L: int, W: int) -> list[tuple[slice, slice]]:
    """Return (heads, queries) of blocks of at most ``BLOCK`` scores, the largest first."""
    heads, rows = min(N, max(1, BLOCK // (L * W))), min(L, max(1, BLOCK // W))
    starts = ((h, r) for h in range(0, N, heads) for r in range(0, L, rows))
    return [(slice(h, min(h + heads, N)), slice(r, min(r + rows, L))) for h, r in starts]


def _aligned(x_NLK: torch.Tensor) -> torch.Tensor:
    """Return x with zeros appended up to whole vectors, (N, W, K)."""
    return pad(x_NLK, (0, 0, 0, -x_NLK.shape[1] % VECTOR)).contiguous()


class BlockedAttention(torch.autograd.Function):
    """Softmax attention within sequences of one length: SDPA, and its backward pass by blocks of heads
    (those of all sequences) and queries.

    The backward pass computes the weights of a block again and multiplies matrices in the type of the inputs.
    What it needs stays in cache, and memory grows with L and not with its square.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, q_SHLK, k_SHLK, v_SHLK, scaling: float, window: int | None):
        """Return (S, H, L, K)."""
        ctx.save_for_backward(q_SHLK, k_SHLK, v_SHLK)
        ctx.scaling, ctx.near_LL = scaling, _near(q_SHLK.shape[2], window)
        return scaled_dot_product_attention(q_SHLK, k_SHLK, v_SHLK, attn_mask=ctx.near_LL, scale=scaling)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx, g_SHLK):
        """Return the gradients of queries, keys and values."""
        q_NLK, k_NLK, v_NLK, g_NLK = (x.flatten(0, 1) for x in (*ctx.saved_tensors, g_SHLK))
        k_NWK, v_NWK = _aligned(k_NLK), _aligned(v_NLK)
        q_NLK, g_NLK = q_NLK.contiguous(), g_NLK.contiguous()
        (N, L, _), W = q_NLK.shape, k_NWK.shape[1]
        blocks = _blocks(N, L, W)
        room = [q_NLK.new_empty(blocks[0][0].stop, blocks[0][1].stop, W) for _ in range(2)]
        dq_NLK, dk_NWK, dv_NWK = torch.empty_like(q_NLK), torch.empty_like(k_NWK), torch.empty_like(v_NWK)
        for heads, rows in blocks:
            q_NQK, g_NQK = q_NLK[heads, rows], g_NLK[heads, rows]
            s_NQW, p_NQW = (x[: q_NQK.shape[0], : q_NQK.shape[1]] for x in room)
            s_NQW.baddbmm_(q_NQK, k_NWK[heads].transpose(1, 2), beta=0, alpha=ctx.scaling)
            s_NQW[..., L:] = -torch.inf
            if ctx.near_LL is not None:
                s_NQW[..., :L].masked_fill_(~ctx.near_LL[rows], -torch.inf)
            torch.softmax(s_NQW, -1, out=p_NQW)
            torch.bmm(g_NQK, v_NWK[heads].transpose(1, 2), out=s_NQW)
            torch.ops.aten._softmax_backward_data.out(s_NQW, p_NQW, -1, s_NQW.dtype, grad_input=s_NQW)
            before = float(rows.start > 0)  # later queries add to what earlier ones gave
            dq_NLK[heads, rows].baddbmm_(s_NQW, k_NWK[heads], beta=0, alpha=ctx.scaling)
            dk_NWK[heads].baddbmm_(s_NQW.transpose(1, 2), q_NQK, beta=before, alpha=ctx.scaling)
            dv_NWK[heads].baddbmm_(p_NQW.transpose(1, 2), g_NQK, beta=before)
        grads_NLK = (dq_NLK, dk_NWK[:, :L], dv_NWK[:, :L])
        return *(x.unflatten(0, g_SHLK.shape[:2]) for x in grads_NLK), None, None


def _attend(q_SHLK, k_SHLK, v_SHLK, scaling: float, window: int | None) -> torch.Tensor:
    """Return (S, H, L, K): SDPA, with our backward pass where its own is slow."""
    if q_SHLK.dtype == torch.bfloat16 and torch.is_grad_enabled() and q_SHLK.requires_grad:
        return BlockedAttention.apply(q_SHLK, k_SHLK, v_SHLK, scaling, window)
    near_LL = _near(q_SHLK.shape[2], window)
    return scaled_dot_product_attention(q_SHLK, k_SHLK, v_SHLK, attn_mask=near_LL, scale=scaling)


# -- batches


def _start(name: str, query, attention_mask, dropout: float, offsets):
    """Return where the real tokens are in the flattened batch, (T,), or None where all are real; where
    sequences begin once the padding is gone, and the end of the last, (S + 1,)."""
    if dropout:
        raise ValueError(f"attention_dropout: {name} attention has none; use attn_implementation='eager'")
    B, _, L, _ = query.shape
    if attention_mask is None:
        return None, torch.arange(0, B * L + 1, L) if offsets is None else offsets
    return attention_mask.flatten().nonzero().flatten(), pad(attention_mask.sum(1).cumsum(0), (1, 0))


def _in_one_row(x_BHLK: torch.Tensor, real_T: torch.Tensor | None) -> torch.Tensor:
    """Return the real tokens of all rows, (T, H, K), in autocast's type."""
    kind = x_BHLK.device.type
    if torch.is_autocast_enabled(kind):
        x_BHLK = x_BHLK.to(torch.get_autocast_dtype(kind))
    x_THK = x_BHLK.transpose(1, 2).flatten(0, 1)
    return x_THK if real_T is None else x_THK.index_select(0, real_T)


def _as_batch(mixed_THK: torch.Tensor, real_T: torch.Tensor | None, B: int, L: int) -> torch.Tensor:
    """Return (B, L, H, K), zero on padding."""
    if real_T is not None:
        mixed_THK = mixed_THK.new_zeros(B * L, *mixed_THK.shape[1:]).index_copy(0, real_T, mixed_THK)
    return mixed_THK.unflatten(0, (B, L))


def _runs(offsets: torch.Tensor) -> list[tuple[int, int]]:
    """Return (S, L) of each run of neighbouring sequences with one length; empty ones do not count."""
    lengths = (stop - start for start, stop in pairwise(offsets.tolist()))
    return [(len(list(run)), L) for L, run in groupby(filter(None, lengths))]


def _by_runs(x_THK: torch.Tensor, runs: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Return (S, H, L, K) of each run."""
    parts = x_THK.split([S * L for S, L in runs])
    return [part.unflatten(0, run).transpose(1, 2) for part, run in zip(parts, runs, strict=True)]


@torch.compiler.disable
def cpu_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling,
    dropout=0.0,
    sliding_window=None,
    sequence_offsets=None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Attend within each sequence on a CPU.

    Args:
        module: the attention layer, not used.
        query: (B, H, L, K), as are ``key`` and ``value``.
        key: see ``query``.
        value: see ``query``.
        attention_mask: (B, L), False on padding, or None.
        scaling: factor of the scores.
        dropout: must be zero.
        sliding_window: how far a token sees to either side; None, all tokens.
        sequence_offsets: (S + 1,) where packed sequences begin, and the end of the last; B is then 1.

    Returns:
        (B, L, H, K), zero on padding, and no weights.

    Raises:
        ValueError: if there is dropout.
    """
    real_T, offsets = _start(CPU, query, attention_mask, dropout, sequence_offsets)
    runs = _runs(offsets)
    q, k, v = (_by_runs(_in_one_row(x, real_T), runs) for x in (query, key, value))
    with torch.autocast("cpu", enabled=False):
        mixed = [_attend(*qkv, scaling, sliding_window) for qkv in zip(q, k, v, strict=True)]
    mixed_THK = torch.cat([x_SHLK.transpose(1, 2).flatten(0, 1) for x_SHLK in mixed])
    return _as_batch(mixed_THK, real_T, query.shape[0], query.shape[2]), None


def varlen_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling,
    dropout=0.0,
    sliding_window=None,
    sequence_offsets=None,
    longest_sequence=None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Attend within each sequence on a GPU, in half precision.

    Arguments as for ``cpu_attention``; ``longest_sequence`` is the most tokens that a packed sequence has.
    """
    from torch.nn.attention.varlen import varlen_attn

    real_T, offsets = _start(VARLEN, query, attention_mask, dropout, sequence_offsets)
    offsets, longest = offsets.to(query.device, torch.int32), longest_sequence or query.shape[2]
    q_THK, k_THK, v_THK = (_in_one_row(x, real_T) for x in (query, key, value))
    window = (-1, -1) if sliding_window is None else (sliding_window, sliding_window)
    mixed_THK = varlen_attn(
        q_THK, k_THK, v_THK, offsets, offsets, longest, longest, scale=scaling, window_size=window
    )
    assert isinstance(mixed_THK, torch.Tensor)
    return _as_batch(mixed_THK, real_T, query.shape[0], query.shape[2]), None


def real_tokens(attention_mask: torch.Tensor | None = None, **_) -> torch.Tensor | None:
    """Return what the kernels above take as a mask: (B, L), or None where nothing is padded."""
    if attention_mask is None or attention_mask.all() or not attention_mask.any():
        return None  # in a batch of nothing but padding no token is less real than another
    return attention_mask.bool()


for _name, _kernel in ((CPU, cpu_attention), (VARLEN, varlen_attention)):
    AttentionInterface.register(_name, _kernel)
    AttentionMaskInterface.register(_name, real_tokens)
