"""The settings that a server is started with, and what every engine derives from them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.config.schema import Model, Rollout

ADAPTER = "adapter"
"""Name of the policy's adapter on a server."""
MOST_SHARE, LEAST_SHARE, UNKNOWN_SHARE = 0.85, 0.2, 0.5
"""Shares of a GPU's memory for weights and KV cache: with nothing else on it, at least, and where the trainer's part
is unknown. The rest is for activations, CUDA graphs and the two processes."""
AMPLE, RESERVE = 1.2, 8 << 30
"""More than is needed: servers admit no request that might not fit, and vLLM counts activations and graphs too."""

DRAFTED = 4
"""Tokens drafted at a time: of a longer guess less is kept, and each costs a token's work."""

GRAPH_MEMORY = {1024: 60 << 30, 512: 35 << 30, 256: 0}
"""Most sequences of a CUDA graph -> bytes of the smallest GPU for it: graphs keep the logits of all their sequences."""


@dataclass(frozen=True)
class AdapterSpec:
    """Rank and layers of the policy's LoRA adapter: a server needs them at its start."""

    rank: int
    targets: tuple[str, ...]
    """Names of the adapted layers, without their paths."""


@dataclass(frozen=True)
class ServerSettings:
    """The settings of one server."""

    python: str
    model: str
    device: str
    """cuda or cpu."""
    dtype: str
    max_model_len: int
    max_num_seqs: int
    rollout: Rollout = field(default_factory=Rollout)
    """Keys about servers, which each engine has flags for."""
    policy: Model = field(default_factory=Model)
    seed: int = 0
    trainer_bytes: float | None = None
    """Bytes that the trainer keeps on the GPU while the server samples; None: unknown."""
    needed_bytes: float | None = None
    """Bytes on the GPU of weights, and of a cache for all that a step asks at once; None: unknown."""
    servers_per_gpu: int = 1
    sleeps: bool = False
    ahead: bool = False
    """Rollouts continue while the policy trains: turns come one by one, at any time."""
    adapter: AdapterSpec | None = None
    """The policy is sent as an adapter of the base model in `model`; None: as whole weights."""
    takes_images: bool = False
    """The model takes images."""
    experts: tuple[int, int, int] | None = None
    """(experts of a layer, layers, experts of a token), where requests ask which ones their tokens met."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """`rollout.engine_kwargs.<engine>`: overrides all others."""


def memory_share(settings: ServerSettings, memory: int) -> float:
    """The share of a GPU of so many bytes (0: unknown) that the server takes."""
    if settings.rollout.gpu_memory_utilization is not None:
        return settings.rollout.gpu_memory_utilization
    if settings.trainer_bytes is None or not memory:
        return UNKNOWN_SHARE / settings.servers_per_gpu
    left = (MOST_SHARE - settings.trainer_bytes / memory) / settings.servers_per_gpu
    needed = 1.0 if settings.needed_bytes is None else with_spare(settings.needed_bytes) / memory
    return round(max(min(left, needed), LEAST_SHARE / settings.servers_per_gpu), 3)


def graph_sizes(sequences: int, memory: int) -> list[int]:
    """Numbers of sequences to capture CUDA graphs for: up to so many, on a GPU of so many bytes (0: unknown).

    A batch is padded to the next size. That costs little, since a step mostly reads weights and cache, while each size
    costs a tenth of a second at the start.
    """
    most = min(sequences, next(most for most, least in GRAPH_MEMORY.items() if not memory or memory >= least))
    steps = [1, 2, 4, 8, 16, *range(32, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, most, 128)]
    return [*(size for size in steps if size < most), most]


def with_spare(needed: float) -> float:
    """Bytes that a server takes to have those that it needs."""
    return AMPLE * needed + RESERVE


def flag_words(name: str, value: Any) -> list[str]:
    """A flag on the command line; None and False leave it out."""
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, Mapping):
        return [flag, json.dumps(dict(value))]
    if isinstance(value, list | tuple):
        return [flag, *map(str, value)]
    return [flag, str(value)]
