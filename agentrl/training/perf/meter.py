"""Measure training phases on this process's device: FLOPs per second, MFU, peak memory."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.perf.flops import peak_flops

GIB = 2**30
TERA = 1e12


class Meter:
    """Measures phases of work that the ranks share evenly; keeps metrics by name until `take`. A phase may come in
    parts."""

    def __init__(
        self,
        device: torch.device,
        flops: Callable[[], float],
        ranks: Ranks = ALONE,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`flops`: those of this rank's share so far."""
        self.device, self.flops, self.ranks, self.clock = device, flops, ranks, clock
        self.peak = peak_flops(device)
        self._figures: dict[str, float] = {}
        self._spent: dict[str, tuple[float, float]] = {}
        """FLOPs and seconds of each phase."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body. Collective."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        start, flops_before = self._now(), self.flops()
        yield
        before, flops = self._spent.get(name, (0.0, 0.0)), self.ranks.sum(self.flops() - flops_before)
        flops, seconds = self._spent[name] = before[0] + flops, before[1] + self._now() - start
        rate = flops / max(seconds, 1e-9) / self.ranks.world
        if rate:
            self._figures[f"perf/{name}_tflops_per_gpu"] = rate / TERA
        if rate and self.peak is not None:
            self._figures[f"perf/{name}_mfu"] = rate / self.peak
        if self.device.type == "cuda":
            peak, key = torch.cuda.max_memory_allocated(self.device) / GIB, f"perf/{name}_peak_cuda_gb"
            self._figures[key] = max(peak, self._figures.get(key, 0.0))

    def take(self) -> dict[str, float]:
        """The metrics since the last call."""
        figures, self._figures, self._spent = self._figures, {}, {}
        return figures

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()
