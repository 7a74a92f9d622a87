"""Profile chosen steps on chosen ranks: torch's profiler writes a trace, or Nsight Systems records one.

A trace is a file `step<n>-rank<r>[-<phase>].json.gz`, which chrome://tracing and Perfetto show. With tool=nsys the
process must run under `nsys profile --capture-range=cudaProfilerApi --capture-range-end=repeat`; phases are NVTX ranges
in its reports.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from agentrl.config.schema import Profiler
from agentrl.core.errors import UserError


class Profiling:
    """The profiles of one process."""

    def __init__(self, profiler: Profiler, steps: list[int] | None, folder: Path, rank: int) -> None:
        """`steps`: to profile; None: no step. `folder`: of the traces. Raises UserError."""
        chosen = profiler.all_ranks or rank in profiler.ranks
        self.steps = set(steps or []) if chosen else set()
        if self.steps and profiler.tool == "nsys" and not torch.cuda.is_available():
            raise UserError("actor.profiler.tool=nsys needs a GPU, and there is none: set actor.profiler.tool=torch")
        self.profiler = profiler
        self.folder = folder
        self.rank = rank
        self._running: Any = None

    @contextmanager
    def phase(self, step: int, name: str, *, last: bool = False) -> Iterator[None]:
        """Context of one phase of a step. The `last` phase ends the profile; with `discrete` each phase has its own."""
        if step not in self.steps:
            yield
            return
        if self._running is None:
            self._running = self._start()
        nvtx = torch.cuda.nvtx.range(name) if self.profiler.tool == "nsys" else nullcontext()
        with nvtx, torch.profiler.record_function(name):
            yield
        if last or self.profiler.discrete:
            self._stop(f"step{step}-rank{self.rank}" + (f"-{name}" if self.profiler.discrete else ""))

    def _start(self) -> Any:
        if self.profiler.tool == "nsys":
            torch.cuda.profiler.start()
            return True
        running = torch.profiler.profile()
        running.start()
        return running

    def _stop(self, name: str) -> None:
        running, self._running = self._running, None
        if self.profiler.tool == "nsys":
            torch.cuda.profiler.stop()
            return
        running.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(str(self.folder / f"{name}.json.gz"))
