"""Sends weights from the trainer to servers: the tensors, and the transports."""

from agentrl.engines.servers.weights.bucket import Bucket, TensorEntry
from agentrl.engines.servers.weights.policy import PolicyWeights

__all__ = ["Bucket", "PolicyWeights", "TensorEntry"]
