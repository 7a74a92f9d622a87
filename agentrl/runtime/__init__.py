"""Runs the work in this process or on Ray workers."""

from agentrl.runtime.local import LocalRuntime
from agentrl.runtime.opening import open_runtime, read_splits
from agentrl.runtime.runtime import Runtime

__all__ = ["LocalRuntime", "Runtime", "open_runtime", "read_splits"]
