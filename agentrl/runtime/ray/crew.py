"""The ranks as one: every call goes to all of them, and rank 0's answer comes back."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.runtime.ray.failures import answers
from agentrl.runtime.ray.host import Place

CALLS = 8192
"""Requests that one worker may hold at once: more than `rollout.max_concurrent_trajectories` sends."""


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

    def check(self) -> None:
        """Raises WorkerDied when one is gone."""
        self.call("place")


def hire(
    kind: type,
    what: str,
    group: PlacementGroup,
    bundles: Sequence[int],
    *,
    gpus: float,
    arguments: tuple[Any, ...],
    stack: ExitStack,
    nsight: dict[str, Any] | None = None,
) -> Crew:
    """Start an actor of `kind` in each of the bundles; returns when all run. `stack` ends them.

    `nsight`: options of `nsys profile`, under which they then run.
    """
    actors: list[Any] = []
    for bundle in bundles:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": place, "max_concurrency": CALLS}
        if nsight:
            options["runtime_env"] = {"nsight": nsight}
        actors.append(ray.remote(kind).options(**options).remote(*arguments))
        stack.callback(ray.kill, actors[-1])
    names = [f"{what} {i}" for i in range(len(actors))]
    places = answers([actor.place.remote() for actor in actors], names)
    names = [f"{name} on {place.address}" for name, place in zip(names, places, strict=True)]
    return Crew(actors, names, places)
