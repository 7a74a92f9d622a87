"""What a server is started with, whatever engine runs in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ADAPTER = "adapter"
"""What a server calls the adapter that we send."""


@dataclass(frozen=True)
class AdapterSpec:
    """What a server has to know of the LoRA adapter to come."""

    rank: int
    targets: tuple[str, ...]
    """Names of the layers that it changes, without their paths."""


@dataclass(frozen=True)
class ServerSettings:
    """What a server is started with."""

    python: str
    model: str
    device: str
    """cuda or cpu."""
    dtype: str
    max_model_len: int
    max_num_seqs: int
    seed: int = 0
    tensor_parallel: int = 1
    memory_fraction: float = 0.5
    """Of the GPU memory that is free at the start: weights and KV cache together."""
    load_format: str = "dummy"
    eager: bool = False
    chunked_prefill: bool = True
    max_batched_tokens: int | None = None
    sleeps: bool = False
    deterministic: bool = False
    log_stats: bool = False
    adapter: AdapterSpec | None = None
    """The policy comes as this beside the base model, which the server reads from `model`; None: as whole weights."""
    takes_images: bool = False
    """The model takes images."""
    head_in_float32: bool = False
    """The product with the output layer is made in float32."""
    trust_remote_code: bool = False
    override_config: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """`rollout.engine_kwargs.<engine>`: wins over all the others."""


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
