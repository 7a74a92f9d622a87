"""The memory of a GPU that the trainer and a server use in turns.

PyTorch keeps the memory of a step for the next one. Giving 100 GB back and taking them again costs tenths of a second a
step, so it is given back only where the server needs it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SPARE = 2 << 30
"""Bytes that stay free while a server is awake: for weights on their way, and for what it allocates later."""


class SharedMemory:
    """Knows the memory that a server frees when it sleeps, and takes when it wakes."""

    def __init__(self) -> None:
        self._freed: int | None = None

    @contextmanager
    def freed_by_engine(self) -> Iterator[None]:
        """Count the memory that is freed while the body runs: the engine goes to sleep."""
        before = _free()
        yield
        self._freed = max(_free() - before, 0)

    def leave_to_engine(self) -> None:
        """Give cached memory back where too little is free for the engine to wake."""
        if self._freed is None or _free() < self._freed + SPARE:
            torch.cuda.empty_cache()


def _free() -> int:
    return torch.cuda.mem_get_info()[0]
