"""verl's own estimators, losses and KL under their names and in their shapes, for functions that call or extend them.

Rows are [N, R]: `token_level_rewards` f32, `response_mask` 0 or 1, `index` [N] whose equal entries are one prompt.
Estimators give (advantages, returns). Where agentrl's own differ from verl's in an edge, these have verl's value.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.advantages import estimate
from agentrl.algorithms.kl import kl_penalty as penalty
from agentrl.algorithms.losses import POLICY_LOSSES, PolicyLoss
from agentrl.algorithms.ratios import MAX_LOG_RATIO
from agentrl_verl.estimators import ADV_ESTIMATOR_REGISTRY, name_of
from agentrl_verl.policy_losses import POLICY_LOSS_REGISTRY, agg_loss
from agentrl_verl.tensors import masked_mean, masked_whiten

Both = tuple[Tensor, Tensor]
SHORT = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """The KL estimate of each token; see `agentrl.algorithms.kl`. `kl_penalty`: its name, or k1, k2, k3."""
    base = kl_penalty.removesuffix("+")
    return penalty(logprob, ref_logprob, SHORT.get(base, base) + kl_penalty[len(base) :])


def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: Any, lam: Any, **_: Any
) -> Both:
    """Whitened generalised advantages and returns; a reward off the mask is not counted, as in verl."""
    following: Any = 0.0
    running: Any = 0.0
    raw = []
    mask = response_mask.to(token_level_rewards.dtype)
    for t in reversed(range(token_level_rewards.shape[-1])):
        here = mask[:, t]
        step = token_level_rewards[:, t] + gamma * following - values[:, t] + gamma * lam * running
        following = torch.where(here > 0, values[:, t], following)
        running = torch.where(here > 0, step, running)
        raw.append(running)
    advantages = torch.stack(raw[::-1], 1)
    return masked_whiten(advantages, mask), advantages + values


def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    **_: Any,
) -> Both:
    """Score minus the group's mean, over its deviation; in a group of one the score itself."""
    scores = token_level_rewards.sum(-1)
    advantages = scores.clone()
    for members in _groups(index):
        if len(members) > 1:
            group = scores[members]
            scale = group.std() + epsilon if norm_adv_by_std_in_grpo else 1.0
            advantages[members] = (group - group.mean()) / scale
        elif norm_adv_by_std_in_grpo:
            advantages[members] = scores[members] / (1.0 + epsilon)
    spread = advantages[:, None] * response_mask
    return spread, spread


def _groups(index: Any) -> list[list[int]]:
    found: dict[Any, list[int]] = {}
    for row, prompt in enumerate(index):
        found.setdefault(prompt.item() if hasattr(prompt, "item") else prompt, []).append(row)
    return list(found.values())


def _by(name: str) -> Callable[..., Both]:
    """An estimator of agentrl's in verl's shape."""

    def compute(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Any = None,
        config: Any = None,
        reward_baselines: Tensor | None = None,
        norm_adv_by_std_in_grpo: bool = True,
        **_: Any,
    ) -> Both:
        rows, width = response_mask.shape
        groups = enumerate(_groups(range(rows) if index is None else index))
        owner = {row: number for number, members in groups for row in members}
        returns, _unused = estimate(
            name,
            token_level_rewards.reshape(-1).float(),
            response_mask.reshape(-1).bool(),
            torch.arange(rows + 1, dtype=torch.int32) * width,
            torch.arange(rows),
            torch.tensor([owner[row] for row in range(rows)]),
            gamma=1.0 if config is None else config.get("gamma", 1.0),
            norm_by_std=norm_adv_by_std_in_grpo,
            baselines=reward_baselines,
        )
        return returns.reshape(rows, width), returns.reshape(rows, width)

    compute.__name__ = f"compute_{name}_outcome_advantage"
    return compute


compute_rloo_outcome_advantage = _by("rloo")
compute_opo_outcome_advantage = _by("opo")
compute_gpg_outcome_advantage = _by("gpg")
compute_remax_outcome_advantage = _by("remax")
compute_grpo_passk_outcome_advantage = _by("grpo_passk")
compute_reinforce_plus_plus_outcome_advantage = _by("reinforce_plus_plus")
compute_reinforce_plus_plus_baseline_outcome_advantage = _by("reinforce_plus_plus_baseline")
compute_rloo_vectorized_outcome_advantage = compute_rloo_outcome_advantage
compute_grpo_vectorized_outcome_advantage = compute_grpo_outcome_advantage

ADV_ESTIMATOR_REGISTRY |= {
    "gae": compute_gae_advantage_return,
    "grpo": compute_grpo_outcome_advantage,
    "grpo_vectorized": compute_grpo_vectorized_outcome_advantage,
    "grpo_passk": compute_grpo_passk_outcome_advantage,
    "rloo": compute_rloo_outcome_advantage,
    "rloo_vectorized": compute_rloo_vectorized_outcome_advantage,
    "opo": compute_opo_outcome_advantage,
    "gpg": compute_gpg_outcome_advantage,
    "remax": compute_remax_outcome_advantage,
    "reinforce_plus_plus": compute_reinforce_plus_plus_outcome_advantage,
    "reinforce_plus_plus_baseline": compute_reinforce_plus_plus_baseline_outcome_advantage,
}


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """PPO's clipped loss as verl 0.5 gives it: (loss, clip fraction, KL, lower clip fraction)."""
    low, high = (cliprange if one is None else one for one in (cliprange_low, cliprange_high))
    loss = PolicyLoss("vanilla", {"low": low, "high": high, "c": clip_ratio_c}, POLICY_LOSSES.built_in("vanilla"))
    return _of(loss, old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, None)


def _of(
    loss: PolicyLoss,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, width = response_mask.shape
    bounds = torch.arange(rows + 1, dtype=torch.int32, device=log_prob.device) * width
    columns = (log_prob.reshape(-1), old_log_prob.reshape(-1), advantages.reshape(-1))
    flat, details = loss(*columns, mask=response_mask.reshape(-1).bool(), cu_seqlens=bounds)
    losses = flat.reshape(rows, width) if weights is None else flat.reshape(rows, width) * weights
    none = torch.zeros_like(flat)
    clipped, lower = (details.get(name, none).reshape(rows, width) for name in ("clipped", "clipped_dual"))
    kl = (old_log_prob - log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    figures = [masked_mean(figure.detach(), response_mask) for figure in (clipped, kl, lower)]
    return agg_loss(losses, response_mask, loss_agg_mode), *figures  # type: ignore[return-value]


def _loss(name: str) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """A loss of agentrl's in verl's shape: (loss, metrics), as since verl 0.7."""

    def compute(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str | None = None,
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, float]]:
        bound = _bound(name, config)
        columns = old_log_prob, log_prob, advantages, response_mask
        loss, *figures = _of(bound, *columns, bound.aggregation(loss_agg_mode), rollout_is_weights)
        names = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")
        return loss, {key: float(figure) for key, figure in zip(names, figures, strict=True)}

    compute.__name__ = f"compute_policy_loss_{name}"
    return compute


def _bound(name: str, config: Any) -> PolicyLoss:
    """The loss with the settings of an actor's `config`."""
    ratio = config.get("clip_ratio", 0.2)
    low, high = (config.get(f"clip_ratio_{side}") for side in ("low", "high"))
    modes = config.get("policy_loss") or {}
    options = {
        "low": ratio if low is None else low,
        "high": ratio if high is None else high,
        "c": config.get("clip_ratio_c", 3.0),
        "tau_pos": config.get("tau_pos", modes.get("tau_pos", 1.0)),
        "tau_neg": config.get("tau_neg", modes.get("tau_neg", 1.05)),
    }
    return PolicyLoss(name, options, POLICY_LOSSES.built_in(name))


compute_policy_loss_vanilla = _loss("vanilla")
compute_policy_loss_gspo = _loss("gspo")
compute_policy_loss_gpg = _loss("gpg")
compute_policy_loss_sapo = _loss("sapo")
compute_policy_loss_cispo = _loss("cispo")
compute_policy_loss_geo_mean = _loss("geo_mean")

POLICY_LOSS_REGISTRY |= {
    "vanilla": compute_policy_loss_vanilla,
    "gspo": compute_policy_loss_gspo,
    "gpg": compute_policy_loss_gpg,
    "sapo": compute_policy_loss_sapo,
    "cispo": compute_policy_loss_cispo,
    "geo_mean": compute_policy_loss_geo_mean,
} | POLICY_LOSS_REGISTRY


def get_adv_estimator_fn(name_or_enum: str | Enum) -> Callable[..., Any]:
    """The function of that name, in verl's shape. Raises ValueError."""
    name = name_of(name_or_enum)
    if name not in ADV_ESTIMATOR_REGISTRY:
        raise ValueError(f"there is no advantage estimator {name!r}; there are {', '.join(ADV_ESTIMATOR_REGISTRY)}")
    return ADV_ESTIMATOR_REGISTRY[name]


def get_policy_loss_fn(name: str) -> Callable[..., Any]:
    """The function of that name, in verl's shape. Raises ValueError."""
    if name not in POLICY_LOSS_REGISTRY:
        raise ValueError(f"there is no policy loss {name!r}; there are {', '.join(POLICY_LOSS_REGISTRY)}")
    return POLICY_LOSS_REGISTRY[name]
