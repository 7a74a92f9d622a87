"""SGLang (https://github.com/sgl-project/sglang) as a rollout engine."""

from agentrl.engines.sglang.backend import SGLang

__all__ = ["SGLang"]
