"""Attention kernels of the strand encoder, beside those that transformers brings.

``strand_cpu`` is for training on a CPU, ``strand_varlen`` for training on a GPU with torch's kernel for
sequences of many lengths. Both are in transformers' registry under these names, and neither computes padding.
They take padded batches, and sequences packed end to end in one row: sequence i is then tokens ``offsets[i]``
to ``offsets[i + 1]``. Windows are counted over the real tokens of a sequence.

Shape suffixes: B batch, S sequences, L tokens of a row, T real tokens of all sequences, H heads, K channels
per head, W keys rounded up to whole vectors, Q queries of a block. This file is copied into every checkpoint.
"""

from itertools import pairwise

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
    (``benchmarks/attention.py``: one thread of a Xeon with AMX, torch 2.13, 320 channels, 2048 tokens):

    =========  ====  ====  ====  ====
    head size  L128   350   512  1024
    =========  ====  ====  ====  ====
    16          3.7   1.7   1.6   1.2
    32          2.5   1.5   1.3   1.1
    64          1.6   1.3   1.3   1.2
    =========  ====  ====  ====  ====

    In float32 SDPA's own backward pass is the better one: there ``strand_cpu`` calls SDPA for each sequence.
    That has 0.7 to 0.9 of the speed of one call where nothing is padded, and wins by not computing padding:
    a training step on lengths of proteins is 1.7 times as fast as EsmForMaskedLM's padded one.
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


# -- one sequence on a CPU


def _near(L: int, window: int | None) -> torch.Tensor | None:
    """Return (L, L), whether a token sees another; None where all do."""
    place = torch.arange(L)
    return None if window is None else (place - place[:, None]).abs() <= window


def _blocks(H: int, L: int, W: int) -> list[tuple[slice, slice]]:
    """Return (heads, queries) of blocks of at most ``BLOCK`` scores, the largest first."""
    heads, rows = min(H, max(1, BLOCK // (L * W))), min(L, max(1, BLOCK // W))
    starts = ((h, r) for h in range(0, H, heads) for r in range(0, L, rows))
    return [(slice(h, min(h + heads, H)), slice(r, min(r + rows, L))) for h, r in starts]


def _aligned(x_HLK: torch.Tensor) -> torch.Tensor:
    """Return x with zeros appended up to whole vectors, (H, W, K)."""
    return pad(x_HLK, (0, 0, 0, -x_HLK.shape[1] % VECTOR)).contiguous()


class BlockedAttention(torch.autograd.Function):
    """Softmax attention within one sequence: SDPA, and its backward pass by blocks of heads and queries.

    The backward pass computes the weights of a block again and multiplies matrices in the type of the inputs.
    What it needs stays in cache, and memory grows with L and not with its square.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, q_HLK, k_HLK, v_HLK, scaling: float, window: int | None):
        """Return (H, L, K)."""
        ctx.save_for_backward(q_HLK, k_HLK, v_HLK)
        ctx.scaling, ctx.near_LL = scaling, _near(q_HLK.shape[1], window)
        qkv = (x[None] for x in (q_HLK, k_HLK, v_HLK))
        return scaled_dot_product_attention(*qkv, attn_mask=ctx.near_LL, scale=scaling)[0]

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx, g_HLK):
        """Return the gradients of queries, keys and values."""
        q_HLK, k_HLK, v_HLK = ctx.saved_tensors
        k_HWK, v_HWK = _aligned(k_HLK), _aligned(v_HLK)
        q_HLK, g_HLK = q_HLK.contiguous(), g_HLK.contiguous()
        (H, L, _), W = q_HLK.shape, k_HWK.shape[1]
        blocks = _blocks(H, L, W)
        room = [q_HLK.new_empty(blocks[0][0].stop, blocks[0][1].stop, W) for _ in range(2)]
        dq_HLK, dk_HWK, dv_HWK = torch.empty_like(q_HLK), torch.empty_like(k_HWK), torch.empty_like(v_HWK)
        for heads, rows in blocks:
            q_HQK, g_HQK = q_HLK[heads, rows], g_HLK[heads, rows]
            s_HQW, p_HQW = (x[: q_HQK.shape[0], : q_HQK.shape[1]] for x in room)
            s_HQW.baddbmm_(q_HQK, k_HWK[heads].transpose(1, 2), beta=0, alpha=ctx.scaling)
            s_HQW[..., L:] = -torch.inf
            if ctx.near_LL is not None:
                s_HQW[..., :L].masked_fill_(~ctx.near_LL[rows], -torch.inf)
            torch.softmax(s_HQW, -1, out=p_HQW)
            torch.bmm(g_HQK, v_HWK[heads].transpose(1, 2), out=s_HQW)
            torch.ops.aten._softmax_backward_data.out(s_HQW, p_HQW, -1, s_HQW.dtype, grad_input=s_HQW)
            before = float(rows.start > 0)  # later queries add to what earlier ones gave
            dq_HLK[heads, rows].baddbmm_(s_HQW, k_HWK[heads], beta=0, alpha=ctx.scaling)
            dk_HWK[heads].baddbmm_(s_HQW.transpose(1, 2), q_HQK, beta=before, alpha=ctx.scaling)
            dv_HWK[heads].baddbmm_(p_HQW.transpose(1, 2), g_HQK, beta=before)
        return dq_HLK, dk_HWK[:, :L], dv_HWK[:, :L], None, None


def _attend(q_HLK, k_HLK, v_HLK, scaling: float, window: int | None) -> torch.Tensor:
    """Return (H, L, K): SDPA, with our backward pass where its own is slow."""
    if q_HLK.dtype == torch.bfloat16 and torch.is_grad_enabled() and q_HLK.requires_grad:
        return BlockedAttention.apply(q_HLK, k_HLK, v_HLK, scaling, window)
    near_LL = _near(q_HLK.shape[1], window)
    return scaled_dot_product_attention(
        q_HLK[None], k_HLK[None], v_HLK[None], attn_mask=near_LL, scale=scaling
    )[0]


# -- batches


def _in_one_row(x_BHLK: torch.Tensor, real_T: torch.Tensor | None) -> torch.Tensor:
    """Return the real tokens of all rows, (H, T, K), in autocast's type."""
    kind = x_BHLK.device.type
    if torch.is_autocast_enabled(kind):
        x_BHLK = x_BHLK.to(torch.get_autocast_dtype(kind))
    x_HTK = x_BHLK.transpose(0, 1).flatten(1, 2)
    return x_HTK if real_T is None else x_HTK.index_select(1, real_T)


def _as_batch(mixed_HTK: torch.Tensor, real_T: torch.Tensor | None, B: int, L: int) -> torch.Tensor:
    """Return (B, L, H, K), zero on padding."""
    mixed_THK = mixed_HTK.transpose(0, 1)
    if real_T is not None:
        mixed_THK = mixed_THK.new_zeros(B * L, *mixed_THK.shape[1:]).index_copy(0, real_T, mixed_THK)
    return mixed_THK.reshape(B, L, *mixed_THK.shape[1:])


def _offsets(shape, real_BL: torch.Tensor | None) -> torch.Tensor:
    """Return where the rows of a padded batch begin once the padding is gone, and the end of the last."""
    if real_BL is None:
        return torch.arange(0, shape[0] * shape[2] + 1, shape[2])
    return pad(real_BL.sum(1).cumsum(0), (1, 0))


def _refuse_dropout(name: str, dropout: float) -> None:
    if dropout:
        raise ValueError(f"attention_dropout: {name} attention has none; use attn_implementation='eager'")


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
    _refuse_dropout(CPU, dropout)
    real_T = None if attention_mask is None else attention_mask.flatten().nonzero().flatten()
    offsets = _offsets(query.shape, attention_mask) if sequence_offsets is None else sequence_offsets
    lengths = [stop - start for start, stop in pairwise(offsets.tolist()) if stop > start]
    q, k, v = (_in_one_row(x, real_T).split(lengths, dim=1) for x in (query, key, value))
    with torch.autocast("cpu", enabled=False):
        sequences = zip(q, k, v, strict=True)
        mixed_HTK = torch.cat([_attend(*qkv, scaling, sliding_window) for qkv in sequences], dim=1)
    return _as_batch(mixed_HTK, real_T, query.shape[0], query.shape[2]), None


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

    _refuse_dropout(VARLEN, dropout)
    real_T = None if attention_mask is None else attention_mask.flatten().nonzero().flatten()
    offsets = _offsets(query.shape, attention_mask) if sequence_offsets is None else sequence_offsets
    offsets, longest = offsets.to(query.device, torch.int32), longest_sequence or query.shape[2]
    q_THK, k_THK, v_THK = (_in_one_row(x, real_T).transpose(0, 1) for x in (query, key, value))
    window = (-1, -1) if sliding_window is None else (sliding_window, sliding_window)
    mixed_THK = varlen_attn(
        q_THK, k_THK, v_THK, offsets, offsets, longest, longest, scale=scaling, window_size=window
    )
    assert isinstance(mixed_THK, torch.Tensor)
    return _as_batch(mixed_THK.transpose(0, 1), real_T, query.shape[0], query.shape[2]), None


def real_tokens(attention_mask: torch.Tensor | None = None, **_) -> torch.Tensor | None:
    """Return what the kernels above take as a mask: (B, L), or None where nothing is padded."""
    if attention_mask is None or attention_mask.all() or not attention_mask.any():
        return None  # in a batch of nothing but padding no token is less real than another
    return attention_mask.bool()


for _name, _kernel in ((CPU, cpu_attention), (VARLEN, varlen_attention)):
    AttentionInterface.register(_name, _kernel)
    AttentionMaskInterface.register(_name, real_tokens)
