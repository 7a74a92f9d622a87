"""Stands for verl on the path that `agentrl verl` sets: its names for scripts, its programs for launch scripts."""

from agentrl.verl.data_proto import DataProto
from agentrl.verl.modules import VERSION, provide

__all__ = ["DataProto"]
__version__ = VERSION
provide(programs=True)
