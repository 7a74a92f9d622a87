"""What Python blocks take for granted: the function of a page's name gives the names that its blocks read."""

from typing import Any

import torch

import agentrl
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


def python() -> dict[str, Any]:
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]
    small = {"train_batch_size": 2, "max_response_length": 8}
    settings = {
        "model.path": "models/tiny",
        "data": small,
        "actor.ppo_mini_batch_size": 2,
        "rollout.n": 2,
        "trainer": {"total_training_steps": 1, "device": "cpu", "experiment_name": "loop"},
    }

    def add(a: int, b: int) -> str:
        """Add.

        Args:
            a: One.
            b: Another.
        """
        return str(a + b)

    def score(data_source: str, solution_str: str, ground_truth: str) -> float:
        return float(len(solution_str) % 2)

    return {"agentrl": agentrl, "rows": rows, "settings": settings, "add": add, "score": score}
