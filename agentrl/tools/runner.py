"""Calls the methods of a user's tool or interaction with a time limit, retries and a concurrency limit.

Invariants:
- a call returns, or raises ModelError (execute only), UserError or InfraError, and nothing else;
- a timeout frees the call's slot under `max_concurrency`, even if a plain method's thread still runs. So at most
  `max_concurrency` calls count at once, and hanging threads may run in addition to them.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from agentrl.core.clocks import began, queued
from agentrl.core.errors import InfraError, UserError
from agentrl.core.shares import share_of
from agentrl.core.user_code import Threads, UserFunction
from agentrl.tools.arguments import ArgumentCheck
from agentrl.tools.examples import example_arguments
from agentrl.tools.options import IN_THREAD_FIX, ToolOptions
from agentrl.tools.response import ModelError

log = logging.getLogger(__name__)

SYNC_CALLS = 256
"""Calls at once of a tool with plain methods, each in its own thread, unless max_concurrency says otherwise."""
FIRST_BACKOFF = 0.1
"""Seconds before the first retry; doubles with each."""

METHODS = ("create", "execute", "calc_reward", "release")


class MethodRunner:
    """The methods of one user object and their limits, shared by all trajectories."""

    gate: AbstractAsyncContextManager[Any] = nullcontext()
    """Slots that calls share."""

    def __init__(self, kind: str, name: str, target: Any, methods: Sequence[str], options: ToolOptions) -> None:
        """`kind` ("tool") and `name` are for messages."""
        self.name = name
        self.owner = f"{kind} {name!r}"
        self.options = options
        made = partial(UserFunction, owner=self.owner, fix=IN_THREAD_FIX, in_thread=options.in_thread)
        self.methods = {method: made(getattr(target, method)) for method in methods}
        self.reported: set[str] = set()

    def inherits(self, method: str) -> bool:
        """Whether the method is that of BaseTool or BaseInteraction."""
        return self.methods[method].fn.__qualname__ in (f"BaseTool.{method}", f"BaseInteraction.{method}")

    async def call(self, method: str, *args: Any, kwargs: Mapping[str, Any], threads: Threads | None = None) -> Any:
        """Call a method with the arguments that it takes; a thread that exceeds the timeout stays in `threads`.

        Raises ModelError from `execute`, where the model is to read why it failed; otherwise UserError and InfraError.
        """
        function = self.methods[method]
        for attempt in range(self.options.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_BACKOFF * 2 ** (attempt - 1))
            try:
                async with queued(self.gate):  # the time limit starts when the call does, not while it waits for a slot
                    began()
                    taken, timeout = args[: function.most], self.options.timeout
                    return await function.run(taken, function.fit(kwargs), timeout=timeout, threads=threads)
            except UserError:
                raise
            except Exception as error:
                if method == "execute" and isinstance(error, ModelError):
                    raise
                failure = self.failure(method, error)
                if method == "execute" and self.options.on_error == "tell_model":
                    raise ModelError(f"Error: {error or type(error).__name__}") from error
        raise failure

    async def end(self, method: str, instance_id: str, kwargs: Mapping[str, Any], creating: Threads) -> None:
        """End an instance. Never raises, and does not wait for a free slot: hanging calls must not delay it."""
        if creating:
            # A create that still runs in its thread would make state after the release.
            await asyncio.wait(creating, timeout=self.options.timeout)
        function = self.methods[method]
        try:
            await function.run((instance_id,)[: function.most], function.fit(kwargs), timeout=self.options.timeout)
        except Exception as error:
            self.failure(method, error)

    @contextmanager
    def reading(self, method: str) -> Iterator[None]:
        """In the body, a TypeError or ValueError says that the method's answer is wrong. Raises InfraError."""
        try:
            yield
        except (TypeError, ValueError) as error:
            raise self.failure(method, error) from error

    def failure(self, method: str, error: Exception) -> InfraError:
        """The error as an infrastructure error with one line to show.

        The traceback is logged once per kind of failure: a thousand trajectories may meet the same one.
        """
        name = type(error).__name__
        line = f"{self.owner}: {method} failed: {name}: {' '.join(str(error).split())}"
        if (kind := f"{method} {name}") not in self.reported:
            self.reported.add(kind)
            log.warning("%s (further ones of this kind are only counted)", line, exc_info=error)
        failure = InfraError(line)
        failure.__cause__ = error
        return failure


class ToolRunner(MethodRunner):
    """One tool and its compiled schema."""

    def __init__(self, tool: Any, schema: dict[str, Any], options: ToolOptions, *, closed: bool = False) -> None:
        """`closed`: arguments that the schema does not name are the model's mistake."""
        super().__init__("tool", schema["function"]["name"], tool, METHODS, options)
        self.schema = schema
        extra = {"additionalProperties": False} if closed else {}
        self.check = ArgumentCheck(self.name, extra | schema["function"]["parameters"])
        # A tool that inherits calc_reward gives no score: the inherited 0.0 is not one.
        self.scores = not self.inherits("calc_reward")
        self.stateful = not (self.inherits("create") and self.inherits("release"))
        """Whether the tool has its own create or release."""
        slots = options.max_concurrency
        if slots is None and not all(function.is_async for function in self.methods.values()):
            slots = SYNC_CALLS
        if slots is not None:
            self.gate = asyncio.Semaphore(share_of(slots, f"{self.owner}: max_concurrency"))

    def example(self) -> dict[str, Any]:
        """Arguments to try the tool with: those of its config, else made up from its schema."""
        return self.options.example or example_arguments(self.schema["function"]["parameters"])

    def misfits(self, kwargs: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Row arguments that no parameter takes, as "create(balance)". None values do not count.

        (Parquet gives every row the keys of all rows, filled with None.)
        """
        return [
            f"{method}({key})"
            for method, function in self.methods.items()
            for key, value in kwargs.get(f"{method}_kwargs", {}).items()
            if value is not None and key not in function.fit({key: value})
        ]
