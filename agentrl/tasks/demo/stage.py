"""Plays scripted assistants against the real tools and interactions.

Invariant: in a demonstration only the assistant's turns are written by a task; what tools and users say comes from the
very code that training will run, so a warm-up never teaches a format that does not occur.
"""

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

from agentrl.containers import Container
from agentrl.containers.embedded.provider import EmbeddedProvider
from agentrl.core.errors import InfraError
from agentrl.interactions import InteractionSession, InteractionSet
from agentrl.tasks.demo.base import Script
from agentrl.tasks.plain import PlainContainer
from agentrl.tools import ToolSession, ToolSet
from agentrl.trajectory.trajectory import Message, Outcome


class Stage:
    """The tools and interactions of a task, ready for one conversation after another."""

    def __init__(self, tools: ToolSet, interactions: InteractionSet) -> None:
        self.tools = tools
        self.interactions = interactions
        self.provider = EmbeddedProvider()

    async def play(self, prompt: list[Message], extra_info: dict[str, Any], script: Script) -> list[Message]:
        """The conversation from the prompt to the script's last turn. Raises InfraError when a tool fails."""
        user = None
        async with AsyncExitStack() as partings:
            agent = SimpleNamespace(container=await self._container(extra_info, partings))
            tools = self.tools.open("demonstration", extra_info.get("tools_kwargs", {}), agent_data=agent)
            partings.push_async_callback(tools.release)
            await tools.start()
            if "interaction_kwargs" in extra_info:
                user = self.interactions.open("demonstration", extra_info["interaction_kwargs"])
                partings.push_async_callback(user.finalize)
                await user.start()
            return await _converse(list(prompt), script, tools, user)

    async def _container(self, extra_info: dict[str, Any], partings: AsyncExitStack) -> Container | None:
        """The container of a row that has one, as a run prepares it; it is removed with `partings`."""
        if "container" not in extra_info:
            return None
        task = PlainContainer(extra_info["container"])
        container = self.provider.container(task.spec)
        partings.push_async_callback(container.stop)
        await container.start()
        await task.set_up(container)
        return container


async def _converse(
    messages: list[Message], script: Script, tools: ToolSession, user: InteractionSession | None
) -> list[Message]:
    said = next(script)
    while True:
        messages.append(said)
        reply = await _call(said["tool_calls"][0], tools) if said.get("tool_calls") else await _reply(messages, user)
        if reply is None:
            return messages
        try:
            said = script.send(reply["content"])
        except StopIteration:  # the script has ended, so no user or tool answers
            return messages
        messages.append(reply)


async def _call(call: dict[str, Any], tools: ToolSession) -> Message:
    name = call["function"]["name"]
    result = await tools.call(name, call["function"]["arguments"])
    if result.outcome is Outcome.INFRA_ERROR:
        raise InfraError(result.error or f"tool {name} failed")
    return {"role": "tool", "name": name, "tool_call_id": call["id"], "content": result.text}


async def _reply(messages: list[Message], user: InteractionSession | None) -> Message | None:
    if user is None:
        return None
    reply = await user.respond(messages)
    return None if reply.stop else {"role": "user", "content": reply.text}
