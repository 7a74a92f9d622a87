"""Speeds of a kind of GPU and of its links: stored for measured kinds, or measured here in seconds."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from timeit import repeat

import torch

from agentrl.core.errors import UserError
from agentrl.doctor.memory import GIB, device_memory


@dataclass(frozen=True)
class Speeds:
    """The constants of a forecast."""

    name: str
    memory: float
    """GiB of a GPU."""
    flops: float
    """FLOP/s of large products of matrices, in the dtype that layers compute in."""
    bandwidth: float
    """Bytes/s that a copy within a GPU's memory reads and writes."""
    link: float
    """Bytes/s that each GPU of a machine receives while all of them gather."""
    network: float
    """Bytes/s between machines; where it is not measured, 0.8 of 400 Gbit/s."""
    assumed: str = "network"
    """The fields that are not measured."""


STORED = {
    "h100": Speeds("H100", 80, 700e12, 2.83e12, 250e9, 40e9),
    "h200": Speeds("H200", 141, 750e12, 4.05e12, 250e9, 40e9),
}
"""Products and copies are measured, the link is fitted to updates on two GPUs (tests/doctor/test_plan.py)."""


def speeds_of(name: str) -> Speeds:
    """The stored speeds of a GPU, or those of a file that `agentrl plan --measure` wrote. Raises UserError."""
    try:
        return STORED.get(name.lower()) or Speeds(**json.loads(Path(name).read_text()))
    except (OSError, ValueError, TypeError) as error:
        wanted = ", ".join(field.name for field in fields(Speeds))
        raise UserError(
            f"--gpu {name}: neither {' nor '.join(STORED)} nor a file of `agentrl plan --measure`, with {wanted}"
        ) from error


def measured(device: torch.device, stored: Speeds) -> Speeds:
    """The speeds of this machine: one device, and the link between two where there are two; else the link and always
    the network are those of `stored`."""
    gpu = device.type == "cuda"
    dtype, width, length = (torch.bfloat16, 8192, 1 << 29) if gpu else (torch.float32, 1024, 1 << 24)
    a, flat = torch.randn(width, width, dtype=dtype, device=device), torch.zeros(length, dtype=dtype, device=device)
    flops = 2 * width**3 / _least_seconds(lambda: a @ a, device)
    bandwidth = 2 * flat.nbytes / _least_seconds(flat.clone, device)
    found = replace(stored, memory=device_memory(device) / GIB, flops=flops, bandwidth=bandwidth)
    found = replace(found, name=torch.cuda.get_device_name(device) if gpu else "CPU")
    if gpu and torch.cuda.device_count() == 1:
        return replace(found, assumed="link, network")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_gather, (device.type, folder), nprocs=2)
        return replace(found, link=float(Path(folder, "speed").read_text()))


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    def timed() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return min(repeat(timed, number=1, repeat=6))


def _gather(rank: int, kind: str, folder: str) -> None:
    """One of two processes that gather from each other; the first writes the bytes/s that it receives."""
    device, place = torch.device(kind, rank if kind == "cuda" else 0), f"file://{folder}/store"
    backend = "nccl" if kind == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=place, rank=rank, world_size=2)
    own = torch.zeros(1 << (28 if kind == "cuda" else 22), device=device)
    both = [torch.empty_like(own) for _ in range(2)]
    seconds = _least_seconds(lambda: torch.distributed.all_gather(both, own), device)
    if rank == 0:
        Path(folder, "speed").write_text(str(own.nbytes / seconds))
    torch.distributed.destroy_process_group()
