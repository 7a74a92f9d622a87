"""The gateway alone: an agent that a person starts talks to the policy, and its conversations are kept."""

import asyncio
import hmac
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from agentrl.engines.engine import Sampling
from agentrl.gateway.server import LOCAL, Gateway
from agentrl.gateway.session import AgentSession
from agentrl.gateway.settings import SessionSettings
from agentrl.http.refusals import Refused
from agentrl.rollout.loops.base import RolloutContext
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

MAX_SESSIONS = 4096
"""Concurrent sessions: a new one ends the one that has waited longest, first of those without an answer."""
IDLE_SECONDS = 600.0
"""Seconds without a request after which a conversation has ended."""
SWEEP_SECONDS = 15.0
"""Seconds between two searches for idle conversations."""


class OpenGateway(Gateway):
    """Opens a session for every key; with a `token`, for every key that begins with it.

    `ended` gets each conversation with an answer as it ends: after `IDLE_SECONDS`, or with the server.
    """

    def __init__(
        self,
        env: RolloutContext,
        sampling: Sampling,
        model: str,
        host: str = LOCAL,
        port: int = 0,
        *,
        token: str = "",
        ended: Callable[[Trajectory], None] = lambda _: None,
    ) -> None:
        super().__init__(model, host, port)
        self.env, self.sampling, self.token, self.ended = env, sampling, token, ended
        self.guarded = bool(token)
        self._seen: dict[str, float] = {}
        """`time.monotonic()` of each session's last request."""

    def check(self, key: str | None) -> None:
        """Raises Refused for a request without a key, or whose key does not begin with the token."""
        start = f"{self.token}." if self.token else ""
        given = f"{key or ''}."[: len(start)]
        if key is None or not hmac.compare_digest(given.encode(), start.encode()):
            wanted = f"use the base URL {self.url}/s/KEY/v1, or KEY as the API key"
            what = "the request names no rollout" if key is None else "the key does not begin with the server's token"
            raise Refused(f"{what}: {wanted}{', KEY being TOKEN.NAME' if start else ''}", "key")

    def find(self, key: str | None) -> AgentSession:
        """The session with this key, or a new one. Raises Refused."""
        self.check(key)
        name = self._name(key)
        if name not in self.sessions:
            self._open(name)
        self.sessions[name] = self.sessions.pop(name)  # in the order of their last requests
        self._seen[name] = time.monotonic()
        return self.sessions[name]

    def end_idle(self) -> None:
        """End the conversations that have had no request for too long."""
        for name, session in list(self.sessions.items()):
            if session.waiting:
                self._seen[name] = time.monotonic()
            elif time.monotonic() - self._seen[name] > IDLE_SECONDS:
                self._end(name, f"it had no request for {IDLE_SECONDS:g} s")

    def end(self) -> None:
        """End all conversations."""
        for name in list(self.sessions):
            self._end(name, "the gateway has stopped")

    def _name(self, key: str | None) -> str:
        return (key or "").removeprefix(self.token).removeprefix("." if self.token else "") or "agent"

    def _open(self, name: str) -> None:
        if len(self.sessions) >= MAX_SESSIONS:
            idle = [other for other, session in self.sessions.items() if not session.waiting]
            if not idle:
                raise Refused(f"{MAX_SESSIONS} conversations wait for an answer: ask again later", "overloaded")
            self._end(
                min(idle, key=lambda other: bool(self.sessions[other].trajectory.ledgers)), "others need its room"
            )
        self.sessions[name] = self._new(name)

    def _new(self, name: str) -> AgentSession:
        trajectory = Trajectory(Row(name, [], data_source="gateway"), f"gateway/{name}", len(self.sessions))
        self.env.engine.open(trajectory.key)
        return AgentSession(trajectory, self.env, self.sampling, SessionSettings(own_sampling=True))

    def _end(self, name: str, why: str) -> None:
        session = self.sessions.pop(name)
        del self._seen[name]
        session.end(why)
        self.env.engine.release(session.trajectory.key)
        if session.trajectory.ledgers:
            self.ended(session.trajectory)


async def serve(gateway: OpenGateway, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM. `ready` gets the address."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await gateway.start()
        ready(gateway.url)
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), SWEEP_SECONDS)
            gateway.end_idle()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    gateway.end()
    await gateway.stop()
