"""The thread that runs the forward passes, and its queue of calls.

Invariants:
- only this thread uses `Core`: other threads post calls, which run between two forward passes;
- the results of a step wake the event loop once, for any number of requests;
- when the thread dies of a bug, all requests end with InfraError, and so does every later call.
"""

import asyncio
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.engines.engine import Generation
from agentrl.engines.hf.core import Core
from agentrl.engines.hf.runner import Request, Runner

log = logging.getLogger(__name__)

Settle = Callable[[], None]


class Worker:
    """Runs a `Core` in a thread."""

    def __init__(self, runner: Runner, *, deterministic: bool) -> None:
        self.core = Core(runner, deterministic=deterministic, on_end=self._ended)
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.waiting: dict[Request, asyncio.Future[Generation]] = {}
        self.settled: list[tuple[asyncio.AbstractEventLoop, Settle]] = []
        self.stopping = False
        self.dead: InfraError | None = None
        self.thread = threading.Thread(target=self._run, name="hf-engine", daemon=True)
        self.thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the worker thread soon."""
        self.calls.put(call)

    def submit(self, request: Request, future: asyncio.Future[Generation]) -> None:
        """In the worker thread: start a request, whose result goes to `future`."""
        self.waiting[request] = future
        if self.dead is not None:
            request.error = self.dead
            self._ended(request)
        else:
            self.core.submit(request)

    def cancel(self, request: Request) -> None:
        """In the worker thread: drop the result."""
        if self.waiting.pop(request, None) is not None and not request.done:
            self.core.cancel(request)

    async def ask(self, call: Callable[[], Any]) -> Any:
        """Run `call` in the worker thread and wait for its result; raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def run() -> None:
            try:
                if self.dead is not None:
                    raise self.dead
                result = call()
            except Exception as error:
                self.settled.append((loop, lambda e=error: _set(future, None, e)))  # type: ignore[misc]
            else:
                self.settled.append((loop, lambda: _set(future, result, None)))

        self.post(run)
        return await future

    def stop(self) -> None:
        """End the thread after the present token."""
        self.post(self._stop)

    def _stop(self) -> None:
        self.stopping = True
        self.core.shut(InfraError("the hf engine was closed"))

    def _run(self) -> None:
        while not self.stopping:
            try:
                self._pump(block=not self.core.ready)
                if self.core.ready and not self.stopping:
                    self.core.step(self._between)
            except Exception as error:
                log.exception("hf engine: the worker failed")
                self._die(error)
            self._deliver()

    def _pump(self, *, block: bool) -> None:
        """Run the posted calls; with `block`, wait for the first."""
        if block:
            self.calls.get()()
        while not self.calls.empty():
            self.calls.get()()

    def _between(self) -> None:
        self._deliver()
        self._pump(block=False)

    def _die(self, error: Exception) -> None:
        self.dead = InfraError(f"the hf engine is dead: {type(error).__name__}: {error}")
        self.core.active.clear()
        for request in list(self.waiting):
            request.error = self.dead
            self._ended(request)

    def _ended(self, request: Request) -> None:
        future = self.waiting.pop(request, None)
        if future is None:
            return
        result = None if request.error else request.generation(self.core.version)
        self.settled.append((future.get_loop(), lambda: _set(future, result, request.error)))

    def _deliver(self) -> None:
        """Wake each event loop once with all results."""
        settled, self.settled = self.settled, []
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[Settle]] = defaultdict(list)
        for loop, settle in settled:
            by_loop[loop].append(settle)
        for loop, settles in by_loop.items():
            try:
                loop.call_soon_threadsafe(run_all, settles)
            except RuntimeError:  # the loop is closed
                log.debug("hf engine: %d results came after their event loop had closed", len(settles))


def run_all(calls: list[Callable[[], None]]) -> None:
    """Run the calls in order."""
    for call in calls:
        call()


def _set(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
