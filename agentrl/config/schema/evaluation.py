"""Keys of `agentrl generate` and `agentrl eval`: those of `agentrl train`, and keys for answers and scores."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema import Config, Data
from agentrl.config.schema.marks import ABOVE_0, SHARE, OutputPath, RowFiles


@dataclass
class EvalData(Data):
    """Rows to answer, or rows with their answers."""

    path: RowFiles = None
    """A parquet or jsonl file, or a list of them: rows to answer if `model.path` is set, otherwise rows with
    answers."""
    response_key: str = "responses"
    """Column with a row's answers: a list of strings, or one string."""
    reward_model_key: str = "reward_model"
    """Column with the ground truth, as in training rows: {ground_truth: ...}."""
    score_key: str = "scores"
    """Column with a score for each answer; used if no reward function is set."""
    output_path: OutputPath | None = None
    """Parquet or jsonl file for the answers; an interrupted run resumes from it."""

    def files(self) -> dict[str, Any]:
        """Those of `path` alone: it replaces the keys of a training run."""
        return {"data.path": self.path}


@dataclass
class Evaluation:
    """Statistics of the scores."""

    k: Annotated[list[int], ABOVE_0] = field(default_factory=list)
    """pass@k (arXiv 2107.03374) for these k; empty: 1, 2, 4, ... up to the number of answers per row."""
    success_threshold: float = 1.0
    """An answer with at least this score passes, unless the reward function returns "acc" or "success"."""
    confidence: Annotated[float, SHARE] = 0.95
    """Confidence level of the intervals, from resampled rows (bootstrap)."""
    resamples: int = 1000
    """Resamples per interval, the same in each run; 0: no intervals."""


@dataclass
class EvalConfig(Config):
    """`agentrl eval` and `agentrl generate`."""

    data: EvalData = field(default_factory=EvalData)
    """Rows and answers."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """Statistics."""
