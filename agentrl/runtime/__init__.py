"""Runs the work in this process or on Ray workers."""

from agentrl.runtime.local import LocalRuntime
from agentrl.runtime.opening import open_runtime
from agentrl.runtime.runtime import Metrics, Runtime

__all__ = ["LocalRuntime", "Metrics", "Runtime", "open_runtime"]
