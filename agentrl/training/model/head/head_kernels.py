"""Triton kernels over a chunk of logits: softmax statistics of each row, and the gradient, written over the logits.

Forward reads the logits once; backward reads and writes them once, in float32 registers. PyTorch's operations take
eight passes over float32 copies. For CUDA tensors only; `chunked` has the same in PyTorch.
"""

# Annotations have another meaning in Triton kernels.
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8


@triton.jit
def _row_statistics(  # type: ignore[no-untyped-def]
    logits, targets, lse, logprob, entropy, scale, vocabulary: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * vocabulary
    top = -float("inf")
    total = 0.0
    weighted = 0.0
    for first in range(0, vocabulary, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(start + column, mask=column < vocabulary, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(top, tl.max(x, 0))
        p = tl.exp(x - higher)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(p, 0)
        weighted = weighted * shrink + tl.sum(tl.where(p > 0, p * x, 0.0), 0)
        top = higher
    norm = top + tl.log(total)
    chosen = tl.load(start + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(lse + row, norm)
    tl.store(logprob + row, chosen - norm)
    tl.store(entropy + row, norm - weighted / total)


@triton.jit
def _logits_gradient(  # type: ignore[no-untyped-def]
    logits, targets, lse, entropy, grad_logprobs, grad_entropy, scale, vocabulary: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * vocabulary
    norm, spread, target = tl.load(lse + row), tl.load(entropy + row), tl.load(targets + row)
    one, other = tl.load(grad_logprobs + row), tl.load(grad_entropy + row)
    for first in range(0, vocabulary, BLOCK):
        column = first + tl.arange(0, BLOCK)
        valid = column < vocabulary
        x = tl.load(start + column, mask=valid, other=-float("inf")).to(tl.float32) * scale - norm
        p = tl.exp(x)
        # d entropy / d logit_j = -p_j (log p_j + entropy)
        gradient = -p * one - tl.where(p > 0, other * p * (x + spread), 0.0)
        gradient = tl.where(column == target, gradient + one, gradient) * scale
        tl.store(start + column, gradient.to(logits.dtype.element_ty), mask=valid)


def row_statistics(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """(log of the denominator, log-prob of the target, entropy) of softmax(scale * logits [C, V]), f32 [C] each."""
    lse = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    logprob, entropy = torch.empty_like(lse), torch.empty_like(lse)
    kernel: Any = _row_statistics
    kernel[(len(logits),)](
        logits, targets, lse, logprob, entropy, scale, vocabulary=logits.shape[1], BLOCK=BLOCK, num_warps=WARPS
    )
    return lse, logprob, entropy


def logits_gradient(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    grad_logprobs: Tensor,
    grad_entropy: Tensor | None,
    scale: float,
) -> Tensor:
    """Gradient with respect to the logits [C, V], which it overwrites, from those of log-prob and entropy [C]."""
    one = grad_logprobs.contiguous()
    other = torch.zeros_like(lse) if grad_entropy is None else grad_entropy.contiguous()
    kernel: Any = _logits_gradient
    kernel[(len(logits),)](
        logits, targets, lse, entropy, one, other, scale, vocabulary=logits.shape[1], BLOCK=BLOCK, num_warps=WARPS
    )
    return logits
