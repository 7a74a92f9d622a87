"""Chooses the weights that servers get and their transport, and checks that they have arrived."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from agentrl.config.schema import Config
from agentrl.core.dtypes import torch_dtype
from agentrl.core.errors import InfraError
from agentrl.core.points import WEIGHT_TRANSPORTS
from agentrl.engines.backends import server_dtype
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import Replica
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.adapter import ONE, AdapterTransport, AdapterWeights, Placed
from agentrl.engines.servers.weights.transport import Link, Transport
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import ALONE, Ranks

log = logging.getLogger(__name__)

PROMPT, DRAWN = 12, 24
MAX_GAP = 0.5
"""Nats, mean: the same weights in bfloat16 differ by 0.04, other weights by far more than 1."""

SentWeights = PolicyWeights | AdapterWeights
Score = Callable[[list[int], str], Tensor]


def sent_weights(config: Config, model: nn.Module | ModelHandle, kind: str, device: torch.device) -> SentWeights:
    """The weights of the policy that servers get: all, or, for kind "adapter", its adapter."""
    dtype = torch_dtype(server_dtype(config, device.type))
    if kind == "adapter":
        return AdapterWeights(model, dtype=dtype)
    return PolicyWeights(model, dtype=dtype, check=config.rollout.weight_check != "never")


def transport(
    config: Config,
    weights: SentWeights,
    kind: str,
    device: torch.device,
    scratch: Path,
    ranks: Ranks = ALONE,
    placed: Placed = ONE,
) -> Transport:
    """The transport of weights to servers. `kind`: adapter, or a name in WEIGHT_TRANSPORTS; `scratch`: a folder for
    files; `ranks`: the processes that have the model, each with one GPU; `placed`: see `AdapterTransport`. Raises
    UserError."""
    log.info("weights reach the engine by %s", kind)
    if isinstance(weights, AdapterWeights):
        return AdapterTransport(weights, folder=scratch, placed=placed)
    size, width = config.rollout.update_weights_bucket_megabytes << 20, config.rollout.tensor_model_parallel_size
    network = weights.module.config
    link = Link(weights, network, scratch, bucket_bytes=size, device=device, ranks=ranks, tensor_parallel=width)
    return WEIGHT_TRANSPORTS.make(kind, "rollout.weight_sync", link)


class Probe:
    """Draws tokens of each policy from each replica and compares their log-probs with the policy's own."""

    def __init__(self, score: Score, vocabulary: int, *, every_time: bool, policies: Sequence[str] = ()) -> None:
        """`score`: a policy's log-prob of each token given the tokens before it, float32 on the CPU."""
        generator = torch.Generator().manual_seed(1)
        self.prompt = torch.randint(0, vocabulary, (PROMPT,), generator=generator).tolist()
        self.score, self.every_time, self.policies = score, every_time, policies or ("",)
        self._seen: set[tuple[str, int]] = set()

    async def __call__(self, replicas: Sequence[Replica]) -> None:
        """Raises InfraError for a replica whose weights are not the policy's."""
        for replica in replicas:
            if self.every_time or (replica.url, replica.starts) not in self._seen:
                for policy in self.policies:
                    await self._compare(replica, policy)
                self._seen.add((replica.url, replica.starts))

    async def _compare(self, replica: Replica, policy: str) -> None:
        sampling = Sampling(DRAWN, ignore_eos=True, seed=1, adapter=policy or None)
        answer = await replica.backend.generate(replica.http, f"probe-{replica.starts}", self.prompt, sampling, 300)
        scored = await asyncio.to_thread(self.score, self.prompt + answer.token_ids, policy)
        gap = float((scored[PROMPT:] - torch.tensor(answer.logprobs)).abs().mean())
        log.info("%s: log-probs %.4f nats from the policy's %s", replica.url, gap, policy)
        if not gap < MAX_GAP:
            raise InfraError(
                f"{replica.url} does not have the policy's weights: log-probs differ by {gap:.2f} nats on "
                "average; try rollout.weight_sync=files, another rollout.name, or no rollout.quantization"
            )


def probe_for(config: Config, score: Score, vocabulary: int) -> Probe | None:
    """The check that `rollout.weight_check` asks for."""
    how = config.rollout.weight_check
    if how == "never":
        return None
    return Probe(score, vocabulary, every_time=how == "always", policies=config.model.policies)
