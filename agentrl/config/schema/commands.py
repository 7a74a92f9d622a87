"""Which schema each command takes."""

from agentrl.config.schema import Config
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.schema.sft import SftConfig

SCHEMAS: dict[str, type] = {"train": Config, "sft": SftConfig, "eval": EvalConfig}
"""By command; `rollout` and `doctor` take those of train, `generate` those of eval."""
