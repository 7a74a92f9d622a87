"""Policy losses, token by token. What to divide by is `aggregate.token_weights`' business.

All take `(logprobs, old_logprobs, advantages)`, f32 [T] each, of which only the first carries a gradient, and name
what else they read as keywords. They give (loss f32 [T], to be minimised, and diagnostics, each [T] and detached):
`ratio`; `clipped`, 1 where a clip acts; `clipped_dual`, 1 where the dual clip does.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.losses.clipped import Details, ppo_clip_loss
from agentrl.algorithms.losses.covariance import choose_between, choose_largest, clip_cov, kl_cov
from agentrl.algorithms.losses.sequence import geo_mean, gspo
from agentrl.algorithms.losses.weighted import cispo, gpg, sapo
from agentrl.errors import UserError

POLICY_LOSSES: dict[str, Callable[..., tuple[Tensor, Details]]] = {
    "vanilla": ppo_clip_loss,
    "gspo": gspo,
    "cispo": cispo,
    "gpg": gpg,
    "sapo": sapo,
    "geo_mean": geo_mean,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}
"""Losses by `actor.policy_loss.loss_mode`."""

CHOICES: dict[str, Callable[..., Tensor]] = {"clip_cov": choose_between, "kl_cov": choose_largest}
"""How losses that single out tokens choose them: (old_logprobs, advantages, mask, ...) -> bool [T]."""

BY_SEQUENCE = ("gspo", "geo_mean", "sapo")
"""Losses that are defined as a mean over sequences of means over their tokens, whatever `loss_agg_mode` says."""


@dataclass(frozen=True)
class PolicyLoss:
    """One of the losses with its settings."""

    name: str
    options: dict[str, Any]

    def __call__(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        *,
        mask: Tensor,
        cu_seqlens: Tensor,
        chosen: Tensor | None = None,
    ) -> tuple[Tensor, Details]:
        """(loss f32 [T], diagnostics) of whole sequences. `chosen` bool [T] as `choose` gave it."""
        function = POLICY_LOSSES[self.name]
        given = self.options | {"mask": mask, "cu_seqlens": cu_seqlens, "chosen": chosen}
        return function(logprobs, old_logprobs, advantages, **_read_by(function, given))

    @property
    def chooses(self) -> bool:
        """Whether it singles out tokens of a mini-batch, and so needs the log-probs from before the step."""
        return self.name in CHOICES

    def choose(self, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """The tokens of a whole mini-batch that it singles out: bool [T]. Chance comes from the CPU `generator`."""
        function = CHOICES[self.name]
        given = self.options | {"generator": generator}
        return function(old_logprobs, advantages, mask, **_read_by(function, given))

    def aggregation(self, loss_agg_mode: str) -> str:
        """`loss_agg_mode`, or the one that is part of the loss's definition."""
        return "seq-mean-token-mean" if self.name in BY_SEQUENCE else loss_agg_mode


def bind_loss(name: str, **options: Any) -> PolicyLoss:
    """The loss `name`. `options`: low, high, c, tau_pos, tau_neg, ppo_kl_coef, kl_cov_ratio, clip_cov_ratio,
    clip_cov_lb, clip_cov_ub, of which it takes those it reads. Raises UserError for an unknown name."""
    if name not in POLICY_LOSSES:
        known = ", ".join(POLICY_LOSSES)
        raise UserError(f"actor.policy_loss.loss_mode {name!r} does not exist; it is one of {known}")
    return PolicyLoss(name, options)


def _read_by(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: given[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
