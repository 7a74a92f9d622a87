"""Configuration: the schema, and how files and a command line become it."""

from agentrl.config.compose import Resolved, compose, resolve, to_yaml
from agentrl.config.validate import ANSWERING, SAMPLING, SETTINGS, SUPERVISED, TRAINING

__all__ = [
    "ANSWERING",
    "SAMPLING",
    "SETTINGS",
    "SUPERVISED",
    "TRAINING",
    "Resolved",
    "compose",
    "resolve",
    "to_yaml",
]
