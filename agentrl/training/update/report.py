"""Metrics of an update: means over model tokens, summed over micro-batches, read once at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from agentrl.training.batches.batch import Batch
from agentrl.training.update.gap import gap_metrics
from agentrl.training.update.optimizer import Optimizer

WEIGHTED = "pg_loss"
"""The figure of a token that contains its weight in the loss."""

Figures = tuple[Tensor, dict[str, Tensor]]
"""(tokens, bool [T]; their figures [T] by name)"""
COUNT = "#"
"""After the name of a figure: the number of its tokens, where it is not that of all."""
REJECTED = f"rejected{COUNT}"
"""Tokens that rejection took out of the mask."""


@dataclass
class StepReport:
    """The optimizer steps of an update. No figure changes in place, so a shallow copy is a report of its own."""

    has_gradient: bool = False
    """Whether a sequence of the last mini-batch has a gradient."""
    mini_batches: int = 0
    grad_norms: tuple[float, ...] = ()
    """One of each optimizer step."""

    def mini_batch(self, grad_norm: float | None) -> None:
        """Add a mini-batch by the gradient norm of its optimizer step; None: no step, no sequence had a gradient."""
        self.mini_batches += 1
        self.grad_norms += () if grad_norm is None else (grad_norm,)


class Report(StepReport):
    """Collects the metrics of one update of policy or critic. No device synchronisation before `metrics`."""

    def __init__(self, section: str, optimizer: Optimizer, device: torch.device) -> None:
        """`section`: prefix of the optimizer's metrics."""
        super().__init__()
        self._section, self._ranks, self._lr = section, optimizer.ranks, optimizer.lr
        self._loss_scale = {"loss_scale": optimizer.scale.value} if optimizer.scale.needed else {}
        self._sums: dict[str, Tensor] = {}
        self._scored = torch.zeros((), dtype=torch.float64, device=device)

    def absorb(self, other: "Report", factor: float) -> None:
        """Add the passes of another report, whose weights in the loss are multiplied by `factor`."""
        self._sum({name: total * factor if name == WEIGHTED else total for name, total in other._sums.items()})
        self._scored = self._scored + other._scored

    def merge_ranks(self) -> None:
        """Add the sums of the other ranks."""
        own = {name: float(total) for name, total in self._sums.items()}
        parts = self._ranks.gather((own, float(self._scored)))
        names = dict.fromkeys(name for sums, _ in parts for name in sums)
        as_tensor = self._scored.new_tensor
        self._sums = {name: as_tensor(sum(sums.get(name, 0.0) for sums, _ in parts)) for name in names}
        self._scored = as_tensor(sum(scored for _, scored in parts))

    def metrics(self) -> dict[str, float]:
        """All metrics by name, the same on every rank."""
        self.merge_ranks()
        finite = [norm for norm in self.grad_norms if isfinite(norm)]
        figures = {
            "lr": self._lr,
            "skipped_steps": float(len(self.grad_norms) - len(finite)),
            "optimizer_steps": float(len(self.grad_norms)),
        } | self._loss_scale
        if float(self._scored) and (finite or not self.grad_norms):
            figures["grad_norm"] = sum(finite) / max(len(finite), 1)
        return {f"{self._section}/{name}": value for name, value in figures.items()}

    def add(self, mask: Tensor, details: dict[str, Tensor], where: Tensor | None = None) -> None:
        """Sum each of `details` [T] over the mask; `where` bool [T]: over its part of the mask, which is counted."""
        there = mask if where is None else mask & where
        self._sum({name: torch.where(there, value.detach().double(), 0.0).sum() for name, value in details.items()})
        if where is not None:
            self._sum({name + COUNT: there.sum() for name in details})
        self._scored = self._scored + (mask.sum() if where is None else 0)

    def _sum(self, found: Mapping[str, Tensor]) -> None:
        self._sums = self._sums | {name: self._sums.get(name, 0.0) + total for name, total in found.items()}

    def means(self, *losses: str) -> dict[str, float]:
        """Means per token; of `losses`, whose weights sum to a mini-batch's mean, per mini-batch."""
        sums = {name: float(total) for name, total in self._sums.items()}
        over = {n: sums.get(n + COUNT, self.mini_batches if n in losses else float(self._scored)) for n in sums}
        return {n: total / over[n] for n, total in sums.items() if over[n] and not n.endswith(COUNT)}


NAMES = {"clipped": "actor/pg_clipfrac", "clipped_dual": "actor/pg_clipfrac_lower"}


class PolicyReport(Report):
    """The policy's metrics."""

    def __init__(self, batch: Batch, optimizer: Optimizer) -> None:
        super().__init__("actor", optimizer, batch.ids.device)
        self._sizes = batch.num_tokens, batch.mask.sum(), batch.num_sequences
        self._ahead = batch.stale is not None
        self._gaps: list[tuple[Tensor, Tensor, Tensor]] = []
        """The gap f64 [T] of each micro-batch, where it counts, and where older weights drew the token, bool [T]:
        selecting would wait for the device."""

    def micro_batch(self, micro: Batch, details: dict[str, Tensor], distilled: Sequence[Figures] = ()) -> None:
        """Add a micro-batch. `details`, each [T]: old, logprobs, and figures by name. `distilled`: of some tokens."""
        old, logprobs = details.pop("old").detach(), details.pop("logprobs").detach()
        details["ppo_kl"] = old.double() - logprobs.double()
        if micro.weights is not None:
            # The minimised loss: the weights of one mini-batch sum to its mean.
            details[WEIGHTED] = details[WEIGHTED].double() * micro.weights.double()
        self.add(micro.mask, details)
        for where, figures in distilled:
            self.add(micro.mask, figures, where)
        drawn = micro.mask
        if micro.rejected is not None:
            drawn = drawn | micro.rejected
            self._sum({REJECTED: micro.rejected.double().sum()})
        stale = torch.zeros_like(drawn) if micro.stale is None else micro.stale
        self._gaps = [*self._gaps, (old.double() - micro.rollout_logprobs.double(), drawn, stale)]

    def absorb(self, other: Report, factor: float) -> None:
        super().absorb(other, factor)
        assert isinstance(other, PolicyReport)
        self._gaps = [*other._gaps, *self._gaps]

    def metrics(self) -> dict[str, float]:
        """All metrics by name, the same on every rank."""
        tokens, model_tokens, sequences = (self._ranks.sum(float(size)) for size in self._sizes)
        metrics = super().metrics() | {
            "batch/tokens": tokens,
            "batch/model_tokens": model_tokens,
            "batch/mask_share": model_tokens / max(tokens, 1),
            "batch/sequences": sequences,
        }
        if REJECTED in self._sums:
            rejected = float(self._sums[REJECTED])
            metrics["rollout_is/rejected"] = rejected / max(rejected + float(self._scored), 1.0)
        if not float(self._scored):
            return metrics
        # A user's loss may report details of other names.
        named = ((NAMES.get(n, n if "/" in n else f"actor/{n}"), value) for n, value in self.means(WEIGHTED).items())
        gap = torch.cat([gap[drawn & ~stale] for gap, drawn, stale in self._gaps])
        metrics |= dict(named) | gap_metrics(gap, self._ranks)
        if self._ahead:
            gap = torch.cat([gap[drawn & stale] for gap, drawn, stale in self._gaps])
            metrics |= gap_metrics(gap, self._ranks, "staleness/gap_")
        return metrics
