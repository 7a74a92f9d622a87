"""KL to a reference policy, estimated from log-probs of sampled tokens, and the controller of its coefficient.

Estimators after "Approximating KL Divergence" (J. Schulman, 2020), with d = logprobs - reference:
kl (k1) is d, abs is |d|, mse (k2) is d^2 / 2, low_var_kl (k3) is exp(-d) + d - 1, at most 10. A trailing + keeps the
value and takes k2's gradient, the only one whose expectation is the KL's gradient for on-policy samples. Values and
gradients are verl's. full is the exact KL, summed over the vocabulary; `kl_of_logits` defines it.
"""

from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.aggregate import token_weights
from agentrl.algorithms.own import checked_column
from agentrl.algorithms.ratios import MAX_LOG_RATIO
from agentrl.core.points import KL_ESTIMATORS, kl_estimator

# Without it, one token far likelier under the reference would outweigh a whole batch.
MAX_K3 = 10.0
GRADIENT = "+"
"""After the name of an estimator: with the gradient of k2."""


@kl_estimator("kl")
def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The log-ratio d: unbiased, of high variance."""
    return logprobs - ref_logprobs


@kl_estimator("abs")
def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The size of the log-ratio, |d|."""
    return (logprobs - ref_logprobs).abs()


@kl_estimator("mse")
def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the square of the log-ratio."""
    d = logprobs - ref_logprobs
    return 0.5 * d * d


@kl_estimator("low_var_kl")
def bounded_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(-d) + d - 1, at most 10: unbiased but for its bound, of low variance."""
    return k3(logprobs - ref_logprobs).clamp(max=MAX_K3)


def k3(d: Tensor) -> Tensor:
    """exp(-d) + d - 1 without its bound: for metrics, not for a loss."""
    d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(-d) + d


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: str, key: str = "kl_penalty") -> Tensor:
    """KL estimate of each token, f32 [T], in nats. `kind` is the value of the setting `key`. Raises UserError for an
    unknown one, and for one of the user's own that fails."""
    entry, where = KL_ESTIMATORS.entry(kind.removesuffix(GRADIENT), key), f"the KL estimator {kind}"
    value: Tensor = entry.call(where, logprobs, ref_logprobs)
    if not entry.built_in:
        everywhere = torch.ones_like(logprobs, dtype=torch.bool)
        value = checked_column(value, logprobs, everywhere, where=where, what="estimates")
    if not kind.endswith(GRADIENT):
        return value
    d = logprobs - ref_logprobs
    # d times (d - d), which is 0 with d's gradient: no square can overflow.
    return value.detach() + d.detach() * (d - d.detach())


def kl_of_logits(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(softmax(`logits`) || softmax(`ref_logits`)) of [..., V] each, in nats: f32 [...]."""
    return kl_of_logprobs(*(torch.log_softmax(x.float(), dim=-1) for x in (logits, ref_logits)))


def kl_of_logprobs(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The same by log-probs [..., n]."""
    # A token of probability 0 adds 0, also where the reference has probability 0.
    return (logprobs.exp() * torch.where(logprobs.exp() > 0, logprobs - ref_logprobs, 0.0)).sum(-1)


def penalise(
    rewards: Tensor, kl: Tensor, mask: Tensor, cu_seqlens: Tensor, *, coefficient: float
) -> tuple[Tensor, float]:
    """Take `coefficient * kl` off each model token's reward: (rewards f32 [T], mean KL in nats a token).

    As in verl, the mean is over sequences, of the mean over each one's model tokens.
    """
    kl = kl * mask
    weights = token_weights(mask, cu_seqlens, "seq-mean-token-mean")
    return rewards - coefficient * kl, float((weights.double() * kl).sum())


class KLController:
    """The coefficient of a KL: constant, or adapted so that the KL stays at a target (arXiv 1909.08593)."""

    # A step changes the coefficient by at most this share per horizon.
    MAX_ERROR = 0.2

    def __init__(self, coefficient: float, *, target: float | None = None, horizon: int = 1) -> None:
        """`target`: None: the coefficient is constant."""
        self.value, self._target, self._horizon = coefficient, target, horizon

    def update(self, kl: float, samples: int) -> None:
        """Raise the coefficient when `kl`, a mean over `samples` trajectories, is above the target; else lower it."""
        if self._target is None:
            return
        error = min(max(kl / self._target - 1, -self.MAX_ERROR), self.MAX_ERROR)
        # Horizon by horizon: a batch of over five horizons in one step would make it negative.
        whole, rest = divmod(samples, self._horizon)
        self.value *= (1 + error) ** whole * (1 + error * rest / self._horizon)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint; the configuration sets a constant coefficient."""
        if self._target is not None:
            self.value = float(state["value"])
