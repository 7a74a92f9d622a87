"""A reward model in a separate Ray worker: it needs no memory of a rank's GPU."""

from collections.abc import Sequence
from contextlib import ExitStack

from agentrl.config.schema import Config
from agentrl.core.plugins import import_external
from agentrl.runtime.ray.worker import Worker
from agentrl.runtime.ray.worker_group import spawn


class RewardModelWorker(Worker):
    """Runs a `training.model.reward_model.Judge`."""

    async def open(self) -> int:
        """Load the reward model; returns its vocabulary size. Raises UserError."""
        from agentrl.training.model.reward_model import Judge

        model = self.config.model
        import_external(model.external_lib, "model")  # it may register the network
        self.judge = Judge(self.config.reward.reward_model, device=self.device, use_shm=model.use_shm)
        return self.judge.vocabulary

    async def score(self, conversations: Sequence[list[int]]) -> list[float]:
        """One score per conversation."""
        return self.judge(list(conversations))


class RemoteRewardModel:
    """A `Judge` for `RewardWorker` that runs in a Ray worker. Raises UserError and WorkerDied."""

    def __init__(self, config: Config, *, gpus: bool, stack: ExitStack) -> None:
        """`stack` ends the worker."""
        keys = "reward.reward_model.enable_resource_pool=true"
        self.group = spawn(RewardModelWorker, config, "reward", 1, 1, gpus=gpus, stack=stack, keys=keys)
        self.vocabulary: int = self.group.call("open")

    def __call__(self, conversations: Sequence[list[int]]) -> list[float]:
        return self.group.call("score", conversations)
