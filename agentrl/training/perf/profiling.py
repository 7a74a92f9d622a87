"""Profile chosen steps on chosen ranks: torch's profiler writes a trace, or Nsight Systems records one.

A trace is a file `step<n>-rank<r>[-<phase>].json.gz`, which chrome://tracing and Perfetto show. With tool=torch_memory
it is a `.pickle` of the allocations in GPU memory with their stack traces, which pytorch.org/memory_viz shows. With
tool=nsys the process must run under `nsys profile --capture-range=cudaProfilerApi --capture-range-end=repeat`; phases
are NVTX ranges in its reports.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from agentrl.config.schema import Profiler
from agentrl.core.errors import UserError

log = logging.getLogger(__name__)


class Profiling:
    """The profiles of one process."""

    def __init__(self, profiler: Profiler, steps: list[int] | None, folder: Path, rank: int) -> None:
        """`steps`: to profile; None: no step. `folder`: of the traces. Raises UserError."""
        chosen = profiler.all_ranks or rank in profiler.ranks
        self.steps = set(steps or []) if chosen else set()
        if self.steps and profiler.tool == "nsys" and not torch.cuda.is_available():
            raise UserError("actor.profiler.tool=nsys needs a GPU, and there is none: set actor.profiler.tool=torch")
        if self.steps and profiler.tool == "torch_memory" and not torch.cuda.is_available():
            log.warning(
                "actor.profiler.tool=torch_memory records GPU memory, and there is no GPU: no snapshot is written"
            )
            self.steps = set()
        self.profiler = profiler
        self.folder = folder
        self.rank = rank
        self._running: ExitStack | None = None

    @contextmanager
    def phase(self, step: int, name: str, *, last: bool = False) -> Iterator[None]:
        """Context of one phase of a step. The `last` phase ends the profile; with `discrete` each phase has its own."""
        if step not in self.steps:
            yield
            return
        discrete = self.profiler.discrete
        if self._running is None:
            self._running = ExitStack()
            self._running.enter_context(self._profile(f"step{step}-rank{self.rank}{f'-{name}' if discrete else ''}"))
        nvtx = torch.cuda.nvtx.range(name) if self.profiler.tool == "nsys" else nullcontext()
        with nvtx, torch.profiler.record_function(name):
            yield
        if last or discrete:
            self._running.close()
            self._running = None

    @contextmanager
    def _profile(self, name: str) -> Iterator[None]:
        """Profile the body; `name`: of the file that has the result."""
        if self.profiler.tool == "nsys":
            with torch.cuda.profiler.profile():
                yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.profiler.tool == "torch_memory":
            torch.cuda.memory._record_memory_history()
            yield
            torch.cuda.memory._dump_snapshot(str(self.folder / f"{name}.pickle"))
            torch.cuda.memory._record_memory_history(enabled=None)
            return
        with torch.profiler.profile() as running:
            yield
        running.export_chrome_trace(str(self.folder / f"{name}.json.gz"))
