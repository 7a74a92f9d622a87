"""Sessions of agents that agentrl did not start: `data.train_files=sessions:[HOST:]PORT`.

The key of a client names its session: NAME, or GROUP:NAME where `rollout.n` sessions are compared. Its journal is
a file in a group's folder, which moves as a whole, in one step: from `open` to `ready` and `taken`, or to `dropped`.

Invariants:
- a turn or reward is in the journal before its client knows of it: a session goes on after any end of the trainer;
- a row keeps the sessions that it took, also after a restart; so each is trained on as often as its row: once;
- sessions are trained on when each has ended and has a turn and a reward, and dropped where their limit is over before.
"""

import asyncio
import contextvars
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from agentrl.config.derived import has_rollout_workers
from agentrl.config.schema import Data
from agentrl.core.clocks import uncounted
from agentrl.core.errors import UserError
from agentrl.core.points import agent_loop, row_source
from agentrl.engines.engine import Sampling
from agentrl.gateway.journal import append, lines
from agentrl.gateway.program import SESSION_TIMEOUT, AgentProgram
from agentrl.gateway.request import Body
from agentrl.gateway.session import AgentSession
from agentrl.gateway.standalone import SWEEP_SECONDS, OpenGateway
from agentrl.http.refusals import Refused
from agentrl.http.serving import LOCAL
from agentrl.rollout.loops.base import AgentLoop, RolloutContext
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory
from agentrl_sandbox.guard import is_loopback

PORT = 8000
TOKEN = "AGENTRL_GATEWAY_TOKEN"
MAX_OPEN = 16_384
"""Sessions that wait for their end or their reward."""
EPOCH = 100
"""Batches of an epoch."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}(:[\w.-]{1,64})?", re.ASCII)
STATES = ("open", "ready", "taken", "dropped")
COMPLETE = {"turn", "reward", "end"}
"""Kinds of lines in the journal of a session that can be trained on."""
ENDED = "its client has ended it"


class OnlineGateway(OpenGateway):
    """Opens a session for every key, and gives those that are complete to the rows of the run."""

    def __init__(self, env: RolloutContext, sampling: Sampling, row: Row, program: AgentProgram) -> None:
        """`row`: has the address. Raises UserError for one that other machines reach, without a token."""
        token, (host, port) = os.environ.get(TOKEN, ""), row.extra_info["address"]
        if not (token or is_loopback(host)):
            raise UserError(f"sessions:{host}:{port}: other machines reach it: set {TOKEN}, which keys then begin with")
        super().__init__(env, sampling, "policy", host, port, token=token)
        self.timeout, self.settings = program.timeout, replace(program.session, rewards=True)
        self.n = env.settings.rollout.n
        self.folder = Path(env.settings.trainer.default_local_dir, "sessions")
        self._ready, self._taking = asyncio.Queue[Path](), asyncio.Lock()
        self._sweeps: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, from where the last process was. Raises InfraError when the port is taken."""
        if self._sweeps is not None:
            return
        for state in STATES:
            (self.folder / state).mkdir(parents=True, exist_ok=True)
        for group in self._groups("ready"):
            self._ready.put_nowait(group)
        for journal in self.folder.glob("open/*/*"):
            journal.touch()  # the time without a trainer does not count
        self._sweeps = asyncio.get_running_loop().create_task(self._sweep(), context=contextvars.Context())
        await super().start()

    async def close(self) -> None:
        """Stop; what is in the folder stays."""
        if self._sweeps is not None:
            self._sweeps.cancel()
        self.sessions.clear()
        await self.stop()

    def metrics(self) -> dict[str, float]:
        """Numbers of groups that are open, that wait for a row, and that were dropped."""
        return {f"online/{state}": float(len(self._groups(state))) for state in STATES if state != "taken"}

    async def take(self, trajectory: Trajectory) -> None:
        """Fill a trajectory with the session of its row: of the first group that is ready; after a restart the same."""
        row = self.folder / "taken" / trajectory.key.rpartition("/")[0].replace("/", "_")
        async with self._taking:
            if not row.exists():
                (await self._ready.get()).rename(row)
        journal = sorted(row.iterdir())[trajectory.sample]
        session = AgentSession(trajectory, self.env, self.sampling, self.settings)
        session.restore(journal)
        session.end(ENDED)
        trajectory.extra["session"], trajectory.reward = journal.name, trajectory.reward or 0.0

    def posts(self) -> dict[str, Callable[[str, Body], None]]:
        return {"rewards": self._post, "end": partial(self._post, end=True)}

    def _post(self, key: str, body: Body, *, end: bool = False) -> None:
        """A reward of a session, or its end, with a reward if the body has one. Raises Refused."""
        journal = self._journal(self._name(key))
        if not journal.exists():
            raise Refused("this session is not open: it made no request, or has ended with a reward", "missing")
        session = self.find(key)
        if end and session.waiting:
            raise Refused("requests of this session wait for their answers: end it after them", "busy")
        if body or not end:
            session.reward(body)
        if end:
            session.record({"end": ENDED})
            session.close(ENDED)
        self._settle(journal.parent)

    def find(self, key: str | None) -> AgentSession:
        session = super().find(key)
        self._journal(self._name(key)).touch()
        return session

    def end_idle(self) -> None:
        """End the sessions whose time is over; drop groups that are not complete then."""
        for group in self._groups("open"):
            journals = list(group.iterdir())
            busy = any(self.sessions[file.name].waiting for file in journals if file.name in self.sessions)
            changed = max((file.stat().st_mtime for file in journals), default=0.0)
            if busy or time.time() - changed < self.timeout:
                continue
            for journal in journals:
                append(journal, {"end": "its time is over"})
            if not self._settle(group):
                self._move(group, "dropped")

    def _settle(self, group: Path) -> bool:
        """Have rows take the sessions of a group, if they are complete."""
        kinds = [{kind for line in lines(journal) for kind in line} for journal in group.iterdir()]
        if sum(found >= COMPLETE for found in kinds) < self.n:
            return False
        self._ready.put_nowait(self._move(group, "ready"))
        return True

    def _groups(self, state: str) -> list[Path]:
        return sorted((self.folder / state).iterdir())

    def _move(self, group: Path, state: str) -> Path:
        for journal in group.iterdir():
            if journal.name in self.sessions:
                self._end(journal.name, "")
        return group.rename(self.folder / state / f"{time.time_ns()}-{group.name}")

    def _journal(self, name: str) -> Path:
        """The file of a session. Raises Refused."""
        if not NAME.fullmatch(name) or (":" in name) != (self.n > 1):
            form = "GROUP:NAME, as rollout.n sessions make a group" if self.n > 1 else "NAME"
            raise Refused(f"the key names no session: write {form}, of letters, digits, and . _ -", "key")
        return self.folder / "open" / name.partition(":")[0] / name

    def _new(self, name: str) -> AgentSession:
        journal = self._journal(name)
        if not journal.exists() and len(self._groups("open")) >= MAX_OPEN:
            raise Refused(f"{MAX_OPEN} sessions are open: end some", "overloaded")
        journal.parent.mkdir(exist_ok=True)
        journal.touch()
        trajectory = Trajectory(Row(name, []), f"sessions/{name}", 0)
        session = AgentSession(trajectory, self.env, self.sampling, self.settings)
        session.restore(journal)
        session.record = lambda line: append(journal, line)
        return session

    def _end(self, name: str, why: str) -> None:
        """Forget a session: its journal has it."""
        self.env.engine.release(self.sessions.pop(name).trajectory.key)
        del self._seen[name]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self.timeout, SWEEP_SECONDS))
            self.end_idle()


@agent_loop("online")
class OnlineAgent(AgentLoop):
    """Takes a session that has ended."""

    uses_tools = False
    program: ClassVar[AgentProgram] = AgentProgram("online", timeout=SESSION_TIMEOUT)

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        config, shared = self.env.settings, self.env.shared
        if trajectory.validates or has_rollout_workers(config.trainer, config.rollout):
            raise UserError("sessions: is for data.train_files alone, and for rollout.agent.num_workers=0")
        if trajectory.sample == config.rollout.n:
            raise UserError(f"algorithm.adv_estimator={config.algorithm.adv_estimator}: sessions have no greedy answer")
        self.env.engine.release(trajectory.key)  # a deterministic engine would wait for a request
        if OnlineGateway not in shared:
            shared[OnlineGateway] = OnlineGateway(self.env, sampling, trajectory.row, self.program)
        with uncounted():
            await shared[OnlineGateway].start()
            await shared[OnlineGateway].take(trajectory)


@row_source("sessions", scored=True)
def session_rows(argument: str, *, data: Data) -> Sequence[Row]:
    """Rows that sessions fill. Raises UserError for what is no address."""
    host, _, port = argument.rpartition(":")
    if not re.fullmatch("[0-9]{0,5}", port):
        raise UserError(f"sessions:{argument}: write sessions:PORT, or sessions:HOST:PORT")
    info = {"address": (host or LOCAL, int(port or PORT))}
    prompt = [{"role": "user", "content": "(the first request of a session)"}]
    uids = (f"sessions:{i}" for i in range(EPOCH * data.train_batch_size))
    return [Row(uid, prompt, "sessions", extra_info=info, agent_name="online") for uid in uids]
