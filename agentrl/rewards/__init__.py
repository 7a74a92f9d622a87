"""Rewards: the user's function, the scores of tools and interaction, and their sum."""

from agentrl.rewards.function import RewardFn, load_reward_function, reward_function
from agentrl.rewards.scorer import Judge, Scorer, ScoreSources

__all__ = ["Judge", "RewardFn", "ScoreSources", "Scorer", "load_reward_function", "reward_function"]
