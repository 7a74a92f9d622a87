"""The model calls tools until it answers; a simulated user, if the row has one, replies to its answers.

Invariants:
- tool calls come first: the interaction runs only on a turn without calls;
- every call of a turn gets exactly one answer, in the order of the calls; malformed and excess calls too;
- the interaction still scores the last answer that the turn limit allows, but its reply is not appended;
- tools are always released and the interaction is always finalized.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Protocol

from agentrl.core.errors import InfraError
from agentrl.core.points import agent_loop
from agentrl.engines.engine import Sampling
from agentrl.interactions import InteractionSession
from agentrl.rollout.episode import Episode, recorded
from agentrl.rollout.loops.base import AgentLoop
from agentrl.tools import ToolResult
from agentrl.trajectory.message import Call, Reply
from agentrl.trajectory.trajectory import Message, Outcome, Trajectory, TurnReward


class Tools(Protocol):
    """The tools of one trajectory, as the loop needs them: see `agentrl.tools.ToolSession`."""

    async def start(self) -> None: ...
    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult: ...
    async def rewards(self) -> dict[str, float]: ...


@agent_loop("tool_agent")
class ToolAgent(AgentLoop):
    """Multi-turn conversation with tools and an optional interaction."""

    calls_last: ClassVar[bool] = False
    """Whether the calls of the last turn are carried out, although the model does not read their answers."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        row = trajectory.row
        tools = self.env.tools.open(
            trajectory.key, row.tools_kwargs, agent_data=trajectory, selection=row.tool_selection
        )
        interaction = self._interaction(trajectory)
        async with AsyncExitStack() as stack:  # if one release is cancelled, the other still runs
            if interaction is not None:
                stack.push_async_callback(interaction.finalize)
            stack.push_async_callback(tools.release)
            schemas = [*self.prompt_tools(row, self.env.tools), *await tools.add_task_servers(trajectory)]
            await self.converse(trajectory, sampling, schemas, tools, interaction)

    def _interaction(self, trajectory: Trajectory) -> InteractionSession | None:
        kwargs = trajectory.row.interaction_kwargs
        if kwargs is None or not self.env.interactions:
            return None
        return self.env.interactions.open(trajectory.key, kwargs)

    async def converse(
        self,
        trajectory: Trajectory,
        sampling: Sampling,
        schemas: list[dict[str, Any]],
        tools: Tools,
        user: InteractionSession | None = None,
    ) -> None:
        """Go on until the model answers without a call, or a limit is reached. `schemas`: of the tools in the prompt.

        Raises InfraError."""
        await tools.start()
        if user is not None:
            await user.start()
        episode = self.episode(trajectory, sampling, schemas)
        episode.begin()
        errors = 0
        while not episode.done:
            reply = await episode.generate()
            if episode.done:
                break
            if not reply.calls:
                await self._answered(episode, reply, user)
            elif self.out_of_turns(trajectory) and not self.calls_last:
                episode.finish("max_turns")
            else:
                results = await self._run_calls(episode, reply.calls, tools)
                errors = errors + 1 if all(r.outcome is Outcome.MODEL_ERROR for r in results) else 0
                self._show_results(episode, reply, results, errors)
        # While both are still alive.
        trajectory.tool_rewards = await tools.rewards()
        if user is not None:
            trajectory.interaction_score = await user.score()

    async def _answered(self, episode: Episode, reply: Reply, interaction: InteractionSession | None) -> None:
        """After an answer: get the simulated user's reply, or stop."""
        if interaction is None:
            episode.finish("stop")
            return
        trajectory = episode.trajectory
        with recorded(trajectory, "interaction"):
            response = await interaction.respond(trajectory.messages)
        trajectory.turn_rewards.append(response.turn_reward(trajectory.turns - 1))
        if response.stop:
            episode.finish("terminated")
            return
        if self.out_of_turns(trajectory) or trajectory.user_turns == self.env.limits.user_turns:
            episode.finish("max_turns")
            return
        trajectory.user_turns += 1
        episode.observe([{"role": "user", "content": response.text}], closed=reply.closed)

    async def _run_calls(self, episode: Episode, calls: list[Call], tools: Tools) -> list[ToolResult]:
        """Run the calls of a turn concurrently. Raises InfraError where one fails."""
        with recorded(episode.trajectory, "tool"):
            running = [self._call(tools, call, i) for i, call in enumerate(calls)]
            # A single call needs no task.
            results = [await running[0]] if len(running) == 1 else await asyncio.gather(*running)
        trajectory, turn = episode.trajectory, episode.trajectory.turns - 1
        for call, result in zip(calls, results, strict=True):
            trajectory.tool_calls.append(result.record(turn, call.name, call.arguments))
            if result.reward:
                trajectory.turn_rewards.append(TurnReward(turn, result.reward, "tool"))
        failed = next((r for r in results if r.outcome is Outcome.INFRA_ERROR), None)
        if failed is not None:
            raise InfraError(failed.error or "a tool failed")
        return results

    def _show_results(self, episode: Episode, reply: Reply, results: list[ToolResult], errors: int) -> None:
        """Append the answers to a turn's calls, or stop. `errors`: bad turns in a row."""
        if self.out_of_turns(episode.trajectory):
            episode.finish("max_turns")
        elif errors >= self.env.limits.consecutive_errors:
            episode.finish("max_errors")
        else:
            messages = [_tool_message(call, result) for call, result in zip(reply.calls, results, strict=True)]
            episode.observe(messages, closed=reply.closed)

    async def _call(self, tools: Tools, call: Call, position: int) -> ToolResult:
        limit = self.env.limits.parallel_calls
        if position >= limit:
            return ToolResult.model_error(f"Not run: at most {limit} tool calls a turn. Call it again.")
        if call.error is not None or call.arguments is None:
            return ToolResult.model_error(self.env.tools.shorten(call.error or "The arguments are missing."))
        return await tools.call(call.name, call.arguments)

    def out_of_turns(self, trajectory: Trajectory) -> bool:
        """Whether the model has taken its last turn."""
        limit = self.env.limits.assistant_turns
        return limit is not None and trajectory.turns >= limit


def _tool_message(call: Call, result: ToolResult) -> Message:
    """Images come before the text, as in verl."""
    content: Any = [{"type": "image", "image": image} for image in result.images]
    content += [{"type": "video", "video": video} for video in result.videos]
    if content and result.text:
        content.append({"type": "text", "text": result.text})
    return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content or result.text}
