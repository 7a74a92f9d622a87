"""A Triton kernel that sums rows, for CUDA tensors only; `expand` has the same in PyTorch."""

# Annotations have another meaning in Triton kernels.
# ruff: noqa: ANN001, ANN202

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4


@triton.jit
def _sums(rows, order, bounds, out, width: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    target = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    valid = column < width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(tl.load(bounds + target), tl.load(bounds + target + 1)):
        source = tl.load(order + i).to(tl.int64)
        total += tl.load(rows + source * width + column, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + target * width + column, total.to(out.dtype.element_ty), mask=valid)


def sums(rows: Tensor, order: Tensor, bounds: Tensor) -> Tensor:
    """Sum i [W] of rows [T, W]: of those at `order[bounds[i]:bounds[i + 1]]`, in float32 and in this order."""
    out = torch.empty(len(bounds) - 1, rows.shape[1], dtype=rows.dtype, device=rows.device)
    width = rows.shape[1]
    kernel: Any = _sums
    kernel[(len(out),)](rows, order, bounds, out, width=width, BLOCK=triton.next_power_of_2(width), num_warps=WARPS)
    return out
