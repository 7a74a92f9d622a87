"""Peak memory of this process."""

import resource
import sys
from collections.abc import Mapping

GIB = 2**30


def memory_metrics(phases: Mapping[str, float] | None = None) -> dict[str, float]:
    """`perf/peak_rss_gb` and, where a GPU is in use, `perf/peak_cuda_gb` and `perf/peak_cuda_reserved_gb` (GiB).

    `phases`: figures among which there may be peaks of phases, each of which resets the counter.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    cuda = _cuda()
    if cuda:
        peaks = [value for name, value in (phases or {}).items() if name.endswith("_peak_cuda_gb")]
        cuda["perf/peak_cuda_gb"] = max([cuda["perf/peak_cuda_gb"], *peaks])
    return {"perf/peak_rss_gb": peak * unit / GIB, **cuda}


def _cuda() -> dict[str, float]:
    torch = sys.modules.get("torch")  # imported by training; other commands may not need it
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {
        "perf/peak_cuda_gb": torch.cuda.max_memory_allocated() / GIB,
        "perf/peak_cuda_reserved_gb": torch.cuda.max_memory_reserved() / GIB,
    }
