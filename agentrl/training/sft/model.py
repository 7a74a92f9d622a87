"""Supervised training: cross-entropy of finished conversations."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.algorithms.distillation import Distance
from agentrl.training.batches.batch import Batch
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.update.distillation import with_stored
from agentrl.training.update.report import StepReport
from agentrl.training.update.trainable import Trainable


@dataclass
class SftReport(StepReport):
    """The loss and gradient norm of a step."""

    value: Tensor | float = 0.0
    """f64, on the model's device: read once per step."""


class SftModel(Trainable):
    """Trains a causal LM on finished conversations."""

    score: TokenLogprobs

    def __init__(self, model: nn.Module | ModelHandle, **settings: Any) -> None:
        """`settings`: keywords of Trainable."""
        super().__init__(model, **settings)
        self.score = TokenLogprobs(self.model)

    def loss_weights(self, mini: Batch) -> Tensor:
        """Equal weights of all assistant tokens: f32 [T]."""
        return self.token_weights(mini, "token-mean")

    def loss(self, micro: Batch, report: Any) -> Tensor:
        """The micro-batch's part of the mean cross-entropy, or distance to stored log-probs of a teacher: a scalar."""
        ids = micro.teacher_topk_ids  # all other tokens count as one
        compare = None if ids is None else with_stored(micro, Distance("forward_kl", topk=ids.shape[1]))
        logprobs, _, *distance = self.score(micro, compare=compare)
        losses = -logprobs
        if distance and micro.teacher_topk_logprobs is not None:  # NaN: a conversation without a teacher
            losses = torch.where(micro.teacher_topk_logprobs[:, 0].isnan(), losses, distance[0])
        loss = (losses * micro.column("weights")).sum()
        report.value = report.value + loss.detach().double()
        return loss

    def validation_loss(self, batch: Batch) -> float:
        """The mean loss of a batch in nats per token, without training."""
        return self.total_loss(self.forward_backward(batch, SftReport(), backward=False))

    def total_loss(self, report: SftReport) -> float:
        """The loss of a batch, summed over ranks."""
        loss = torch.as_tensor(report.value, dtype=torch.float64, device=self.device)
        return float(self.micro_batching.ranks.sum_over_ranks(loss))
