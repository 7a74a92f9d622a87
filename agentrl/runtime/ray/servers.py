"""SGLang and vLLM servers on the machines of a Ray cluster.

With GPUs shared, each group of `rollout.tensor_model_parallel_size` neighbouring ranks carries a server on its GPUs,
which gives its memory back while the policy trains. Apart (`rollout.nnodes`), servers have their GPUs to themselves.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import torch

from agentrl.config.schema import Config, Rollout
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.backends import model_length, server_backend
from agentrl.engines.launching import check_addresses, engine_name, server_urls, weight_folder
from agentrl.engines.probe import probe_for
from agentrl.engines.servers import RemoteEngine, Replica, ServerBackend
from agentrl.engines.servers.scratch import Scratch
from agentrl.runtime.opening import sampling_per_node
from agentrl.runtime.ray.cluster import reserve
from agentrl.runtime.ray.far import FarServer, ServerHost
from agentrl.runtime.ray.placing import Spot, apart_spots, rank_spots
from agentrl.runtime.ray.worker_group import Crew


class RankTransport:
    """Weights from the ranks: by files and broadcasts from the first, an adapter too, and by CUDA IPC from the one on a
    server's GPU."""

    def __init__(self, ranks: Crew, backend: ServerBackend, way: str, scratch: Path, nearest: dict[str, int]) -> None:
        """`nearest`: URL of a server -> the rank on its GPU."""
        self.name, self.ranks, self.backend, self.scratch, self.nearest = way, ranks, backend, scratch, nearest

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Give the replicas the present weights."""
        targets: dict[str, list[tuple[str, int]]] = {}
        for replica in replicas:
            rank = self.nearest[replica.url] if self.name == "ipc" else 0
            targets.setdefault(str(rank), []).append((replica.url, replica.starts))
        await asyncio.to_thread(self.ranks.call, "push", self.backend, self.name, str(self.scratch), targets)

    async def close(self) -> None:
        """Ranks and servers end together; there is nothing to take leave of."""


def start_servers(
    config: Config,
    device: torch.device,
    ranks: Crew,
    stack: ExitStack,
    progress: Callable[[str], None],
    *,
    vocabulary: int,
) -> tuple[RemoteEngine, bool]:
    """The engine over the run's servers, launched, and whether it sleeps while the policy trains. `vocabulary`: how
    many tokens the policy knows. Raises UserError."""
    rollout, trainer = config.rollout, config.trainer
    shared = rollout.nnodes == 0 and not rollout.base_url and device.type == "cuda"
    sleeps = shared and rollout.free_cache_engine
    name = engine_name(rollout, device)
    check_addresses(rollout, name)
    backend = server_backend(name, config, device, sleeps=sleeps)
    scratch = weight_folder(rollout)
    stack.callback(scratch.remove)
    servers: list[FarServer] = []
    logs = Path(trainer.default_local_dir).absolute() / "engine"
    if rollout.base_url:
        replicas = [Replica(backend, url) for url in server_urls(rollout)]
    else:
        spots = rank_spots(ranks.places, rollout, device) if rollout.nnodes == 0 else _apart(config, device, stack)
        files = [logs / f"{backend.name}-{i}.log" for i in range(len(spots))]
        servers = [_server(spot, backend, log, scratch, stack) for spot, log in zip(spots, files, strict=True)]
        replicas = [Replica(backend, server.url, server) for server in servers]
    nearest = {server.url: server.spot.rank for server in servers}
    way = "adapter" if backend.adapted else weight_way(rollout, device, shared)
    machines = {place.node for place in [*ranks.places, *(server.place for server in servers)]}
    if way in ("files", "adapter") and rollout.weight_dir is None and len(machines) > 1:
        raise UserError("rollout.weight_dir is not set: weights go by files, and machines share no memory; name one")
    engine = RemoteEngine(
        backend,
        replicas,
        RankTransport(ranks, backend, way, scratch.path, nearest),
        max_model_len=model_length(config),
        start_timeout=rollout.start_timeout,
        request_timeout=rollout.request_timeout,
        partial=rollout.partial_rollout,
        check=probe_for(rollout, lambda ids: ranks.call("call", "score", ids), vocabulary),
        router=rollout.router_url,
        progress=progress,
    )
    return engine, sleeps


def weight_way(rollout: Rollout, device: torch.device, shared: bool) -> str:
    """`rollout.weight_sync`, with auto told. vLLM on several of the ranks' GPUs reads files: it opens memory of one GPU
    only, and NCCL takes no two members on one."""
    if rollout.weight_sync != "auto":
        return rollout.weight_sync
    if device.type == "cpu" or rollout.base_url:
        return "files"
    if not shared:
        return "nccl"
    wide = rollout.tensor_model_parallel_size > 1
    return "files" if wide and engine_name(rollout, device) == "vllm" else "ipc"


def _apart(config: Config, device: torch.device, stack: ExitStack) -> list[Spot]:
    rollout, trainer = config.rollout, config.trainer
    each = sampling_per_node(trainer, rollout)
    keys = f"rollout.nnodes={rollout.nnodes} with rollout.n_gpus_per_node={each}"
    timeout = trainer.ray_wait_register_center_timeout
    group, _ = reserve(keys, rollout.nnodes, each, gpus=device.type == "cuda", timeout=timeout, stack=stack)
    return apart_spots(group, rollout, each, device)


def _server(spot: Spot, backend: ServerBackend, log: Path, scratch: Scratch, stack: ExitStack) -> FarServer:
    options = {"num_cpus": 0, "num_gpus": spot.own_gpus, "scheduling_strategy": spot.strategy}
    actor: Any = ray.remote(ServerHost).options(**options).remote(backend, str(log), str(scratch.path))
    stack.callback(ray.kill, actor)
    try:
        place = ray.get(actor.place.remote())
    except ray.exceptions.RayError as error:
        raise InfraError(f"no {backend.name} server can be started on {spot}: {error}") from error
    server = FarServer(actor, spot, place)
    server.launch()
    return server
