"""Configuration: the schema, and how files and a command line become it."""

from agentrl.config.compose import Resolved, compose, resolve, to_yaml

__all__ = ["Resolved", "compose", "resolve", "to_yaml"]
