"""Counts the frames of agentrl between two calls, across tasks and threads.

A task, a callback and a thread continue the frames of the code that started them, as a reader follows them.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest

import agentrl

PACKAGE = str(Path(agentrl.__file__).parent)
STARTED_BY: ContextVar[tuple[str, ...]] = ContextVar("STARTED_BY", default=())


def frames_since(name: str) -> list[str]:
    """Names of the package's functions from the latest call of `name` down to the caller, `name` included."""
    chain = _chain()
    return list(chain[max(i for i, found in enumerate(chain) if found.endswith(name)) :])


def follow_tasks_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each task, callback of another thread and thread know the frames that started it."""
    loop = asyncio.BaseEventLoop
    create_task, call_soon_threadsafe = loop.create_task, loop.call_soon_threadsafe

    def task(self: Any, coroutine: Any, *, context: Any = None, **given: Any) -> Any:
        return create_task(self, coroutine, context=_context(context), **given)

    def callback(self: Any, function: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return call_soon_threadsafe(self, function, *args, context=_context(context))

    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def thread(self: threading.Thread) -> None:
        self.run = _started(self.run)  # type: ignore[method-assign]
        start(self)

    def submitted(self: Any, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
        return submit(self, _started(function), *args, **given)

    monkeypatch.setattr(loop, "create_task", task)
    monkeypatch.setattr(loop, "call_soon_threadsafe", callback)
    monkeypatch.setattr(threading.Thread, "start", thread)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submitted)


def _chain() -> tuple[str, ...]:
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not asyncio.Handle._run.__code__:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and not code.co_name.endswith("comp>"):
            found.append(code.co_qualname)
        frame = frame.f_back  # type: ignore[assignment]
    return (*STARTED_BY.get(), *reversed(found))


def _context(given: Any) -> Any:
    context = given or copy_context()
    context.run(STARTED_BY.set, _chain())
    return context


def _started(function: Callable[..., Any]) -> Callable[..., Any]:
    chain = _chain()

    def run(*args: Any, **given: Any) -> Any:
        STARTED_BY.set(chain)
        return function(*args, **given)

    return run
