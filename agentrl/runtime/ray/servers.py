"""Starts the ranks of a run, and SGLang and vLLM servers, on the machines of a Ray cluster.

Colocated: each group of `rollout.tensor_model_parallel_size` neighbouring ranks has a server on its GPUs, which
releases its memory while the policy trains, unless both fit. With `rollout.nnodes`, servers have separate GPUs.

Invariant: nothing here imports PyTorch before the servers are launched; all start at the same time.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray

from agentrl.config.derived import sampling_per_node
from agentrl.config.keys import as_list
from agentrl.config.schema import Config, Rollout
from agentrl.core.errors import UserError
from agentrl.engines.backends import server_backend, server_dtype
from agentrl.engines.launching import check_addresses, engine_name, in_process, resolve_weight_sync, weight_folder
from agentrl.engines.servers import RemoteEngine, Replica, ServerBackend
from agentrl.engines.servers.backend import BROADCAST_ENVIRONMENT
from agentrl.engines.sharing import Sharing, shared
from agentrl.engines.teachers import Launch
from agentrl.runtime.ray.cluster import connect, on_gpus, reserve
from agentrl.runtime.ray.failures import results
from agentrl.runtime.ray.placement import Placement, placements_on_ranks, separate_placements
from agentrl.runtime.ray.rank import Rank
from agentrl.runtime.ray.remote_server import RemoteServer, ServerWorker
from agentrl.runtime.ray.worker import Location
from agentrl.runtime.ray.worker_group import WorkerGroup, spawn


@dataclass
class RankTransport:
    """Sends weights from the ranks: CUDA IPC from the rank on a server's GPU, broadcasts from all ranks, each to its
    part of the servers; files and adapters from rank 0."""

    ranks: WorkerGroup
    backend: ServerBackend
    name: str
    """adapter, or a name in WEIGHT_TRANSPORTS."""
    scratch: Path
    senders: dict[str, int]
    """URL of a server -> the rank that sends to it."""

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Send the current weights to the replicas."""
        targets: dict[str, list[tuple[str, int]]] = {}
        for replica in replicas:
            rank = self.senders.get(replica.url, 0) if self.name in ("ipc", "nccl") else 0
            targets.setdefault(str(rank), []).append((replica.url, replica.starts))
        await asyncio.to_thread(self.ranks.call, "push", self.backend, self.name, str(self.scratch), targets)

    async def close(self) -> None:
        """Nothing to do: ranks and servers end together."""


@dataclass
class RayServers:
    """The servers of a run; they start while the ranks load the policy."""

    config: Config
    servers: list[RemoteServer]
    """Servers that the run starts."""
    transport: RankTransport
    sleeps: bool
    """Whether the engine gives its memory back while the policy trains."""
    launched: float = field(default_factory=time.monotonic)
    """`time.monotonic()` of their start."""

    def engine(self, vocabulary: int) -> RemoteEngine:
        """The engine over them. `vocabulary`: the policy's vocabulary size."""
        from agentrl.engines.sending import probe_for

        check = probe_for(self.config, partial(self.transport.ranks.call, "call", "score"), vocabulary)
        return RemoteEngine(self.backend, self.replicas, self.transport, check=check)

    @property
    def backend(self) -> ServerBackend:
        """Their kind."""
        return self.transport.backend

    @property
    def replicas(self) -> list[Replica]:
        """The servers that the run starts, or those that it was given."""
        own = [Replica(self.backend, server.url, server) for server in self.servers]
        return own or [Replica(self.backend, url) for url in as_list(self.config.rollout.base_url)]


@dataclass
class Workers:
    """Ranks that load the policy, and servers that start."""

    ranks: WorkerGroup
    joining: list[Any]
    """The ranks' answers to come, when they have the policy."""
    servers: RayServers | None
    """None: hf engines sample."""
    stack: ExitStack
    """Ends all."""


def start_workers(config: Config) -> Workers:
    """Start them. Raises UserError if the cluster is too small."""
    trainer, env = config.trainer, BROADCAST_ENVIRONMENT if config.rollout.nnodes else {}  # NCCL reads it once
    with ExitStack() as stack:
        connect(config.ray_init, stack)
        gpus, where = on_gpus(trainer.device), ("trainer", trainer.nnodes, trainer.n_gpus_per_node)
        ranks = spawn(Rank, config, *where, gpus=gpus, stack=stack, env=env, nsight=trainer.worker_nsight_options)
        joining, kind = ranks.begin_join(), "cuda" if gpus else "cpu"
        name = engine_name(config.rollout, kind)
        # hf's module imports transformers, as the main thread does now: Python would give one of them half a module.
        servers = None if name == "hf" or in_process(name) else launch_servers(config, kind, ranks, stack)
        return Workers(ranks, joining, servers, stack.pop_all())


def launch_servers(config: Config, kind: str, ranks: WorkerGroup, stack: ExitStack) -> RayServers:
    """Start the servers beside `ranks`, on devices of this kind, cpu or cuda. Raises UserError."""
    rollout = config.rollout
    name = engine_name(rollout, kind)
    check_addresses(rollout, name)
    beside = rollout.nnodes == 0 and not rollout.base_url and kind == "cuda"
    placements = [] if rollout.base_url else _placements(config, kind, ranks, stack)
    sharing = Sharing(apart=rollout.nnodes > 0, replicas=len(placements) or 1, ranks=len(ranks.locations))
    if beside:
        memory = min(location.memory for location in ranks.locations)
        sharing = shared(config, sharing, server_dtype(config, kind), memory)
    backend = server_backend(name, config, kind, sharing)
    scratch = weight_folder(rollout)
    stack.callback(scratch.remove)
    folder = Path(config.trainer.default_local_dir).absolute() / "engine"
    logs = [folder / f"{backend.name}-{i}.log" for i in range(len(placements))]
    servers = launched(backend, placements, logs, scratch.path, stack)
    # A vLLM server on several GPUs opens memory of one only, and NCCL allows no two members on one GPU.
    opens = name != "vllm" or rollout.tensor_model_parallel_size == 1
    method = "adapter" if backend.adapted else resolve_weight_sync(rollout, kind, apart=not beside, opens=opens)
    _check_files_reach(method, rollout, [*ranks.locations, *(server.location for server in servers)])
    senders = {s.url: s.placement.rank if beside else i % len(ranks.actors) for i, s in enumerate(servers)}
    transport = RankTransport(ranks, backend, method, scratch.path, senders)
    return RayServers(config, servers, transport, sharing.sleeps)


def _check_files_reach(method: str, rollout: Rollout, locations: Sequence[Location]) -> None:
    """Raises UserError where weights go by files, and the machines have no folder in common."""
    machines = {location.node for location in locations}
    if method in ("files", "adapter") and rollout.weight_dir is None and len(machines) > 1:
        raise UserError(
            "weights go by files between machines: set rollout.weight_dir to a folder that all machines share"
        )


def _placements(config: Config, kind: str, ranks: WorkerGroup, stack: ExitStack) -> list[Placement]:
    rollout, trainer = config.rollout, config.trainer
    if rollout.nnodes == 0:
        return placements_on_ranks(ranks.locations, rollout, kind)
    each = sampling_per_node(trainer, rollout)
    keys = f"rollout.nnodes={rollout.nnodes} with rollout.n_gpus_per_node={each}"
    timeout = trainer.ray_wait_register_center_timeout
    group, _ = reserve(keys, rollout.nnodes, each, gpus=kind == "cuda", timeout=timeout, stack=stack)
    return separate_placements(group, rollout, each, kind)


def teacher_launcher(config: Config, kind: str, stack: ExitStack) -> Launch:
    """Starts teachers on GPUs that Ray gives them, where the `kind` of devices is cuda."""
    scratch = weight_folder(config.rollout)
    stack.callback(scratch.remove)

    def launch(backend: ServerBackend, gpus: int, log: Path) -> Replica:
        placement = Placement("SPREAD", own_gpus=gpus if kind == "cuda" else 0)
        (server,) = launched(backend, [placement], [log], scratch.path, stack)
        return Replica(backend, server.url, server)

    return launch


def launched(
    backend: ServerBackend, places: Sequence[Placement], logs: Sequence[Path], scratch: Path, stack: ExitStack
) -> list[RemoteServer]:
    """Servers that start at these places, each with its log; `stack` ends them. Raises WorkerDied."""
    actors = []
    for place, log in zip(places, logs, strict=True):
        options = {"num_cpus": 0, "num_gpus": place.own_gpus, "scheduling_strategy": place.strategy}
        kind: Any = ray.remote(ServerWorker).options(**options)
        actors.append(kind.remote(backend, str(log), str(scratch)))
        stack.callback(ray.kill, actors[-1])
    names = [f"{backend.name} server {i}" for i in range(len(actors))]
    locations = results([actor.location.remote() for actor in actors], names)
    servers = [RemoteServer(*found) for found in zip(actors, places, locations, strict=True)]
    results([server.launching() for server in servers], names)
    return servers
