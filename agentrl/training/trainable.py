"""What policy and critic share: a network that learns by optimizer steps over packed batches.

Invariants:
- the loss of a mini-batch does not depend on how it is cut into micro-batches: its tokens are weighted as a whole;
- sequences that cannot move the weights get no backward pass; their share in the loss's denominator stays;
- the module is in eval mode outside `learn`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.errors import UserError
from agentrl.training.batch import Batch
from agentrl.training.micro_batches import MicroBatching, micro_batch
from agentrl.training.optimizer import Optimizer
from agentrl.training.parallel.shards import same_shapes, set_no_sync
from agentrl.training.perf.flops import flops_of_module
from agentrl.training.report import Report
from agentrl.training.splitting import mini_batches


@dataclass(frozen=True)
class Steps:
    """How one batch becomes optimizer steps."""

    prompts: int
    """Prompts of a mini-batch."""
    epochs: int
    shuffle: bool
    seed: int
    """Of the shuffling."""


class Trainable:
    """Base class; a child weighs the tokens of a mini-batch and says what its loss is."""

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: Optimizer,
        micro_batching: MicroBatching,
        steps: Steps,
        device: torch.device,
    ) -> None:
        self.module: Any = module
        self.optimizer = optimizer
        self.micro_batching = micro_batching
        self.steps = steps
        self.device = device
        self.cost = flops_of_module(module)
        self.shuffling = torch.Generator().manual_seed(steps.seed)

    def prepare_mini_batch(self, mini: Batch) -> Batch:
        """The mini-batch as it is trained on, under the weights before its optimizer step."""
        return mini

    def loss_weights(self, mini: Batch) -> Tensor:
        """Each token's share in the loss of a mini-batch: f32 [T]."""
        raise NotImplementedError

    def loss(self, micro: Batch, report: Any) -> Tensor:
        """A micro-batch's part of its mini-batch's loss: a scalar."""
        raise NotImplementedError

    def split_by_gradient(self, mini: Batch) -> tuple[list[int], list[int]]:
        """Sequences whose loss has a gradient, and those whose has none."""
        return list(range(mini.num_sequences)), []

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on a batch that has all its columns; gives metrics."""
        raise NotImplementedError

    def flops(self, batch: Batch) -> float:
        """Floating-point operations that `learn` needs."""
        teaching, silent = (batch.select(rows) for rows in self.split_by_gradient(batch))
        backward = self.cost.update(teaching.lengths, int(teaching.mask.sum()))
        return self.steps.epochs * (backward + self.cost.forward(silent.lengths, int(silent.mask.sum())))

    def train_on(self, batch: Batch, report: Report) -> None:
        """All optimizer steps of one batch; the schedule moves on by one."""
        steps = self.steps
        self.module.train()
        for _ in range(steps.epochs):
            generator = self.shuffling if steps.shuffle else None
            for rows in mini_batches(batch, steps.prompts, generator=generator):
                self._mini_step(batch.select(rows), report)
        self.module.eval()
        self.optimizer.advance()

    def state_dict(self) -> dict[str, Any]:
        """Trainable parameters (this rank's piece of each), optimizer, schedule, shuffling."""
        return {
            "parameters": {name: shard.local_chunk() for name, shard in self.optimizer.shards.items()},
            "optimizer": self.optimizer.state_dict(),
            "shuffling": self.shuffling.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, as far as it is there; parameters are written in place.

        Raises UserError when it is of another model.
        """
        shards, saved = self.optimizer.shards, state.get("parameters")
        if saved is not None:
            if not same_shapes(shards, saved):
                raise UserError("the checkpoint is of another model or LoRA rank; set trainer.resume_mode=disable")
            for name, shard in shards.items():
                shard.fill(shard.parameter, saved[name])
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        if "shuffling" in state:
            self.shuffling.set_state(state["shuffling"])

    def _mini_step(self, mini: Batch, report: Report) -> None:
        mini = self.prepare_mini_batch(mini)
        mini.weights = self.loss_weights(mini)
        teaching, silent = self.split_by_gradient(mini)
        passes = self.micro_batching.split(mini, teaching)
        for number, rows in enumerate(passes, start=1):
            set_no_sync(self.module, number < len(passes))
            self.micro_batching.ranks.backward(self.loss(micro_batch(mini, rows), report) * self.optimizer.scale.value)
        for rows in self.micro_batching.split(mini, silent):
            with torch.no_grad():
                self.loss(micro_batch(mini, rows), report)
        report.mini_batch(self.optimizer.step() if teaching else None)
