"""Makes the trajectories of a run: engine, context, scorer and scheduler."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import cache, cached_property
from inspect import iscoroutinefunction
from typing import Any

from agentrl.config.derived import group_size, records_experts
from agentrl.config.schema import Config
from agentrl.config.schema.data import ValSet
from agentrl.config.schema.marks import FILTERS
from agentrl.core.errors import InfraError
from agentrl.core.shares import share_of
from agentrl.core.stopping import Interrupted, StopRequest, result_of
from agentrl.engines.engine import Engine, Sampling
from agentrl.engines.teachers import ServerTeacher
from agentrl.rewards.scorer import Scorer
from agentrl.rollout.async_sampling import AsyncSampling
from agentrl.rollout.batch_scheduler import BatchScheduler, OnDone
from agentrl.rollout.building import check_format, check_scores, rollout_context, sandbox_for, scored_together, scorer
from agentrl.rollout.cache_watch import CacheWatch
from agentrl.rollout.first_token import CANDIDATES
from agentrl.rollout.gc_control import trim_heap
from agentrl.rollout.loops import AgentLoop, loop_class, loop_name
from agentrl.rollout.scheduler import Scheduler
from agentrl.rollout.stream import AdmittedBatch, RolloutFuture
from agentrl.rollout.teachers import RowTeachers
from agentrl.rollout.template_check import record_mismatches
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.rollout.worker_scheduler import GroupWorker, WorkerScheduler
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.drops import check_drops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import VALIDATION, Outcome, Trajectory

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Carries a coroutine out to its end, always on the same event loop."""


class Rollouts:
    """Rows in, finished trajectories out, group by group. Raises UserError when settings and plugins do not fit."""

    def __init__(
        self,
        config: Config,
        tokenizer: Any,
        engine: Engine,
        run: Run,
        *,
        background: AsyncSampling | None = None,
        workers: Sequence[GroupWorker] = (),
        check_workers: Callable[[], None] = lambda: None,
        stop: StopRequest | None = None,
        judge: Any = None,
        objects: UserObjects = NO_OBJECTS,
        scored: bool = True,
        teachers: Mapping[str, ServerTeacher] | None = None,
    ) -> None:
        """`engine`: started before rows are sampled. `background`: for `begin`. `workers`: they make all trajectories;
        without any, this process does. `check_workers` is called where trajectories failed; it raises WorkerDied. A
        `stop` request ends what runs. `judge`: as `scorer` says. `objects`: in place of files. `scored`: false where
        rewards are computed elsewhere. `teachers`: those on servers, which the caller closes."""
        self.config, self.engine, self.run, self.background = config, engine, run, background
        self.workers, self.check_workers, self.stop = workers, check_workers, stop or StopRequest()
        self.teachers = teachers or {}
        self._loops = cache(loop_class)  # asked for every trajectory: the YAML is read once
        self.sandbox = sandbox_for(config)
        self.env = rollout_context(config, tokenizer, engine, self.sandbox, objects)
        check_format(self.env, config.rollout.multi_turn.format)
        judging = scorer(config, tokenizer, self.sandbox, judge, objects) if scored else None
        if judging is not None:
            check_scores(self.env, judging)
        self._unscored: list[Trajectory] = []
        self.cache = CacheWatch(engine)
        self.tasks = TaskRunner(config.rollout.containers, on_failure=config.reward.on_failure)
        self.scheduler = self._scheduler(judging)

    def sample(self, rows: Sequence[Row], step: int, on_done: OnDone, *, scored: bool = True) -> list[Trajectory]:
        """`rollout.n` trajectories a row; without `scored`, `scoring` waits for their scores. The caller compares them
        with the template (`compare`). Raises TooManyDrops when all of them failed, Interrupted, and WorkerDied."""
        n = self.config.rollout.n
        made = self._make(rows, n, self._sampling, str(step), on_done, scored=scored, compared=False)
        self._unscored = [] if scored else made
        return made

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        """Record where the template would render conversations of `sample` differently; may run in any thread. Workers
        have compared theirs."""
        for trajectory in () if self.workers else trajectories:
            record_mismatches(self.env.chat, trajectory)

    def begin(self, batch: AdmittedBatch) -> RolloutFuture:
        """Begin the trajectories of a batch, scored; they continue while the policy trains. A group's last one is
        greedy where ReMax asks for it."""
        assert self.background is not None
        n, sampling, greedy = self.config.rollout.n, self._sampling, self._greedy
        work = self._concurrently(
            batch.rows,
            n=group_size(self.config),
            sampling=lambda job: greedy if job.sample == n else sampling,
            tag=str(batch.number),
            finished=batch.finished,
        )
        return self.background.start(work)

    def wait(self, future: RolloutFuture, poll: Callable[[], object]) -> list[Trajectory]:
        """Wait for trajectories that were begun; `poll` is called several times a second, and may raise. Raises
        TooManyDrops when all of them failed, Interrupted, and WorkerDied."""

        def check() -> None:
            self.stop.check()
            poll()

        self.stop.check()
        with self._checking_workers() as made:
            made += future.result(check)
        return made

    def activity(self) -> dict[str, float]:
        """Metrics of the engine since the last call: its cache, and its work during updates; and those of sessions."""
        found = self.cache.metrics() | ({} if self.background is None else self.background.activity())
        for kept in self.env.shared.values():
            found |= kept.metrics() if hasattr(kept, "metrics") else {}
        return found

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
            scores = thread.submit(self.run, self.scheduler.settle())
            try:
                yield
                result_of(scores)
            except BaseException:  # the thread ends when the scores have
                self.scheduler.drop()
                raise
        late, self._unscored = self._unscored, []
        check_drops(late, self.config.rollout.max_infra_drop_share)

    def greedy(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """One scored trajectory a row, at temperature 0. Raises as `sample`."""
        return self._make(rows, 1, self._greedy, f"greedy-{step}", on_done)

    def validate(
        self, rows: Sequence[Row], step: int, on_done: OnDone, settings: ValSet | None = None
    ) -> list[Trajectory]:
        """Scored trajectories of each row, as `settings` say; None: `rollout.val_kwargs`. Raises as `sample`."""
        settings = settings or ValSet(**vars(self.config.rollout.val_kwargs))
        return self._make(rows, settings.n, self._validating(settings), f"{VALIDATION}{step}", on_done)

    def begin_validation(self, rows: Sequence[Row], step: int, settings: ValSet) -> RolloutFuture:
        """Begin what `validate` makes; it continues while the policy trains."""
        assert self.background is not None
        sampling, tag = self._validating(settings), f"{VALIDATION}{step}"
        work = self._concurrently(rows, n=settings.n, sampling=lambda _: sampling, tag=tag, finished={})
        return self.background.start(work)

    def prompt_length(self, row: Row) -> int:
        """Tokens of a row's first prompt, tools included."""
        schemas = self._loop_for(row).prompt_tools(row, self.env.tools)
        return len(self.env.chat.prompt(self.env.chat.see(row.prompt), schemas))

    def close(self) -> None:
        """Stop engine, tools, interactions and sandbox; if one fails, the others still stop."""
        if self.background is not None:
            self.background.close()
        self.run(self.end())

    async def end(self) -> None:
        """Close on the event loop."""
        env = self.env
        shared = [kept.close for kept in env.shared.values() if hasattr(kept, "close")]
        scorers = [] if self.scheduler.scorer is None else [self.scheduler.scorer]
        held: tuple[Any, ...] = (self.sandbox, env.interactions, env.tools, *scorers, self.tasks, self.engine)
        async with AsyncExitStack() as stack:  # what is named last is closed first
            for close in shared:
                (stack.push_async_callback if iscoroutinefunction(close) else stack.callback)(close)
            for part in held:
                stack.push_async_callback(part.close)

    def _scheduler(self, scorer: Scorer | None) -> BatchScheduler:
        rollout = self.config.rollout
        if self.workers:
            return WorkerScheduler(
                workers=self.workers,
                scorer=scorer,
                max_concurrent=rollout.max_concurrent_trajectories,
                retries=max(1, rollout.infra_retries),
                scored_here=scored_together(self.config),
                stop=self.stop,
            )
        teachers, topk = self.config.teachers, max(self.config.distillation.topk, 0)
        return Scheduler(
            env=self.env,
            loop_for=self._loop_for,
            scorer=scorer,
            max_concurrent=share_of(rollout.max_concurrent_trajectories, "rollout.max_concurrent_trajectories"),
            timeout=rollout.trajectory_timeout,
            retries=rollout.infra_retries,
            retry_timeouts=rollout.retry_timeouts,
            tasks=self.tasks,
            stop=self.stop,
            teachers=RowTeachers(teachers, self.env.chat, self.teachers, topk) if teachers else None,
        )

    def _make(
        self, rows: Sequence[Row], n: int, sampling: Sampling, tag: str, on_done: OnDone, **options: bool
    ) -> list[Trajectory]:
        """Run a batch. A stop request cancels it; the engine then samples nothing while the run saves."""
        make = self.cache.watching()(self.scheduler.run)
        try:
            with self._checking_workers() as made:
                made += self.run(make(rows, n=n, sampling=sampling, tag=tag, on_done=on_done, **options))
        except Interrupted:
            self.run(self.engine.abort())
            raise
        return made

    async def _concurrently(self, rows: Sequence[Row], **options: Any) -> list[Trajectory]:
        """The trajectories of a batch that runs while others do."""
        make = self.cache.watching()(self.scheduler.run_concurrently)
        made = await make(rows, **options)
        await asyncio.to_thread(trim_heap)
        return made

    @contextmanager
    def _checking_workers(self) -> Iterator[list[Trajectory]]:
        """Yields a list for trajectories; where some of them failed, a dead worker is the cause. Raises WorkerDied."""
        made: list[Trajectory] = []
        try:
            yield made
        except InfraError:
            self.check_workers()
            raise
        if any(trajectory.outcome is Outcome.INFRA_ERROR for trajectory in made):
            self.check_workers()

    def _validating(self, settings: ValSet) -> Sampling:
        return replace(
            self._greedy,
            max_new_tokens=settings.max_tokens or self._greedy.max_new_tokens,
            temperature=0.0 if settings.do_sample is False else settings.temperature,
            **{name: getattr(settings, name) for name in FILTERS},
        )

    @cached_property
    def _sampling(self) -> Sampling:
        """How trajectories to train on are drawn."""
        rollout = self.config.rollout
        return replace(
            self._greedy,
            temperature=rollout.temperature if rollout.do_sample else 0.0,
            **{name: getattr(rollout, name) for name in FILTERS},
            experts_from=0 if records_experts(self.config) else None,
            candidates=CANDIDATES if rollout.use_fire_sampling and rollout.do_sample and rollout.temperature else 0,
        )

    @cached_property
    def _greedy(self) -> Sampling:
        data, trainer, rollout = self.config.data, self.config.trainer, self.config.rollout
        return Sampling(data.max_response_length, 0.0, seed=trainer.seed, ignore_eos=rollout.ignore_eos)

    def _loop_for(self, row: Row) -> type[AgentLoop]:
        agent, multi_turn = self.config.rollout.agent, self.config.rollout.multi_turn
        name = loop_name(row.agent_name, agent.default_agent_loop, multi_turn=multi_turn.enable)
        return self._loops(name, agent.agent_loop_config_path, agent.default_agent_loop)
