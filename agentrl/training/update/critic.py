"""The critic's update: regression of values on returns (PPO, arXiv 1707.06347).

Entry t of `values` is the critic's value of the state in which token t was sampled; only model tokens have one.
"""

from dataclasses import replace
from typing import Unpack

from torch import Tensor, nn

from agentrl.algorithms.losses.clipped import clipped_value_loss
from agentrl.config.derived import inherited
from agentrl.config.schema import Actor, Critic
from agentrl.core.errors import UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.value_model import TokenValues
from agentrl.training.update.micro_batches import score_batch
from agentrl.training.update.report import Report
from agentrl.training.update.trainable import RunFacts, Trainable, settled


class ValueCritic(Trainable):
    """Computes values with the value model and trains it."""

    def __init__(
        self,
        model: nn.Module | ModelHandle,
        *,
        critic: Critic,
        actor: Actor,
        vf_coef: float = 1.0,
        max_response_length: int | None = None,
        **run: Unpack[RunFacts],
    ) -> None:
        """`actor`: its settings replace the critic's nulls. `vf_coef`: factor of the loss. `run`: see `RunFacts`."""
        settings = inherited(critic, actor)
        self.loss_agg_mode = settings.loss_agg_mode or "token-mean"
        if self.loss_agg_mode == "seq-mean-token-sum-norm" and not max_response_length:
            raise UserError("critic.loss_agg_mode seq-mean-token-sum-norm needs data.max_response_length")
        model = ModelHandle.of(model)
        super().__init__(model, **settled(settings, "critic", model, **run))
        self.critic = critic
        self.vf_coef = vf_coef
        self.max_response_length = max_response_length or 1
        self.score = TokenValues(model)

    def values(self, batch: Batch) -> Tensor:
        """Values f32 [T] of the model's tokens under the current weights; 0 off the mask."""
        return score_batch(self.score, batch.to(self.device), self.micro_batching, columns=1)[0]

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on a batch with `returns`; returns metrics. Missing `values` are computed first."""
        batch = batch.to(self.device)
        if batch.values is None:
            batch = replace(batch, values=self.values(batch))
        return self.train_on(batch, ValueReport("critic", self.optimizer, self.device)).metrics()

    def loss_weights(self, mini: Batch) -> Tensor:
        """Each token's weight in the loss, f32 [T], by `critic.loss_agg_mode`."""
        return self.token_weights(mini, self.loss_agg_mode, self.max_response_length)

    def loss(self, micro: Batch, report: "ValueReport") -> Tensor:
        """The micro-batch's part of the mini-batch's loss: a scalar."""
        (values,), before, returns = self.score(micro), micro.column("values"), micro.column("returns")
        losses, clipped = clipped_value_loss(values, before, returns, cliprange=self.critic.cliprange_value)
        weighted = self.vf_coef * losses * micro.column("weights")
        report.micro_batch(micro, values=values, loss=weighted, clipped=clipped)
        return weighted.sum()


class ValueReport(Report):
    """The critic's metrics."""

    def micro_batch(self, micro: Batch, *, values: Tensor, loss: Tensor, clipped: Tensor) -> None:
        """Add one micro-batch; each [T].

        Explained variance is that of the values before the step, which were not trained on these returns.
        """
        returns = micro.column("returns").double()
        error = returns - micro.column("values").double()
        squares = {"returns_square": returns.square(), "error_square": error.square(), "error": error}
        self.add(micro.mask, {"vf_loss": loss, "vf_clipfrac": clipped, "values": values, "returns": returns} | squares)

    def metrics(self) -> dict[str, float]:
        """All metrics by name."""
        metrics = super().metrics()
        if not float(self._scored):
            return metrics
        means = self.means("vf_loss")
        variance = means["returns_square"] - means["returns"] ** 2
        missed = means["error_square"] - means["error"] ** 2
        metrics |= {f"critic/{name}": means[name] for name in ("vf_loss", "vf_clipfrac", "values", "returns")}
        if variance > ROUNDING * max(means["returns_square"], 1.0):
            metrics["critic/explained_variance"] = 1.0 - missed / variance
        return metrics


# A variance below this share of the square is rounding.
ROUNDING = 1e-9
