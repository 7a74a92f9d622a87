"""The trainer gives memory back where the engine needs it, and only there."""

import pytest
import torch

from agentrl.runtime.shared_memory import SPARE, SharedMemory

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
    memory = SharedMemory()
    memory.leave_to_engine()
    assert gpu.emptied == 1  # nothing is known yet
    with memory.freed_by_engine():
        gpu.free += 40 * GIB
    memory.leave_to_engine()
    assert gpu.emptied == 1
    gpu.free = 40 * GIB + SPARE - 1
    memory.leave_to_engine()
    assert gpu.emptied == 2
