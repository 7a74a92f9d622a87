"""Runs on many processes: rows and the algorithm here, training and sampling on Ray workers, conversations here or on
rollout workers.

Invariants:
- every rank gets the same calls in the same order; a batch is in the object store once, and only columns that the
  ranks do not have go there;
- ranks and engines take turns, as they do in one process, but for `trainer.max_staleness` > 0: then engines that keep
  their memory continue while the ranks train;
- nothing started here outlives `close` or this process.
"""

from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

from agentrl.config.derived import sampling_per_node
from agentrl.config.schema import Config
from agentrl.core.stopping import result_of
from agentrl.engines.engine import Engine
from agentrl.engines.servers import RemoteEngine
from agentrl.engines.teachers import with_addresses
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.runtime.ray.engine import RayEngine
from agentrl.runtime.ray.engine_worker import EngineWorker
from agentrl.runtime.ray.failures import results
from agentrl.runtime.ray.learner import RayLearner
from agentrl.runtime.ray.links import link_to
from agentrl.runtime.ray.reward_model import RemoteRewardModel
from agentrl.runtime.ray.rollout_workers import start_rollout_workers
from agentrl.runtime.ray.servers import Workers, start_workers, teacher_launcher
from agentrl.runtime.ray.store import RayFunction, RayStore, send_references
from agentrl.runtime.ray.worker_group import WorkerGroup, spawn
from agentrl.runtime.runtime import Runtime
from agentrl.runtime.starting import Start
from agentrl.tracking.waiting import Waiting
from agentrl.training import load_tokenizer
from agentrl.training.update.advantages import columns_read


class RayRuntime(Runtime):
    """Starts the workers. Raises UserError if the cluster is too small."""

    learner: RayLearner
    isolated = RayFunction

    def __init__(self, config: Config, objects: UserObjects = NO_OBJECTS, start: Start | None = None) -> None:
        """`start`: the workers that are starting already; without any, they are started now."""
        start = start or Start()
        super().__init__(start.times)
        self.start_times.imported()
        self.config, self.tokenizer = config, load_tokenizer(config.model)
        with ExitStack() as undo:
            undo.callback(self.close)
            with Waiting("workers start") as waiting:
                self._open(config, objects, self._take_workers(start), waiting)
            undo.pop_all()

    def _take_workers(self, start: Start) -> Workers:
        """The ranks and servers of the run, which `stack` ends."""
        workers: Workers = result_of(start.workers) if start.workers else start_workers(self.config)
        start.workers = None
        self.stack.enter_context(workers.stack)
        self.ranks, self.servers, self.groups = workers.ranks, workers.servers, [workers.ranks]
        self.gpus = bool(self.ranks.locations[0].gpus)
        return workers

    def _open(self, config: Config, objects: UserObjects, started: Workers, waiting: Waiting) -> None:
        """Open the engine and the rollouts; closed in reverse order."""
        send_references()
        store, each = RayStore(), config.actor.ulysses_sequence_parallel_size
        self.learner = RayLearner(
            self.ranks, store, each, reads=columns_read(config), several=bool(config.model.policies)
        )
        own = self._engine(config)
        self.apart = config.rollout.nnodes > 0 or (self.servers is not None and not self.sleeps)
        kind = "cuda" if self.gpus else "cpu"
        teachers = self._open_teachers(config, kind, teacher_launcher(config, kind, self.stack))
        shared = with_addresses(config, teachers)
        spread = config.rollout.agent.num_workers > 0
        workers = start_rollout_workers(shared, own, link_to(own), objects, store, self.stack) if spread else None
        waiting("the policy is loaded")
        with self.start_times.phase("model"):
            results(started.joining, self.ranks.names)
        if not isinstance(own, RemoteEngine):
            self.runner.run((workers or own).start())
        reward_model = config.reward.reward_model
        judge: RemoteRewardModel | None = None
        if reward_model.classifies and reward_model.enable_resource_pool:
            judge = RemoteRewardModel(config, gpus=self.gpus, stack=self.stack)
            self.groups.append(judge.group)
        given: dict[str, Any] = {"judge": judge, "objects": objects, "teachers": teachers}
        given |= {"workers": workers.handles if workers else (), "check_workers": self._check_workers}
        self.rollouts = self._open_rollouts(config, own, workers, **given)

    def _engine(self, config: Config) -> Engine:
        """The engine: servers, or hf engines in the ranks or in rollout workers."""
        rollout = config.rollout
        if self.servers is not None:
            score = partial(self.ranks.call, "call", "score")
            return self._engine_over(self.servers, score, len(self.tokenizer))
        if rollout.nnodes == 0:
            return RayEngine(self.ranks.actors, self.ranks.names, lambda version: self.ranks.call("sync", version))
        each = sampling_per_node(config.trainer, rollout)
        workers = spawn(EngineWorker, config, "rollout", rollout.nnodes, each, gpus=self.gpus, stack=self.stack)
        self.groups.append(workers)
        most = rollout.update_weights_bucket_megabytes << 20
        return RayEngine(workers.actors, workers.names, partial(copy_weights, self.ranks, workers, most))

    def _free_memory(self) -> None:
        self.ranks.call("free")

    def _check_workers(self) -> None:
        """Raises WorkerDied if a worker is dead: the run then restarts instead of stopping with an InfraError."""
        for group in self.groups:
            group.call("location")


def copy_weights(ranks: WorkerGroup, workers: WorkerGroup, most: int, version: int) -> None:
    """Copy weights from the ranks to rollout workers, in buckets of `most` bytes, of which Ray's store has two."""
    numbers = count()
    while (bucket := ranks.call("export", most, next(numbers))) is not None:
        workers.call("load", bucket)
    workers.call("ask", "update_weights", version)
