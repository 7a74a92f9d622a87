"""Keys of advantages, KL in the reward, off-policy correction and filters."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SHARE, OpenChoice, Range
from agentrl.core import points

CAP = Range(lambda value: isinstance(value, str) or value >= 1, "must be at least 1")
"""A text has two numbers."""
BELOW_1 = Range(lambda value: value <= 1, "every on-policy token would be dropped; set it below 1")


@dataclass
class KLControl:
    """Coefficient of the KL penalty in the reward."""

    type: Annotated[str, ("fixed", "adaptive")] = "fixed"
    """fixed or adaptive (arXiv 1909.08593)."""
    kl_coef: Annotated[float, AT_LEAST_0] = 0.001
    """The coefficient; with adaptive, its start value."""
    horizon: Annotated[int, ABOVE_0] = 10000
    """adaptive: number of samples over which the coefficient adapts."""
    target_kl: float = 0.1
    """adaptive: target KL, in nats per token."""


@dataclass
class RolloutCorrection:
    """Importance weights that correct the difference between the engine's and the trainer's probabilities."""

    bypass_mode: bool = False
    """Use the engine's log-probs as old log-probs: this saves a forward pass, and the ratio of the loss corrects the
    difference. Rejection then compares the engine with the current policy, at the cost of a forward pass per optimizer
    step."""
    loss_type: Annotated[str, ("ppo_clip", "reinforce")] = "ppo_clip"
    """With `bypass_mode`: ppo_clip (the ratio of the loss corrects, without importance weights), or reinforce (policy
    gradient times the importance weights of the current policy)."""
    rollout_is: Annotated[str | None, ("token", "sequence")] = "token"
    """Level of the ratio p(trainer) / p(engine): token or sequence; null: no correction."""
    rollout_is_threshold: Annotated[int | float | str, CAP] = 2.0
    """Largest ratio. "0.5_5.0": ratios outside these bounds get weight 0 (IcePop)."""
    rollout_is_mode: Annotated[str, ("truncate", "mask")] = "truncate"
    """truncate (clip ratios at the threshold), or mask (drop tokens with a ratio outside 1/threshold to threshold)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the batch (with `bypass_mode`: over the mini-batch)."""
    rollout_is_all_terms: bool = False
    """Multiply the KL loss and the entropy bonus by the weights too. An estimated KL also gets the ratio of the policy
    to the one before the step, with its gradient: an unbiased KL on tokens of older weights (arXiv 2512.02556)."""
    rollout_rs: str | None = None
    """Rejection by ratio: token drops tokens; sequence and geometric drop whole sequences, by the product or the
    geometric mean of their ratios; or verl's token_k1 to _k3, seq_sum_k1 to _k3, seq_mean_k1 to _k3, seq_max_k2 and
    _k3, separated by commas. null: none. Rejected tokens do not count in the loss or its mean."""
    rollout_rs_threshold: int | float | str | None = None
    """Largest ratio that is kept (null: 2), or both bounds as "0.5_2.0"; separated by commas, one for each of
    `rollout_rs`. For names ending in k1 the bounds are for the inverse ratio, as in verl. For k2 and k3 this is the
    largest value that is kept, for example 0.01, and is required."""
    rollout_rs_threshold_lower: Annotated[float | None, BELOW_1] = None
    """token, sequence, geometric: smallest ratio that is kept; null: 1 / `rollout_rs_threshold`."""
    rollout_token_veto_threshold: float | None = None
    """Drop a sequence if one of its tokens has a ratio below this; null: off."""


@dataclass
class FilterGroups:
    """Dynamic sampling (DAPO, arXiv 2503.14476): replaces prompts whose answers all have the same score."""

    enable: bool = False
    """Sample prompts until `data.train_batch_size` of them have answers with different scores."""
    metric: str = "score"
    """The value that must differ: score (without the length penalty), or another value of the reward function, such as
    acc."""
    keep: Annotated[str, OpenChoice(points.GROUP_FILTERS)] = "differing"
    """Groups to train on, by the values of this metric."""
    max_num_gen_batches: int = 10
    """Most batches of prompts per step; after that, the step trains on the prompts it has. 0 or less: one epoch."""


@dataclass
class PFPPO:
    """Sampling of trajectories for the update (PF-PPO, arXiv 2409.06957)."""

    reweight_method: Annotated[str, ("pow", "max_min", "max_random")] = "pow"
    """pow (probability grows with the score), max_min (only the best and the worst), or max_random (the best is four
    times as likely as the others)."""
    weight_pow: float = 2.0
    """pow: the exponent."""


@dataclass
class Algorithm:
    """The estimator and the KL in the reward."""

    adv_estimator: Annotated[str, OpenChoice(points.ADVANTAGES)] = "grpo"
    """Estimator of advantages; docs/algorithms.md compares them."""
    norm_adv_by_std_in_grpo: bool = True
    """gdpo, grpo, grpo_turn, grpo_passk: divide by the group's deviation; false is Dr.GRPO (arXiv 2503.20783)."""
    gdpo_reward_keys: list[str] = field(default_factory=list)
    """gdpo: parts of the reward, values of the reward function's dict; by default the scores of `reward.functions`."""
    gdpo_reward_weights: list[float] = field(default_factory=list)
    """gdpo: weight of each of these parts; by default 1, or the weights of `reward.functions`."""
    gamma: Annotated[float, SHARE] = 1.0
    """Discount per model token, for gae, reinforce_plus_plus and remax; per turn for gae_turn and grpo_turn."""
    lam: Annotated[float, SHARE] = 1.0
    """gae, gae_turn: lambda of GAE (arXiv 1506.02438); smaller values look less far ahead."""
    vf_coef: float = 1.0
    """Coefficient of the critic's loss, applied before gradient clipping."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference policy from each token's reward; cannot be combined with actor.use_kl_loss."""
    kl_penalty: Annotated[str, OpenChoice(points.KL_ESTIMATORS, ("full",))] = "kl"
    """Estimator of this KL; full: the exact KL over the whole vocabulary."""
    kl_ctrl: KLControl = field(default_factory=KLControl)
    """Coefficient of this KL."""
    rollout_correction: RolloutCorrection = field(default_factory=RolloutCorrection)
    """Off-policy correction."""
    filter_groups: FilterGroups = field(default_factory=FilterGroups)
    """Dynamic sampling."""
    min_group_size: Annotated[int, AT_LEAST_1] = 1
    """Fewest trajectories of a prompt that are trained on: a group that lost more, to infrastructure failures, is left
    out. rloo compares at least 2."""
    mask_truncated_completions: bool = False
    """Mask trajectories that ended at the length limit: they do not count in the loss or its mean. Their scores still
    count in their group's statistics."""
    ledger_credit: Annotated[str, ("all", "last", "weighted")] = "all"
    """Advantage of each ledger of a trajectory that has several: all (the trajectory's), last (only the last one gets
    it; the others do not count in the loss or its mean), or weighted (times the ledger's weight, from the list
    `ledger_weights` in the reward function's dict)."""
    use_pf_ppo: bool = False
    """Train on trajectories sampled by score, with replacement."""
    pf_ppo: PFPPO = field(default_factory=PFPPO)
    """How they are sampled."""
    custom: dict[str, Any] = field(default_factory=dict)
    """Settings of your own estimator, which finds them in verl's `config`."""
