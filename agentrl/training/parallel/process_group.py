"""Form the group of processes that train one model.

Each process reads the variables that torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, where several
processes see the same GPUs, LOCAL_RANK.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from agentrl.core.errors import UserError
from agentrl.training.parallel.ranks import Ranks

TIMEOUT = timedelta(minutes=30)
"""Longer than any wait of one rank for another: to read or write a model, to compile."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def join_ranks(
    device: torch.device,
    *,
    sequence_parallel: int = 1,
    fsdp_size: int = -1,
    expert_parallel: int = 1,
    timeout: timedelta = TIMEOUT,
) -> Ranks:
    """Join the group; returns when all processes have joined.

    `sequence_parallel`: ranks that split the tokens of a micro-batch. `fsdp_size`: ranks that one copy of the model is
    sharded over; -1: all. `expert_parallel`: how many of them split a layer's experts. A group of one process has a
    mesh too, and its model is sharded over it. Raises UserError where the sizes do not divide.
    """
    world = int(os.environ["WORLD_SIZE"])
    shard = world if fsdp_size in (-1, 0) or fsdp_size >= world else fsdp_size
    _check(world, sequence_parallel, shard, expert_parallel)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if not dist.is_initialized():
        dist.init_process_group(BACKENDS[device.type], timeout=timeout)
    if shard == world:
        mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("shard",))
    else:
        mesh = init_device_mesh(device.type, (world // shard, shard), mesh_dim_names=("replicate", "shard"))
    split = world // shard, shard // expert_parallel, expert_parallel
    names = ("replicate", "shard", "experts")
    shares = world // sequence_parallel, sequence_parallel
    return Ranks(
        rank=dist.get_rank(),
        world=world,
        seq_world=sequence_parallel,
        mesh=mesh,
        expert_mesh=init_device_mesh(device.type, split, mesh_dim_names=names) if expert_parallel > 1 else None,
        seq_group=init_device_mesh(device.type, shares).get_group(1) if sequence_parallel > 1 else None,
        background_group=dist.new_group(backend="gloo", timeout=timeout),
    )


def _check(world: int, sequence_parallel: int, shard: int, expert_parallel: int) -> None:
    sharing = f"the {shard} processes that share a model"
    for key, size, whole, processes in (
        ("ulysses_sequence_parallel_size", sequence_parallel, world, f"{world} processes"),
        ("fsdp_config.fsdp_size", shard, world, f"{world} processes"),
        ("fsdp_config.expert_parallel_size", expert_parallel, shard, sharing),
    ):
        if whole % size:
            raise UserError(f"{key}={size} does not divide {processes}; choose a divisor")
