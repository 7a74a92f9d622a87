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

from agentrl.errors import UserError
from agentrl.training.batch import Batch
from agentrl.training.optimizer import Optimizer
from agentrl.training.passes import Cut
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


class Trainee:
    """Base class; a child weighs the tokens of a mini-batch and says what its loss is."""

    def __init__(
        self, module: nn.Module, *, optimizer: Optimizer, cut: Cut, steps: Steps, device: torch.device
    ) -> None:
        self.module: Any = module
        self.optimizer = optimizer
        self.cut = cut
        self.steps = steps
        self.device = device
        self.shuffling = torch.Generator().manual_seed(steps.seed)

    def weigh(self, mini: Batch) -> Tensor:
        """Each token's share in the loss of a mini-batch: f32 [T]."""
        raise NotImplementedError

    def loss(self, micro: Batch, report: Any) -> Tensor:
        """A micro-batch's part of its mini-batch's loss: a scalar."""
        raise NotImplementedError

    def teaching(self, mini: Batch) -> tuple[list[int], list[int]]:
        """Sequences whose loss has a gradient, and those whose has none."""
        return list(range(mini.num_sequences)), []

    def learn(self, batch: Batch, report: Report) -> None:
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
        """Trainable parameters, optimizer, schedule, shuffling."""
        parameters = {n: p.detach().clone() for n, p in self.module.named_parameters() if p.requires_grad}
        return {
            "parameters": parameters,
            "optimizer": self.optimizer.state_dict(),
            "shuffling": self.shuffling.get_state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; parameters are written in place. Raises UserError when it is of another model."""
        mine = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        saved = state["parameters"]
        if mine.keys() != saved.keys() or any(mine[n].shape != saved[n].shape for n in mine):
            raise UserError("the checkpoint is of another model or LoRA rank; set trainer.resume_mode=disable")
        for name, parameter in mine.items():
            parameter.copy_(saved[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.shuffling.set_state(state["shuffling"])

    def _mini_step(self, mini: Batch, report: Report) -> None:
        mini.weights = self.weigh(mini)
        teaching, silent = self.teaching(mini)
        for rows in self.cut.passes(mini, teaching):
            self.loss(mini.select(rows), report).backward()
        for rows in self.cut.passes(mini, silent):
            with torch.no_grad():
                self.loss(mini.select(rows), report)
        report.optimizer_step(self.optimizer.step() if teaching else 0.0)
