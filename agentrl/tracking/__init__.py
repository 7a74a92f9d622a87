"""Everything that a person sees of a run: metrics, loggers, live view, dumps, conversations."""

from agentrl.tracking.conversation import conversation
from agentrl.tracking.dumps.jsonl import load_trajectories
from agentrl.tracking.loggers import Logger, read_metrics

__all__ = ["Logger", "conversation", "load_trajectories", "read_metrics"]
