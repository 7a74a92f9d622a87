"""Runs the work in this process or on Ray workers."""

from agentrl.runtime.local import LocalRuntime
from agentrl.runtime.observed import Observed
from agentrl.runtime.opening import open_runtime, read_splits
from agentrl.runtime.runtime import Metrics, Runtime

__all__ = ["LocalRuntime", "Metrics", "Observed", "Runtime", "open_runtime", "read_splits"]
