"""FlashAttention 4 (`pip install flash-attn-4`): causal attention of packed sequences, forward and backward."""

import os
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from agentrl.core.remote_files import cache_folder

GPUS = (9, 10)
"""Major compute capabilities that it is fast on: Hopper, Blackwell."""
CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE"
"""How the names of its variables begin."""


def installed() -> bool:
    """Whether it can be imported."""
    return _package() is not None


def forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, keys: Tensor, longest: int, scale: float
) -> tuple[Tensor, Tensor]:
    """(output [T, heads, D], log-sum-exp f32 [heads, T])."""
    given = _bounds(cu_seqlens, keys, longest) | {"softmax_scale": scale, "causal": True, "return_lse": True}
    output, lse = _package()._flash_attn_fwd(q, k, v, **given)[:2]
    return output, lse.contiguous()


def backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. `given`: the output's gradient, q to keys, output, log-sum-exp, longest and scale."""
    gradient, q, k, v, cu_seqlens, keys, output, lse, longest, scale = given
    named = _bounds(cu_seqlens, keys, longest) | {"softmax_scale": scale, "causal": True}
    dq, dk, dv = _package()._flash_attn_bwd(q, k, v, output, gradient, lse, **named)[:3]
    return dq, dk, dv


def _bounds(cu_seqlens: Tensor, keys: Tensor, longest: int) -> dict[str, Any]:
    ends = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": keys}
    return ends | {"max_seqlen_q": longest, "max_seqlen_k": longest}


@cache
def _package() -> Any:
    """Its module; None where it is not installed, or where its libraries are missing."""
    try:
        if find_spec("flash_attn.cute") is None:
            return None
        _keep_compiled()
        from flash_attn.cute import interface  # type: ignore[import-not-found,unused-ignore]
    except Exception:  # another package's compiled parts
        return None
    return interface if hasattr(interface, "_flash_attn_fwd") and hasattr(interface, "_flash_attn_bwd") else None


def _keep_compiled() -> None:
    """Let it keep what it compiles in some fifteen seconds, unless the user says otherwise. It reads that at its
    import."""
    folder = cache_folder() / "flash_attention"
    with suppress(OSError):  # a folder that cannot be written
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault(f"{CACHE}_DIR", str(folder))
        os.environ.setdefault(f"{CACHE}_ENABLED", "1")
