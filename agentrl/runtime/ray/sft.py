"""`agentrl sft` on several processes: its ranks are Ray actors, and one call of the run is a call of all of them."""

from contextlib import ExitStack
from typing import Any

from agentrl.config.schema.sft import SftConfig
from agentrl.runtime.ray.cluster import connect, on_gpus
from agentrl.runtime.ray.rank import Member
from agentrl.runtime.ray.worker_group import hire
from agentrl.tracking import Waiting
from agentrl.training.sft.contract import SftResult


class Pupil(Member):
    """A rank of `agentrl sft`."""

    def _learner(self, world: int) -> Any:
        from agentrl.training.sft.run import Run

        trainer, fsdp_config = self.config.trainer, self.config.fsdp_config
        return Run(self.config, self._meet(world, trainer.ulysses_sequence_parallel_size, fsdp_config.fsdp_size))


class RaySft:
    """`SftRun` over all ranks. Raises UserError where cluster and settings do not fit."""

    def __init__(self, config: SftConfig) -> None:
        trainer = config.trainer
        with ExitStack() as stack, Waiting("workers start") as waiting:
            connect(config.ray_init, stack)
            gpus = on_gpus(trainer.device)
            self.ranks = hire(Pupil, config, "trainer", trainer.nnodes, trainer.n_gpus_per_node, gpus=gpus, stack=stack)
            waiting("the model is loaded")
            self.ranks.meet()
            self.stack = stack.pop_all()

    def resume(self) -> tuple[int, int, int]:
        place: tuple[int, int, int] = self.ranks.call("call", "resume")
        return place

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
