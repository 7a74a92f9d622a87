"""The GPUs of this machine, and those of the servers of a run.

What is known without PyTorch is asked without it: servers are launched before its import, which takes seconds.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from agentrl.config.schema import Teacher
from agentrl.core.errors import UserError
from agentrl.engines.servers.host import gpu_count, package_folder


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
    return given.split(",") if given else [str(i) for i in range(gpu_count())]


def teacher_gpus(teachers: Mapping[str, Teacher]) -> int:
    """Number of GPUs for the teachers' servers: the last ones of this machine."""
    return sum(each.n_gpus for each in teachers.values() if not (each.on_ranks or each.base_url))


def device_kind(name: str) -> str:
    """cpu or cuda: the kind of `device_for(name)`. Raises UserError for a GPU that is not there."""
    there = _there()
    if name == "cuda" and not there:
        raise UserError("trainer.device=cuda: there is no GPU, or PyTorch is a build for CPUs; set trainer.device=auto")
    return name if name != "auto" else "cuda" if there else "cpu"


def _there() -> bool:
    """Whether PyTorch sees a GPU."""
    libraries = {file.name for file in (Path(package_folder("torch")) / "lib").glob("libtorch_*.so")}
    if "libtorch_cuda.so" in libraries:
        return gpu_count() > 0
    if "libtorch_cpu.so" in libraries and "libtorch_hip.so" not in libraries:
        return False
    import torch  # its libraries are elsewhere, or for other GPUs

    return torch.cuda.is_available()
