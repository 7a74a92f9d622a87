"""What a person sees of a run: metrics, loggers, live view, dumps, conversations."""

from agentrl.tracking.live import LiveView
from agentrl.tracking.loggers import Logger, Loggers, open_loggers, read_metrics
from agentrl.tracking.memory import memory_metrics
from agentrl.tracking.metrics import is_wall_clock, rollout_metrics, validation_metrics
from agentrl.tracking.phases import Phases

__all__ = [
    "LiveView",
    "Logger",
    "Loggers",
    "Phases",
    "is_wall_clock",
    "memory_metrics",
    "open_loggers",
    "read_metrics",
    "rollout_metrics",
    "validation_metrics",
]
