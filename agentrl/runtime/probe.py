"""Whether an engine has the policy's weights: both score the same drawn tokens."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.config.schema import Rollout
from agentrl.errors import InfraError
from agentrl.rollout.engine import Sampling
from agentrl.rollout.engines.remote import Replica
from agentrl.training import Batch
from agentrl.training.logprobs import TokenLogprobs

log = logging.getLogger(__name__)

PROMPT, DRAWN = 12, 24
MOST = 0.5
"""Nats, mean: two bfloat16 computations of one thing differ by 0.04, other weights by far over 1."""


class Probe:
    """Draws tokens from each replica and compares their log-probs with the policy's own."""

    def __init__(self, score: Callable[[list[int]], Tensor], vocabulary: int, *, every_time: bool) -> None:
        """`score`: the policy's log-prob of each token given those before it, f32 on the CPU."""
        generator = torch.Generator().manual_seed(1)
        self.prompt = torch.randint(0, vocabulary, (PROMPT,), generator=generator).tolist()
        self.score, self.every_time = score, every_time
        self._seen: set[tuple[str, int]] = set()

    async def __call__(self, replicas: Sequence[Replica]) -> None:
        """Raises InfraError for a replica whose weights are not the policy's."""
        for replica in replicas:
            if self.every_time or (replica.url, replica.starts) not in self._seen:
                gap = await self._gap(replica)
                log.info("%s: log-probs %.4f nats from the policy's", replica.url, gap)
                if not gap < MOST:
                    raise InfraError(
                        f"{replica.url} does not have the policy's weights: log-probs differ by {gap:.2f} nats on "
                        "average; try rollout.weight_sync=files, or rollout.name=hf"
                    )
                self._seen.add((replica.url, replica.starts))

    async def _gap(self, replica: Replica) -> float:
        sampling = Sampling(DRAWN, ignore_eos=True, seed=1)
        answer = await replica.dialect.generate(replica.http, f"probe-{replica.starts}", self.prompt, sampling, 300)
        scored = await asyncio.to_thread(self.score, self.prompt + answer.token_ids)
        return float((scored[PROMPT:] - torch.tensor(answer.logprobs)).abs().mean())


@torch.no_grad()
def score_tokens(module: Any, ids: list[int], device: torch.device) -> Tensor:
    """`module`'s log-prob of each token given those before it, f32 [len(ids)] on the CPU; 0 of the first. Every rank
    that has a part of the module takes part."""
    count = len(ids)
    zeros = torch.zeros(count)
    batch = Batch(
        ids=torch.tensor(ids),
        positions=torch.arange(count),
        mask=torch.ones(count, dtype=torch.bool),
        rollout_logprobs=zeros,
        rewards=zeros,
        cu_seqlens=torch.tensor([0, count], dtype=torch.int32),
        trajectory=torch.zeros(1, dtype=torch.long),
        group=torch.zeros(1, dtype=torch.long),
    ).to(device)
    return TokenLogprobs(module)(batch, every_token=True)[0].cpu()


def probe_for(rollout: Rollout, score: Callable[[list[int]], Tensor], vocabulary: int) -> Probe | None:
    """The check that `rollout.weight_check` asks for."""
    if rollout.weight_check == "never":
        return None
    return Probe(score, vocabulary, every_time=rollout.weight_check == "always")
