"""Configuration: the schema, and how files and a command line become it."""

from agentrl.config.compose import Resolved, compose, resolve, to_yaml
from agentrl.config.validate import SETTINGS, TRAINING

__all__ = ["SETTINGS", "TRAINING", "Resolved", "compose", "resolve", "to_yaml"]
