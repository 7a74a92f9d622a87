"""The event loop of a run, also where one runs already: in a notebook, or in the caller's coroutine.

Invariant: all work runs on one event loop. It runs in the calling thread, or in a helper thread while the calling
thread has a running loop, which Python cannot enter twice.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from agentrl.core.stopping import result_of

T = TypeVar("T")


class LoopRunner:
    """Runs coroutines to their end, one after another, from synchronous code."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._helper: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises what it raises; KeyboardInterrupt cancels it first."""
        if not loop_is_running():
            # Python's runner writes its task's result as text, and a rollout's would take a tenth of a second.
            result: list[T] = []
            self._runner.run(_into(result, work))
            return result[0]
        helper, self._interrupted = self._executor(), False
        try:
            return result_of(helper.submit(self._runner.run, self._noted(work)))
        except KeyboardInterrupt:
            self._interrupted = True
            self._cancel()
            helper.submit(_nothing).result()  # runs when the work has ended
            raise

    def close(self) -> None:
        """Cancel what still runs and close the loop; safe to call twice."""
        if loop_is_running():
            self._executor().submit(self._runner.close).result()
        else:
            self._runner.close()
        if self._helper is not None:
            self._helper.shutdown()
            self._helper = None

    def _executor(self) -> ThreadPoolExecutor:
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "agentrl-loop")
            self._helper.submit(_nothing).result()  # an interrupt while the thread starts would lead to a second one
        return self._helper

    async def _noted(self, work: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        try:
            if self._interrupted:
                work.close()
                raise asyncio.CancelledError
            return await work
        finally:
            self._task = None

    def _cancel(self) -> None:
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                task.get_loop().call_soon_threadsafe(task.cancel)


async def _into(result: list[T], work: Coroutine[Any, Any, T]) -> None:
    result.append(await work)


def _nothing() -> None:
    """Work that ends at once."""


def loop_is_running() -> bool:
    """Whether this thread is inside a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
