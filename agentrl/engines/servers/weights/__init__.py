"""Weights on their way from the trainer to servers: what is sent, and the ways to send it."""

from agentrl.engines.servers.weights.bucket import Bucket, Entry
from agentrl.engines.servers.weights.policy import PolicyWeights

__all__ = ["Bucket", "Entry", "PolicyWeights"]
