"""vLLM (https://github.com/vllm-project/vllm) as a rollout engine."""

from agentrl.engines.vllm.backend import VLLM

__all__ = ["VLLM"]
