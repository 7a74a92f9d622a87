"""Starts SGLang and vLLM servers on the machines of a Ray cluster.

Colocated: each group of `rollout.tensor_model_parallel_size` neighbouring ranks has a server on its GPUs, which
releases its memory while the policy trains. With `rollout.nnodes`, servers have separate GPUs.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import torch

from agentrl.config.derived import sampling_per_node
from agentrl.config.schema import Config, Rollout
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.backends import model_length, server_backend
from agentrl.engines.launching import check_addresses, engine_name, server_urls, weight_folder
from agentrl.engines.probe import probe_for
from agentrl.engines.servers import RemoteEngine, Replica, ServerBackend
from agentrl.engines.servers.process import Scratch
from agentrl.engines.sharing import Sharing
from agentrl.engines.teachers import Launch
from agentrl.runtime.ray.cluster import reserve
from agentrl.runtime.ray.placement import Placement, placements_on_ranks, separate_placements
from agentrl.runtime.ray.remote_server import RemoteServer, ServerWorker
from agentrl.runtime.ray.worker import Location
from agentrl.runtime.ray.worker_group import WorkerGroup


class RankTransport:
    """Sends weights from the ranks: files, adapters and broadcasts from rank 0, CUDA IPC from the rank on a server's
    GPU."""

    def __init__(
        self, ranks: WorkerGroup, backend: ServerBackend, method: str, scratch: Path, nearest: dict[str, int]
    ) -> None:
        """`nearest`: URL of a server -> the rank on its GPU."""
        self.name, self.ranks, self.backend, self.scratch, self.nearest = method, ranks, backend, scratch, nearest

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Send the current weights to the replicas."""
        targets: dict[str, list[tuple[str, int]]] = {}
        for replica in replicas:
            rank = self.nearest[replica.url] if self.name == "ipc" else 0
            targets.setdefault(str(rank), []).append((replica.url, replica.starts))
        await asyncio.to_thread(self.ranks.call, "push", self.backend, self.name, str(self.scratch), targets)

    async def close(self) -> None:
        """Nothing to do: ranks and servers end together."""


def start_servers(
    config: Config,
    device: torch.device,
    ranks: WorkerGroup,
    stack: ExitStack,
    *,
    vocabulary: int,
) -> tuple[RemoteEngine, bool]:
    """Launch the servers; returns the engine, and whether it sleeps while the policy trains. `vocabulary`: the policy's
    vocabulary size. Raises UserError."""
    rollout = config.rollout
    name = engine_name(rollout, device.type)
    check_addresses(rollout, name)
    shared = rollout.nnodes == 0 and not rollout.base_url and device.type == "cuda"
    sleeps = shared and rollout.free_cache_engine is not False
    placements: list[Placement] = []
    if not rollout.base_url:
        here = rollout.nnodes == 0
        placements = placements_on_ranks(ranks.locations, rollout, device) if here else _apart(config, device, stack)
    sharing = Sharing(
        apart=rollout.nnodes > 0, sleeps=sleeps, replicas=len(placements) or 1, ranks=len(ranks.locations)
    )
    backend = server_backend(name, config, device.type, sharing)
    scratch = weight_folder(rollout)
    stack.callback(scratch.remove)
    logs = Path(config.trainer.default_local_dir).absolute() / "engine"
    servers = [
        _server(placement, backend, logs / f"{backend.name}-{i}.log", scratch, stack)
        for i, placement in enumerate(placements)
    ]
    method = "adapter" if backend.adapted else weight_sync_method(rollout, device, shared)
    _check_files_reach(method, rollout, [*ranks.locations, *(server.location for server in servers)])
    nearest = {server.url: server.placement.rank for server in servers}
    engine = RemoteEngine(
        backend,
        [Replica(backend, server.url, server) for server in servers]
        or [Replica(backend, url) for url in server_urls(rollout)],
        RankTransport(ranks, backend, method, scratch.path, nearest),
        max_model_len=model_length(config),
        start_timeout=rollout.start_timeout,
        request_timeout=rollout.request_timeout,
        partial=rollout.partial_rollout,
        check=probe_for(rollout, lambda ids: ranks.call("call", "score", ids), vocabulary),
        router=rollout.router_url,
    )
    return engine, sleeps


def _check_files_reach(method: str, rollout: Rollout, locations: Sequence[Location]) -> None:
    """Raises UserError where weights go by files, and the machines have no folder in common."""
    machines = {location.node for location in locations}
    if method in ("files", "adapter") and rollout.weight_dir is None and len(machines) > 1:
        raise UserError(
            "weights go by files between machines: set rollout.weight_dir to a folder that all machines share"
        )


def weight_sync_method(rollout: Rollout, device: torch.device, shared: bool) -> str:
    """`rollout.weight_sync`, with `auto` resolved. A vLLM server on several GPUs of the ranks reads files: it can open
    memory of one GPU only, and NCCL allows no two members on one GPU."""
    if rollout.weight_sync != "auto":
        return rollout.weight_sync
    if device.type == "cpu" or rollout.base_url:
        return "files"
    if not shared:
        return "nccl"
    wide = rollout.tensor_model_parallel_size > 1
    return "files" if wide and engine_name(rollout, device.type) == "vllm" else "ipc"


def _apart(config: Config, device: torch.device, stack: ExitStack) -> list[Placement]:
    rollout, trainer = config.rollout, config.trainer
    each = sampling_per_node(trainer, rollout)
    keys = f"rollout.nnodes={rollout.nnodes} with rollout.n_gpus_per_node={each}"
    timeout = trainer.ray_wait_register_center_timeout
    group, _ = reserve(keys, rollout.nnodes, each, gpus=device.type == "cuda", timeout=timeout, stack=stack)
    return separate_placements(group, rollout, each, device)


def teacher_launcher(config: Config, device: torch.device, stack: ExitStack) -> Launch:
    """Starts teachers on GPUs that Ray gives them."""
    scratch = weight_folder(config.rollout)
    stack.callback(scratch.remove)

    def launch(backend: ServerBackend, gpus: int, log: Path) -> Replica:
        placement = Placement("SPREAD", own_gpus=gpus if device.type == "cuda" else 0)
        server = _server(placement, backend, log, scratch, stack)
        return Replica(backend, server.url, server)

    return launch


def _server(
    placement: Placement, backend: ServerBackend, log: Path, scratch: Scratch, stack: ExitStack
) -> RemoteServer:
    options = {"num_cpus": 0, "num_gpus": placement.own_gpus, "scheduling_strategy": placement.strategy}
    actor: Any = ray.remote(ServerWorker).options(**options).remote(backend, str(log), str(scratch.path))
    stack.callback(ray.kill, actor)
    try:
        location = ray.get(actor.location.remote())
    except ray.exceptions.RayError as error:
        raise InfraError(f"no {backend.name} server can be started on {placement}: {error}") from error
    server = RemoteServer(actor, placement, location)
    server.launch()
    return server
