"""Files written for verl run unchanged: its module names, scripts, agent loops, reward managers and MCP client.

`modules.yaml` lists the names and the objects behind them; `modules.py` makes them importable. Nothing of
agentrl imports this package: `register`, an entry point of the group `agentrl.plugins`, adds it as a layer.
"""

from agentrl.core.compatibility import register_layer
from agentrl_verl.layer import VerlLayer

__version__ = "0.4.0"


def register() -> None:
    """Add verl's layer to this process."""
    register_layer(VerlLayer())


__all__ = ["VerlLayer", "register"]
