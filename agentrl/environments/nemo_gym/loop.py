"""The loops of NeMo Gym's rows: tools that are requests to the row's server, or steps of it.

Invariants:
- the calls of a turn are carried out one after the other, in the order in which they were written;
- a call that the server refuses is the model's error, and its answer is what the model reads; a server that fails, is
  gone or is late is an infrastructure error;
- only tools of the row reach the server: its other routes are none of the model's business.
"""

import time
from collections.abc import Mapping
from math import fsum
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.numbers import reward_of
from agentrl.core.points import agent_loop
from agentrl.engines.engine import Sampling
from agentrl.environments.answers import field, numbers
from agentrl.environments.entry import entry_of
from agentrl.environments.nemo_gym.client import GymSession, session
from agentrl.environments.nemo_gym.server import BEGIN, RESET, STEP, VERIFY
from agentrl.environments.nemo_gym.task import REQUEST, GymLine, response_of
from agentrl.rollout.episode import Episode, recorded
from agentrl.rollout.loops.tool_agent import ToolAgent
from agentrl.tools import ToolResult, ToolSet
from agentrl.trajectory.message import Message, Reply
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory, TurnReward

Line = Mapping[str, Any]


class ServerTools:
    """The tools of a row."""

    def __init__(self, server: GymSession, line: Line, names: list[str]) -> None:
        self.server, self.line, self.names = server, line, names

    async def start(self) -> None:
        """Begin the session. Raises InfraError and UserError."""
        await self.server.ask(BEGIN, self.line)

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Carry out a call of the model's."""
        if name not in self.names:
            return ToolResult.model_error(f"Error: there is no tool {name!r}. The tools are: {', '.join(self.names)}.")
        start = time.perf_counter()
        try:
            status, text = await self.server.post(f"/{name}", arguments)
        except InfraError as error:
            return ToolResult.infra_error(str(error))
        result = ToolResult(text) if status < 400 else ToolResult.model_error(text)
        result.seconds = time.perf_counter() - start
        return result

    async def rewards(self) -> dict[str, float]:
        """None: the server scores the whole."""
        return {}


class GymAgent(ToolAgent):
    """Base of both loops: the row's tools and the limit of turns."""

    calls_last = True  # the state that they leave decides the reward

    @classmethod
    def prompt_tools(cls, row: Row, tools: ToolSet) -> list[dict[str, Any]]:
        """The schemas of the row's tools."""
        return GymLine.of(row.extra_info["line"]).schemas

    def out_of_turns(self, trajectory: Trajectory) -> bool:
        """Whether the entry's or the run's limit of turns is reached."""
        return super().out_of_turns(trajectory) or trajectory.turns == entry_of(trajectory.row).max_steps


@agent_loop("nemo_gym")
class NemoGymAgent(GymAgent):
    """Calls tools until it answers; then the server verifies the conversation."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        row, entry = trajectory.row, entry_of(trajectory.row)
        line, schemas = row.extra_info["line"], self.prompt_tools(row, self.env.tools)
        names = [schema["function"]["name"] for schema in schemas]
        async with session(await entry.make().address(row), entry.step_timeout) as server:
            tools = ServerTools(server, line, names)
            if row.extra_info["executed"]:
                await self.converse(trajectory, sampling, schemas, tools)
            else:
                await tools.start()
                await self._answer(trajectory, sampling, schemas)
            response = response_for(trajectory, trajectory.messages[len(row.prompt) :])
            with recorded(trajectory, "verify"):
                verdict = await server.ask(VERIFY, {**line, "response": response})
        trajectory.reward = reward_of(verdict.get("reward"), server.url)
        others = {name: value for name, value in verdict.items() if name not in (*line, "reward")}
        trajectory.reward_extra |= numbers(others) | entry.metrics(trajectory.reward)

    async def _answer(self, trajectory: Trajectory, sampling: Sampling, schemas: list[dict[str, Any]]) -> None:
        """One turn, whose calls are the answer: the server compares them and does not carry them out."""
        episode = self.episode(trajectory, sampling, schemas)
        episode.begin()
        await episode.generate()
        if not episode.done:
            episode.finish("stop")


@agent_loop("nemo_gym_steps")
class SteppedAgent(GymAgent):
    """Answers, and the server replies with an observation and a reward, until it ends."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        row, entry = trajectory.row, entry_of(trajectory.row)
        episode = self.episode(trajectory, sampling, self.prompt_tools(row, self.env.tools))
        line = row.extra_info["line"]
        async with session(await entry.make().address(row), entry.step_timeout) as server:
            with recorded(trajectory, "environment"):
                observation = await server.ask(RESET, line)
            episode.begin([*GymLine.of(line).prompt, *observation_messages(observation, server)] or row.prompt)
            rewards: list[float] = []
            while not episode.done:
                reply = await episode.generate()
                with recorded(trajectory, "environment"):
                    response = response_for(trajectory, [reply.message])
                    observation = await server.ask(STEP, {**line, "response": response})
                rewards.append(reward_of(observation.get("reward"), server.url))
                self._go_on(episode, reply, observation, server)
        trajectory.turn_rewards += [TurnReward(t, r, "environment") for t, r in enumerate(rewards[:-1]) if r]
        trajectory.reward = rewards[-1] if rewards else 0.0
        info = numbers(field(observation, "info", dict, server.url))
        trajectory.reward_extra |= info | entry.metrics(fsum(rewards))

    def _go_on(self, episode: Episode, reply: Reply, observation: Mapping[str, Any], server: GymSession) -> None:
        """Show an observation to the model, or end the trajectory."""
        if observation.get("terminated") or observation.get("truncated"):
            episode.finish("terminated" if observation.get("terminated") else "max_turns")
        elif not episode.done and self.out_of_turns(episode.trajectory):
            episode.finish("max_turns")
        if not episode.done:
            messages = [*call_answers(reply, observation, server), *observation_messages(observation, server)]
            episode.observe(messages or EMPTY, closed=reply.closed)


EMPTY: list[Message] = [{"role": "user", "content": ""}]


def response_for(trajectory: Trajectory, messages: list[Message]) -> dict[str, Any]:
    """The response of which `messages` are the output."""
    ledgers = trajectory.ledgers
    sampled = sum(ledger.model_tokens for ledger in ledgers)
    params = trajectory.row.extra_info["line"][REQUEST]
    total = sum(len(ledger) for ledger in ledgers)
    return response_of(params, messages, full=trajectory.finish == "length", prompt=total - sampled, sampled=sampled)


def observation_messages(observation: Mapping[str, Any], server: GymSession) -> list[Message]:
    """An observation as a message; none without one. Raises InfraError."""
    text = field(observation, "observation", str, server.url)
    return [{"role": "user", "content": text}] if text else []


def call_answers(reply: Reply, observation: Mapping[str, Any], server: GymSession) -> list[Message]:
    """Answers to the calls of a turn; the ids of calls are those of `response_of`. Raises InfraError."""
    outputs = field(field(observation, "info", dict, server.url), "tool_outputs", list, server.url)
    given = {each.get("call_id"): each.get("output") for each in outputs if isinstance(each, dict)}
    return [
        {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": str(given[f"call_0_{i}"])}
        for i, call in enumerate(reply.calls)
        if f"call_0_{i}" in given
    ]
