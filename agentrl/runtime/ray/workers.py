"""The workers of a run on Ray, which start while this process imports PyTorch.

Invariant: nothing here imports PyTorch.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from agentrl.config.schema import Config
from agentrl.engines.launching import engine_name, in_process
from agentrl.engines.servers.backend import BROADCAST_ENVIRONMENT
from agentrl.runtime.ray.cluster import connect, on_gpus
from agentrl.runtime.ray.rank import Rank
from agentrl.runtime.ray.servers import RayServers, launch_servers
from agentrl.runtime.ray.worker_group import WorkerGroup, spawn


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
    trainer, env = config.trainer, BROADCAST_ENVIRONMENT if config.rollout.nnodes else {}
    nsight = trainer.worker_nsight_options
    with ExitStack() as stack:
        connect(config.ray_init, stack)
        gpus, size = on_gpus(trainer.device), (trainer.nnodes, trainer.n_gpus_per_node)
        # NCCL reads the environment once, at a rank's first use.
        ranks = spawn(Rank, config, "trainer", *size, gpus=gpus, stack=stack, env=env, nsight=nsight)
        joining, kind = ranks.begin_join(), "cuda" if gpus else "cpu"
        local = in_process(engine_name(config.rollout, kind))
        servers = None if local else launch_servers(config, kind, ranks, stack)
        return Workers(ranks, joining, servers, stack.pop_all())
