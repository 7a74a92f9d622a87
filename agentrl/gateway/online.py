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


class OnlineGateway(OpenGateway):
    """Opens a session for every key, and gives those that are complete to the rows of the run."""

    def __init__(self, env: RolloutContext, sampling: Sampling, row: Row, program: AgentProgram) -> None:
        """`row`: has the address. Raises UserError for one that other machines reach, without a token."""
        token, host, port = os.environ.get(TOKEN, ""), row.extra_info["host"], row.extra_info["port"]
        if not (token or is_loopback(host)):
            raise UserError(f"sessions:{host}:{port}: other machines reach it: set {TOKEN}, which keys then begin with")
        super().__init__(env, sampling, "policy", host, port, token=token)
        self.program, self.n = program, env.settings.rollout.n
        self.open, self.ready, self.taken, self.dropped = (
            Path(env.settings.trainer.default_local_dir, "sessions", state) for state in STATES
        )
        self._queue, self._taking = asyncio.Queue[Path](), asyncio.Lock()
        self._sweeps: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, from where the last process was. Raises InfraError when the port is taken."""
        if self._sweeps is not None:
            return
        for folder in (self.open, self.ready, self.taken, self.dropped):
            folder.mkdir(parents=True, exist_ok=True)
        for group in sorted(self.ready.iterdir()):
            self._queue.put_nowait(group)
        for journal in self.open.glob("*/*"):
            journal.touch()  # the time without a trainer does not count
        self._sweeps = asyncio.get_running_loop().create_task(self._sweep(), context=contextvars.Context())
        await super().start()

    async def close(self) -> None:
        """Stop; what is in the folders stays."""
        if self._sweeps is not None:
            self._sweeps.cancel()
        self.sessions.clear()
        await self.stop()

    def metrics(self) -> dict[str, float]:
        """Numbers of groups of sessions in each state."""
        states = {"open": self.open, "ready": self.ready, "dropped": self.dropped}
        return {f"online/{name}": float(len(os.listdir(folder))) for name, folder in states.items()}

    async def take(self, trajectory: Trajectory) -> None:
        """Fill a trajectory with the session of its row: the first complete ones, and after a restart the same."""
        row = self.taken / trajectory.key.rpartition("/")[0].replace("/", "_")
        async with self._taking:  # in the order of the rows
            if not row.exists():
                (await self._queue.get()).rename(row)
        journal = sorted(row.iterdir())[trajectory.sample]
        session = AgentSession(trajectory, self.env, self.sampling, rewardable=True)
        session.restore(journal)
        session.end("its client has ended it")
        trajectory.extra["session"], trajectory.reward = journal.name, trajectory.reward or 0.0

    def posts(self) -> dict[str, Callable[[str, Body], None]]:
        return {"rewards": self._reward, "end": self._finish}

    def _reward(self, key: str, body: Body) -> None:
        name = self._name(key)
        if not self._journal(name).exists():
            raise Refused(
                f"session {name[:64]} is not open: its reward came too late, or it made no request", "missing"
            )
        self.find(key).reward(body)
        self._settle(self._journal(name).parent)

    def _finish(self, key: str, body: Body) -> None:
        """End a session, with its reward if the body has one."""
        session = self.find(key)
        if session.waiting:
            raise Refused("requests of this session wait for their answers: end it after them", "busy")
        if body:
            session.reward(body)
        session.record({"end": "its client has ended it"})
        session.close("its client has ended it")
        self._settle(self._journal(self._name(key)).parent)

    def find(self, key: str | None) -> AgentSession:
        session = super().find(key)
        self._journal(self._name(key)).touch()
        return session

    def end_idle(self) -> None:
        """End the sessions whose time is over; drop groups that are not complete then."""
        for group in list(self.open.iterdir()):
            journals = list(group.iterdir())
            busy = any(self.sessions[file.name].waiting for file in journals if file.name in self.sessions)
            changed = max((file.stat().st_mtime for file in journals), default=0.0)
            if busy or time.time() - changed < self.program.timeout:
                continue
            for journal in journals:
                append(journal, {"end": "its time is over"})
            if not self._settle(group):
                self._move(group, self.dropped)

    def _settle(self, group: Path) -> bool:
        """Have rows take the sessions of a group, if they are complete."""
        done = [_kinds(journal) >= {"turn", "reward", "end"} for journal in group.iterdir()]
        if sum(done) < self.n:
            return False
        self._queue.put_nowait(self._move(group, self.ready))
        return True

    def _move(self, group: Path, state: Path) -> Path:
        for journal in group.iterdir():
            if journal.name in self.sessions:
                self._end(journal.name, "")
        return group.rename(state / f"{time.time_ns():020}-{group.name}")

    def _journal(self, name: str) -> Path:
        """The file of a session. Raises Refused."""
        if not NAME.fullmatch(name) or (":" in name) != (self.n > 1):
            form = "GROUP:NAME, as rollout.n sessions make a group" if self.n > 1 else "NAME"
            raise Refused(f"the key names no session: write {form}, of letters, digits, and . _ -", "key")
        return self.open / name.partition(":")[0] / name

    def _new(self, name: str) -> AgentSession:
        journal = self._journal(name)
        if not journal.exists() and len(os.listdir(self.open)) >= MAX_OPEN:
            raise Refused(f"{MAX_OPEN} sessions are open: end some", "overloaded")
        journal.parent.mkdir(exist_ok=True)
        journal.touch()
        trajectory, own = Trajectory(Row(name, []), f"sessions/{name}", 0), self.program.own_sampling
        session = AgentSession(trajectory, self.env, self.sampling, own_sampling=own, rewardable=True)
        session.restore(journal)
        session.record = lambda line: append(journal, line)
        return session

    def _end(self, name: str, why: str) -> None:
        """Forget a session: its journal has it."""
        self.env.engine.release(self.sessions.pop(name).trajectory.key)
        del self._seen[name]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self.program.timeout, SWEEP_SECONDS))
            self.end_idle()


def _kinds(journal: Path) -> set[str]:
    """Kinds of the lines in a journal."""
    return {kind for line in lines(journal) for kind in line}


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
    info = {"host": host or LOCAL, "port": int(port or PORT)}
    prompt = [{"role": "user", "content": "(the first request of a session)"}]
    uids = (f"sessions:{i}" for i in range(EPOCH * data.train_batch_size))
    return [Row(uid, prompt, "sessions", extra_info=info, agent_name="online") for uid in uids]
