"""A reward model in a worker of its own, where it takes nothing from the GPU of a rank."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from agentrl.config.schema import Config
from agentrl.runtime.ray.host import Worker
from agentrl.runtime.ray.worker_group import hire


class JudgeHost(Worker):
    """Holds a `training.reward_model.Judge`."""

    async def open(self) -> int:
        """Load the reward model; how many tokens it knows. Raises UserError."""
        from agentrl.training.model.reward_model import Judge

        self.judge = Judge(self.config.reward.reward_model, device=self.device)
        return self.judge.vocabulary

    async def score(self, conversations: Sequence[list[int]]) -> list[float]:
        """A score each."""
        return self.judge(list(conversations))


class FarJudge:
    """What `RewardWorker` needs of a `Judge`, for one held by a worker. Raises UserError, and WorkerDied."""

    def __init__(self, config: Config, *, gpus: bool, stack: ExitStack) -> None:
        """`stack` ends the worker."""
        keys = "reward.reward_model.enable_resource_pool=true"
        self.crew = hire(JudgeHost, config, "reward", 1, 1, gpus=gpus, stack=stack, keys=keys)
        self.vocabulary: int = self.crew.call("open")

    def __call__(self, conversations: Sequence[list[int]]) -> list[float]:
        scores: Any = self.crew.call("score", conversations)
        return list(scores)
