"""Assigns GPUs to the servers of a run."""

import os

import torch

from agentrl.core.errors import UserError


def placements(gpus: list[str], replicas: int, width: int, *, first: int) -> list[list[str]]:
    """The GPUs of each replica: `width` neighbours, counted from `first`, and from 0 again after the last GPU.

    Raises UserError when one replica needs more than there are.
    """
    if not gpus:
        return [[] for _ in range(replicas)]
    if width > len(gpus):
        raise UserError(f"rollout.tensor_model_parallel_size={width}: there are {len(gpus)} GPUs; lower it")
    starts = [(first + i * width) % len(gpus) for i in range(replicas)]
    return [[gpus[(start + j) % len(gpus)] for j in range(width)] for start in starts]


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES spells them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
