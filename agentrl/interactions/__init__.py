"""Interactions: simulated users that react to the model's answers. docs/interactions.md shows how to write one."""

from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.loading import InteractionSet, load_interactions
from agentrl.interactions.session import InteractionReply, InteractionSession

__all__ = ["BaseInteraction", "InteractionReply", "InteractionSession", "InteractionSet", "load_interactions"]
