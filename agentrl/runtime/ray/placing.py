"""Where servers go: on the ranks' own GPUs, or on GPUs set aside for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from agentrl.config.schema import Rollout
from agentrl.core.errors import UserError
from agentrl.runtime.ray.host import Place


@dataclass(frozen=True)
class Spot:
    """A place for one server."""

    strategy: Any
    """How Ray finds it."""
    gpus: tuple[str, ...] = ()
    """The ranks' GPUs that it shares; empty where Ray gives it its own."""
    own_gpus: float = 0
    """How many these are."""
    rank: int = 0
    """The rank on its first GPU."""


def rank_spots(places: Sequence[Place], rollout: Rollout, device: torch.device) -> list[Spot]:
    """Spots beside the ranks: one for every `rollout.tensor_model_parallel_size` GPUs of a machine; without GPUs,
    `rollout.replicas` in turn. Raises UserError where machines do not hold whole servers."""
    width = rollout.tensor_model_parallel_size
    if device.type == "cpu":
        return [Spot(_on(places[i % len(places)].node)) for i in range(rollout.replicas)]
    spots = []
    for node, ranks in groupby(range(len(places)), key=lambda rank: places[rank].node):
        own = list(ranks)
        if len(own) % width:
            raise UserError(
                f"rollout.tensor_model_parallel_size={width} does not divide the {len(own)} GPUs of a machine "
                "(trainer.n_gpus_per_node): choose a divisor"
            )
        for i in range(0, len(own), width):
            gpus = tuple(gpu for rank in own[i : i + width] for gpu in places[rank].gpus)
            spots.append(Spot(_on(node), gpus=gpus, rank=own[i]))
    return spots


def apart_spots(group: PlacementGroup, rollout: Rollout, each: int, device: torch.device) -> list[Spot]:
    """Spots on machines that only sample, `each` GPUs on a machine; without GPUs a server has one process. Raises
    UserError where they do not hold whole servers."""
    width = rollout.tensor_model_parallel_size if device.type == "cuda" else 1
    if each % width:
        raise UserError(
            f"rollout.tensor_model_parallel_size={width} does not divide rollout.n_gpus_per_node={each}: "
            "choose a divisor"
        )
    return [
        Spot(PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=machine), own_gpus=width)
        if device.type == "cuda"
        else Spot(PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=machine))
        for machine in range(rollout.nnodes)
        for _ in range(each // width)
    ]


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)
