"""What supervised training updates: a network that learns finished conversations by their cross-entropy."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.algorithms import token_weights
from agentrl.training.batch import Batch
from agentrl.training.micro_batches import micro_batch
from agentrl.training.model.logprobs import TokenLogprobs
from agentrl.training.trainable import Trainable


@dataclass
class SftReport:
    """What a step is told of itself."""

    value: float = 0.0
    grad_norm: float = 0.0

    def mini_batch(self, grad_norm: float | None) -> None:
        """An optimizer step was taken."""
        self.grad_norm = grad_norm or 0.0


class SftModel(Trainable):
    """Learns finished conversations."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        """`how`: as a Trainee has it."""
        super().__init__(module, **how)
        self.score = TokenLogprobs(module)

    def loss_weights(self, mini: Batch) -> Tensor:
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
    def validation_loss(self, batch: Batch) -> float:
        """The mean loss of a batch in nats a token, without learning from it."""
        batch.weights, report = self.loss_weights(batch), SftReport()
        for rows in self.micro_batching.split(batch):
            self.loss(micro_batch(batch, rows), report)
        return self.total_loss(report)

    def total_loss(self, report: SftReport) -> float:
        """The loss of a batch, of which each rank has computed its part."""
        return float(
            self.micro_batching.ranks.total(torch.tensor(report.value, dtype=torch.float64, device=self.device))
        )
