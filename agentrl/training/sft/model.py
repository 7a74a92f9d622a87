"""What supervised training updates: a network that learns finished conversations by their cross-entropy."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.algorithms import token_weights
from agentrl.training.batch import Batch
from agentrl.training.micro_batches import micro_batch
from agentrl.training.model.logprobs import TokenLogprobs
from agentrl.training.trainable import Trainee


@dataclass
class Loss:
    """What a step is told of itself."""

    value: float = 0.0
    grad_norm: float = 0.0

    def mini_batch(self, grad_norm: float | None) -> None:
        """An optimizer step was taken."""
        self.grad_norm = grad_norm or 0.0


class Student(Trainee):
    """Learns finished conversations."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        """`how`: as a Trainee has it."""
        super().__init__(module, **how)
        self.score = TokenLogprobs(module)

    def weigh(self, mini: Batch) -> Tensor:
        """Every assistant token weighs the same."""
        return token_weights(mini.mask, mini.cu_seqlens, "token-mean")

    def loss(self, micro: Batch, report: Any) -> Tensor:
        """Cross-entropy."""
        assert micro.weights is not None
        logprobs, _ = self.score(micro)
        loss = -(logprobs * micro.weights).sum()
        report.value += float(loss.detach())
        return loss

    @torch.no_grad()
    def measured(self, batch: Batch) -> float:
        """The mean loss of a batch in nats a token, without learning from it."""
        batch.weights, report = self.weigh(batch), Loss()
        for rows in self.cut.passes(batch):
            self.loss(micro_batch(batch, rows), report)
        return self.summed(report)

    def summed(self, report: Loss) -> float:
        """The loss of a batch, of which each rank has computed its part."""
        return float(self.cut.ranks.total(torch.tensor(report.value, dtype=torch.float64, device=self.device)))
