"""Calls one tool with a time limit, retries and a concurrency limit, and classifies its failures.

Invariants:
- a method returns, or raises ModelError (execute only), UserError or InfraError, and nothing else;
- a timeout frees the call's slot under `max_concurrency`, even if a plain method's thread still runs. So at most
  `max_concurrency` calls count at once, and hanging threads may run beside them.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from agentrl.core.clocks import began, queued
from agentrl.core.errors import InfraError, UserError
from agentrl.core.shares import share_of
from agentrl.core.user_code import Threads, UserFunction
from agentrl.tools.arguments import ArgumentCheck
from agentrl.tools.options import IN_THREAD_FIX, ToolOptions
from agentrl.tools.response import ModelError, read_number

log = logging.getLogger(__name__)

SYNC_CALLS = 256
"""Calls at once of a tool with plain methods, each in its own thread, unless max_concurrency says otherwise."""
FIRST_BACKOFF = 0.1
"""Seconds before the first retry; doubles with each."""

METHODS = ("create", "execute", "calc_reward", "release")


class ToolRunner:
    """One tool, its compiled schema, and the limits that all trajectories share."""

    def __init__(self, tool: Any, schema: dict[str, Any], options: ToolOptions, *, closed: bool = False) -> None:
        """`closed`: arguments that the schema does not name are the model's mistake."""
        self.name: str = schema["function"]["name"]
        self.schema = schema
        self.options = options
        extra = {"additionalProperties": False} if closed else {}
        self.check = ArgumentCheck(self.name, extra | schema["function"]["parameters"])
        self.methods = {name: self._method(getattr(tool, name)) for name in METHODS}
        inherited = {name for name, method in self.methods.items() if method.fn.__qualname__ == f"BaseTool.{name}"}
        # A tool that inherits calc_reward gives no score: the inherited 0.0 is not one.
        self.scores = "calc_reward" not in inherited
        self.stateful = not {"create", "release"} <= inherited
        """Whether the tool has its own create or release."""
        self.gate = self._gate()
        self.reported: set[str] = set()

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

    async def create(self, instance_id: str, kwargs: Mapping[str, Any], threads: Threads) -> str:
        """Begin a trajectory; returns the id the tool goes by."""
        # Splatted as in verl 0.4-0.6, and under one name as in later versions.
        answer = await self._try("create", (instance_id,), {**kwargs, "create_kwargs": dict(kwargs)}, threads)
        given = answer[0] if isinstance(answer, tuple) and answer else answer
        return given if isinstance(given, str) and given else instance_id

    async def execute(self, instance_id: str, arguments: dict[str, Any], kwargs: Mapping[str, Any]) -> Any:
        """Carry out a call; returns what the tool returned. Raises ModelError where the model is to read why not."""
        if self.options.on_error == "infra":
            return await self._try("execute", (instance_id, arguments), kwargs)
        try:
            return await self._once("execute", (instance_id, arguments), kwargs)
        except (ModelError, UserError):
            raise
        except Exception as error:
            self._report("execute", error)
            raise ModelError(f"Error: {error or type(error).__name__}") from error

    async def calc_reward(self, instance_id: str, kwargs: Mapping[str, Any]) -> float:
        """The tool's score of the trajectory."""
        answer = await self._try("calc_reward", (instance_id,), kwargs)
        if isinstance(answer, list):  # verl's search and sandbox tools give a record of their calls, which is no score
            return 0.0
        try:
            return read_number(answer)
        except (TypeError, ValueError) as error:
            raise self.failure("calc_reward", error) from error

    async def release(self, instance_id: str, kwargs: Mapping[str, Any]) -> None:
        """End a trajectory. Never raises, and does not wait for a free slot: hanging calls must not delay it."""
        function = self.methods["release"]
        try:
            await function.run((instance_id,), function.fit(kwargs), timeout=self.options.timeout)
        except Exception as error:
            self._report("release", error)

    def failure(self, method: str, error: Exception) -> InfraError:
        """The error as an infrastructure error with one line to show; logs the first of its kind."""
        self._report(method, error)
        return InfraError(self._line(method, error))

    async def _try(
        self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], threads: Threads | None = None
    ) -> Any:
        for attempt in range(self.options.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_BACKOFF * 2 ** (attempt - 1))
            try:
                return await self._once(method, args, kwargs, threads)
            except UserError:
                raise
            except Exception as error:
                if isinstance(error, ModelError) and method == "execute":
                    raise
                failure = self.failure(method, error)
                failure.__cause__ = error
        raise failure

    async def _once(
        self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], threads: Threads | None = None
    ) -> Any:
        function = self.methods[method]
        async with queued(self.gate):  # the time limit starts when the call does, not while it waits for a slot
            began()
            return await function.run(args, function.fit(kwargs), timeout=self.options.timeout, threads=threads)

    def _method(self, fn: Callable[..., Any]) -> UserFunction:
        return UserFunction(fn, owner=f"tool {self.name!r}", fix=IN_THREAD_FIX, in_thread=self.options.in_thread)

    def _gate(self) -> AbstractAsyncContextManager[Any]:
        slots = self.options.max_concurrency
        if slots is None and not all(function.is_async for function in self.methods.values()):
            slots = SYNC_CALLS
        if slots is None:
            return nullcontext()
        return asyncio.Semaphore(share_of(slots, f"tool {self.name!r}: max_concurrency"))

    def _line(self, method: str, error: Exception) -> str:
        text = " ".join(str(error).split())
        return f"tool {self.name!r}: {method} failed: {type(error).__name__}: {text}"

    def _report(self, method: str, error: Exception) -> None:
        """Show the traceback once per kind of failure: a thousand trajectories may hit the same one."""
        kind = f"{method} {type(error).__name__}"
        if kind not in self.reported:
            self.reported.add(kind)
            log.warning("%s (further ones of this kind are only counted)", self._line(method, error), exc_info=error)
