"""Which schema each command takes."""

from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig

SCHEMAS: dict[str, type] = {"train": Config, "sft": SftConfig}
"""By command; `rollout` takes those of train."""
