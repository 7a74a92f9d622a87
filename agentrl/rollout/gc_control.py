"""Defers garbage collection during a rollout, and frees memory after it.

A full collection visits every object of the process. With the libraries of a model loaded it takes a tenth of a second
or more, and would stop all conversations every few hundred turns.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

BETWEEN = 20_000
"""New objects between two collections of young objects; one turn of all conversations exceeds Python's 700."""


@contextmanager
def deferred_collection() -> Iterator[None]:
    """Exclude existing objects from collections in this context; new garbage is still collected."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(BETWEEN, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        trim_heap()


def trim_heap() -> None:
    """Return free memory to the system. The C library keeps free blocks between used ones: for 1,024 requests with
    long prompts about 50 MiB more with every round."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
