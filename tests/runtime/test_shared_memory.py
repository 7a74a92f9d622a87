"""The trainer gives memory back where the engine needs it, and only there."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.runtime.local import SPARE, LocalRuntime

GIB = 1 << 30


class Gpu:
    """A GPU's free memory."""

    def __init__(self) -> None:
        self.free, self.emptied = 10 * GIB, 0

    def empty(self) -> None:
        self.emptied += 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (gpu.free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", gpu.empty)
    return gpu


def test_memory_is_given_back_where_the_engine_needs_it(gpu: Gpu) -> None:
    def fall_asleep(_: object) -> None:
        gpu.free += 40 * GIB

    runtime: Any = LocalRuntime.__new__(LocalRuntime)
    runtime._freed, runtime.sleeps, runtime.runner = None, True, SimpleNamespace(run=fall_asleep)
    runtime.rollouts = SimpleNamespace(engine=SimpleNamespace(sleep=lambda: None))
    runtime._free_memory()
    assert gpu.emptied == 1  # nothing is known yet
    runtime._halt_engine()
    runtime._free_memory()
    assert gpu.emptied == 1
    gpu.free = 40 * GIB + SPARE - 1
    runtime._free_memory()
    assert gpu.emptied == 2
