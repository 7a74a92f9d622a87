"""Runs on many processes: rows and the algorithm here, training and sampling on Ray workers, conversations here or on
rollout workers.

Invariants:
- every rank gets the same calls in the same order; a batch is in the object store once, and only columns that the
  ranks do not have go there;
- ranks and engines take turns, as they do in one process, but for `trainer.max_staleness` > 0: then engines that keep
  their memory continue while the ranks train;
- nothing started here outlives `close` or this process.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch

from agentrl.config.derived import sampling_per_node
from agentrl.config.schema import Config
from agentrl.core.errors import InfraError
from agentrl.engines.engine import Engine
from agentrl.engines.launching import engine_name, in_process
from agentrl.engines.servers import RemoteEngine
from agentrl.engines.servers.backend import AGREED
from agentrl.engines.starting import Start
from agentrl.rollout.parts import NO_PARTS, Parts
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.stream import AdmittedBatch, Deferred, Pending
from agentrl.rollout.workers import OnDone
from agentrl.runtime.loop_runner import LoopRunner
from agentrl.runtime.loop_thread import LoopThread
from agentrl.runtime.ray.cluster import connect, on_gpus
from agentrl.runtime.ray.engine import RayEngine
from agentrl.runtime.ray.engine_worker import EngineWorker
from agentrl.runtime.ray.links import link_to
from agentrl.runtime.ray.rank import Rank
from agentrl.runtime.ray.reward_model import RemoteRewardModel
from agentrl.runtime.ray.rollout_workers import SpreadEngine, start_workers
from agentrl.runtime.ray.shared_batch import SharedBatch
from agentrl.runtime.ray.worker_group import WorkerGroup, spawn
from agentrl.runtime.sampling_ahead import SamplingAhead
from agentrl.tracking import Waiting
from agentrl.tracking.start_times import StartTimes
from agentrl.training import Batch, load_tokenizer
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

Rollout = Callable[[Sequence[Row], int, OnDone], list[Trajectory]]


class RayRuntime:
    """Starts the workers. Raises UserError if the cluster is too small."""

    def __init__(self, config: Config, parts: Parts = NO_PARTS, start: Start | None = None) -> None:
        self.start_times = start.times if start else StartTimes()
        self.start_times.imported()
        self.tokenizer = load_tokenizer(config.model)
        self.sleeps = False
        self._starting: RemoteEngine | None = None
        self._launched = 0.0
        self.ahead: SamplingAhead | None = None
        self.judge: RemoteRewardModel | None = None
        self.spread: SpreadEngine | None = None
        self.groups: list[WorkerGroup] = []
        self.stack = ExitStack()
        try:
            self._open(config, parts)
        except BaseException:
            self.stack.close()
            raise

    def prepare(self, total_steps: int) -> None:
        with self.start_times.phase("model"):
            self.ranks.call("call", "prepare", total_steps)
        with self.start_times.phase("compile"):
            self.ranks.call("call", "warm_up")

    def rollout(self, rows: Sequence[Row], step: int, on_done: OnDone, *, scored: bool = True) -> list[Trajectory]:
        return self._sample(partial(self.rollouts.train, scored=scored), rows, step, on_done)

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        self.rollouts.compare(trajectories)

    def begin(self, batch: AdmittedBatch) -> Pending:
        assert self.ahead is not None
        return Checked(self.ahead.begin(self.rollouts, batch), self._check_workers)

    @property
    def containers(self) -> Mapping[str, int]:
        return self.rollouts.tasks.phases

    def activity(self) -> dict[str, float]:
        if self.ahead is None:
            return {}
        return self.ahead.activity() if self.spread is None else self.runner.run(self.spread.activity())

    def greedy(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        return self._sample(self.rollouts.greedy, rows, step, on_done)

    def validate(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        return self._sample(self.rollouts.validate, rows, step, on_done)

    def compute_logprobs(self, batch: Batch) -> Batch:
        if self.sleeps:
            self.runner.run(self.rollouts.engine.sleep())
        with self.rollouts.scoring():
            return self.batch.compute_logprobs(batch)

    def can_accumulate_early(self) -> bool:
        rollout = self.rollouts.config.rollout
        apart = self.ahead is not None and bool(rollout.nnodes or rollout.base_url)
        return apart and self.ranks.call("call", "can_accumulate_early")

    def accumulate_early(self, part: Batch) -> None:
        self.batch.accumulate_early(part)

    def update(self, batch: Batch) -> dict[str, float]:
        return self.batch.update(batch)

    def publish_weights(self, version: int) -> None:
        self._wait_for_servers()
        if self.sleeps:
            self.ranks.call("free")
        self._halt()
        with self.start_times.phase("weights"):
            self.runner.run(self.rollouts.engine.update_weights(version))
        self._continue()
        if self.sleeps:
            self.ranks.call("call", "offload_parameters")

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        self.ranks.call("call", "save", folder.absolute(), step, state, last, model_only)

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        loaded: tuple[int, dict[str, Any]] = self.ranks.call("call", "load", path.absolute())
        return loaded

    def prompt_length(self, row: Row) -> int:
        return self.rollouts.prompt_length(row)

    def decode(self, ids: Sequence[int]) -> str:
        return self.rollouts.decode(ids)

    def close(self) -> None:
        self.stack.close()

    def _open(self, config: Config, parts: Parts) -> None:
        """Start the cluster, the workers, the engine, the rollouts; closed in reverse order."""
        trainer, stack = config.trainer, self.stack
        connect(config.ray_init, stack)
        self.gpus = on_gpus(trainer.device)
        with Waiting("workers start") as waiting:
            self.ranks = self._spawn(Rank, config, "trainer", trainer.nnodes, trainer.n_gpus_per_node)
            actor = config.actor
            self.batch = SharedBatch(self.ranks, actor.ulysses_sequence_parallel_size, bool(actor.share_prompts))
            ahead = config.trainer.max_staleness > 0
            self.runner: LoopRunner | LoopThread = stack.enter_context(closing(LoopThread() if ahead else LoopRunner()))
            engine = own = self._engine(config, waiting)  # first: servers start while the policy is loaded and compiled
            self._launched = time.monotonic()
            servers = own if isinstance(own, RemoteEngine) else None
            if config.rollout.agent.num_workers:
                engine = self.spread = start_workers(config, own, link_to(own), parts, stack)
            if isinstance(self.runner, LoopThread):
                self.ahead = SamplingAhead(self.runner, engine, servers, partial=config.rollout.partial_rollout)
                engine = self.ahead.engine
            waiting("the policy is loaded")
            with self.start_times.phase("model"):
                self.ranks.join()
            self._starting = servers
            if servers is None:
                self.runner.run(engine.start())
            reward_model = config.reward.reward_model
            if reward_model.enable and reward_model.enable_resource_pool:
                self.judge = RemoteRewardModel(config, gpus=self.gpus, stack=stack)
        self.rollouts = Rollouts(config, self.tokenizer, engine, self.runner.run, self.judge, parts)
        if self.spread is not None:
            self.rollouts.spread_over(self.spread.handles)
        stack.callback(self.rollouts.close)
        if self.ahead is not None:
            stack.callback(self.ahead.close)

    def _spawn(self, kind: type, config: Config, section: str, machines: int, each: int) -> WorkerGroup:
        agreed = AGREED if config.rollout.nnodes else {}  # NCCL reads it once, at a rank's first use
        nsight = config.trainer.worker_nsight_options if kind is Rank else None
        group = spawn(
            kind, config, section, machines, each, gpus=self.gpus, stack=self.stack, env=agreed, nsight=nsight
        )
        self.groups.append(group)
        return group

    def _engine(self, config: Config, progress: Callable[[str], None]) -> Engine:
        """The engine: servers, or hf engines in the ranks or in rollout workers."""
        rollout = config.rollout
        device = torch.device("cuda" if self.gpus else "cpu")
        if not in_process(engine_name(rollout, device.type)):
            from agentrl.runtime.ray.servers import start_servers

            remote, self.sleeps = start_servers(
                config, device, self.ranks, self.stack, progress, vocabulary=len(self.tokenizer)
            )
            return remote
        if rollout.nnodes == 0:
            return RayEngine(self.ranks.actors, self.ranks.names, lambda version: self.ranks.call("sync", version))
        each = sampling_per_node(config.trainer, rollout)
        workers = self._spawn(EngineWorker, config, "rollout", rollout.nnodes, each)
        most = rollout.update_weights_bucket_megabytes << 20
        return RayEngine(
            workers.actors, workers.names, lambda version: copy_weights(self.ranks, workers, version, most)
        )

    def _wait_for_servers(self) -> None:
        """Wait until the servers answer, once."""
        remote, self._starting = self._starting, None
        if remote is None:
            return
        with self.start_times.phase("wait"), Waiting(f"{remote.backend.name} starts") as remote.progress:
            self.runner.run(remote.start())
            if self.spread is not None:
                self.runner.run(self.spread.opened())
        self.start_times.served(self._launched)

    def _sample(self, rollout: Rollout, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        return Checked(Deferred(lambda: rollout(rows, step, on_done)), self._check_workers).result()

    def _halt(self) -> None:
        """Before the weights of engines in workers change, in place: stop at the present token."""
        if self.ahead is not None:
            self.ahead.pause()

    def _continue(self) -> None:
        if self.ahead is not None:
            self.ahead.resume()

    def _check_workers(self) -> None:
        """Raises WorkerDied if a worker is dead: the run then restarts instead of stopping with an InfraError."""
        for group in self.groups:
            group.check()
        if self.judge is not None:
            self.judge.group.check()


@dataclass(frozen=True)
class Checked:
    """Trajectories being made; where some fail, the workers are checked."""

    pending: Pending
    check: Callable[[], None]
    """Raises WorkerDied."""

    def result(self, poll: Callable[[], object] = lambda: None) -> list[Trajectory]:
        """As `Pending` says. Raises WorkerDied."""
        try:
            made = self.pending.result(poll)
        except InfraError:
            self.check()
            raise
        if any(t.outcome is Outcome.INFRA_ERROR for t in made):
            self.check()
        return made

    def done(self) -> bool:
        """As `Pending` says."""
        return self.pending.done()


def copy_weights(ranks: WorkerGroup, workers: WorkerGroup, version: int, most: int) -> None:
    """Copy weights from the ranks to rollout workers, in buckets of `most` bytes."""
    ranks.call("begin_export", most)
    while True:
        more, bucket = ranks.call("export")
        if not more:
            break
        workers.call("load", ray.put(bucket))
    workers.call("ask", "update_weights", version)
