"""The loop of environments that ask the model themselves: a program rolls a task out against the run's gateway.

Such a kind has `program(count, turns)`, an `EnvironmentProgram`. Alone it prints `{"tasks": [messages or null, ...]}`,
or `{"refused": why}`. With the path of a socket as a further argument it answers `{"task": number, "url": ...}` with
`{"reward", "metrics", "full"}`, or with `{"error": why}`. `url` is that of an OpenAI server whose requests are recorded
token by token; `full` says that the agent had no turns left.

Invariants: the samples of a row have its task; an error of the environment is an infrastructure error.
"""

import secrets
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from agentrl.core.clocks import time_limit
from agentrl.core.errors import InfraError
from agentrl.core.numbers import reward_of
from agentrl.core.points import agent_loop
from agentrl.engines.engine import Sampling
from agentrl.environments.answers import field, numbers
from agentrl.environments.entry import EnvironmentEntry, entry_of
from agentrl.environments.worker import EnvironmentProgram, Worker, run_once
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import AgentSession
from agentrl.rollout.loops.base import AgentLoop
from agentrl.trajectory.message import Message
from agentrl.trajectory.trajectory import Trajectory


def program_of(entry: EnvironmentEntry, turns: int | None = None) -> EnvironmentProgram:
    """The program of an entry. Raises UserError."""
    count = entry.first_seed + entry.rows + entry.val_rows
    return replace(entry.make().program(count, turns), what=f"environment {entry.name}")


def tasks_of(entry: EnvironmentEntry) -> Sequence[list[Message] | None]:
    """The prompts of an entry's tasks; None for one whose conversation the environment begins. Raises UserError."""
    return list(run_once(program_of(entry)).get("tasks") or [])


@agent_loop("environment_program")
class OutsideAgent(AgentLoop):
    """Lets the environment that the row names roll out the row's task."""

    uses_tools = False

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        entry = entry_of(trajectory.row)
        session, key = AgentSession(trajectory, self.env, sampling), f"sk-{secrets.token_hex(12)}"
        gateway = self.env.shared.setdefault(Gateway, Gateway())
        async with gateway.serving(key, session) as url:
            request = {"task": trajectory.row.extra_info["number"], "url": f"{url}/v1"}
            try:
                answer = await self._asked(entry, session, request)
            except InfraError as error:
                raise session.failure or error from None  # the engine's own comes first
            finally:
                session.end("its environment has ended")
        conclude(entry, session, answer)

    async def _asked(self, entry: EnvironmentEntry, session: AgentSession, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of the entry's program, within its time. Raises InfraError."""
        key = (Worker, repr(entry))  # all trajectories of the run share it
        if key not in self.env.shared:
            self.env.shared[key] = Worker(program_of(entry, self.env.limits.assistant_turns))
        worker: Worker = self.env.shared[key]
        try:
            async with time_limit(entry.timeout) as limit:
                session.context = copy_context()
                return await worker.ask(request)
        except TimeoutError:
            if not limit.expired():
                raise
        raise InfraError(f"environment {entry.name}: a rollout took longer than its timeout of {entry.timeout:g} s")


def conclude(entry: EnvironmentEntry, session: AgentSession, answer: dict[str, Any]) -> None:
    """Set the trajectory's reward. Raises InfraError where there is none."""
    trajectory = session.trajectory
    if session.failure is not None:
        raise session.failure
    if "error" in answer:
        raise InfraError(f"environment {entry.name}: {answer['error']}")
    if not trajectory.turns:
        raise InfraError(f"environment {entry.name}: the model was not asked")
    if answer.get("full"):
        trajectory.finish = "max_turns"
    who = f"environment {entry.name}"
    trajectory.reward = reward_of(answer.get("reward"), who)
    trajectory.reward_extra |= numbers(field(answer, "metrics", dict, who)) | entry.metrics(trajectory.reward)
