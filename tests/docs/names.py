"""What Python blocks take for granted: the function of a page's name gives the names that its blocks read."""

from typing import Any

import torch

from tests.training.test_actor import actor_of
from tests.training.tiny import ledger, random_batch, tiny, trajectory


def algorithms() -> dict[str, Any]:
    batch = random_batch([5, 7, 3, 6])
    logprobs = -torch.rand(batch.num_tokens)
    return {
        "batch": batch,
        "values": torch.zeros(batch.num_tokens),
        "logprobs": logprobs,
        "old_logprobs": logprobs,
        "advantages": batch.advantages,
    }


def training() -> dict[str, Any]:
    trajectories = [trajectory(ledger(4, 3, seed=n), sample=n, reward=float(n)) for n in range(2)]
    return {"trajectories": trajectories, "actor": actor_of(tiny())}
