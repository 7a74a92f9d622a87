"""PyTorch's variable-length flash attention, where the GPU and the installed PyTorch support it."""

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor

MAX_HEAD_DIM = 256


@cache
def _parameters() -> frozenset[str]:
    """Parameters of this PyTorch's kernel, which newer releases extend. Empty: it has no kernel."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def varlen_fits(query: Tensor) -> bool:
    """Whether the kernel accepts these queries [1, heads, T, D]."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] <= MAX_HEAD_DIM and "scale" in _parameters()


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, longest: int, scaling: float | None
) -> Tensor:
    """Causal attention within each sequence. [1, heads, T, D] queries, [1, kv heads, T, D] keys and values:
    [1, T, heads, D]."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    extra: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in _parameters() else {"is_causal": True}
    if "enable_gqa" in _parameters():
        extra["enable_gqa"] = q.shape[1] != k.shape[1]
    else:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    kernel: Any = varlen_attn
    output = kernel(q, k, v, cu_seqlens, cu_seqlens, longest, longest, scale=scaling, **extra)
    return output.unsqueeze(0)
