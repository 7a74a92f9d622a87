"""From rewards to advantages."""

from dataclasses import dataclass, field


@dataclass
class KLControl:
    """The weight of a KL penalty inside the reward."""

    type: str = "fixed"
    """fixed or adaptive (arXiv 1909.08593)."""
    kl_coef: float = 0.001
    """The (first) weight."""
    horizon: int = 10000
    """adaptive: samples over which it corrects."""
    target_kl: float = 0.1
    """adaptive: the KL it steers to, in nats a token."""


@dataclass
class RolloutCorrection:
    """Tokens are drawn by the engine's probabilities, not quite the trainer's: importance weights make up for it."""

    bypass_mode: bool = False
    """Take the engine's log-probs for those of the policy before the step: one forward pass less, and the loss's own
    ratio makes up for the difference. Rejection compares the engine with the policy as it is at each optimizer step
    then, and costs a forward pass for each."""
    loss_type: str = "ppo_clip"
    """With `bypass_mode`: ppo_clip (the loss's own ratio corrects; no importance weights), or reinforce (the plain
    policy gradient, times the importance weights of the policy as it is)."""
    rollout_is: str | None = "token"
    """The ratio that counts, p(trainer) / p(engine): that of a token, or of a whole sequence; null: no correction."""
    rollout_is_threshold: int | float | str = 2.0
    """Cap of the ratio. "0.5_5.0": ratios outside of these bounds weigh 0 (IcePop)."""
    rollout_is_mode: str = "truncate"
    """truncate (ratios are cut at the cap), or mask (tokens outside of 1/cap to cap do not count)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the batch; with `bypass_mode` over the mini-batch."""
    rollout_rs: str | None = None
    """Rejection by the thresholds: token drops tokens, sequence and geometric whole sequences, by the product or the
    geometric mean of their ratios; or verl's token_k1 to _k3, seq_sum_k1 to _k3, seq_mean_k1 to _k3, seq_max_k2 and
    _k3, several with commas. null: nothing is dropped. What is dropped leaves the mean too."""
    rollout_rs_threshold: int | float | str | None = None
    """The greatest ratio that is kept (null: 2), or both bounds, as "0.5_2.0"; with commas one for each of
    `rollout_rs`. For the words ending in k1 they bound the inverse of the ratio, as in verl; for k2 and k3 it is the
    greatest value that is kept, 0.01 say, and must be given."""
    rollout_rs_threshold_lower: float | None = None
    """token, sequence, geometric: the least ratio that is kept; null: 1 / `rollout_rs_threshold`."""
    rollout_token_veto_threshold: float | None = None
    """A token with a ratio below this drops its whole sequence; null: none does."""


@dataclass
class FilterGroups:
    """Dynamic sampling (DAPO, arXiv 2503.14476): prompts whose answers all score alike are replaced."""

    enable: bool = False
    """Draw prompts until `data.train_batch_size` of them have answers that differ."""
    metric: str = "score"
    """What must differ: score (without what the length costs), or a value that the reward function returns beside it,
    such as acc."""
    keep: str = "differing"
    """Which groups are trained on, by the values of that metric."""
    max_num_gen_batches: int = 10
    """Batches of prompts that a step may draw; then it trains on what there is. 0: as many as an epoch has."""


@dataclass
class PFPPO:
    """Which trajectories an update sees (PF-PPO, arXiv 2409.06957)."""

    reweight_method: str = "pow"
    """pow (likelier the larger their score), max_min (the best and the worst), or max_random (the best four times as
    likely as the others)."""
    weight_pow: float = 2.0
    """pow: the exponent."""


@dataclass
class Algorithm:
    """The estimator and the KL in the reward."""

    adv_estimator: str = "grpo"
    """From rewards to advantages; docs/algorithms.md says which to take."""
    norm_adv_by_std_in_grpo: bool = True
    """grpo, grpo_turn, grpo_passk: divide by the group's standard deviation; false is Dr.GRPO (arXiv 2503.20783)."""
    gamma: float = 1.0
    """Discount per model token, for gae, reinforce_plus_plus and remax; per turn for gae_turn and grpo_turn."""
    lam: float = 1.0
    """gae, gae_turn: how far advantages look ahead (arXiv 1506.02438)."""
    vf_coef: float = 1.0
    """Weight of the critic's loss; its gradient is clipped after it."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference policy from each token's reward; not together with actor.use_kl_loss."""
    kl_penalty: str = "kl"
    """Estimator of that KL; full: the KL itself, over the whole vocabulary."""
    kl_ctrl: KLControl = field(default_factory=KLControl)
    """Weight of that KL."""
    rollout_correction: RolloutCorrection = field(default_factory=RolloutCorrection)
    """Off-policy correction."""
    filter_groups: FilterGroups = field(default_factory=FilterGroups)
    """Dynamic sampling."""
    mask_truncated_completions: bool = False
    """Take trajectories that ended at the length limit out of the loss and its mean. Their scores still count in the
    statistics of their groups."""
    use_pf_ppo: bool = False
    """Train on trajectories drawn by their scores, with replacement."""
    pf_ppo: PFPPO = field(default_factory=PFPPO)
    """How they are drawn."""
