"""The Python API: what `import agentrl` offers. docs/python.md lists the names and says which are stable."""

from agentrl.api.result import Result
from agentrl.api.run import TrainingRun
from agentrl.api.sampling import evaluate, rollout
from agentrl.api.training import sft, train, training
from agentrl.api.typed import Settings, SftSettings
from agentrl.tracking.callbacks import Callback, Step

__all__ = [
    "Callback",
    "Result",
    "Settings",
    "SftSettings",
    "Step",
    "TrainingRun",
    "evaluate",
    "rollout",
    "sft",
    "train",
    "training",
]
