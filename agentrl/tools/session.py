"""The tools of one trajectory.

Invariants:
- each tool has one instance, created at most once, before its first call;
- every instance whose creation has begun is released exactly once, also after timeouts, failures and cancellation, and
  the release runs to its end even when the trajectory's task is cancelled meanwhile;
- `call` does not raise when a tool fails: the outcome tells model errors from infrastructure errors.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any
from uuid import uuid4

from agentrl.core.errors import InfraError
from agentrl.core.json_text import whole
from agentrl.core.user_code import Cleanup, Threads
from agentrl.tools.response import ModelError, ToolResult, read_answer
from agentrl.tools.runner import ToolRunner
from agentrl.tools.truncation import Truncation

ToolKwargs = Mapping[str, Mapping[str, Any]]
"""create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs of one tool."""


class ToolInstance:
    """One tool within one trajectory."""

    def __init__(self, runner: ToolRunner, kwargs: ToolKwargs) -> None:
        self.runner = runner
        self.kwargs = kwargs
        # Not the trajectory's key: a second try has the same key, and may begin while the first still cleans up.
        self.id = uuid4().hex
        self.lock = asyncio.Lock()
        self.begun = False
        self.created = False
        self.released = False
        self.failure: InfraError | None = None
        self.creating: Threads = set()

    async def create(self) -> None:
        """Create the instance; concurrent calls wait for the first. Raises InfraError."""
        async with self.lock:
            if self.failure is not None:
                raise self.failure
            if self.created or self.released:
                return
            self.begun = True
            try:
                if self.runner.stateful:
                    self.id = await self.runner.create(self.id, self.kwargs.get("create_kwargs", {}), self.creating)
            except InfraError as failure:
                self.failure = failure
                raise
            self.created = True

    async def execute(self, arguments: dict[str, Any], agent_data: Any, shorten: Truncation) -> ToolResult:
        """Carry out a call; raises ModelError and InfraError."""
        await self.create()
        if self.released:
            raise InfraError(f"tool {self.runner.name!r} was called after its release")
        kwargs = {**self.kwargs.get("execute_kwargs", {}), "agent_data": agent_data}
        answer = await self.runner.execute(self.id, arguments, kwargs)
        try:
            return read_answer(answer, shorten)
        except (TypeError, ValueError) as error:
            raise self.runner.failure("execute", error) from error

    async def calc_reward(self) -> float:
        """The tool's score of the trajectory. Raises InfraError."""
        return await self.runner.calc_reward(self.id, self.kwargs.get("calc_reward_kwargs", {}))

    async def release(self) -> None:
        """Release once, if creation was begun. Never raises."""
        if self.released or not self.begun:
            return
        self.released = True
        if self.creating:
            # A create that still runs in its thread would make state after the release.
            await asyncio.wait(self.creating, timeout=self.runner.options.timeout)
        await self.runner.release(self.id, self.kwargs.get("release_kwargs", {}))


class ToolSession:
    """What an agent loop holds. `release` belongs in a `finally`."""

    def __init__(
        self,
        runners: Mapping[str, ToolRunner],
        tools_kwargs: Mapping[str, ToolKwargs],
        agent_data: Any,
        shorten: Truncation,
        cleanup: Cleanup,
    ) -> None:
        """`runners` are the tools this trajectory may use."""
        self.runners = runners
        self.tools_kwargs = tools_kwargs
        self.agent_data = agent_data
        self.shorten = shorten
        self.cleanup = cleanup
        self.instances: dict[str, ToolInstance] = {}
        self.scores: dict[str, float] | None = None

    async def start(self) -> None:
        """Create the tools that the row has arguments for; the others come at their first call. Raises InfraError."""
        await _all(self._instance(name).create() for name in self.tools_kwargs)

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Carry out one call of the model's."""
        start = time.perf_counter()
        try:
            result = await self._call(name, arguments)
        except ModelError as error:
            result = ToolResult.model_error(self.shorten(str(error)))
        except InfraError as error:
            result = ToolResult.infra_error(str(error))
        result.text = whole(result.text)  # file names, for one, come with bytes that are no text
        result.seconds = time.perf_counter() - start
        return result

    async def rewards(self) -> dict[str, float]:
        """By tool, for those created that define calc_reward. Asked once; raises InfraError."""
        if self.scores is None:
            names = [name for name, instance in self.instances.items() if instance.created and instance.runner.scores]
            values = await _all(self.instances[name].calc_reward() for name in names)
            self.scores = dict(zip(names, values, strict=True))
        return self.scores

    async def release(self) -> None:
        """Release every tool whose creation was begun. Never raises; safe to call twice."""
        held = [instance for instance in self.instances.values() if instance.begun and not instance.released]
        if any(instance.runner.stateful for instance in held):
            await self.cleanup.run(self._release())
        for instance in held:
            instance.released = True

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name not in self.runners:
            return ToolResult.model_error(self.shorten(_unknown(name, self.runners)))
        complaint = self.runners[name].check.complaint(arguments)
        if complaint is not None:
            return ToolResult.model_error(self.shorten(complaint))
        return await self._instance(name).execute(arguments, self.agent_data, self.shorten)

    def _instance(self, name: str) -> ToolInstance:
        if name not in self.instances:
            self.instances[name] = ToolInstance(self.runners[name], self.tools_kwargs.get(name, {}))
        return self.instances[name]

    async def _release(self) -> None:
        await asyncio.gather(*(instance.release() for instance in self.instances.values()))


async def _all(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run everything to its end, then raise the first failure: nothing is left running behind our back."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _unknown(name: str, runners: Mapping[str, ToolRunner]) -> str:
    if not runners:
        return f"Error: there is no tool {name!r}; there are no tools at all. Answer without one."
    return f"Error: there is no tool {name!r}. The tools are: {', '.join(runners)}."
