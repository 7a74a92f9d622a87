"""Variable-length flash attention on a GPU, by the fastest kernel that is installed.

PyTorch's own is FlashAttention 2, made for Ampere. On Hopper and Blackwell, FlashAttention 4 (`pip install
flash-attn-4`) is about twice as fast, and is taken where it is installed and agrees with float32 attention.
"""

import inspect
import logging
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agentrl.training.model.attention import varlen_fa4

log = logging.getLogger(__name__)

MAX_HEAD_DIM = 256
NEWER_HEAD_DIM = 128
"""Largest of a newer kernel, whose backward pass needs more shared memory."""
NEWER_NUMBERS = 2**31
"""Numbers of queries from which on their offsets would overflow."""
AGREES = 0.02
"""Largest relative difference between bfloat16 and float32 attention."""
NEWER: dict[str, Any] = {"fa4": varlen_fa4}
"""Kernels of other packages, by name."""
LENGTHS = 70, 1, 200, 33, 9
OWN_LENGTHS = 70, 1, 150, 1, 9
"""Lengths of the sequences that kernels are tried with, and of the last tokens of each."""


def _parameters() -> frozenset[str]:
    """Parameters of this PyTorch's kernel, which newer releases extend. Empty: it has no kernel."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


# A constant: a compiled block reads it.
PARAMETERS = _parameters()


def varlen_fits(query: Tensor, window: int | None = None) -> bool:
    """Whether a kernel accepts these queries [1, heads, T, D], of which each sees `window` tokens."""
    if window is not None and "window_size" not in PARAMETERS:
        return False
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] <= MAX_HEAD_DIM and "scale" in PARAMETERS


@cache
def attention_kernel(device: torch.device, heads: int, kv_heads: int, width: int) -> str:
    """The name of the kernel on a device for attention of this shape: fa4 or fa2."""
    newer = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in varlen_fa4.GPUS
    if not newer or width > NEWER_HEAD_DIM or width % 8 or heads % kv_heads:
        return "fa2"
    works = NEWER["fa4"].installed() and _agrees(
        "fa4", device, heads, kv_heads, width, level=logging.WARNING, lacks="is not used"
    )
    return "fa4" if works else "fa2"


@cache
def shares_keys(kernel: str, device: torch.device, heads: int, kv_heads: int, width: int) -> bool:
    """Whether a kernel on a device computes the last tokens of sequences alone, as passes with shared prompts do."""
    if device.type != "cuda":
        return True
    shape = heads, kv_heads, width
    return _agrees(kernel, device, *shape, OWN_LENGTHS, level=logging.INFO, lacks="does not share prompts")


def _agrees(name: str, *given: Any, level: int, lacks: str) -> bool:
    """Whether a kernel agrees with PyTorch on a few sequences. `given`: see `disagreement`; `lacks`: for the log."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its compiler, which runs here
            gap = disagreement(name, *given)
        reason = [f"it differs from PyTorch by {gap:.1%}"]
    except Exception as error:  # another package, of any version
        gap, reason = 1.0, str(error).strip().splitlines()[:1]
    if gap > AGREES:
        log.log(level, "attention by %s %s: %s", name, lacks, *reason)
    return gap <= AGREES


@torch.enable_grad()
def disagreement(
    kernel: str, device: torch.device, heads: int, kv_heads: int, width: int, own: Sequence[int] = LENGTHS
) -> float:
    """The largest relative difference of a kernel's output and gradients from those of float32 attention.

    `own`: how many last tokens of sequences of LENGTHS are queries.
    """
    draw = torch.Generator().manual_seed(0)
    queries, keys = (F.pad(torch.tensor(n).cumsum(0), (1, 0)).to(device, torch.int32) for n in (own, LENGTHS))
    shapes = (sum(own), heads), (sum(LENGTHS), kv_heads), (sum(LENGTHS), kv_heads)
    rows = [torch.randn(1, n, tokens, width, generator=draw).to(device, torch.bfloat16) for tokens, n in shapes]
    mine, exact = ([x.to(dtype).requires_grad_() for x in rows] for dtype in (torch.bfloat16, torch.float32))
    gradient = torch.randn(1, sum(own), heads, width, generator=draw).to(device, torch.bfloat16)
    with torch.autocast(device.type, enabled=False):
        output = varlen_attention(mine[0], mine[1], mine[2], queries, max(LENGTHS), None, kernel, keys)
        right = _exact(exact[0], exact[1], exact[2], own)
        found = output, *torch.autograd.grad(output, mine, gradient)
        wanted = right, *torch.autograd.grad(right, exact, gradient.float())
    return max(float((f.float() - w).detach().norm() / w.detach().norm()) for f, w in zip(found, wanted, strict=True))


def _exact(query: Tensor, key: Tensor, value: Tensor, own: Sequence[int]) -> Tensor:
    """Attention of the last `own` tokens of sequences of LENGTHS by PyTorch's operations: [1, T, heads, D]."""
    alone = []
    for q, k, v in zip(query.split(own, 2), key.split(LENGTHS, 2), value.split(LENGTHS, 2), strict=True):
        n, m = q.shape[2], k.shape[2]
        seen = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
        alone.append(F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True))
    return torch.cat(alone, dim=2).transpose(1, 2)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    scaling: float | None,
    kernel: str,
    keys: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Causal attention within each sequence. [1, heads, T, D] queries, [1, kv heads, T, D] keys and values:
    [1, T, heads, D].

    `keys`: bounds of the sequences among the keys, where queries are of the last tokens of each; None: `cu_seqlens`.
    `window`: tokens that each sees, itself too; None: all before it. PyTorch's kernel computes it.
    """
    if narrower := key.shape[-1] - value.shape[-1]:  # of latent attention
        value, kernel = F.pad(value, (0, narrower)), "fa2"
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    bounds = cu_seqlens, cu_seqlens if keys is None else keys
    if window is not None or kernel == "fa2" or max(q.numel(), k.numel()) >= NEWER_NUMBERS:
        output = _flash_attention_2(q, k, v, *bounds, longest, scale, window)
    else:
        output = torch.ops.agentrl.varlen(q, k, v, *bounds, longest, scale, kernel)[0]
    return output.unsqueeze(0)[..., : v.shape[-1] - narrower]


def _flash_attention_2(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, keys: Tensor, longest: int, scale: float, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    causal = {"window_size": (-1 if window is None else window - 1, 0)}
    extra: dict[str, Any] = causal if "window_size" in PARAMETERS else {"is_causal": True}
    if "enable_gqa" in PARAMETERS:
        extra["enable_gqa"] = q.shape[1] != k.shape[1]
    else:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    kernel: Any = varlen_attn
    output: Tensor = kernel(q, k, v, cu_seqlens, keys, longest, longest, scale=scale, **extra)
    return output


# An operator of PyTorch does not break compiled graphs.
@torch.library.custom_op("agentrl::varlen", mutates_args=())
def _varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, keys: Tensor, longest: int, scale: float, kernel: str
) -> tuple[Tensor, Tensor]:
    """(output [T, heads, D], f32 log-sum-exp [heads, T]) of causal attention; k and v may have fewer heads."""
    return NEWER[kernel].forward(q, k, v, cu_seqlens, keys, longest, scale)


@_varlen.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, keys: Tensor, longest: int, scale: float, kernel: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("agentrl::varlen_backward", mutates_args=())
def _varlen_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    keys: Tensor,
    output: Tensor,
    lse: Tensor,
    longest: int,
    scale: float,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    given = gradient.contiguous(), q, k, v, cu_seqlens, keys, output, lse
    return NEWER[kernel].backward(*given, longest, scale)


@_varlen_backward.register_fake
def _(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.longest, ctx.scale, ctx.kernel = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = torch.ops.agentrl.varlen_backward(gradient, *ctx.saved_tensors, ctx.longest, ctx.scale, ctx.kernel)
    return *found, None, None, None, None, None


_varlen.register_autograd(_gradients, setup_context=_keep)
