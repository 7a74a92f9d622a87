"""The engine that runs in this process, on the policy's own weights."""

from agentrl.rollout.engines.hf.engine import HFEngine
from agentrl.rollout.engines.hf.threads import configure_torch

__all__ = ["HFEngine", "configure_torch"]
