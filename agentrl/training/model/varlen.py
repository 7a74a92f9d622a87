"""Variable-length flash attention on a GPU, by the fastest kernel that is installed.

PyTorch's own kernel is FlashAttention 2. On Hopper and Blackwell, FlashAttention 4 (`pip install flash-attn-4`; SGLang
brings it along) and FlashAttention 3 (`flash_attn_interface`) are faster, and are taken where they can be imported.
"""

import inspect
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

MAX_HEAD_DIM = 256
FA4_HEAD_DIM = 128
"""Largest that its backward pass takes on every GPU it supports."""
FA4_GPUS = (9, 10)
"""Compute capabilities: Hopper, Blackwell."""


@torch.compiler.assume_constant_result
def _parameters() -> frozenset[str]:
    return _found_parameters()


@cache
def _found_parameters() -> frozenset[str]:
    """Parameters of this PyTorch's kernel, which newer releases extend. Empty: it has no kernel."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def varlen_fits(query: Tensor) -> bool:
    """Whether a kernel accepts these queries [1, heads, T, D]."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] <= MAX_HEAD_DIM and "scale" in _parameters()


def attention_kernel(device: torch.device, head_dim: int) -> str:
    """The kernel for heads of this size: fa4 or fa2."""
    return "fa4" if head_dim <= FA4_HEAD_DIM and head_dim % 8 == 0 and _has_fa4(device) else "fa2"


@torch.compiler.assume_constant_result
def _has_fa4(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] in FA4_GPUS and _fa4() is not None


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, longest: int, scaling: float | None
) -> Tensor:
    """Causal attention within each sequence. [1, heads, T, D] queries, [1, kv heads, T, D] keys and values:
    [1, T, heads, D]."""
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    if attention_kernel(q.device, q.shape[-1]) == "fa4":
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        output = torch.ops.agentrl.varlen_fa4(q, k, v, cu_seqlens, longest, scale)[0]
    else:
        output = _flash_attention_2(q, k, v, cu_seqlens, longest, scaling)
    return output.unsqueeze(0)


def _flash_attention_2(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, scaling: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    extra: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in _parameters() else {"is_causal": True}
    if "enable_gqa" in _parameters():
        extra["enable_gqa"] = q.shape[1] != k.shape[1]
    else:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    kernel: Any = varlen_attn
    output: Tensor = kernel(q, k, v, cu_seqlens, cu_seqlens, longest, longest, scale=scaling, **extra)
    return output


@cache
def _fa4() -> Any:
    """FlashAttention 4's module; None where it is not installed or does not load."""
    try:
        if find_spec("flash_attn.cute") is None:
            return None
        from flash_attn.cute import interface
    except Exception:  # another package's compiled parts
        return None
    return interface if hasattr(interface, "_flash_attn_fwd") and hasattr(interface, "_flash_attn_bwd") else None


# As operators of PyTorch, the kernels do not break compiled graphs.
@torch.library.custom_op("agentrl::varlen_fa4", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, scale: float) -> tuple[Tensor, Tensor]:
    """(output [T, heads, D], log-sum-exp f32 [heads, T]) of causal attention: q [T, heads, D], k and v with fewer."""
    bounds = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": longest, "max_seqlen_k": longest}
    output, lse = _fa4()._flash_attn_fwd(q, k, v, softmax_scale=scale, causal=True, return_lse=True, **bounds)[:2]
    return output, lse.contiguous()


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("agentrl::varlen_fa4_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    output: Tensor,
    lse: Tensor,
    longest: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    bounds = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": longest, "max_seqlen_k": longest}
    given = q, k, v, output, gradient.contiguous(), lse
    found = _fa4()._flash_attn_bwd(*given, softmax_scale=scale, causal=True, **bounds)
    return found[0], found[1], found[2]


@_backward.register_fake
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
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.longest, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = torch.ops.agentrl.varlen_fa4_backward(gradient, *ctx.saved_tensors, ctx.longest, ctx.scale)
    return *found, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
