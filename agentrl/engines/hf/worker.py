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
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.grouping import grouped
from agentrl.engines.hf.core import Core
from agentrl.engines.hf.runner import Request, Runner

log = logging.getLogger(__name__)

Settled = tuple[asyncio.Future[Any], Any, Exception | None]
"""A future, and its result or its error."""


class Worker:
    """Runs a `Core` in a thread."""

    def __init__(self, runner: Runner, *, deterministic: bool) -> None:
        self.core = Core(runner, deterministic=deterministic, on_end=self._ended)
        self.calls: queue.SimpleQueue[tuple[Callable[[], None], ...]] = queue.SimpleQueue()
        self.settled: list[Settled] = []
        self.stopping = False
        self.dead: InfraError | None = None
        self.thread = threading.Thread(target=self._run, name="hf-engine", daemon=True)
        self.thread.start()

    def post(self, *calls: Callable[[], None]) -> None:
        """Run calls in the worker thread soon, with no forward pass between them."""
        self.calls.put(calls)

    def submit(self, request: Request) -> None:
        """In the worker thread: start a request, whose result goes to its future."""
        if self.dead is not None:
            request.error = self.dead
            self._ended(request)
        else:
            self.core.submit(request)

    async def ask(self, call: Callable[[], Any]) -> Any:
        """Run `call` in the worker thread and wait for its result; raises what it raises."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                if self.dead is not None:
                    raise self.dead
                self.settled.append((future, call(), None))
            except Exception as error:
                self.settled.append((future, None, error))

        self.post(run)
        return await future

    def stop(self) -> None:
        """In the worker thread: end it after the present token."""
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
        while block or not self.calls.empty():
            block = False
            for call in self.calls.get():
                call()

    def _between(self) -> None:
        self._deliver()
        self._pump(block=False)

    def _die(self, error: Exception) -> None:
        self.dead = InfraError(f"the hf engine is dead: {type(error).__name__}: {error}")
        requests, self.core.active = self.core.active, []
        for request in requests:
            request.error = self.dead
            self._ended(request)

    def _ended(self, request: Request) -> None:
        if request.future is not None:
            drawn = request.tokens[request.prompt_length :]
            result = None if request.error else request.generation(drawn, self.core.version)
            self.settled.append((request.future, result, request.error))

    def _deliver(self) -> None:
        """Wake each event loop once with all results."""
        settled, self.settled = self.settled, []
        for loop, own in grouped(settled, lambda each: each[0].get_loop()).items():
            try:
                loop.call_soon_threadsafe(_set, own)
            except RuntimeError:  # the loop is closed
                log.debug("hf engine: %d results came after their event loop had closed", len(own))


def _set(settled: Sequence[Settled]) -> None:
    for future, result, error in settled:
        if future.done():  # cancelled meanwhile
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
