"""Making a CPU fast at what training and sampling do. Called by programs, never on import."""

import os
from typing import Any

import torch

from agentrl.core.cpu_cores import Host

# Relative error of a float32 product: 1e-6 in float32 arithmetic, 4e-3 in bfloat16.
EXACT = 1e-5


def tune_cpu(threads: int | None = None) -> None:
    """Set PyTorch's thread count (null: leave it) and send float32 products to oneDNN where that stays exact.

    PyTorch's default library for them, MKL, is slow on AMD: oneDNN is 1.5 to 2.5 times faster. The switch that
    chooses oneDNN also allows it bfloat16 arithmetic, which CPUs with AMX then use: this is measured, and undone.
    Products on a GPU are not touched.
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


def threads_set_by_user() -> int:
    """The number of threads that the user names in a variable; 0: none."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        number = os.environ.get(name, "").partition(",")[0].strip()
        if number.isdecimal():
            return int(number)
    return 0


def threads_of_rank(ranks: int, *, steady: bool = False) -> int:
    """Threads of each of so many processes on this machine: its idle cores, shared out, unless the user names some.

    `steady`: all cores, idle or not, so that the number, and with it the last bits of every sum, is always the same.
    """
    host = Host()
    return threads_set_by_user() or max(1, (host.allowed() if steady else host.idle()) // ranks)


def product_error() -> float:
    """Largest error of a float32 matrix product on this CPU, as set up now, relative to its largest entry."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    return float(((a @ b).double() - exact).abs().max() / exact.abs().max())
