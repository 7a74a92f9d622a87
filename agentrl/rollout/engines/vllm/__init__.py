"""vLLM (https://github.com/vllm-project/vllm) as a rollout engine."""

from agentrl.rollout.engines.vllm.dialect import VLLM

__all__ = ["VLLM"]
