"""Make training and sampling fast on a CPU. Programs call it; imports never do."""

from typing import Any

import torch

# Relative error of a float32 product: 1e-6 in float32 arithmetic, 4e-3 in bfloat16.
EXACT = 1e-5

FEW, MANY = 16, 64
"""oneDNN compiles kernels for the row count of a product, and keeps them: up to 3 MB for each length of a sequence in
attention. Products of as many rows as a multiple of these need few; up to MANY rows it is a multiple of FEW."""


def tune_cpu(threads: int | None = None) -> None:
    """Set PyTorch's thread count (None: unchanged) and use oneDNN for float32 products where it stays exact.

    oneDNN is 1.5 to 2.5 times faster on AMD than MKL, PyTorch's default. The switch also allows bfloat16 arithmetic,
    which CPUs with AMX then use: the error is measured, and the switch undone. GPU products do not change.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if not torch.backends.mkldnn.is_available():
        return
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    if product_error() > EXACT:
        matmul.fp32_precision = before


def missing_rows(count: int, device: torch.device) -> int:
    """Rows to add to a product of `count` rows so that a long run has few kernels; 0 but on a CPU, and in a compiled
    block, which would be compiled for each remainder."""
    if device.type != "cpu" or torch.compiler.is_compiling():
        return 0
    return -count % (FEW if count <= MANY else MANY)


def product_error() -> float:
    """Largest error of a float32 matrix product on this CPU in its current setup, relative to its largest entry."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    return float(((a @ b).double() - exact).abs().max() / exact.abs().max())
