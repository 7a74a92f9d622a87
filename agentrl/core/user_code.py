"""Runs user functions, async ones as tasks and sync ones in threads, each with a timeout.

Invariants:
- a sync function never runs on the event loop;
- `UserFunction.run` ends within its timeout plus GRACE, unless an async function blocks the event loop (blocking.py
  reports it; `in_thread` gives it its own loop and thread);
- it raises only Exceptions and our own cancellation: a `sys.exit()` in user code does not end the run.

A thread cannot be killed: a sync function that exceeds its timeout keeps its thread until it returns. It delays neither
other calls nor the end of the process (threads.py). With `interrupts`, Python code in it ends by a SystemExit, and only
C code runs on.
"""

import asyncio
import contextvars
import ctypes
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock, get_ident
from typing import Any

from agentrl.core.blocking import Call, attributed
from agentrl.core.tasks import Tasks
from agentrl.core.threads import DaemonThreads

GRACE = 1.0
"""Seconds that a cancelled function gets to clean up."""

PLAIN = "make it a plain `def`: it then runs in a thread"

Threads = set["asyncio.Future[Any]"]
"""Running threads; each is removed when it ends."""


def construct(kind: type, given: Mapping[str, Any]) -> Any:
    """Create an object of the user class `kind` with those of the `given` arguments that it takes."""
    return kind(**UserFunction(kind).fit(given))


class UserFunction:
    """A user's function or bound method."""

    interrupts = False

    def __init__(self, fn: Callable[..., Any], *, owner: str = "", fix: str = PLAIN, in_thread: bool = False) -> None:
        """`owner` ("tool 'search'") and `fix` are for warnings about a blocked event loop.

        With `in_thread`, each call of an async function gets its own thread and event loop.
        """
        self.fn = fn
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.owner = owner
        self.fix = fix
        self.in_thread = in_thread
        self.is_async = inspect.iscoroutinefunction(fn) and not in_thread
        self.workers = DaemonThreads()
        parameters = inspect.signature(fn).parameters.values()
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.names = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        taken = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        self.most = None if any_number else taken
        """Most arguments by position; None: any number."""

    def fit(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments that the function takes."""
        return {name: value for name, value in kwargs.items() if self.takes_any or name in self.names}

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether those of the arguments that the function takes are all that it needs."""
        try:
            inspect.signature(self.fn).bind(*args[: self.most], **self.fit(kwargs))
        except TypeError:
            return False
        return True

    async def run(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, timeout: float | None, threads: Threads | None = None
    ) -> Any:
        """Call the function. Raises TimeoutError after `timeout` seconds, and the errors of the function.

        A thread that still runs afterwards stays in `threads`.
        """
        call = self._call(args, kwargs, threads, timeout)
        # At once to its first wait, where Python can: a function that never waits is then done, and its caller goes on
        # without waiting for other tasks. A conversation's next request comes before the next one's tool runs.
        if sys.version_info >= (3, 12):
            task = asyncio.Task(call, loop=asyncio.get_running_loop(), eager_start=True)
        else:
            task = asyncio.create_task(call)
        in_time = task.done()
        try:
            if not in_time:
                task.add_done_callback(mark_as_seen)
                done, _ = await asyncio.wait({task}, timeout=timeout)
                in_time = bool(done)
        finally:
            if not task.done():
                task.cancel()
                # Not awaited without a limit: the function may swallow the cancellation.
                await asyncio.wait({task}, timeout=GRACE)
        if not in_time:
            raise TimeoutError(f"no answer within {timeout:g} s")
        if task.cancelled():
            # Passed on as a CancelledError it would look like our own cancellation and end more than this call.
            raise RuntimeError(f"{self.name} cancelled itself")
        return task.result()

    async def _call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], threads: Threads | None, timeout: float | None
    ) -> Any:
        try:
            if self.is_async:
                return await attributed(self.fn(*args, **kwargs), self._as_call(timeout))
            fn = partial(_in_own_loop, self.fn, timeout) if self.in_thread else self.fn
            ends = self._in_thread(fn, args, kwargs, threads)
            value, error = await (ends if self.interrupts else asyncio.shield(ends))
            if error is not None:
                raise error
            # A plain function around an async one hands back something to await.
            return await attributed(value, self._as_call(timeout)) if inspect.isawaitable(value) else value
        except SystemExit as error:
            raise RuntimeError(f"{self.name} called sys.exit()") from error

    def _as_call(self, timeout: float | None) -> Call:
        name = getattr(self.fn, "__qualname__", self.name).replace("<locals>.", "")
        return Call(f"{self.owner}: {name}" if self.owner else name, timeout, self.fix)

    def _in_thread(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], threads: Threads | None
    ) -> "asyncio.Future[tuple[Any, BaseException | None]]":
        """Start the function in a thread; the future gets (value, error)."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if threads is not None:
            threads.add(future)
            future.add_done_callback(threads.discard)
        context, lock, thread = contextvars.copy_context(), Lock(), [0]

        def work() -> None:
            thread[0] = get_ident()
            outcome = context.run(_outcome, fn, args, kwargs)
            with lock:  # a SystemExit that comes here ends the thread before it takes other work
                thread[0] = 0
            with suppress(RuntimeError):  # the loop was closed while this ran on
                loop.call_soon_threadsafe(_settle, future, outcome)

        def cancelled(ended: "asyncio.Future[Any]") -> None:
            with lock:
                if thread[0] and ended.cancelled():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread[0]), ctypes.py_object(SystemExit))

        future.add_done_callback(cancelled)
        self.workers.run(work)
        return future


class Cleanup:
    """Runs clean-up to its end even if the waiting task is cancelled."""

    def __init__(self) -> None:
        self.tasks = Tasks()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`; a cancellation stops the wait, not the work."""
        await asyncio.shield(self.tasks.start(work))

    async def close(self) -> None:
        """Wait for all running clean-ups."""
        while self.tasks:
            await asyncio.wait(self.tasks)


def _settle(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


def _outcome(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, BaseException | None]:
    """(value, error) of a call."""
    try:
        return fn(*args, **kwargs), None
    except BaseException as error:
        return None, error


def _in_own_loop(fn: Callable[..., Any], timeout: float | None, *args: Any, **kwargs: Any) -> Any:
    """Call a function; an async one is awaited in a new event loop of this thread.

    It is cancelled GRACE seconds after its timeout, so that its thread ends.
    """
    value = fn(*args, **kwargs)
    limit = None if timeout is None else timeout + GRACE
    return asyncio.run(asyncio.wait_for(value, limit)) if inspect.iscoroutine(value) else value


def mark_as_seen(task: "asyncio.Future[Any]") -> None:
    """Mark the exception of an abandoned task as seen, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
