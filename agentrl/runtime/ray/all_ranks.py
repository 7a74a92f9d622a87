"""Trainers that only train, one on each rank: every call goes to all of them."""

from contextlib import ExitStack
from functools import partial
from typing import Any

from agentrl.runtime.ray.cluster import connect, on_gpus
from agentrl.runtime.ray.failures import results
from agentrl.runtime.ray.rank import TrainingWorker
from agentrl.runtime.ray.worker_group import spawn
from agentrl.tracking.waiting import Waiting


class SftRank(TrainingWorker):
    """A rank of `agentrl sft`."""

    def _learner(self, world: int) -> Any:
        from agentrl.training.sft.run import Run

        trainer = self.config.trainer
        ranks = self._join_ranks(world, trainer.ulysses_sequence_parallel_size, self.config.fsdp_config)
        return Run(self.config, ranks)


class AllRanks:
    """The trainers of all ranks as one, which get every call but `close`. Raises UserError where cluster and settings
    differ."""

    def __init__(self, kind: type[TrainingWorker], config: Any) -> None:
        trainer = config.trainer
        with ExitStack() as stack, Waiting("workers start") as waiting:
            connect(config.ray_init, stack)
            self.gpus, where = on_gpus(trainer.device), ("trainer", trainer.nnodes, trainer.n_gpus_per_node)
            self.ranks = spawn(kind, config, *where, gpus=self.gpus, stack=stack)
            waiting("the model is loaded")
            results(self.ranks.begin_join(), self.ranks.names)
            self.stack = stack.pop_all()

    def __getattr__(self, name: str) -> Any:
        return partial(self.ranks.call, "call", name)

    def close(self) -> None:
        self.stack.close()
