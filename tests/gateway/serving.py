"""A gateway on a scripted engine, and the clients that speak to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.engines.engine import Sampling
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import AgentSession
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import Script, ScriptedEngine, environment, row

KEY = "sk-1"
ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
TOOL = {"type": "function", "function": ADD}


@dataclass
class Served:
    url: str
    session: AgentSession
    engine: ScriptedEngine
    gateway: Gateway

    @property
    def trajectory(self) -> Trajectory:
        return self.session.trajectory

    @property
    def openai(self) -> dict[str, str]:
        return {"base_url": f"{self.url}/v1", "api_key": "none"}


@asynccontextmanager
async def serving(script: Script, **limits: int) -> AsyncIterator[Served]:
    env, engine = environment(script, **{"model_length": 4096} | limits)
    session = AgentSession(Trajectory(row(), "k", 0), env, Sampling(256, seed=7))
    gateway = Gateway()
    async with gateway.serving(KEY, session) as url:
        yield Served(url, session, engine, gateway)
    for ledger in session.trajectory.ledgers:
        ledger.check()
