"""The gateway alone: an agent that a person starts talks to the policy, and its ledgers are kept."""

import asyncio
import signal
from collections.abc import Callable

from agentrl.engines.engine import Sampling
from agentrl.gateway.request import Refused
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import Session
from agentrl.rollout.loops.base import Environment
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

MOST = 10_000
"""Sessions: whoever reaches the port can open them."""


class OpenGateway(Gateway):
    """Opens a session for every key that it is given."""

    def __init__(self, env: Environment, sampling: Sampling, model: str, host: str, port: int) -> None:
        super().__init__(model, host, port)
        self.env, self.sampling = env, sampling

    def find(self, key: str | None) -> Session:
        """The session with this key, or a new one. Raises Refused without a key."""
        if key is None or key in self.sessions:
            return super().find(key)
        if len(self.sessions) == MOST:
            raise Refused(f"{MOST} keys are in use: start the gateway again", "overloaded")
        trajectory = Trajectory(Row(key, [], data_source="gateway"), f"gateway/{key}", len(self.sessions))
        self.env.engine.open(trajectory.key)
        session = self.sessions[key] = Session(trajectory, self.env, self.sampling, own_sampling=True)
        return session

    def trajectories(self) -> list[Trajectory]:
        """Those with an answer."""
        sessions = list(self.sessions.values())
        for session in sessions:
            session.end("the gateway has stopped")
            self.env.engine.release(session.trajectory.key)
        return [session.trajectory for session in sessions if session.trajectory.ledgers]


async def serve(gateway: OpenGateway, ready: Callable[[str], None]) -> list[Trajectory]:
    """Serve until Ctrl-C or SIGTERM; gives the conversations. `ready` gets the address."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await gateway.start()
        ready(gateway.url)
        await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    trajectories = gateway.trajectories()
    gateway.sessions.clear()
    await gateway.stop()
    return trajectories
