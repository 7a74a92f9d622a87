"""Variable-length flash attention on a GPU, by the fastest kernel that is installed.

PyTorch's own is FlashAttention 2, made for Ampere. On Hopper and Blackwell cuDNN (`pip install nvidia-cudnn-frontend`)
and FlashAttention 4 (`pip install flash-attn-4`) are about twice as fast, and are taken where they can be imported.
"""

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor

from agentrl.training.model import varlen_cudnn, varlen_fa4

MAX_HEAD_DIM = 256
NEWER_HEAD_DIM = 128
"""Largest of the newer kernels, whose backward passes need more shared memory."""
NEWER_NUMBERS = 2**31
"""Numbers of queries from which on their offsets would overflow."""
NEWER_GPUS = (9, 10)
"""Compute capabilities of the newer kernels: Hopper, Blackwell."""
NEWER = {"cudnn": varlen_cudnn, "fa4": varlen_fa4}
"""By name; the first that can be imported is taken."""


def _parameters() -> frozenset[str]:
    """Parameters of this PyTorch's kernel, which newer releases extend. Empty: it has no kernel."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


# A constant: a compiled block reads it.
PARAMETERS = _parameters()


def varlen_fits(query: Tensor) -> bool:
    """Whether a kernel accepts these queries [1, heads, T, D]."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] <= MAX_HEAD_DIM and "scale" in PARAMETERS


@cache
def attention_kernel(device: torch.device) -> str:
    """The name of the kernel on a device: one of NEWER, or fa2."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] not in NEWER_GPUS:
        return "fa2"
    return next((name for name, kernel in NEWER.items() if kernel.installed()), "fa2")


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, longest: int, scaling: float | None, kernel: str
) -> Tensor:
    """Causal attention within each sequence. [1, heads, T, D] queries, [1, kv heads, T, D] keys and values:
    [1, T, heads, D]."""
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    fits = q.shape[-1] <= NEWER_HEAD_DIM and q.shape[-1] % 8 == 0 and q.numel() < NEWER_NUMBERS
    if kernel == "fa2" or not fits:
        output = _flash_attention_2(q, k, v, cu_seqlens, longest, scale)
    else:
        output = torch.ops.agentrl.varlen(q, k, v, cu_seqlens, longest, scale, kernel)[0]
    return output.unsqueeze(0)


def _flash_attention_2(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    extra: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in PARAMETERS else {"is_causal": True}
    if "enable_gqa" in PARAMETERS:
        extra["enable_gqa"] = q.shape[1] != k.shape[1]
    else:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    kernel: Any = varlen_attn
    output: Tensor = kernel(q, k, v, cu_seqlens, cu_seqlens, longest, longest, scale=scale, **extra)
    return output


# An operator of PyTorch does not break compiled graphs.
@torch.library.custom_op("agentrl::varlen", mutates_args=())
def _varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, scale: float, kernel: str
) -> tuple[Tensor, Tensor]:
    """(output [T, heads, D], f32 log-sum-exp) of causal attention: q [T, heads, D]; k and v may have fewer heads."""
    return NEWER[kernel].forward(q, k, v, cu_seqlens, longest, scale)


@_varlen.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, scale: float, kernel: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(NEWER[kernel].lse_shape(q), dtype=torch.float32)


@torch.library.custom_op("agentrl::varlen_backward", mutates_args=())
def _varlen_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    output: Tensor,
    lse: Tensor,
    longest: int,
    scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    given = gradient.contiguous(), q, k, v, cu_seqlens, output, lse
    return NEWER[kernel].backward(*given, longest, scale)


@_varlen_backward.register_fake
def _(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    output: Tensor,
    lse: Tensor,
    longest: int,
    scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.longest, ctx.scale, ctx.kernel = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = torch.ops.agentrl.varlen_backward(gradient, *ctx.saved_tensors, ctx.longest, ctx.scale, ctx.kernel)
    return *found, None, None, None, None


_varlen.register_autograd(_gradients, setup_context=_keep)
