"""Counters and a histogram of seconds, in Prometheus' text format."""

from bisect import bisect_left
from collections.abc import Mapping

BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
HELP = {
    "agentrl_sandbox_requests_total": "Answered requests.",
    "agentrl_sandbox_jobs_total": "Jobs by how they ended: ran, busy, unavailable, infra.",
    "agentrl_sandbox_runs_total": "Programs run.",
    "agentrl_sandbox_cells_total": "CellCommand run in sessions.",
    "agentrl_sandbox_cpu_seconds_total": "CPU seconds of programs and their compilers.",
    "agentrl_sandbox_limits_hit_total": "Runs ended by a limit.",
    "agentrl_sandbox_request_seconds": "Seconds from a request to its answer.",
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters of one server. Labels come from closed sets, never from clients."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, tuple[list[int], float]] = {}

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters.setdefault(name, {})
        key = tuple(labels.items())
        counter[key] = counter.get(key, 0) + by

    def observe(self, path: str, seconds: float) -> None:
        """Add a request to the histogram."""
        buckets, total = self._histograms.get(path, ([0] * (len(BUCKETS) + 1), 0.0))
        buckets[bisect_left(BUCKETS, seconds)] += 1
        self._histograms[path] = buckets, total + seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All counters, and gauges with their present values."""
        lines: list[str] = []
        for name, counter in self._counters.items():
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} counter"]
            lines += [f"{name}{braces(labels)} {value:.12g}" for labels, value in counter.items()]
        lines += self._histogram_lines()
        for key, value in gauges.items():
            name = f"agentrl_sandbox_{key}"
            lines += [f"# HELP {name} Of the executor, at this moment.", f"# TYPE {name} gauge", f"{name} {value:.12g}"]
        return "\n".join(lines) + "\n"

    def _histogram_lines(self) -> list[str]:
        name = "agentrl_sandbox_request_seconds"
        lines = [f"# HELP {name} {HELP[name]}", f"# TYPE {name} histogram"]
        for path, (buckets, total) in self._histograms.items():
            count = 0
            for edge, number in zip([*map(str, BUCKETS), "+Inf"], buckets, strict=True):
                count += number
                lines.append(f"{name}_bucket{braces((('path', path), ('le', edge)))} {count}")
            lines += [f'{name}_sum{{path="{path}"}} {total:.6f}', f'{name}_count{{path="{path}"}} {count}']
        return lines


def braces(labels: Labels) -> str:
    """`{name="value"}`."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
