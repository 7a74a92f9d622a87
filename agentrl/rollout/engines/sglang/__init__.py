"""SGLang (https://github.com/sgl-project/sglang) as a rollout engine."""

from agentrl.rollout.engines.sglang.dialect import SGLang

__all__ = ["SGLang"]
