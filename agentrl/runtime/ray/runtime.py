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
from contextlib import ExitStack

import ray
import torch

from agentrl.config.derived import sampling_per_node
from agentrl.config.schema import Config
from agentrl.engines.engine import Engine
from agentrl.engines.launching import engine_name, in_process
from agentrl.engines.servers import RemoteEngine
from agentrl.engines.servers.backend import BROADCAST_ENVIRONMENT
from agentrl.engines.starting import Start
from agentrl.rollout.pausable_engine import PausableEngine
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.runtime.async_sampling import AsyncSampling
from agentrl.runtime.loop_thread import LoopThread
from agentrl.runtime.ray.cluster import connect, on_gpus
from agentrl.runtime.ray.engine import RayEngine
from agentrl.runtime.ray.engine_worker import EngineWorker
from agentrl.runtime.ray.learner import RayLearner
from agentrl.runtime.ray.links import link_to
from agentrl.runtime.ray.rank import Rank
from agentrl.runtime.ray.reward_model import RemoteRewardModel
from agentrl.runtime.ray.rollout_workers import start_workers
from agentrl.runtime.ray.store import RayFunction, RayStore, send_references
from agentrl.runtime.ray.worker_group import WorkerGroup, spawn
from agentrl.runtime.runtime import Runtime
from agentrl.tracking import Waiting
from agentrl.tracking.start_times import StartTimes
from agentrl.training import load_tokenizer
from agentrl.training.update.advantages import columns_read


class RayRuntime(Runtime):
    """Starts the workers. Raises UserError if the cluster is too small."""

    learner: RayLearner
    isolated = RayFunction

    def __init__(self, config: Config, objects: UserObjects = NO_OBJECTS, start: Start | None = None) -> None:
        super().__init__(start.times if start else StartTimes())
        self.start_times.imported()
        self.config, self.tokenizer = config, load_tokenizer(config.model)
        self.judge: RemoteRewardModel | None = None
        self.groups: list[WorkerGroup] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            self._open(config, objects)
            undo.pop_all()

    def prepare(self, total_steps: int) -> None:
        """Prepare training on all ranks."""
        with self.start_times.phase("model"):
            self.learner.prepare(total_steps)
        with self.start_times.phase("compile"):
            self.learner.warm_up()

    def can_accumulate_early(self) -> bool:
        """Whether `accumulate_early` is of use: the engine must have its own GPUs."""
        rollout = self.config.rollout
        apart = self.async_sampling is not None and bool(rollout.nnodes or rollout.base_url)
        return apart and self.learner.can_accumulate_early()

    def _open(self, config: Config, objects: UserObjects) -> None:
        """Start the cluster, the workers, the engine, the rollouts; closed in reverse order."""
        trainer, actor, stack = config.trainer, config.actor, self.stack
        connect(config.ray_init, stack)
        self.gpus = on_gpus(trainer.device)
        with Waiting("workers start") as waiting:
            self.ranks = self._spawn(Rank, config, "trainer", trainer.nnodes, trainer.n_gpus_per_node)
            send_references()
            store = RayStore()
            each, shares = actor.ulysses_sequence_parallel_size, bool(actor.share_prompts)
            self.learner = RayLearner(self.ranks, store, each, shares, columns_read(config))
            self.runner = self._open_loop(config)
            own = self._engine(config)  # first: servers start while the policy is loaded and compiled
            servers = own if isinstance(own, RemoteEngine) else None
            if servers is not None:
                self._starting = servers, time.monotonic()
            spread = config.rollout.agent.num_workers > 0
            workers = start_workers(config, own, link_to(own), objects, store, stack) if spread else None
            engine: Engine = workers or own
            if isinstance(self.runner, LoopThread):
                measured = workers or PausableEngine(own, partial=config.rollout.partial_rollout)
                self.async_sampling = AsyncSampling(self.runner, measured, servers)
                engine = measured
            waiting("the policy is loaded")
            with self.start_times.phase("model"):
                self.ranks.join()
            if servers is None:
                self.runner.run(engine.start())
            reward_model = config.reward.reward_model
            if reward_model.classifies and reward_model.enable_resource_pool:
                self.judge = RemoteRewardModel(config, gpus=self.gpus, stack=stack)
        self.rollouts = self._open_rollouts(
            config,
            engine,
            workers=workers.handles if workers else (),
            check_workers=self._check_workers,
            judge=self.judge,
            objects=objects,
        )

    def _spawn(self, kind: type, config: Config, section: str, machines: int, each: int) -> WorkerGroup:
        agreed = BROADCAST_ENVIRONMENT if config.rollout.nnodes else {}  # NCCL reads it once, at a rank's first use
        nsight = config.trainer.worker_nsight_options if kind is Rank else None
        group = spawn(
            kind, config, section, machines, each, gpus=self.gpus, stack=self.stack, env=agreed, nsight=nsight
        )
        self.groups.append(group)
        return group

    def _engine(self, config: Config) -> Engine:
        """The engine: servers, or hf engines in the ranks or in rollout workers."""
        rollout = config.rollout
        device = torch.device("cuda" if self.gpus else "cpu")
        if not in_process(engine_name(rollout, device.type)):
            from agentrl.runtime.ray.servers import start_servers

            remote, self.sleeps = start_servers(config, device, self.ranks, self.stack, vocabulary=len(self.tokenizer))
            return remote
        if rollout.nnodes == 0:
            return RayEngine(self.ranks.actors, self.ranks.names, lambda version: self.ranks.call("sync", version))
        each = sampling_per_node(config.trainer, rollout)
        workers = self._spawn(EngineWorker, config, "rollout", rollout.nnodes, each)
        most = rollout.update_weights_bucket_megabytes << 20
        return RayEngine(
            workers.actors, workers.names, lambda version: copy_weights(self.ranks, workers, version, most)
        )

    def _free_memory(self) -> None:
        self.ranks.call("free")

    def _check_workers(self) -> None:
        """Raises WorkerDied if a worker is dead: the run then restarts instead of stopping with an InfraError."""
        for group in self.groups:
            group.check()
        if self.judge is not None:
            self.judge.group.check()


def copy_weights(ranks: WorkerGroup, workers: WorkerGroup, version: int, most: int) -> None:
    """Copy weights from the ranks to rollout workers, in buckets of `most` bytes."""
    ranks.call("begin_export", most)
    while True:
        more, bucket = ranks.call("export")
        if not more:
            break
        workers.call("load", ray.put(bucket))
    workers.call("ask", "update_weights", version)
