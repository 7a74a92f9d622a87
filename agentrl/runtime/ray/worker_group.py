"""The ranks as one: every call goes to all of them, and rank 0's answer comes back."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.runtime.ray.cluster import passed_on, reserve
from agentrl.runtime.ray.failures import answers
from agentrl.runtime.ray.host import Place
from agentrl.training.perf.cpu import threads_of_rank

CALLS = 8192
"""Requests that one worker may hold at once: more than `rollout.max_concurrent_trajectories` sends."""

NAMES = {"trainer": "rank", "rollout": "sampler", "reward": "reward model"}
"""What the workers are called that a section asks for."""


@dataclass
class Crew:
    """Actors of one kind, in order."""

    actors: list[Any]
    names: list[str]
    places: list[Place]

    def call(self, method: str, *args: Any) -> Any:
        """Call all, in step; the first one's answer. Raises what `answers` says."""
        return self.each(method, [args] * len(self.actors))[0]

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all, each with its own arguments; all answers."""
        refs = [getattr(actor, method).remote(*args) for actor, args in zip(self.actors, arguments, strict=True)]
        return answers(refs, self.names)

    def meet(self) -> None:
        """Let them join into one torch.distributed group, at the first one's address."""
        first, world = self.places[0], len(self.actors)
        self.each("join", [(rank, world, first.address, first.port) for rank in range(world)])

    def check(self) -> None:
        """Raises WorkerDied when one is gone."""
        self.call("place")


def hire(
    kind: type,
    config: Any,
    section: str,
    machines: int,
    each: int,
    *,
    gpus: bool,
    stack: ExitStack,
    keys: str | None = None,
    surroundings: dict[str, str] | None = None,
    nsight: dict[str, Any] | None = None,
) -> Crew:
    """Start `each` actors of `kind` on each of `machines`; returns when all run. `stack` ends them.

    `section`, one of NAMES, asks for them, by `keys` (None: its nnodes and n_gpus_per_node). `surroundings`: variables
    besides those of this process. `nsight`: options of `nsys profile`, under which they then run. Raises UserError
    where the cluster has no room for them.
    """
    keys = keys or f"{section}.nnodes={machines} with {section}.n_gpus_per_node={each}"
    timeout = config.trainer.ray_wait_register_center_timeout
    group, bundles = reserve(keys, machines, each, gpus=gpus, timeout=timeout, stack=stack)
    rollout = getattr(config, "rollout", None)  # `agentrl sft` has none
    threads = threads_of_rank(each, steady=rollout is not None and rollout.deterministic)
    actors: list[Any] = []
    for bundle in bundles:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {"num_cpus": 1, "num_gpus": int(gpus), "scheduling_strategy": place, "max_concurrency": CALLS}
        if nsight:
            options["runtime_env"] = {"nsight": nsight}
        actor: Any = ray.remote(kind).options(**options)
        actors.append(actor.remote(config, os.getcwd(), passed_on() | (surroundings or {}), threads))
        stack.callback(ray.kill, actors[-1])
    names = [f"{NAMES[section]} {i}" for i in range(len(actors))]
    places = answers([actor.place.remote() for actor in actors], names)
    names = [f"{name} on {place.address}" for name, place in zip(names, places, strict=True)]
    return Crew(actors, names, places)
