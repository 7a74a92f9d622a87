"""KL to a reference policy, estimated from the log-probs of sampled tokens, and the weight of it as a penalty.

Estimators after "Approximating KL Divergence" (J. Schulman, 2020), with d = logprobs - reference:
kl (k1) is d, abs is |d|, mse (k2) is d^2 / 2, low_var_kl (k3) is exp(-d) + d - 1, at most 10. A trailing + keeps the
value and takes k2's gradient, the only one of them that is in expectation the gradient of the KL for on-policy samples.
Values and gradients are verl's.
full is no estimate but the KL itself, summed over the vocabulary; `kl_of_logits` is it in the plainest words.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.aggregate import token_weights
from agentrl.algorithms.own import blamed, checked_column
from agentrl.algorithms.ratios import MAX_LOG_RATIO
from agentrl.core.errors import UserError
from agentrl.core.points import KL_ESTIMATORS, kl_estimator

# One token that the reference finds far likelier than the policy would outweigh a whole batch.
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
    """exp(-d) + d - 1 without its bound: for figures, never for a loss."""
    d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(-d) + d


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: str, key: str = "kl_penalty") -> Tensor:
    """KL estimate of each token, f32 [T], in nats. `kind` is the value of the setting `key`. Raises UserError for an
    unknown one, and for one of the user's own that fails."""
    entry = KL_ESTIMATORS.entry(kind.removesuffix(GRADIENT), key)
    value = entry.value(logprobs, ref_logprobs) if entry.built_in else _own(entry.value, logprobs, ref_logprobs, kind)
    if not kind.endswith(GRADIENT):
        return value
    d = logprobs - ref_logprobs
    # d times zero with d's gradient: no square that could overflow.
    return value.detach() + d.detach() * (d - d.detach())


def _own(function: Callable[..., Any], logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    where = f"the KL estimator {kind}"
    value = blamed(function, where)(logprobs, ref_logprobs)
    return checked_column(value, logprobs, torch.ones_like(logprobs, dtype=torch.bool), where=where, what="estimates")


def kl_of_logits(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(softmax(`logits`) || softmax(`ref_logits`)) of [..., V] each, in nats: f32 [...]."""
    logprobs, ref_logprobs = (torch.log_softmax(x.float(), dim=-1) for x in (logits, ref_logits))
    # A token of probability 0 adds nothing, whatever the reference gives it.
    return (logprobs.exp() * torch.where(logprobs.exp() > 0, logprobs - ref_logprobs, 0.0)).sum(-1)


def penalise(
    rewards: Tensor, kl: Tensor, mask: Tensor, cu_seqlens: Tensor, *, coefficient: float
) -> tuple[Tensor, float]:
    """Take `coefficient * kl` off each model token's reward: (rewards f32 [T], mean KL in nats a token).

    The mean is that over sequences of the mean over their model tokens, as verl has it.
    """
    kl = kl * mask
    weights = token_weights(mask, cu_seqlens, "seq-mean-token-mean")
    return rewards - coefficient * kl, float((weights.double() * kl).sum())


class FixedKL:
    """A penalty weight that stays."""

    def __init__(self, coefficient: float) -> None:
        self.value = coefficient

    def update(self, kl: float, samples: int) -> None:
        """Nothing to adapt."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: the weight is the configuration's."""


class AdaptiveKL:
    """A penalty weight that steers the KL to a target (arXiv 1909.08593)."""

    # A single step may move the weight by at most this share per horizon.
    MAX_ERROR = 0.2

    def __init__(self, coefficient: float, *, target: float, horizon: int) -> None:
        self.value = coefficient
        self._target = target
        self._horizon = horizon

    def update(self, kl: float, samples: int) -> None:
        """Raise the weight when `kl`, the mean over `samples` trajectories, is above the target; else lower."""
        error = min(max(kl / self._target - 1, -self.MAX_ERROR), self.MAX_ERROR)
        # Horizon by horizon: in one step a batch of more than five would turn the weight's sign.
        whole, rest = divmod(samples, self._horizon)
        self.value *= (1 + error) ** whole * (1 + error * rest / self._horizon)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.value = float(state["value"])


KLController = FixedKL | AdaptiveKL


def kl_controller(kind: str, coefficient: float, *, target: float, horizon: int) -> KLController:
    """The controller named by `algorithm.kl_ctrl.type`. Raises UserError for an unknown one."""
    if kind == "fixed":
        return FixedKL(coefficient)
    if kind == "adaptive":
        return AdaptiveKL(coefficient, target=target, horizon=horizon)
    raise UserError(f"algorithm.kl_ctrl.type {kind!r} does not exist; it is fixed or adaptive")
