"""RenderCache during a rollout: when it is searched for garbage, and that it is given back.

A full collection walks every object of the process. With a model's libraries loaded that takes a tenth of a second or
more, in which no conversation goes on; one comes every few hundred turns.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

BETWEEN = 20_000
"""New objects between two collections of young ones; Python's own 700 is less than one turn of all conversations."""


@contextmanager
def deferred_collection() -> Iterator[None]:
    """What lives already is not looked at within; garbage made within is still found."""
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
    """Give free memory back to the system. The C library keeps what lies between live segments: of 1,024 requests with
    long prompts some 50 MiB a round, more with every round."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
