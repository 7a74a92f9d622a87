"""Launches the servers that the settings ask for, on their GPUs.

Invariant: until the servers are launched nothing here imports PyTorch, which takes seconds.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.derived import deterministic, records_experts
from agentrl.config.keys import as_list
from agentrl.config.schema import Config, Rollout
from agentrl.core.errors import UserError
from agentrl.core.points import ENGINES, is_server
from agentrl.core.remote_files import SHARED_MEMORY
from agentrl.engines.backends import kwargs_of, server_backend, server_dtype
from agentrl.engines.engine import Engine
from agentrl.engines.gpus import placements, teacher_gpus, visible_gpus
from agentrl.engines.servers import RemoteEngine, Replica, ServerBackend, ServerProcess
from agentrl.engines.servers.host import first_gpu
from agentrl.engines.servers.installation import find_python
from agentrl.engines.servers.process import Scratch, free_port
from agentrl.engines.sharing import Sharing, model_length, sequences_in_process, shared
from agentrl.tracking.start_times import StartTimes

if TYPE_CHECKING:
    import torch

    from agentrl.engines.sending import Score
    from agentrl.engines.servers.weights.transport import Transport
    from agentrl.training.learner import Learner

KEY = "rollout.name"


def engine_name(rollout: Rollout, kind: str) -> str:
    """The engine's name; resolves `rollout.name=auto`. `kind`: of the policy's device, cpu or cuda."""
    if rollout.name != "auto":
        return rollout.name
    there = kind == "cuda" and (rollout.engine_python or find_python("sglang", "sglang"))
    return "sglang" if there or rollout.base_url or rollout.router_url else "hf"


def in_process(name: str) -> bool:
    """Whether the engine `name` samples in the trainer's process, not in a server. Raises UserError for no engine."""
    return not is_server(ENGINES.get(name, KEY))


def check_addresses(rollout: Rollout, name: str) -> None:
    """Raises UserError for servers that the engine does not use, for a router without the addresses of its servers, for
    what only servers of the run take, and for the address of such a server."""
    if rollout.base_url and in_process(name):
        raise UserError(
            f"rollout.base_url names servers, and rollout.name={name} samples in the trainer: drop one of them"
        )
    if rollout.router_url and not (rollout.base_url and name == "sglang"):
        raise UserError("rollout.router_url: name the sglang servers behind it in rollout.base_url, for their weights")
    for key in ("quantization", "speculative_algorithm"):
        if getattr(rollout, key) and (rollout.base_url or in_process(name)):
            raise UserError(f"rollout.{key}: only a server that the run starts takes it; set rollout.name=vllm")
    if taken := {"host", "port"} & set(kwargs_of(rollout, name)):
        raise UserError(
            f"rollout.engine_kwargs.{name}.{min(taken)}: agentrl chooses it; rollout.base_url names your own"
        )


def weight_folder(rollout: Rollout) -> Scratch:
    """A new folder for weights as files, in shared memory where there is any and nothing else is said."""
    return Scratch(rollout.weight_dir or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else tempfile.gettempdir()))


def engine_in_process(config: Config, module: Any) -> Engine:
    """The engine in this process: hf, or one of the user's own. Raises UserError."""
    rollout, device = config.rollout, next(module.parameters()).device
    name = engine_name(rollout, device.type)
    if records_experts(config):
        prepare_routing(module, device)
    sizes = {"max_num_seqs": sequences_in_process(config), "max_model_len": model_length(config)}
    steady = deterministic(config.trainer, rollout)
    return ENGINES.make(name, KEY, module, **sizes, deterministic=steady, **kwargs_of(rollout, name))


def prepare_routing(module: Any, device: "torch.device") -> None:
    """Have the routers of a model recorded, which a trainer in this process may have done. Raises UserError."""
    from agentrl.training.model.handle import ModelHandle
    from agentrl.training.model.routing import routing_in
    from agentrl.training.model.routing_probe import routing_of

    if routing_in(module) is None:
        routing_of(ModelHandle.of(module), device, "actor.router_replay.mode=R3")


@dataclass
class Servers:
    """The servers of a run; they start while the trainer loads its model."""

    config: Config
    kind: str
    """Kind of their device: cpu or cuda."""
    backend: ServerBackend
    replicas: list[Replica]
    scratch: Scratch
    """Folder for weights as files."""
    weight_sync: str
    """How weights get there: adapter, or a name in WEIGHT_TRANSPORTS."""
    sleeps: bool
    """Whether the engine gives its memory back while the policy trains."""
    launched: float = field(default_factory=time.monotonic)
    """`time.monotonic()` of their start."""
    transport: "Transport | None" = None
    """Sends them the weights; set when the policy is there."""

    def send_from(self, learner: "Learner") -> None:
        """Have them get the weights of a learner in this process. Raises UserError where PyTorch does not use the GPU
        that they have."""
        from agentrl.engines.sending import sent_weights, transport

        device = next(learner.model.module.parameters()).device
        if device.type != self.kind:
            raise UserError(
                f"trainer.device=auto: the servers were started for {self.kind}, and PyTorch uses {device.type}: set "
                f"trainer.device={device.type}"
            )
        weights = sent_weights(self.config, learner.model, self.weight_sync, device)
        given = self.config, weights, self.weight_sync, device, self.scratch.path
        self.transport = transport(*given, placed=learner.placed)

    def engine(self, score: "Score", vocabulary: int, times: StartTimes) -> RemoteEngine:
        """The engine over them. `score`: the policy's log-probs, of which `vocabulary` tokens have some; `times` counts
        the seconds of the weights' check."""
        from agentrl.engines.sending import probe_for

        probe = probe_for(self.config, score, vocabulary)
        check = probe and times.timed("probe", probe)
        return RemoteEngine(self.backend, self.replicas, self.transport, check=check, scratch=self.scratch)

    async def close(self) -> None:
        """Stop the servers, when no engine was made of them."""
        await asyncio.gather(*(replica.close() for replica in self.replicas))
        self.scratch.remove()


def launch(config: Config, kind: str) -> Servers | None:
    """Start the servers that the settings ask for; None for the engine that needs none. `kind`: of their device, cpu or
    cuda. Raises UserError."""
    rollout, name = config.rollout, engine_name(config.rollout, kind)
    check_addresses(rollout, name)
    if in_process(name):
        return None
    gpus = visible_gpus()[: -teacher_gpus(config.teachers) or None] if kind == "cuda" else []
    width = rollout.tensor_model_parallel_size
    apart = own_gpus(rollout, gpus)
    places = placements(gpus, rollout.replicas, width, first=1 if apart else 0)
    per_gpu = -(-len(places) * width // len(gpus)) if gpus else 1
    sharing = Sharing(apart=apart, replicas=len(places), per_gpu=per_gpu)
    if gpus and not apart:
        sharing = shared(config, sharing, server_dtype(config, kind), first_gpu()[1])
    backend = server_backend(name, config, kind, sharing)
    replicas = [Replica(backend, url) for url in as_list(rollout.base_url)]
    if not replicas:
        logs = Path(config.trainer.default_local_dir) / "engine"
        replicas = [own_replica(backend, place, logs / f"{backend.name}-{i}.log") for i, place in enumerate(places)]
    opens = all(place == gpus[:1] for place in places)
    weight_sync = "adapter" if backend.adapted else resolve_weight_sync(rollout, kind, apart=apart, opens=opens)
    servers = Servers(config, kind, backend, replicas, weight_folder(rollout), weight_sync, sharing.sleeps)
    for replica in replicas:
        replica.launch()
    return servers


def resolve_weight_sync(rollout: Rollout, kind: str, *, apart: bool, opens: bool) -> str:
    """`rollout.weight_sync`, with auto resolved. `kind`: of the servers' device, cpu or cuda; `apart`: they have other
    GPUs than the trainer; `opens`: they can open the trainer's memory."""
    if rollout.weight_sync != "auto":
        return rollout.weight_sync
    if rollout.base_url or kind == "cpu":
        return "files"
    if apart:
        return "nccl"
    return "ipc" if opens else "files"


def own_gpus(rollout: Rollout, gpus: Sequence[str]) -> bool:
    """Whether the servers of a run with one process have other GPUs than the trainer."""
    return bool(rollout.base_url) or len(gpus) > rollout.replicas * rollout.tensor_model_parallel_size


def own_replica(backend: ServerBackend, gpus: Sequence[str], log: Path) -> Replica:
    """A server that the run starts, on the given GPUs."""
    port = free_port()
    environment = backend.environment() | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
    return Replica(backend, f"http://127.0.0.1:{port}", ServerProcess(backend.command(port), environment, log))
