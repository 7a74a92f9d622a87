"""Runs trajectories, each free of the others.

Invariants:
- a failure of one trajectory costs that trajectory: it is tried again, then handed on as an infrastructure
  error, never scored and never raised; only when all of a batch failed does the batch raise;
- every key that was opened on the engine is released;
- scoring is part of a trajectory's own task, so it overlaps with the others' generation;
- the order of the result is the order of the rows, whatever finished first.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat.ledger import LedgerError
from agentrl.data.row import Row
from agentrl.errors import InfraError, UserError
from agentrl.rewards import Scorer
from agentrl.rollout.engine import Sampling
from agentrl.rollout.loops.base import AgentLoop, Environment
from agentrl.rollout.trajectory import Finish, Outcome, Trajectory

log = logging.getLogger(__name__)

OnDone = Callable[[Trajectory], None]


@dataclass
class Scheduler:
    """Turns rows into scored trajectories."""

    env: Environment
    loop_for: Callable[[Row], type[AgentLoop]]
    scorer: Scorer
    max_concurrent: int
    timeout: float
    """Wall seconds for one try of one trajectory."""
    retries: int

    async def run(
        self, rows: Sequence[Row], *, n: int, sampling: Sampling, tag: str, on_done: OnDone = lambda _: None
    ) -> list[Trajectory]:
        """`n` trajectories a row, group by group. Raises InfraError when not one of them got through."""
        limit = asyncio.Semaphore(self.max_concurrent)

        async def one(row: Row, sample: int) -> Trajectory:
            async with limit:
                trajectory = await self._persist(row, sample, f"{tag}/{row.uid}/{sample}", sampling)
            on_done(trajectory)
            return trajectory

        trajectories = await _all([one(row, sample) for row in rows for sample in range(n)])
        failed = [t for t in trajectories if t.outcome is Outcome.INFRA_ERROR]
        if failed and len(failed) == len(trajectories):
            raise InfraError(f"all {len(failed)} trajectories failed; the first: {failed[0].error}")
        return trajectories

    async def _persist(self, row: Row, sample: int, key: str, sampling: Sampling) -> Trajectory:
        trajectory = await self._try(row, sample, key, sampling)
        for _ in range(self.retries):
            if trajectory.outcome is not Outcome.INFRA_ERROR:
                break
            trajectory = await self._try(row, sample, key, sampling)
        return trajectory

    async def _try(self, row: Row, sample: int, key: str, sampling: Sampling) -> Trajectory:
        trajectory = Trajectory(row, key, sample)
        self.env.engine.open(key)
        # The one place where a trajectory's trouble is caught: engine, tools, interaction and a user's own loop
        # all run in here.
        try:
            async with asyncio.timeout(self.timeout):
                await self.loop_for(row)(self.env).run(trajectory, sampling)
            for ledger in trajectory.ledgers:
                ledger.check()
        except UserError:
            raise
        except TimeoutError:
            _fail(trajectory, "timeout", f"took longer than rollout.trajectory_timeout={self.timeout:g} s")
        except InfraError as error:
            _fail(trajectory, "error", str(error))
        except LedgerError as error:
            trajectory.extra["ledger_violation"] = str(error)
            _fail(trajectory, "error", f"ledger: {error}")
        except Exception as error:
            log.exception("trajectory %s", key)
            _fail(trajectory, "error", f"{type(error).__name__}: {error}")
        finally:
            self.env.engine.release(key)
        await self.scorer.score(trajectory)
        return trajectory


async def _all(coroutines: Sequence[Coroutine[Any, Any, Trajectory]]) -> list[Trajectory]:
    """Results in order; the first error cancels the rest and is raised bare, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _fail(trajectory: Trajectory, finish: Finish, error: str) -> None:
    trajectory.outcome = Outcome.INFRA_ERROR
    trajectory.finish = finish
    trajectory.error = error
