"""Checks the machines of a cluster as a run uses them: equal, with one folder, connected, and about as fast.

Needs Ray.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from timeit import repeat
from typing import Any

from agentrl.config.schema import Config
from agentrl.config.schema.fsdp import Sharding
from agentrl.core.errors import InfraError
from agentrl.core.paths import expanded
from agentrl.doctor.finding import Finding, Level
from agentrl.runtime.ray.cluster import bundle_of, connect, machines_with, on_gpus
from agentrl.runtime.ray.failures import results
from agentrl.runtime.ray.rank import TrainingWorker
from agentrl.runtime.ray.worker_group import spawn

FOLDER = "trainer.default_local_dir"
RIGHT = {FOLDER: "shared", "clock": "right"}
FIXES = {
    FOLDER: "name a folder that all machines mount, and can write",
    "clock": "synchronise the clocks: chrony, timedatectl",
}
"""By fact; hardware and versions have another one."""
PATIENCE = 30.0
"""Seconds to wait for machines, and for members of the process group."""
CLOCKS, SLOW = 1.0, 1.5
"""Seconds that two clocks may differ; times that a machine or a link may take longer than the usual one."""
SIZE = 32 << 20
"""Bytes of an exchange."""
Found = tuple[str, Finding]
"""Area and finding."""


class ClusterProbe(TrainingWorker):
    """A rank without a model."""

    async def facts(self, mark: Path, now: float) -> dict[str, str]:
        """Facts that should be equal on all machines. `mark`: a file in a folder that all share; `now`: the time."""
        late = time.time() - now
        found = {name: version(name) for name in ("agentrl", "torch", "transformers", "ray")}
        found |= {"CPUs": str(os.cpu_count()), FOLDER: state_of(mark)}
        found["clock"] = "right" if abs(late) < CLOCKS else f"{late:+.1f} s"
        return found | (gpu_facts() if self.device.type == "cuda" else {})

    async def speeds(self, first: list[int], size: int) -> list[float]:
        """Seconds in which this rank multiplies matrices, all ranks sum `size` bytes, and each rank of `first` sends
        that many to the next; 0.0 for a link of others."""
        import torch
        import torch.distributed as dist

        side = 8192 if self.device.type == "cuda" else 1024
        matrix = torch.ones(side, side, device=self.device)
        data = torch.ones(size // 4, device=self.device)
        works: list[Any] = [lambda: matrix @ matrix, lambda: dist.all_reduce(data)]
        for sender, receiver in pairwise([*first, first[0]] if len(first) > 1 else []):
            link = {sender: lambda to=receiver: dist.send(data, to), receiver: lambda of=sender: dist.recv(data, of)}
            works.append(link.get(self.learner.rank, lambda: None))
        # The last value of `data` waits for the GPU.
        done = [lambda work=work: (work(), data[-1].item()) for work in works]
        return [min(repeat(work, number=1, repeat=3)) for work in done]

    def _learner(self, world: int) -> Any:
        return self._join_ranks(world, 1, Sharding())


def gpu_facts() -> dict[str, str]:
    """The first GPU, and the version of NVIDIA's driver."""
    import torch

    file = Path("/sys/module/nvidia/version")
    return {"GPU": torch.cuda.get_device_name(), "driver": file.read_text().strip() if file.exists() else "unknown"}


def state_of(mark: Path) -> str:
    """Whether this machine can write to the folder of `mark`, and finds the file there."""
    try:
        TemporaryFile(dir=mark.parent).close()
    except OSError as error:
        return str(error.strerror)
    return "shared" if mark.exists() else "another folder"


def cluster(config: Config) -> Iterator[Found]:
    """Findings about the cluster that a run with these settings uses. Raises UserError without one."""
    folder = expanded(config.trainer.default_local_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    trainer = replace(config.trainer, nccl_timeout=PATIENCE, ray_wait_register_center_timeout=PATIENCE)
    with ExitStack() as stack, NamedTemporaryFile(prefix=".agentrl-check-", dir=folder) as mark:
        connect(config.ray_init, stack)
        gpus, each, needed = on_gpus(trainer.device), trainer.n_gpus_per_node, trainer.nnodes + config.rollout.nnodes
        count = max(machines_with(bundle_of(each, gpus=gpus)), needed)
        ranks = spawn(ClusterProbe, replace(config, trainer=trainer), "trainer", count, each, gpus=gpus, stack=stack)
        world, first = len(ranks.actors), range(0, len(ranks.actors), each)
        facts = ranks.each("facts", [(Path(mark.name), time.time())] * world)
        found = {ranks.locations[i].address: facts[i] for i in first}
        yield from machines(found)
        if world == 1:
            return
        try:
            results(ranks.begin_join(), ranks.names)
            yield from speeds(list(found), ranks.each("speeds", [(first, SIZE)] * world))
        except InfraError as error:
            fix = "open all TCP ports between the machines; set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"
            yield "network", Finding("problem", str(error), fix)


def machines(found: Mapping[str, Mapping[str, str]]) -> Iterator[Found]:
    """Findings about `ClusterProbe.facts` of machines, by address."""
    yield "machines", Finding("ok", f"{len(found)}: {', '.join(found)}")
    for name, value in {**next(iter(found.values())), **RIGHT}.items():
        bad = (f"{name}: {has[name]} on {where}, not {value}" for where, has in found.items() if has[name] != value)
        yield judged("machines", f"{name}: {value}", bad, FIXES.get(name, "use equal machines with one image"))


def speeds(names: Sequence[str], seconds: Sequence[Sequence[float]]) -> Iterator[Found]:
    """Findings about `ClusterProbe.speeds` of all ranks."""
    world, each = len(seconds), len(seconds) // len(names)
    rate = 2 * (1 - 1 / world) * SIZE / max(taken[1] for taken in seconds) / 1e9
    yield "network", Finding("ok", f"{world} ranks sum {SIZE >> 20} MiB, each at {rate:.2f} GB/s")
    yield slow("machines", {name: 1 / seconds[i * each][0] for i, name in enumerate(names)}, "products/s")
    sent = [max(taken[i] for taken in seconds) for i in range(2, len(seconds[0]))]
    links = {f"{names[i]} to {names[(i + 1) % len(names)]}": SIZE / took / 1e9 for i, took in enumerate(sent)}
    if links:
        yield slow("network", links, "GB/s")


def slow(area: str, rates: Mapping[str, float], unit: str) -> Found:
    """Whether all are about as fast as the usual one."""
    usual = sorted(rates.values())[len(rates) // 2]
    bad = (f"{name}: {rate:.2f} {unit}, not {usual:.2f}" for name, rate in rates.items() if rate * SLOW < usual)
    fix = "a step takes as long as its slowest machine: look there for other programs, heat, cables"
    return judged(area, f"{min(rates.values()):.2f} {unit} or more on each", bad, fix, "warning")


def judged(area: str, good: str, bad: Iterable[str], fix: str, level: Level = "problem") -> Found:
    """`good`, or all that is bad."""
    text = "; ".join(bad)
    return area, Finding(level, text, fix) if text else Finding("ok", good)
