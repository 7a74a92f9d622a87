"""Torch's process-wide settings that decide the engine's speed on a CPU.

They are global to the process, so nothing is set unless the settings ask for it.

- Threads: engine and trainer take turns, so both may use every core that is idle: see agentrl/core/cpu_cores.py.
- Precision: "high" or "medium" let torch send float32 matmuls to oneDNN instead of MKL. Where the CPU has AVX-512
  this is faster (about 2.5 times on AMD) and still exact float32; on CPUs with AMX the products are bfloat16.
  CPUs with AVX2 alone ignore the setting.
- bfloat16: without AVX-512 there is no fast bfloat16 matmul. The engine then advises float32.
"""

import torch


def configure_torch(*, threads: int | None = None, matmul_precision: str | None = None) -> None:
    """Set torch's thread count and float32 matmul precision for the whole process; None leaves one alone."""
    if threads is not None:
        torch.set_num_threads(threads)
    if matmul_precision is not None:
        torch.set_float32_matmul_precision(matmul_precision)


def slow_bfloat16(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether matmuls of `dtype` on `device` run without vector instructions for it."""
    if device.type != "cpu" or dtype != torch.bfloat16:
        return False
    return torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
