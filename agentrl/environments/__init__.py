"""Environments with text in and out: Gymnasium, TextArena, and those of the user's own (docs/environments.md)."""

from agentrl.environments.observation import Observation

__all__ = ["Observation"]
