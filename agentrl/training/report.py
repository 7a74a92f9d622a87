"""What an update says about itself: means over model tokens, gathered over micro-batches, read once at the end."""

from math import isfinite

import torch
from torch import Tensor

from agentrl.algorithms.kl import k3
from agentrl.training.batch import Batch
from agentrl.training.parallel.ranks import ALONE, Ranks


class Report:
    """Gathers the figures of one update of policy or critic. Nothing waits for the device before `metrics`."""

    def __init__(
        self, section: str, *, lr: float, device: torch.device, ranks: Ranks = ALONE, loss_scale: float | None = None
    ) -> None:
        """`section` begins the names of all figures about the optimizer. `loss_scale`: where there is one."""
        self._section = section
        self._ranks = ranks
        self._lr = lr
        self._loss_scale = {} if loss_scale is None else {"loss_scale": loss_scale}
        self._sums: dict[str, Tensor] = {}
        self._scored = torch.zeros((), dtype=torch.float64, device=device)
        self._mini_batches = 0
        self._grad_norms: list[float] = []

    def mini_batch(self, grad_norm: float | None) -> None:
        """Take in one mini-batch, by the gradient norm of its optimizer step; None: nothing in it taught."""
        self._mini_batches += 1
        if grad_norm is not None:
            self._grad_norms.append(grad_norm)

    def merge_ranks(self) -> None:
        """Take in what other ranks have added: from here on the figures are those of all."""
        own = {name: float(total) for name, total in self._sums.items()}
        parts = self._ranks.gather((own, float(self._scored)))
        names = dict.fromkeys(name for sums, _ in parts for name in sums)
        as_tensor = self._scored.new_tensor
        self._sums = {name: as_tensor(sum(sums.get(name, 0.0) for sums, _ in parts)) for name in names}
        self._scored = as_tensor(sum(scored for _, scored in parts))

    def metrics(self) -> dict[str, float]:
        """All figures by name, the same on every rank."""
        self.merge_ranks()
        finite = [norm for norm in self._grad_norms if isfinite(norm)]
        figures = {
            "lr": self._lr,
            "skipped_steps": float(len(self._grad_norms) - len(finite)),
            "optimizer_steps": float(len(self._grad_norms)),
        } | self._loss_scale
        if float(self._scored) and (finite or not self._grad_norms):
            figures["grad_norm"] = sum(finite) / max(len(finite), 1)
        return {f"{self._section}/{name}": value for name, value in figures.items()}

    def add(self, mask: Tensor, details: dict[str, Tensor]) -> None:
        """Add up each of `details` [T] over the mask."""
        for name, value in details.items():
            self._sums[name] = self._sums.get(name, 0.0) + torch.where(mask, value.detach().double(), 0.0).sum()
        self._scored += mask.sum()

    def means(self, *losses: str) -> dict[str, float]:
        """Of what was added: a mean per token; of `losses`, whose weights make a mini-batch's mean, per mini-batch."""
        scored = float(self._scored)
        return {n: float(total) / (self._mini_batches if n in losses else scored) for n, total in self._sums.items()}


NAMES = {
    "pg_loss": "actor/pg_loss",
    "clipped": "actor/pg_clipfrac",
    "clipped_dual": "actor/pg_clipfrac_lower",
    "ratio": "actor/ratio",
    "ppo_kl": "actor/ppo_kl",
    "entropy": "actor/entropy",
    "kl_loss": "actor/kl_loss",
    "rollout_is": "rollout_is/mean",
    "rollout_is_capped": "rollout_is/capped",
}


class PolicyReport(Report):
    """The policy's figures."""

    def __init__(self, batch: Batch, *, lr: float, ranks: Ranks = ALONE, loss_scale: float | None = None) -> None:
        super().__init__("actor", lr=lr, device=batch.ids.device, ranks=ranks, loss_scale=loss_scale)
        self._tokens = batch.num_tokens
        self._model_tokens = batch.mask.sum()
        self._sequences = batch.num_sequences
        self._gaps: list[Tensor] = []
        self._rejected: Tensor | None = None

    def micro_batch(self, micro: Batch, details: dict[str, Tensor]) -> None:
        """Take in one forward pass. `details`, each [T]: old, logprobs, and of NAMES those that apply."""
        old, logprobs = details.pop("old").detach(), details.pop("logprobs").detach()
        details["ppo_kl"] = old.double() - logprobs.double()
        if micro.weights is not None:
            # The loss as it is minimised: the weights of one mini-batch make its mean.
            details["pg_loss"] = details["pg_loss"].double() * micro.weights.double()
        self.add(micro.mask, details)
        drawn = micro.mask
        if micro.rejected is not None:
            drawn = drawn | micro.rejected
            self._rejected = micro.rejected.sum() + (0 if self._rejected is None else self._rejected)
        self._gaps.append((old.double() - micro.rollout_logprobs.double())[drawn])

    def merge_ranks(self) -> None:
        super().merge_ranks()
        if self._ranks.world > 1:
            self._gaps = [gap for gaps in self._ranks.gather([gap.cpu() for gap in self._gaps]) for gap in gaps]
        if self._rejected is not None:
            self._rejected = torch.tensor(sum(self._ranks.gather(int(self._rejected))))

    def metrics(self) -> dict[str, float]:
        """All figures by name, the same on every rank."""
        metrics = super().metrics() | {
            "batch/tokens": float(self._tokens),
            "batch/model_tokens": float(self._model_tokens),
            "batch/mask_share": float(self._model_tokens) / max(self._tokens, 1),
            "batch/sequences": float(self._sequences),
        }
        if self._rejected is not None:
            rejected = float(self._rejected)
            metrics["rollout_is/rejected"] = rejected / max(rejected + float(self._scored), 1.0)
        if not float(self._scored):
            return metrics
        means = {_metric(name): value for name, value in self.means("pg_loss").items()}
        return metrics | means | self._gap_metrics()

    def _gap_metrics(self) -> dict[str, float]:
        """How far the trainer's log-probs are from the engine's, over model tokens, in nats.

        `k3` estimates KL(engine || trainer): the tokens were drawn by the engine.
        """
        gap = torch.cat(self._gaps)
        size = gap.abs()
        return {
            "rollout_gap/mean": float(size.mean()),
            "rollout_gap/max": float(size.max()),
            "rollout_gap/p99": _quantile(size, 0.99),
            "rollout_gap/k3": float(k3(-gap).mean()),
        }


def _metric(name: str) -> str:
    """A loss of the user's own may have figures of its own."""
    return NAMES.get(name, name if "/" in name else f"actor/{name}")


def _quantile(values: Tensor, q: float) -> float:
    """torch.quantile without its limit of 16 million entries: the nearest rank."""
    rank = max(1, min(values.numel(), round(q * values.numel() + 0.5)))
    return float(values.kthvalue(rank).values)
