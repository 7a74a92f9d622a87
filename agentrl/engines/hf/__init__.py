"""The engine that runs in this process, on the policy's own weights."""

from agentrl.engines.hf.hf_engine import HFEngine
from agentrl.engines.hf.threads import configure_torch

__all__ = ["HFEngine", "configure_torch"]
