"""Sessions of agents that agentrl did not start: `data.train_files=sessions:[HOST:]PORT`.

The journals of a group move as a whole, in one step, from `open` to `ready` and `taken/ROW`, or to `dropped`.

Invariants:
- a row keeps the sessions that it took, also after a restart; so each is trained on as often as its row: once;
- sessions are trained on when each has ended and has a turn and a reward, and dropped where their time is over before.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
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
from agentrl.gateway.standalone import ENDED, OpenGateway
from agentrl.http.serving import LOCAL
from agentrl.rollout.loops.base import AgentLoop, RolloutContext
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory
from agentrl_sandbox.guard import is_loopback

log = logging.getLogger(__name__)

PORT = 8000
TOKEN = "AGENTRL_GATEWAY_TOKEN"
EPOCH = 100  # batches
STATES = ("open", "ready", "taken", "dropped")
COMPLETE = {"turn", "reward", "end"}  # kinds of lines in the journal of a session that can be trained on


class OnlineGateway(OpenGateway):
    """Gives the sessions that are complete to the rows of the run."""

    def __init__(self, env: RolloutContext, sampling: Sampling, row: Row, program: AgentProgram) -> None:
        """`row`: has the address. Raises UserError for one that other machines reach, without a token."""
        token, (host, port) = os.environ.get(TOKEN, ""), row.extra_info["address"]
        if not (token or is_loopback(host)):
            raise UserError(f"sessions:{host}:{port}: other machines reach it: set {TOKEN}, which keys then begin with")
        config, settings = env.settings, replace(program.session, rewards=True)
        folder, timeout = Path(config.trainer.default_local_dir, "sessions"), program.timeout
        super().__init__(env, sampling, folder, host, port, token=token, settings=settings, timeout=timeout)
        self.n = config.rollout.n
        self._ready, self._taking = asyncio.Queue[Path](), asyncio.Lock()

    async def start(self) -> None:
        for state in STATES:
            (self.folder / state).mkdir(parents=True, exist_ok=True)
        for group in self.groups("ready"):
            self._ready.put_nowait(group)
        await super().start()

    def metrics(self) -> dict[str, float]:
        """Numbers of groups that are open, that wait for a row, and that were dropped."""
        return {f"online/{state}": float(len(self.groups(state))) for state in STATES if state != "taken"}

    async def take(self, trajectory: Trajectory) -> None:
        """Fill a trajectory with the session of its row: of the first group that is ready; after a restart the same."""
        row = self.folder / "taken" / trajectory.key.rpartition("/")[0].replace("/", "_")
        async with self._taking:
            if not row.exists():
                (await self._ready.get()).rename(row)
        journal = sorted(row.iterdir())[trajectory.sample]
        self.restored(journal, trajectory).end(ENDED)
        trajectory.extra["session"], trajectory.reward = journal.name, trajectory.reward or 0.0

    def changed(self, group: Path) -> None:
        """Have a row take the sessions of a group, if they are complete."""
        kinds = [{kind for line in lines(journal) for kind in line} for journal in group.iterdir()]
        if sum(found >= COMPLETE for found in kinds) >= self.n:
            self._ready.put_nowait(self._moved(group, "ready"))

    def over(self, group: Path) -> None:
        """Drop the sessions of a group, if an end does not make them complete."""
        for journal in group.iterdir():
            append(journal, {"end": "its time is over"})
        self.changed(group)
        if group.exists():
            self._moved(group, "dropped")

    def _moved(self, group: Path, state: str) -> Path:
        self.forgotten(group)
        return group.rename(self.folder / state / f"{time.time_ns()}-{group.name}")


@agent_loop("online")
class OnlineAgent(AgentLoop):
    """Takes a session that has ended."""

    uses_tools = False
    program: ClassVar[AgentProgram] = AgentProgram("online", timeout=SESSION_TIMEOUT)

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        config, shared = self.env.settings, self.env.shared
        others = trajectory.validates or "address" not in trajectory.row.extra_info
        if others or has_rollout_workers(config.trainer, config.rollout):
            fix = "set data.train_files=sessions:PORT and rollout.agent.num_workers=0"
            raise UserError(f"agent online is for training rows of sessions:PORT alone: {fix}")
        if trajectory.sample == config.rollout.n:
            raise UserError(f"algorithm.adv_estimator={config.algorithm.adv_estimator}: sessions have no greedy answer")
        self.env.engine.release(trajectory.key)  # a deterministic engine would wait for a request
        if OnlineGateway not in shared:
            shared[OnlineGateway] = OnlineGateway(self.env, sampling, trajectory.row, self.program)
            await shared[OnlineGateway].start()
            log.warning("sessions: clients reach the policy at %s", shared[OnlineGateway].url)
        with uncounted():
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
