"""A gateway that opens a session for every key: to try an agent, and to train while agents are used.

A session's journal is a file in a group's folder, in the folder `open`. Invariant: a turn or reward is in it before its
client knows of it, so a session goes on after any end of this process.
"""

import asyncio
import contextvars
import hmac
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from agentrl.engines.engine import Sampling
from agentrl.gateway.journal import append
from agentrl.gateway.request import Body
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import AgentSession
from agentrl.gateway.settings import SessionSettings
from agentrl.http.refusals import Refused
from agentrl.http.serving import LOCAL
from agentrl.rollout.loops.base import RolloutContext
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

MAX_OPEN, MAX_SESSIONS = 16_384, 4096
"""Sessions that may be open, and those of them that are in memory."""
IDLE_SECONDS, SWEEP_SECONDS = 600.0, 15.0
"""Seconds without a request after which a session is over, and between two searches for such ones."""
MAX_REWARDS = 100
"""Rewards of a session that its client may post, for each turn and for the whole: each is a line of the journal."""
NAME = re.compile(r"[A-Za-z0-9][\w.~+=-]{0,99}(:[\w.~+=-]{1,99})?", re.ASCII)
ENDED = "its client has ended it"


class OpenGateway(Gateway):
    """Opens a session for every key; with a `token`, for every key that begins with it.

    `n`: sessions of a group; the key of one of several is GROUP:NAME.
    """

    n = 1

    def __init__(
        self,
        env: RolloutContext,
        sampling: Sampling,
        folder: Path,
        host: str = LOCAL,
        port: int = 0,
        *,
        token: str = "",
        settings: SessionSettings = SessionSettings(own_sampling=True, rewards=True),  # noqa: B008
        timeout: float = IDLE_SECONDS,
        ended: Callable[[Trajectory], None] = lambda _: None,
    ) -> None:
        """`timeout`: seconds without a request after which a session is over. `ended` gets each that has a turn."""
        super().__init__(host, port)
        self.env, self.sampling, self.folder, self.token, self.settings = env, sampling, folder, token, settings
        self.timeout, self.ended, self.guarded = timeout, ended, bool(token)
        self._sweeps: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, from where the last process was. Raises InfraError when the port is taken."""
        (self.folder / "open").mkdir(parents=True, exist_ok=True)
        now, served = time.time(), self.folder.stat().st_mtime  # `_sweep` sets it: the time since then does not count
        for journal in self.folder.glob("open/*/*"):
            last = min(journal.stat().st_mtime + now - served, now)
            os.utime(journal, (last, last))
        self._sweeps = asyncio.get_running_loop().create_task(self._sweep(), context=contextvars.Context())
        await super().start()

    async def close(self) -> None:
        """Stop; the journals stay."""
        if self._sweeps is not None:
            self._sweeps.cancel()
        self.sessions.clear()
        await self.stop()

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
        journal = self.journal(key)
        session = self.sessions.pop(journal.name, None) or self._read(journal)
        self.sessions[journal.name] = session  # in the order of their last requests
        if journal.exists():
            journal.touch()
        return session

    def posts(self) -> dict[str, Callable[[str, Body], None]]:
        return {"rewards": self._post, "end": partial(self._post, end=True)}

    def _post(self, key: str, body: Body, *, end: bool = False) -> None:
        """A reward of a session, or its end, with a reward if the body has one. Raises Refused."""
        journal = self.journal(key)
        if not journal.exists():
            raise Refused("this session is not open: it made no request, or has ended with a reward", "missing")
        session = self.find(key)
        if end and session.waiting:
            raise Refused("requests of this session wait for their answers: end it after them", "busy")
        if (body or not end) and session.rewards >= MAX_REWARDS * (1 + session.tree.turns):
            raise Refused(f"this session has had {session.rewards} rewards: end it without a further one", "busy")
        scored = session.rewards > 0
        if body or not end:
            session.reward(body)
        if end:
            session.record({"end": ENDED})
            session.close(ENDED)
        if session.closed and (end or not scored):  # no other post completes it, and `changed` reads all turns
            self.changed(journal.parent)

    def journal(self, key: str | None) -> Path:
        """The file of a key's session. Raises Refused."""
        self.check(key)
        name = (key or "").removeprefix(self.token).removeprefix("." if self.token else "") or "agent"
        if not NAME.fullmatch(name) or (":" in name) != (self.n > 1):
            form = "GROUP:NAME, as rollout.n sessions make a group" if self.n > 1 else "NAME"
            raise Refused(f"the key names no session: write {form}, of letters, digits, and . _ ~ + = -", "key")
        return self.folder / "open" / name.partition(":")[0] / name

    def groups(self, state: str = "open") -> Sequence[Path]:
        """The folders of groups in a folder."""
        return sorted((self.folder / state).iterdir())

    def changed(self, group: Path) -> None:
        """A session of a group got a reward, or has ended."""

    def over(self, group: Path) -> None:
        """The time of a group is over."""
        for journal in self.forgotten(group):
            session = self.restored(journal)
            session.end(ENDED)
            if session.trajectory.ledgers:
                self.ended(session.trajectory)
        shutil.rmtree(group)

    def restored(self, journal: Path, trajectory: Trajectory | None = None) -> AgentSession:
        """The session of a journal, which fills the trajectory."""
        own = Trajectory(Row(journal.name, [], data_source="gateway"), f"gateway/{journal.name}", 0)
        session = AgentSession(trajectory or own, self.env, self.sampling, self.settings)
        session.restore(journal)
        return session

    def forgotten(self, group: Path) -> Sequence[Path]:
        """The journals of a group; its sessions are no longer in memory."""
        journals = list(group.iterdir())
        for session in filter(None, [self.sessions.pop(journal.name, None) for journal in journals]):
            self.env.engine.release(session.trajectory.key)
        return journals

    def end_idle(self, timeout: float) -> None:
        """End the groups that have had no request for so many seconds."""
        for group in self.groups():
            journals = list(group.iterdir())
            busy = any(self.sessions[file.name].waiting for file in journals if file.name in self.sessions)
            last = max((file.stat().st_mtime for file in journals), default=0.0)
            if not busy and time.time() - last >= timeout:
                self.over(group)

    def _read(self, journal: Path) -> AgentSession:
        """A session as its journal has it, or a new one. Raises Refused."""
        idle = [name for name, session in self.sessions.items() if not session.waiting]
        if len(self.sessions) >= MAX_SESSIONS and idle:
            self.env.engine.release(self.sessions.pop(idle[0]).trajectory.key)
        elif len(self.sessions) >= MAX_SESSIONS or not (journal.exists() or len(self.groups()) < MAX_OPEN):
            raise Refused(f"{len(self.groups())} sessions are open: end some, or ask again later", "overloaded")
        group, member = journal.parent, f"{journal.parent.name}:"
        begun = {name for name, session in self.sessions.items() if session.waiting and name.startswith(member)}
        if len((begun | {file.name for file in group.glob("*")}) - {journal.name}) >= self.n:
            raise Refused(f"the group {group.name} has its {self.n} sessions (rollout.n): write another GROUP", "key")
        session = self.restored(journal)
        session.trajectory.key += f"/{time.time_ns()}"  # a later session with this key draws from other seeds
        session.record = partial(append, journal)
        return session

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self.timeout, SWEEP_SECONDS))
            self.end_idle(self.timeout)
            os.utime(self.folder)


async def serve(gateway: OpenGateway, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then all sessions are over. `ready` gets the address."""
    await gateway.start()
    ready(gateway.url)
    await stop.wait()
    gateway.end_idle(0.0)
    await gateway.close()
