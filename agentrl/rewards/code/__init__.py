"""Rewards for code: the model's program runs in the sandbox against hidden test cases.

`reward.custom_reward_function.name=agentrl.rewards.code:compute_score`; without a reward function it is chosen for
verl's code data sets by `data_source`.
"""

from agentrl.rewards.code.cases import TestCases, extract_code, read_cases
from agentrl.rewards.code.grading import grade
from agentrl.rewards.code.scoring import compute_score
from agentrl.rewards.code.verdict import Verdict

__all__ = ["TestCases", "Verdict", "compute_score", "extract_code", "grade", "read_cases"]
