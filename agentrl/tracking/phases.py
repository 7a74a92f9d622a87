"""Wall time of a step by phase, and its peak memory.

Invariant: at any moment at most one phase is charged (an inner phase pauses the outer one), so the phases of a
step never add up to more than the step.
"""

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

GIB = 2**30


def sampling_ahead(metrics: Mapping[str, float]) -> dict[str, float]:
    """Where rollouts continue while the policy trains: the share of the step in which the trainer waited for them, and
    their tokens over the whole step. {} for a step without rollouts."""
    waited, step, tokens = (metrics.get(name) for name in ("time/rollout", "time/step", "rollout/model_tokens"))
    if waited is None or tokens is None or not step:
        return {}
    return {"perf/trainer_wait_share": waited / step, "perf/rollout_tokens_per_s": tokens / step}


class Phases:
    """`with phases("rollout"): ...`, then `phases.metrics()` at the end of the step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._on_enter: Callable[[str], None] = lambda _: None
        self._clock = clock
        self._stack: list[str] = []
        self._seconds: dict[str, float] = {}
        self._tokens: Counter[str] = Counter()
        self._step_start = self._mark = clock()

    def watch(self, on_enter: Callable[[str], None]) -> None:
        """Call `on_enter(name)` when a phase starts or continues, for example `LiveView.phase`. Steps begin now."""
        self._on_enter = on_enter
        self.metrics()

    @contextmanager
    def __call__(self, name: str, *, tokens: int = 0) -> Iterator[None]:
        """Charge what runs inside to `name`; `tokens` gives a rate."""
        if tokens:
            self.count(name, tokens)
        self._charge()
        self._stack.append(name)
        self._seconds.setdefault(name, 0.0)
        self._on_enter(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()
            if self._stack:
                self._on_enter(self._stack[-1])

    def count(self, name: str, tokens: int) -> None:
        """Count tokens that a phase handled, for `perf/<phase>_tokens_per_s`."""
        self._tokens[name] += tokens

    def metrics(self) -> dict[str, float]:
        """`time/<phase>` and `time/step` in seconds since the last call, and rates; begins the next step."""
        self._charge()
        seconds, self._seconds = self._seconds, dict.fromkeys(self._stack, 0.0)
        metrics = {f"time/{name}": value for name, value in seconds.items()}
        metrics["time/step"] = self._mark - self._step_start
        tokens, self._tokens = self._tokens, Counter()
        for name, count in tokens.items():
            if seconds.get(name):
                metrics[f"perf/{name}_tokens_per_s"] = count / seconds[name]
        self._step_start = self._mark
        return metrics

    def _charge(self) -> None:
        now = self._clock()
        if self._stack:
            self._seconds[self._stack[-1]] += now - self._mark
        self._mark = now


def memory_metrics(phases: Mapping[str, float] | None = None) -> dict[str, float]:
    """`perf/peak_rss_gb` and, where a GPU is in use, `perf/peak_cuda_gb` and `perf/peak_cuda_reserved_gb` (GiB).

    `phases`: figures among which there may be peaks of phases, each of which resets the counter.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    metrics = {"perf/peak_rss_gb": peak * unit / GIB}
    torch = sys.modules.get("torch")  # imported by training; other commands may not need it
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        peaks = [value for name, value in (phases or {}).items() if name.endswith("_peak_cuda_gb")]
        metrics["perf/peak_cuda_gb"] = max([torch.cuda.max_memory_allocated() / GIB, *peaks])
        metrics["perf/peak_cuda_reserved_gb"] = torch.cuda.max_memory_reserved() / GIB
    return metrics
