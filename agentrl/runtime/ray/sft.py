"""`agentrl sft` on several processes: each call of the run goes to all ranks, which are Ray actors."""

from contextlib import ExitStack
from typing import Any

from agentrl.config.schema.sft import SftConfig
from agentrl.runtime.ray.cluster import connect, on_gpus
from agentrl.runtime.ray.failures import results
from agentrl.runtime.ray.rank import TrainingWorker
from agentrl.runtime.ray.worker_group import spawn
from agentrl.tracking.waiting import Waiting
from agentrl.training.sft.contract import SftResult


class SftRank(TrainingWorker):
    """A rank of `agentrl sft`."""

    def _learner(self, world: int) -> Any:
        from agentrl.training.sft.run import Run

        trainer = self.config.trainer
        ranks = self._join_ranks(world, trainer.ulysses_sequence_parallel_size, self.config.fsdp_config)
        return Run(self.config, ranks)


class RaySft:
    """`SftRun` over all ranks. Raises UserError where cluster and settings do not fit."""

    def __init__(self, config: SftConfig) -> None:
        trainer = config.trainer
        with ExitStack() as stack, Waiting("workers start") as waiting:
            connect(config.ray_init, stack)
            gpus = on_gpus(trainer.device)
            self.ranks = spawn(
                SftRank, config, "trainer", trainer.nnodes, trainer.n_gpus_per_node, gpus=gpus, stack=stack
            )
            waiting("the model is loaded")
            results(self.ranks.begin_join(), self.ranks.names)
            self.stack = stack.pop_all()

    def resume(self) -> tuple[int, int, int]:
        position: tuple[int, int, int] = self.ranks.call("call", "resume")
        return position

    def next_step(self) -> dict[str, float]:
        metrics: dict[str, float] = self.ranks.call("call", "next_step")
        return metrics

    def save(self) -> None:
        self.ranks.call("call", "save")

    def finish(self) -> SftResult:
        result: SftResult = self.ranks.call("call", "finish")
        return result

    def close(self) -> None:
        self.stack.close()
