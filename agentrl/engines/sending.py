"""Chooses the weights that servers get, and their transport."""

import logging
from pathlib import Path
from typing import Any

import torch

from agentrl.config.schema import Config
from agentrl.core.dtypes import torch_dtype
from agentrl.core.points import WEIGHT_TRANSPORTS
from agentrl.engines.backends import server_dtype
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.adapter import AdapterTransport, AdapterWeights
from agentrl.engines.servers.weights.transport import Link, Transport
from agentrl.training.parallel.ranks import ALONE, Ranks

log = logging.getLogger(__name__)

SentWeights = PolicyWeights | AdapterWeights


def sent_weights(config: Config, module: Any, kind: str, device: torch.device) -> SentWeights:
    """The weights of `module` that servers get: all, or, for kind "adapter", its adapter."""
    dtype = torch_dtype(server_dtype(config, device.type))
    if kind == "adapter":
        return AdapterWeights(module, dtype=dtype)
    return PolicyWeights(module, dtype=dtype, check=config.rollout.weight_check != "never")


def transport(
    config: Config, weights: SentWeights, kind: str, device: torch.device, scratch: Path, ranks: Ranks = ALONE
) -> Transport:
    """The transport of weights to servers. `kind`: adapter, or a name in WEIGHT_TRANSPORTS; `scratch`: a folder for
    files; `ranks`: the processes that have the model, each with one GPU. Raises UserError."""
    log.info("weights reach the engine by %s", kind)
    if isinstance(weights, AdapterWeights):
        return AdapterTransport(weights, folder=scratch)
    link = Link(
        weights,
        model_config=weights.module.config,
        folder=scratch,
        bucket_bytes=config.rollout.update_weights_bucket_megabytes << 20,
        device=device,
        ranks=ranks,
        tensor_parallel=config.rollout.tensor_model_parallel_size,
    )
    made: Transport = WEIGHT_TRANSPORTS.make(kind, "rollout.weight_sync", link)
    return made
