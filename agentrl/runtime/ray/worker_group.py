"""A group of Ray workers: every call goes to all of them; the result of the first one comes back."""

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.config.derived import deterministic
from agentrl.core.cpu_cores import threads_of_rank
from agentrl.runtime.ray.cluster import forwarded_env, reserve
from agentrl.runtime.ray.failures import results
from agentrl.runtime.ray.worker import Location

CALLS = 8192
"""Concurrent calls of one worker: more than `rollout.max_concurrent_trajectories` needs."""

NAMES = {"trainer": "rank", "rollout": "sampler", "reward": "reward model"}
"""Section of the settings -> name of its workers in messages."""


@dataclass
class WorkerGroup:
    """Actors of one class, in order of rank."""

    actors: list[Any]
    names: list[str]
    locations: list[Location]
    order: threading.Lock = field(default_factory=threading.Lock)
    """All actors get the calls of several threads in one order: they would wait for each other in different ones."""

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Call all with the same arguments; the first one's result. Raises as `results` does."""
        return self.each(method, [args] * len(self.actors), **named)[0]

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]], **named: Any) -> list[Any]:
        """Call each with its own arguments; all results. What the first one warns of meanwhile is logged."""
        found = results(self.begin(method, arguments, **named), self.names)
        for record in results([self.actors[0].take_warnings.remote()], self.names[:1])[0]:
            logging.getLogger(record.name).handle(record)
        return found

    def begin(self, method: str, arguments: Sequence[tuple[Any, ...]], **named: Any) -> list[Any]:
        """Call each with its own arguments, and the `named` ones of all; the answers to come."""
        calls = zip(self.actors, arguments, strict=True)
        with self.order:
            return [getattr(actor, method).remote(*args, **named) for actor, args in calls]

    def scatter(self, method: str, values: Iterable[Any], copies: int = 1) -> list[Any]:
        """Call each with one of `values`, which as many as `copies` neighbours share; all results."""
        references = [ray.put(value) for value in values]
        return self.each(method, [(reference,) for reference in references for _ in range(copies)])

    def begin_join(self) -> list[Any]:
        """Join all into one torch.distributed group at the address of the first; the answers to come."""
        first, world = self.locations[0], len(self.actors)
        return self.begin("join", [(rank, world, first.address, first.port) for rank in range(world)])


def spawn(
    kind: type,
    config: Any,
    section: str,
    machines: int,
    each: int,
    *,
    gpus: bool,
    stack: ExitStack,
    keys: str | None = None,
    env: dict[str, str] | None = None,
    nsight: dict[str, Any] | None = None,
) -> WorkerGroup:
    """Start `each` actors of `kind` on each of `machines`; returns when all run. `stack` ends them.

    `section` (one of NAMES) and `keys` (None: its nnodes and n_gpus_per_node) are for messages. `env`: further
    environment variables. `nsight`: options of `nsys profile`, which then profiles them. Raises UserError if the
    cluster is too small.
    """
    keys = keys or f"{section}.nnodes={machines} with {section}.n_gpus_per_node={each}"
    timeout = config.trainer.ray_wait_register_center_timeout
    group, bundles = reserve(keys, machines, each, gpus=gpus, timeout=timeout, stack=stack)
    rollout = getattr(config, "rollout", None)  # `agentrl sft` has none
    threads = threads_of_rank(each, steady=rollout is not None and deterministic(config.trainer, rollout))
    actors: list[Any] = []
    for bundle in bundles:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {"num_cpus": 1, "num_gpus": int(gpus), "scheduling_strategy": place, "max_concurrency": CALLS}
        if nsight:
            options["runtime_env"] = {"nsight": nsight}
        actor: Any = ray.remote(kind).options(**options)
        actors.append(actor.remote(config, os.getcwd(), forwarded_env() | (env or {}), threads))
        stack.callback(ray.kill, actors[-1])
    names = [f"{NAMES[section]} {i}" for i in range(len(actors))]
    locations = results([actor.location.remote() for actor in actors], names)
    names = [f"{name} on {location.address}" for name, location in zip(names, locations, strict=True)]
    return WorkerGroup(actors, names, locations)
