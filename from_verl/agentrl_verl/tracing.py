"""verl's tracing, timing and registries of things that agentrl finds without: they cost nothing and keep nothing."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def rollout_trace_op(fn: Decorated) -> Decorated:
    """Decorates what verl would trace; agentrl records every call by itself."""
    return fn


@contextmanager
def rollout_trace_attr(*_: Any, **__: Any) -> Iterator[None]:
    """Does nothing."""
    yield


@contextmanager
def simple_timer(name: str, timing_raw: dict[str, float], *_: Any, **__: Any) -> Iterator[None]:
    """Add the seconds that the body takes to `timing_raw[name]`."""
    start = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - start


def tqbridge(*_: Any, **__: Any) -> Callable[[Decorated], Decorated]:
    """Decorates what verl may give batches of its transfer queue."""
    return lambda fn: fn


def register_tool(name: str) -> Callable[[type], type]:
    """verl's registry of tool classes; agentrl finds them by class_name."""
    return lambda kind: kind


def get_event_loop() -> asyncio.AbstractEventLoop:
    """The running loop, or a new one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.new_event_loop()
