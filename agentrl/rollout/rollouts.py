"""Makes the trajectories of a run: engine, environment, scorer and scheduler."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from agentrl.config.derived import group_size
from agentrl.config.schema import Config
from agentrl.core.shares import share_of
from agentrl.core.stopping import Interrupted, interruptible, result_of
from agentrl.engines.engine import Engine, Sampling
from agentrl.rewards import Scorer
from agentrl.rollout.environment import (
    check_format,
    check_scores,
    environment,
    sandbox_for,
    scored_together,
    scorer,
)
from agentrl.rollout.fire import CANDIDATES
from agentrl.rollout.garbage import trim_heap
from agentrl.rollout.loops import AgentLoop, loop_class, loop_name
from agentrl.rollout.parts import NO_PARTS, Parts
from agentrl.rollout.scheduler import UNSCORED, Scheduler
from agentrl.rollout.spread import GroupWorker, Spread
from agentrl.rollout.stream import AdmittedBatch
from agentrl.rollout.workers import OnDone
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.drops import check_drops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import VALIDATION, Trajectory

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Rollouts:
    """Makes trajectories on a started `engine`. Raises UserError when settings and plugins do not fit."""

    def __init__(
        self,
        config: Config,
        tokenizer: Any,
        engine: Engine,
        run: Run,
        judge: Any = None,
        parts: Parts = NO_PARTS,
        *,
        scored: bool = True,
    ) -> None:
        """`run` carries an awaitable out to its end, always on the same event loop. `judge`: as `scorer` says.
        `parts`: objects in place of files. `scored`: false where rewards are computed elsewhere."""
        self.config = config
        self.engine = engine
        self.run = run
        self._loops = cache(loop_class)  # asked for every trajectory: the YAML is read once
        self.sandbox = sandbox_for(config)
        self.env = environment(config, tokenizer, engine, self.sandbox, parts)
        rollout = config.rollout
        check_format(self.env, rollout.multi_turn.format)
        judging = scorer(config, tokenizer, self.sandbox, judge, parts) if scored else UNSCORED
        if isinstance(judging, Scorer):
            check_scores(self.env, judging)
        self._unscored: list[Trajectory] = []
        self.tasks = TaskRunner(rollout.containers, on_failure=config.reward.on_failure)
        self.scheduler: Scheduler | Spread = Scheduler(
            self.env,
            self._loop_for,
            judging,
            max_concurrent=share_of(rollout.max_concurrent_trajectories, "rollout.max_concurrent_trajectories"),
            timeout=rollout.trajectory_timeout,
            retries=rollout.infra_retries,
            retry_timeouts=rollout.retry_timeouts,
            tasks=self.tasks,
        )

    def spread_over(self, workers: Sequence[GroupWorker]) -> None:
        """Let `workers` make all trajectories from now on."""
        rollout, scorer = self.config.rollout, self.scheduler.scorer
        retries, here = max(1, rollout.infra_retries), scored_together(self.config)
        self.scheduler = Spread(workers, scorer, rollout.max_concurrent_trajectories, retries, scored_here=here)

    def train(self, rows: Sequence[Row], step: int, on_done: OnDone, *, scored: bool = True) -> list[Trajectory]:
        """`rollout.n` trajectories a row, group by group; without `scored`, `scoring` waits for their scores. `compare`
        is left to the caller.

        Raises TooManyDrops when all of them failed.
        """
        n, sampling = self.config.rollout.n, self._train_sampling()
        return self._trajectories(rows, n, sampling, str(step), on_done, scored=scored, compared=False)

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        """Record where the template would render conversations differently; may run in any thread."""
        for trajectory in trajectories:
            self.scheduler.compare(trajectory)

    async def stream(self, batch: AdmittedBatch) -> list[Trajectory]:
        """The same, scored, for a batch that runs beside others; a group's last one is greedy where ReMax asks for it.

        Raises TooManyDrops when all of them failed.
        """
        n, sampling, greedy = self.config.rollout.n, self._train_sampling(), self._greedy_sampling()
        made = await self.scheduler.run_beside(
            batch.rows,
            n=group_size(self.config),
            sampling=lambda job: greedy if job.sample == n else sampling,
            tag=str(batch.number),
            finished=batch.finished,
        )
        await asyncio.to_thread(trim_heap)
        return made

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Wait for outstanding scores while the body runs; all are there at its end.

        A stop request cancels the scores. Raises InfraError, Interrupted, and TooManyDrops when too many scores failed.

        The body stays in its thread; the event loop runs in another one meanwhile.
        """
        if not self.scheduler.unscored:
            yield
            return
        with ThreadPoolExecutor(1, "scores") as thread:
            scores = thread.submit(self.run, interruptible(self.scheduler.settle()))
            try:
                yield
                result_of(scores)
            except BaseException:  # the thread ends when the scores have
                self.scheduler.drop()
                raise
        late, self._unscored = self._unscored, []
        check_drops(late, self.config.rollout.max_infra_drop_share)

    def greedy(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """One scored trajectory a row, at temperature 0."""
        return self._trajectories(rows, 1, self._greedy_sampling(), f"greedy-{step}", on_done)

    def validate(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """The same with `rollout.val_kwargs`."""
        val_kwargs = self.config.rollout.val_kwargs
        sampling = replace(
            self._sampling(),
            temperature=0.0 if val_kwargs.do_sample is False else val_kwargs.temperature,
            top_p=val_kwargs.top_p,
            top_k=val_kwargs.top_k,
        )
        return self._trajectories(rows, val_kwargs.n, sampling, f"{VALIDATION}{step}", on_done)

    def prompt_length(self, row: Row) -> int:
        """Tokens of a row's first prompt, tools included."""
        schemas = self._loop_for(row).prompt_tools(row, self.env.tools)
        return len(self.env.chat.prompt(self.env.chat.see(row.prompt), schemas))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        return self.env.chat.decode(ids)

    def close(self) -> None:
        """Stop engine, tools, interactions and sandbox; if one fails, the others still stop."""
        self.run(self.end())

    async def end(self) -> None:
        """As `close`, on the event loop."""
        env = self.env
        parts = (self.sandbox, env.interactions, env.tools, self.scheduler.scorer, self.tasks, self.engine)
        async with AsyncExitStack() as stack:  # what is named last is closed first
            for part in parts:
                stack.push_async_callback(part.close)

    def _trajectories(
        self,
        rows: Sequence[Row],
        n: int,
        sampling: Sampling,
        tag: str,
        on_done: OnDone,
        *,
        scored: bool = True,
        compared: bool = True,
    ) -> list[Trajectory]:
        work = self.scheduler.run(
            rows, n=n, sampling=sampling, tag=tag, on_done=on_done, scored=scored, compared=compared
        )
        made: list[Trajectory] = self.run(self._stopping(work))
        if not scored:
            self._unscored = made
        return made

    async def _stopping(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`, which a stop request cancels; the engine then samples nothing while the run saves."""
        try:
            return await interruptible(work)
        except Interrupted:
            await self.engine.abort()
            raise

    def _train_sampling(self) -> Sampling:
        rollout = self.config.rollout
        return replace(
            self._sampling(),
            temperature=rollout.temperature if rollout.do_sample else 0.0,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            candidates=CANDIDATES if rollout.use_fire_sampling and rollout.do_sample and rollout.temperature else 0,
        )

    def _greedy_sampling(self) -> Sampling:
        return replace(self._sampling(), temperature=0.0)

    def _sampling(self) -> Sampling:
        config = self.config
        return Sampling(
            max_new_tokens=config.data.max_response_length,
            seed=config.trainer.seed,
            ignore_eos=config.rollout.ignore_eos,
        )

    def _loop_for(self, row: Row) -> type[AgentLoop]:
        agent, multi_turn = self.config.rollout.agent, self.config.rollout.multi_turn
        name = loop_name(row.agent_name, agent.default_agent_loop, multi_turn=multi_turn.enable)
        return self._loops(name, agent.agent_loop_config_path, agent.default_agent_loop)
