"""agentrl: reinforcement learning for language models that act over several turns with tools."""

__version__ = "0.4.0"
