"""The gap between the trainer's and the engine's log-probs, over the tokens of all ranks.

Invariant: the figures are those of all tokens together, and no token leaves its rank: sums and counts are reduced.
"""

import logging

import torch
from torch import Tensor

from agentrl.algorithms.kl import k3
from agentrl.config.derived import changed_distribution
from agentrl.config.schema import Config
from agentrl.core.errors import InfraError
from agentrl.training.parallel.ranks import ALONE, Ranks

log = logging.getLogger(__name__)

CAUSES = (
    "the engine samples from another policy than the one that is trained: weights that it did not take "
    "(rollout.weight_check=always finds out), its quantization or kernels (another rollout.name, "
    "model.enable_fp32_lm_head=true), or an architecture that it computes otherwise"
)

DIGITS = (48, 32, 16, 0)
"""A float64 as four digits of 16 bits, the first the highest."""
BASE = 1 << 16


def gap_metrics(gap: Tensor, ranks: Ranks = ALONE, prefix: str = "rollout_gap/") -> dict[str, float]:
    """Mean, largest and 99th percentile of the gap's size and an estimate of KL(engine || trainer), in nats a token.

    `gap` f64 [N]: old minus rollout log-probs of this rank's tokens; {} if no rank has one. `k3` is of the negative
    gap, because the engine sampled the tokens.
    """
    size = gap.abs()
    sums = torch.stack([size.new_tensor(size.numel()), size.sum(), k3(-gap).sum()])
    count, total, divergence = ranks.sum_over_ranks(sums).tolist()
    if not count:
        return {}
    rank = max(1, min(int(count), round(0.99 * count + 0.5)))
    return {
        f"{prefix}mean": total / count,
        f"{prefix}max": nth_smallest(size, int(count), ranks),
        f"{prefix}p99": nth_smallest(size, rank, ranks),
        f"{prefix}k3": divergence / count,
    }


def nth_smallest(values: Tensor, n: int, ranks: Ranks = ALONE) -> float:
    """The n-th smallest, from 1 on, of the values f64 >= 0 of all ranks: exact.

    The bits of such floats order as integers do. A digit at a time, ranks count their values by it, and keep those that
    have the digit of the one looked for.
    """
    bits, found = values.view(torch.int64), 0
    for shift in DIGITS:
        digits = (bits >> shift) & (BASE - 1)
        up_to = ranks.sum_over_ranks(torch.bincount(digits, minlength=BASE)).cumsum(0)
        digit = int((up_to < n).sum())
        n -= int(up_to[digit - 1]) if digit else 0
        bits, found = bits[digits == digit], found << 16 | digit
    return torch.tensor(found).view(torch.float64).item()


class GapTooLarge(InfraError):
    """Rollouts are not samples of the policy that is trained."""


class GapLimit:
    """Watches the gap of a run; it has no limit where log-probs of a changed distribution make the gap."""

    def __init__(self, config: Config) -> None:
        self.most = None if changed_distribution(config.rollout) else config.trainer.max_rollout_gap
        self.warned = False

    def exceeded(self, step: int, metrics: dict[str, float]) -> GapTooLarge | None:
        """The error of a step whose gap is too large; warns once of one that is half of it."""
        gap = metrics.get("rollout_gap/mean", 0.0)
        if self.most is None or gap <= self.most / 2:
            return None
        found = f"step {step}: trainer and engine differ by {gap:.2g} nats a token; {CAUSES}"
        if gap > self.most:
            return GapTooLarge(f"{found}. trainer.max_rollout_gap={self.most:g} stops the run; its checkpoint is saved")
        if not self.warned:
            self.warned = True
            log.warning("%s. The run stops above %g (trainer.max_rollout_gap)", found, self.most)
        return None
