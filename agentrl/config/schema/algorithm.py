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
    """adaptive: the KL it steers to, in nats a sequence."""


@dataclass
class RolloutCorrection:
    """Tokens are drawn by the engine's probabilities, not quite the trainer's: importance weights make up for it."""

    rollout_is: str | None = "token"
    """The ratio that counts, p(trainer) / p(engine): that of a token, or of a whole sequence; null: no correction."""
    rollout_is_threshold: float = 2.0
    """Cap of the ratio."""
    rollout_is_mode: str = "truncate"
    """truncate (ratios are cut at the cap), or mask (tokens outside of 1/cap to cap do not count)."""


@dataclass
class Algorithm:
    """The estimator and the KL in the reward."""

    adv_estimator: str = "grpo"
    """grpo (arXiv 2402.03300), rloo (arXiv 2402.14740), reinforce_plus_plus (arXiv 2501.03262)."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation; false is Dr.GRPO (arXiv 2503.20783)."""
    gamma: float = 1.0
    """Discount per model token, for reinforce_plus_plus."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference policy from each token's reward; not together with actor.use_kl_loss."""
    kl_penalty: str = "kl"
    """Estimator of that KL: kl, abs, mse, low_var_kl."""
    kl_ctrl: KLControl = field(default_factory=KLControl)
    """Weight of that KL."""
    rollout_correction: RolloutCorrection = field(default_factory=RolloutCorrection)
    """Off-policy correction."""
