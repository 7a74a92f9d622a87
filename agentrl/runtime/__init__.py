"""Runs the work in this process or on Ray workers."""

from agentrl.runtime.local import LocalRuntime
from agentrl.runtime.opening import open_runtime, read_splits
from agentrl.runtime.runtime import Metrics, Runtime
from agentrl.runtime.tracked import TrackedRuntime

__all__ = ["LocalRuntime", "Metrics", "Runtime", "TrackedRuntime", "open_runtime", "read_splits"]
