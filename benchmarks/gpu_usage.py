"""Samples of a GPU's load and memory by NVML, and their means by phase of a run."""

import ctypes
import os
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

GIB = 2**30
INTERVAL = 0.02


@dataclass(frozen=True)
class Sample:
    """A moment of the GPU."""

    time: float
    """Seconds since the epoch."""
    busy: float
    """Share of NVML's last sampling period in which a kernel ran. That lasts 1/6 to 1 s: a short phase shows the
    load of its neighbours."""
    memory: float
    """GiB in use, by all processes."""


class _Nvml:
    """NVML's figures of one GPU. Raises OSError where there is none."""

    def __init__(self) -> None:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        self._library, self._device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        index = int(first) if first.isdecimal() else 0
        self._check(self._library.nvmlInit_v2())
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._device)))

    def read(self) -> Sample:
        load, memory = (ctypes.c_uint * 2)(), (ctypes.c_ulonglong * 3)()  # GPU, memory; total, free, used
        self._check(self._library.nvmlDeviceGetUtilizationRates(self._device, load))
        self._check(self._library.nvmlDeviceGetMemoryInfo(self._device, memory))
        return Sample(time.time(), load[0] / 100, memory[2] / GIB)

    def _check(self, code: int) -> None:
        if code:
            raise OSError(f"NVML returns {code}")


@dataclass
class Usage:
    """Context manager: samples the first visible GPU in a thread. Without a GPU there are no samples."""

    samples: list[Sample] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            gpu = _Nvml()
            while not self._end.wait(INTERVAL):
                self.samples.append(gpu.read())
        except OSError:
            return

    def peak(self) -> float | None:
        """GiB in use at most."""
        return max((sample.memory for sample in self.samples), default=None)


def memory_in_use() -> float:
    """GiB in use on the GPU now, by all processes; 0 without a GPU."""
    try:
        return _Nvml().read().memory
    except OSError:
        return 0.0


Marks = Sequence[tuple[float, str]]
"""When a phase began, and its name; "" between phases. In the order of time."""


def busy_by_phase(samples: Sequence[Sample], marks: Marks, begin: float, end: float) -> dict[str, float]:
    """The mean share of time in which a kernel ran, for each phase and for "step", from `begin` to `end`."""
    times, found = [time for time, _ in marks], defaultdict(list)
    for sample in samples:
        if not begin < sample.time <= end:
            continue
        found["step"].append(sample.busy)
        if at := bisect_right(times, sample.time):
            found[marks[at - 1][1] or "rest"].append(sample.busy)
    return {name: sum(shares) / len(shares) for name, shares in found.items()}
