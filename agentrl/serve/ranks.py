"""The models of `agentrl serve` on several ranks, which are Ray actors."""

from dataclasses import replace
from typing import Any

import torch

from agentrl.config.schema import Config
from agentrl.engines.launching import Servers, engine_name, in_process
from agentrl.runtime.ray.all_ranks import AllRanks
from agentrl.runtime.ray.rank import TrainingWorker
from agentrl.runtime.ray.servers import launch_servers
from agentrl.training import device_for, load_model, load_processor, load_tokenizer


class ServeRank(TrainingWorker):
    """A rank that has its shards of all models."""

    def _learner(self, world: int) -> Any:
        from agentrl.serve.models import Models

        actor = self.config.actor
        return Models(self.config, self._join_ranks(world, actor.ulysses_sequence_parallel_size, actor.fsdp_config))


class RayModels(AllRanks):
    """`Models` on all ranks. Raises WorkerDied where a rank has died."""

    def __init__(self, config: Config) -> None:
        super().__init__(ServeRank, config)
        self.kind = "cuda" if self.gpus else "cpu"
        self.processor = load_processor(config.model, load_tokenizer(config.model))
        samples = in_process(engine_name(config.rollout, self.kind))
        device = device_for(config.trainer.device) if samples else torch.device("meta")
        self.base = load_model(replace(config.model, lora_rank=0), device=device, seed=config.trainer.seed)
        """The base for the samplers; without weights where servers have it."""

    def launch(self, config: Config, kind: str) -> Servers | None:
        """Start the servers that the settings ask for, as `engines.launching.launch` does in one process."""
        sampled = in_process(engine_name(config.rollout, kind))
        return None if sampled else launch_servers(config, kind, self.ranks, self.stack)
