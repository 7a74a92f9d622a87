"""The loop of environments: an observation, the model's action, a step, until it is over.

Invariants:
- the samples of a row begin from its seed;
- a step's reward is on the turn that acted; the last one of a side is its final reward;
- an invalid action is the model's error: it reads the answer and goes on; an exception or a late answer of the
  environment is an infrastructure error;
- the environment always ends, also when the trajectory is cancelled.
"""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from agentrl.core.points import agent_loop
from agentrl.engines.engine import Sampling
from agentrl.environments.answers import Observation
from agentrl.environments.entry import EnvironmentEntry, entry_of
from agentrl.environments.process import EnvironmentProcess, RunningEnvironment
from agentrl.rollout.episode import Episode, recorded
from agentrl.rollout.loops.base import AgentLoop
from agentrl.tools.arguments import ArgumentCheck
from agentrl.trajectory.message import Call, Message, Reply, system_message, text_of
from agentrl.trajectory.trajectory import Finish, Outcome, ToolCallRecord, Trajectory, TurnReward

BEFORE = -1
"""Stands for the time before a side's first turn."""


@agent_loop("environment")
class EnvironmentAgent(AgentLoop):
    """Plays the environment that the row names."""

    uses_tools = False

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        entry = entry_of(trajectory.row)
        process = self.env.shared.setdefault((EnvironmentProcess, repr(entry)), EnvironmentProcess(entry))
        async with process.open() as environment:
            await Play(self, trajectory, sampling, entry, environment).run()


@dataclass
class Side:
    """A side of the policy: its conversation, and its rewards by turn."""

    episode: Episode
    reply: Reply | None = None
    answers: list[Message] = field(default_factory=list)
    """Answers to the calls of its last turn."""
    earned: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    turn: int = BEFORE
    """Number of its last turn."""

    def earn(self, reward: float) -> None:
        """Put a reward on its last turn."""
        self.earned[self.turn].append(reward)

    def begin(self, turn: int) -> None:
        """Its next turn has this number; rewards before its first are on its first."""
        self.earned[turn] += self.earned.pop(BEFORE, [])
        self.turn = turn

    @property
    def total(self) -> float:
        """Its return."""
        return fsum(reward for rewards in self.earned.values() for reward in rewards)


@dataclass(eq=False)
class Play:
    """One trajectory in its environment."""

    loop: AgentLoop
    trajectory: Trajectory
    sampling: Sampling
    entry: EnvironmentEntry
    environment: RunningEnvironment
    sides: dict[int, Side] = field(default_factory=dict)
    tools: dict[str, Any] = field(default_factory=dict)
    """Schemas of the arguments of tools, by name."""
    system: str | None = None
    invalid: int = 0
    """Turns in a row with nothing but invalid actions."""

    async def run(self) -> None:
        """Play to the end, and set the rewards."""
        with recorded(self.trajectory, "environment"):
            observation = await self.environment.call("reset", self.trajectory.row.extra_info["seed"])
        several, self.system = len(observation.sides) > 1, observation.system or self.entry.system
        self.tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in observation.tools}
        for number in observation.sides:
            episode = self.loop.episode(
                self.trajectory, self.sampling, observation.tools, side=number if several else None
            )
            self.sides[number] = Side(episode)
        self._earn(observation)
        while not observation.done:
            side = self.sides[observation.side]
            self._show(side, observation.text)
            if side.episode.done:  # no room for an answer
                side.earn(self.entry.unfinished)
                break
            observation = await self._act(side)
            if why := self._limit(side, observation):
                side.episode.finish(why)
                break
        else:
            self.trajectory.finish = "max_turns" if observation.truncated else "terminated"
        self._set_rewards(several=several)

    def _show(self, side: Side, text: str) -> None:
        """Append an observation to the conversation of a side."""
        message: Message = {"role": "user", "content": text}
        if side.reply is not None:
            side.episode.observe(side.answers or [message], closed=side.reply.closed)
            return
        side.episode.begin([*system_message(self.system), message])

    async def _act(self, side: Side) -> Observation:
        """A turn of the model's, and the steps that it asks for: one for each call of a tool, or one for its text."""
        side.reply = await side.episode.generate()
        side.begin(self.trajectory.turns - 1)
        side.answers, invalid = [], True
        calls: Sequence[Call | None] = side.reply.calls or [None]
        for call in calls:
            observation = await self._step(side, call, text_of(side.reply.message))
            invalid = invalid and observation.invalid
            if call is not None:
                about: Message = {"role": "tool", "name": call.name, "tool_call_id": call.id}
                side.answers.append({**about, "content": observation.text})
            if observation.done:
                break
        self.invalid = self.invalid + 1 if invalid else 0
        return observation

    async def _step(self, side: Side, call: Call | None, text: str) -> Observation:
        """The step of a call of the model's or, without one, of its text."""
        name, action = (self.entry.name, text) if call is None else (call.name, call.arguments)
        start, complaint = time.monotonic(), self._complaint(call)
        observation = Observation(complaint or "", invalid=True)
        if complaint is None:
            with recorded(self.trajectory, "environment"):
                written = text if call is None else json.dumps({"name": name, "arguments": action})
                observation = await self.environment.call("step", written)
        self._earn(observation)
        if observation.invalid and self.entry.invalid_reward:
            side.earn(self.entry.invalid_reward)
        outcome = Outcome.MODEL_ERROR if observation.invalid else Outcome.OK
        record = ToolCallRecord(side.turn, name, action, observation.text, outcome, time.monotonic() - start)
        record.reward = fsum(side.earned[side.turn])
        self.trajectory.tool_calls.append(record)
        return observation

    def _complaint(self, call: Call | None) -> str | None:
        """The model's mistake in a call, worded for it."""
        if call is None or call.error is not None:
            return call.error if call else None
        if call.name not in self.tools:
            return f"Error: there is no tool {call.name!r}. The tools are: {', '.join(self.tools)}."
        return ArgumentCheck(call.name, self.tools[call.name]).complaint(call.arguments)

    def _earn(self, observation: Observation) -> None:
        """Put rewards on the last turns of their sides; those before a side's first turn on its first."""
        for number, reward in observation.rewards.items():
            if number in self.sides:
                self.sides[number].earn(reward)

    def _limit(self, side: Side, observation: Observation) -> Finish | None:
        """Why the trajectory ends although the environment would go on; None: it does not."""
        if observation.done:
            return None
        limits, turns = self.loop.env.limits, self.trajectory.turns
        if side.episode.done or self.invalid >= limits.consecutive_errors:
            side.earn(self.entry.unfinished)
            return self.trajectory.finish if side.episode.done else "max_errors"
        return "max_turns" if turns in (self.entry.max_steps, limits.assistant_turns) else None

    def _set_rewards(self, *, several: bool) -> None:
        trajectory, numbers = self.trajectory, sorted(self.sides)
        finals = {number: self._final(self.sides[number]) for number in numbers}
        trajectory.reward = finals[numbers[0]]
        trajectory.reward_extra |= self.entry.metrics(self.sides[numbers[0]].total)
        if several:
            trajectory.side_rewards = [finals.get(number, 0.0) for number in range(numbers[-1] + 1)]
            trajectory.reward_extra |= {f"return_{number}": self.sides[number].total for number in numbers}

    def _final(self, side: Side) -> float:
        """The reward of a side's last turn; those of its earlier turns go to the trajectory."""
        earned = {turn: fsum(rewards) for turn, rewards in side.earned.items()}
        final = earned.pop(side.turn, 0.0)
        self.trajectory.turn_rewards += [TurnReward(turn, r, "environment") for turn, r in earned.items() if r]
        return final
