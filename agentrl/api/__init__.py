"""The Python API: what `import agentrl` offers. docs/python.md lists the names and says which are stable."""

from agentrl.api.evaluating import evaluate
from agentrl.api.result import Result
from agentrl.api.run import Step, TrainingRun
from agentrl.api.sampling import rollout
from agentrl.api.supervised import sft
from agentrl.api.training import train, training

__all__ = ["Result", "Step", "TrainingRun", "evaluate", "rollout", "sft", "train", "training"]
