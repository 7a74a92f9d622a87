"""The schema of each command."""

from agentrl.config.schema import Config
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.schema.sft import SftConfig

SCHEMAS: dict[str, type] = {"train": Config, "sft": SftConfig, "eval": EvalConfig}
"""Command -> schema; `rollout` and `doctor` use that of train, `generate` that of eval."""
