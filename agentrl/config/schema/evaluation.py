"""`agentrl generate` and `agentrl eval`: the keys of `agentrl train`, and what answers and their scores need."""

from dataclasses import dataclass, field
from typing import Any

from agentrl.config.schema import Config, Data


@dataclass
class EvalData(Data):
    """Rows to answer, or rows with their answers."""

    path: Any = None
    """A parquet or jsonl file, or a list of them: rows to answer where `model.path` is set, else rows with answers."""
    response_key: str = "responses"
    """Column that holds a row's answers: a list of strings, or one string."""
    reward_model_key: str = "reward_model"
    """Column that holds the ground truth, as the training rows do: {ground_truth: ...}."""
    score_key: str = "scores"
    """Column with a score for each answer: used where no reward function is named."""
    output_path: str | None = None
    """Parquet or jsonl file for the answers; a run that was interrupted goes on with what is in it."""


@dataclass
class Evaluation:
    """What is made of scores."""

    k: list[int] = field(default_factory=list)
    """pass@k (arXiv 2107.03374) for these k; empty: 1, 2, 4, ... as far as there are answers to every row."""
    success_threshold: float = 1.0
    """A score from which on an answer passes, unless the reward function returns "acc" or "success"."""
    confidence: float = 0.95
    """Share of the confidence intervals, which come from resampling rows (bootstrap)."""
    resamples: int = 1000
    """Resamples behind an interval; 0: no intervals."""
    seed: int = 0
    """Seed of the resampling."""


@dataclass
class EvalConfig(Config):
    """`agentrl eval` and `agentrl generate`."""

    data: EvalData = field(default_factory=EvalData)
    """Rows and answers."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """Figures."""
