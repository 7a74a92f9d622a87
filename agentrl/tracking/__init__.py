"""Everything that a person sees of a run: metrics, loggers, live view, dumps, conversations."""

from agentrl.tracking.conversation import conversation
from agentrl.tracking.dumps.jsonl import load_trajectories, write_trajectories
from agentrl.tracking.dumps.records import Advantages, trajectory_record
from agentrl.tracking.generations import Generation, generations
from agentrl.tracking.live import LiveView
from agentrl.tracking.loggers import Logger, Loggers, open_loggers, read_metrics
from agentrl.tracking.metrics import is_wall_clock, rollout_metrics, validation_metrics
from agentrl.tracking.phases import Phases, memory_metrics
from agentrl.tracking.summary import before_after_table, summary
from agentrl.tracking.waiting import Waiting

__all__ = [
    "Advantages",
    "Generation",
    "LiveView",
    "Logger",
    "Loggers",
    "Phases",
    "Waiting",
    "before_after_table",
    "conversation",
    "generations",
    "is_wall_clock",
    "load_trajectories",
    "memory_metrics",
    "open_loggers",
    "read_metrics",
    "rollout_metrics",
    "summary",
    "trajectory_record",
    "validation_metrics",
    "write_trajectories",
]
