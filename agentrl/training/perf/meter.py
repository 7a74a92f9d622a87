"""Measure training phases on this process's device: FLOPs per second, MFU, peak memory."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from agentrl.training.perf.flops import peak_flops

Spent = Callable[[float], None]
"""Records FLOPs."""
GIB = 2**30
TERA = 1e12


class Meter:
    """Measures phases of work that `world` processes share evenly; keeps metrics by name until `take`."""

    def __init__(self, device: torch.device, *, world: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device = device
        self.world = world
        self.clock = clock
        self.peak = peak_flops(device)
        self._figures: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[Spent]:
        """Measure the body; it reports the FLOPs of all processes together to the yielded function."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        start, operations = self._now(), [0.0]
        yield operations.append
        rate = sum(operations) / max(self._now() - start, 1e-9) / self.world
        if rate:
            self._figures[f"perf/{name}_tflops_per_gpu"] = rate / TERA
        if rate and self.peak is not None:
            self._figures[f"perf/{name}_mfu"] = rate / self.peak
        if self.device.type == "cuda":
            self._figures[f"perf/{name}_peak_cuda_gb"] = torch.cuda.max_memory_allocated(self.device) / GIB

    def take(self) -> dict[str, float]:
        """The metrics since the last call."""
        figures, self._figures = self._figures, {}
        return figures

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()
