"""Rewards: a function of the user's own, the tools' scores, the interaction's score, and how they add up."""

from agentrl.rewards.function import RewardFn, load_reward_function, reward_function
from agentrl.rewards.scorer import Judge, Scorer

__all__ = ["Judge", "RewardFn", "Scorer", "load_reward_function", "reward_function"]
