"""The model calls tools until it answers; a simulated user, where the row has one, reacts to its answers.

Invariants:
- tool calls come first: the interaction runs only on a turn without calls;
- every call of a turn gets exactly one answer, in the order of the calls, even a malformed one or one
  too many;
- the last answer the turn limit allows is still judged by the interaction, but nothing is appended to it;
- tools are released and the interaction finalized whatever happens.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.points import agent_loop
from agentrl.engines.engine import Sampling
from agentrl.interactions import InteractionSession
from agentrl.rollout.episode import Episode
from agentrl.rollout.loops.base import AgentLoop
from agentrl.tools import ToolResult, ToolSession
from agentrl.trajectory.message import Call, Reply
from agentrl.trajectory.trajectory import Message, Outcome, ToolCallRecord, Trajectory, TurnReward


@dataclass
class Partners:
    """Whom the model talks to besides itself."""

    tools: ToolSession
    interaction: InteractionSession | None


@agent_loop("tool_agent")
class ToolAgent(AgentLoop):
    """Multi-turn conversation with tools and an optional interaction."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        row = trajectory.row
        tools = self.env.tools.open(
            trajectory.key, row.tools_kwargs, agent_data=trajectory, selection=row.tool_selection
        )
        interaction = self._interaction(trajectory)
        async with AsyncExitStack() as partings:  # a release that is cancelled does not keep the other from its turn
            if interaction is not None:
                partings.push_async_callback(interaction.finalize)
            partings.push_async_callback(tools.release)
            await self._converse(trajectory, sampling, Partners(tools, interaction))

    def _interaction(self, trajectory: Trajectory) -> InteractionSession | None:
        kwargs = trajectory.row.interaction_kwargs
        if kwargs is None or not self.env.interactions:
            return None
        return self.env.interactions.open(trajectory.key, kwargs)

    async def _converse(self, trajectory: Trajectory, sampling: Sampling, partners: Partners) -> None:
        await partners.tools.start()
        if partners.interaction is not None:
            await partners.interaction.start()
        schemas = self.env.tools.schemas(trajectory.row.tool_selection)
        episode = self.episode(trajectory, sampling, schemas)
        episode.begin()
        errors = 0
        while not episode.done:
            reply = await episode.generate()
            if episode.done:
                break
            if not reply.calls:
                await self._answered(episode, reply, partners.interaction)
                continue
            errors = await self._called(episode, reply, partners.tools, errors)
        await self._collect(trajectory, partners)

    async def _answered(self, episode: Episode, reply: Reply, interaction: InteractionSession | None) -> None:
        """The model wrote an answer: hear the simulated user, or stop."""
        if interaction is None:
            episode.finish("stop")
            return
        trajectory = episode.trajectory
        with episode.span("interaction"):
            response = await interaction.respond(trajectory.messages)
        trajectory.turn_rewards.append(TurnReward(trajectory.turns - 1, response.score, "interaction"))
        if response.stop:
            episode.finish("terminated")
            return
        if self._out_of_turns(trajectory) or trajectory.user_turns == self.env.limits.user_turns:
            episode.finish("max_turns")
            return
        trajectory.user_turns += 1
        episode.observe([{"role": "user", "content": response.text}], closed=reply.closed)

    async def _called(self, episode: Episode, reply: Reply, tools: ToolSession, errors: int) -> int:
        """The model called tools: run them together, answer in order; returns bad turns in a row."""
        if self._out_of_turns(episode.trajectory):
            episode.finish("max_turns")
            return errors
        with episode.span("tool"):
            results = await _together([self._call(tools, call, i) for i, call in enumerate(reply.calls)])
        self._record(episode.trajectory, reply.calls, results)
        failed = next((r for r in results if r.outcome is Outcome.INFRA_ERROR), None)
        if failed is not None:
            raise InfraError(failed.error or "a tool failed")
        errors = errors + 1 if all(r.outcome is Outcome.MODEL_ERROR for r in results) else 0
        if errors >= self.env.limits.consecutive_errors:
            episode.finish("max_errors")
            return errors
        messages = [_tool_message(call, result) for call, result in zip(reply.calls, results, strict=True)]
        episode.observe(messages, closed=reply.closed)
        return errors

    async def _call(self, tools: ToolSession, call: Call, position: int) -> ToolResult:
        limit = self.env.limits.parallel_calls
        if position >= limit:
            return ToolResult.model_error(f"Not run: at most {limit} tool calls a turn. Call it again.")
        if call.error is not None or call.arguments is None:
            return ToolResult.model_error(self.env.tools.shorten(call.error or "The arguments are missing."))
        return await tools.call(call.name, call.arguments)

    def _record(self, trajectory: Trajectory, calls: list[Call], results: list[ToolResult]) -> None:
        turn = trajectory.turns - 1
        for call, result in zip(calls, results, strict=True):
            trajectory.tool_calls.append(
                ToolCallRecord(
                    turn, call.name, call.arguments, result.text, result.outcome, result.seconds, result.reward
                )
            )
            if result.reward:
                trajectory.turn_rewards.append(TurnReward(turn, result.reward, "tool"))

    def _out_of_turns(self, trajectory: Trajectory) -> bool:
        limit = self.env.limits.assistant_turns
        return limit is not None and trajectory.turns >= limit

    async def _collect(self, trajectory: Trajectory, partners: Partners) -> None:
        """Take the final scores of tools and interaction while both are still alive."""
        trajectory.tool_rewards = await partners.tools.rewards()
        if partners.interaction is not None:
            trajectory.interaction_score = await partners.interaction.score()


async def _together(calls: list[Coroutine[Any, Any, ToolResult]]) -> list[ToolResult]:
    """All at once; a single one without the price of a task of its own."""
    return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)


def _tool_message(call: Call, result: ToolResult) -> Message:
    """Pictures come before the text, as verl shows them."""
    content: Any = [{"type": "image", "image": image} for image in result.images]
    content += [{"type": "video", "video": video} for video in result.videos]
    if content and result.text:
        content.append({"type": "text", "text": result.text})
    return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content or result.text}
