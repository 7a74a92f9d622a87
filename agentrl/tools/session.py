"""The tools of one trajectory.

Invariants:
- each tool has one instance, created at most once, before its first call;
- every instance whose creation has begun is released exactly once, also after timeouts, failures and cancellation, and
  the release runs to its end even when the trajectory's task is cancelled meanwhile;
- `call` does not raise when a tool fails: the outcome tells model errors from infrastructure errors.

Timeouts, retries and concurrency limits are enforced in `MethodRunner.call` (runner.py).
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from agentrl.core.errors import InfraError
from agentrl.core.json_text import whole
from agentrl.core.user_code import Cleanup, Threads
from agentrl.tools.mcp import McpServers
from agentrl.tools.mcp.session_pool import SessionPool
from agentrl.tools.mcp.task_servers import reached, runners
from agentrl.tools.response import ModelError, ToolResult, read_answer, read_number
from agentrl.tools.runner import ToolRunner
from agentrl.tools.truncation import Truncation

ToolKwargs = Mapping[str, Mapping[str, Any]]
"""create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs of one tool."""


@dataclass
class Instance:
    """The state of one tool whose creation has begun."""

    id: str = field(default_factory=lambda: uuid4().hex)
    """Not the trajectory's key: a second try has the same key, and may begin while the first still cleans up."""
    created: bool = False
    failure: InfraError | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    creating: Threads = field(default_factory=set)


@dataclass(eq=False)
class ToolSession:
    """Creates, calls and releases the tools of one trajectory. `release` belongs in a `finally`."""

    runners: Mapping[str, ToolRunner]
    """The tools this trajectory may use."""
    tools_kwargs: Mapping[str, ToolKwargs]
    agent_data: Any
    shorten: Truncation
    cleanup: Cleanup
    servers: McpServers
    pools: list[SessionPool] = field(default_factory=list)
    """MCP servers that its task brings."""
    instances: dict[str, Instance] = field(default_factory=dict)
    released: bool = False

    async def start(self) -> None:
        """Create the tools that the row has arguments for; the others come at their first call. Raises InfraError."""
        await _all(self._created(name) for name in self.tools_kwargs)

    async def add_task_servers(self, trajectory: Any) -> list[dict[str, Any]]:
        """Add the tools of the MCP servers that the trajectory's task brings; their sessions end with these tools.

        Returns their schemas. Raises InfraError.
        """
        offered, schemas = (trajectory.extra.get("task") or {}).get("mcp_servers") or {}, []
        for name, server in offered.items():
            pool = SessionPool(await reached(name, server, trajectory), self.servers.loop, 0)
            self.pools.append(pool)
            for runner in await runners(pool, self.agent_data):
                if runner.name in self.runners:
                    fix = "rename the run's tool, or leave the task out"
                    raise InfraError(f"MCP server {pool.spec.name!r}: a tool {runner.name!r} is there already: {fix}")
                runner.reported = self.servers.reported  # by all trajectories: one line for a thousand failures
                self.runners = {**self.runners, runner.name: runner}
                schemas.append(runner.schema)
        return schemas

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Carry out one call of the model's."""
        start = time.perf_counter()
        try:
            self._check(name, arguments)
            instance = await self._created(name)
            kwargs = {**self._kwargs(name, "execute"), "agent_data": self.agent_data}
            answer = await self.runners[name].call("execute", instance.id, arguments, kwargs=kwargs)
            with self.runners[name].reading("execute"):
                result = read_answer(answer, self.shorten)
        except ModelError as error:
            result = ToolResult.model_error(self.shorten(str(error)))
        except InfraError as error:
            result = ToolResult.infra_error(str(error))
        result.text = whole(result.text)  # file names, for one, come with bytes that are no text
        result.seconds = time.perf_counter() - start
        return result

    async def rewards(self) -> dict[str, float]:
        """By tool, for those created that define calc_reward. Raises InfraError."""
        names = [name for name, instance in self.instances.items() if instance.created and self.runners[name].scores]
        return dict(zip(names, await _all(self._score(name) for name in names), strict=True))

    async def release(self) -> None:
        """Release every tool whose creation was begun. Never raises; safe to call twice."""
        if self.released:
            return
        self.released = True
        if (*self.servers.pools, *self.pools) or any(self.runners[name].stateful for name in self.instances):
            await self.cleanup.run(self._release())

    def _check(self, name: str, arguments: dict[str, Any]) -> None:
        """Raises ModelError for a call of no tool, or with arguments that do not fit its schema."""
        if name not in self.runners:
            names = ", ".join(self.runners)
            known = f". The tools are: {names}." if names else "; there are no tools at all. Answer without one."
            raise ModelError(f"Error: there is no tool {name!r}{known}")
        complaint = self.runners[name].check.complaint(arguments)
        if complaint is not None:
            raise ModelError(complaint)

    async def _created(self, name: str) -> Instance:
        """The tool's instance, created by the first call; concurrent calls wait for it. Raises InfraError."""
        runner, instance = self.runners[name], self.instances.setdefault(name, Instance())
        async with instance.lock:
            if instance.failure is not None:
                raise instance.failure
            if runner.stateful and not instance.created and not self.released:
                await self._create(runner, instance)
            instance.created = True
        if self.released:
            raise InfraError(f"tool {name!r} was called after its release")
        return instance

    async def _create(self, runner: ToolRunner, instance: Instance) -> None:
        given = self._kwargs(runner.name, "create")
        # Splatted as in verl 0.4-0.6, and under one name as in later versions.
        kwargs = {**given, "create_kwargs": dict(given)}
        try:
            answer = await runner.call("create", instance.id, kwargs=kwargs, threads=instance.creating)
        except InfraError as failure:
            instance.failure = failure
            raise
        own = answer[0] if isinstance(answer, tuple) and answer else answer
        instance.id = own if isinstance(own, str) and own else instance.id

    async def _score(self, name: str) -> float:
        """The tool's score of the trajectory."""
        runner, kwargs = self.runners[name], self._kwargs(name, "calc_reward")
        answer = await runner.call("calc_reward", self.instances[name].id, kwargs=kwargs)
        if isinstance(answer, list):  # verl's search and sandbox tools give a record of their calls, which is no score
            return 0.0
        with runner.reading("calc_reward"):
            return read_number(answer)

    async def _release(self) -> None:
        await _all(
            self.runners[name].end("release", instance.id, self._kwargs(name, "release"), instance.creating)
            for name, instance in self.instances.items()
        )
        await _all(pool.leave(self.agent_data) for pool in (*self.servers.pools, *self.pools))

    def _kwargs(self, name: str, method: str) -> Mapping[str, Any]:
        return self.tools_kwargs.get(name, {}).get(f"{method}_kwargs", {})


async def _all(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run everything to its end, then raise the first failure: nothing is left running behind our back."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
