"""Checks that an engine has the policy's weights: engine and policy score the same tokens."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentrl.config.schema import Rollout
from agentrl.core.errors import InfraError
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import Replica

log = logging.getLogger(__name__)

PROMPT, DRAWN = 12, 24
MAX_GAP = 0.5
"""Nats, mean: the same weights in bfloat16 differ by 0.04, other weights by far more than 1."""


class Probe:
    """Draws tokens from each replica and compares their log-probs with the policy's own."""

    def __init__(self, score: Callable[[list[int]], Tensor], vocabulary: int, *, every_time: bool) -> None:
        """`score`: the policy's log-prob of each token given the tokens before it, float32 on the CPU."""
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
                if not gap < MAX_GAP:
                    raise InfraError(
                        f"{replica.url} does not have the policy's weights: log-probs differ by {gap:.2f} nats on "
                        "average; try rollout.weight_sync=files, another rollout.name, or no rollout.quantization"
                    )
                self._seen.add((replica.url, replica.starts))

    async def _gap(self, replica: Replica) -> float:
        sampling = Sampling(DRAWN, ignore_eos=True, seed=1)
        answer = await replica.backend.generate(replica.http, f"probe-{replica.starts}", self.prompt, sampling, 300)
        scored = await asyncio.to_thread(self.score, self.prompt + answer.token_ids)
        return float((scored[PROMPT:] - torch.tensor(answer.logprobs)).abs().mean())


def probe_for(rollout: Rollout, score: Callable[[list[int]], Tensor], vocabulary: int) -> Probe | None:
    """The check that `rollout.weight_check` asks for."""
    if rollout.weight_check == "never":
        return None
    return Probe(score, vocabulary, every_time=rollout.weight_check == "always")
