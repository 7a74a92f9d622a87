"""Chooses machines and GPUs for servers: the GPUs of the ranks, or separate ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from agentrl.config.schema import Rollout
from agentrl.core.errors import UserError
from agentrl.runtime.ray.worker import Location


@dataclass(frozen=True)
class Placement:
    """Machine and GPUs of one server."""

    strategy: Any
    """Ray's scheduling strategy."""
    gpus: tuple[str, ...] = ()
    """The ranks' GPUs that it shares; empty where Ray gives it its own."""
    own_gpus: float = 0
    """Number of GPUs that Ray gives it."""
    rank: int = 0
    """The rank on its first GPU."""


def placements_on_ranks(locations: Sequence[Location], rollout: Rollout, kind: str) -> list[Placement]:
    """One server for every `rollout.tensor_model_parallel_size` ranks of a machine, on their GPUs; without GPUs,
    `rollout.replicas` servers. Raises UserError if a machine's GPUs do not divide evenly."""
    width = rollout.tensor_model_parallel_size
    if kind == "cpu":
        return [Placement(_on(locations[i % len(locations)].node)) for i in range(rollout.replicas)]
    placements = []
    for node, ranks in groupby(range(len(locations)), key=lambda rank: locations[rank].node):
        own = list(ranks)
        _check_divides(width, len(own), "trainer")
        for i in range(0, len(own), width):
            gpus = tuple(gpu for rank in own[i : i + width] for gpu in locations[rank].gpus)
            placements.append(Placement(_on(node), gpus=gpus, rank=own[i]))
    return placements


def separate_placements(group: PlacementGroup, rollout: Rollout, each: int, kind: str) -> list[Placement]:
    """Servers on machines that only sample, with `each` GPUs per machine; without GPUs a server has one process. Raises
    UserError if a machine's GPUs do not divide evenly."""
    width = rollout.tensor_model_parallel_size if kind == "cuda" else 1
    _check_divides(width, each, "rollout")
    gpus = width if kind == "cuda" else 0
    return [
        Placement(PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=machine), own_gpus=gpus)
        for machine in range(rollout.nnodes)
        for _ in range(each // width)
    ]


def _check_divides(width: int, gpus: int, section: str) -> None:
    if gpus % width:
        keys = f"rollout.tensor_model_parallel_size={width} does not divide {section}.n_gpus_per_node={gpus}"
        raise UserError(f"{keys}: choose a divisor")


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)
