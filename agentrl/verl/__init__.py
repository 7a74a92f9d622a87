"""What files written for verl expect of it: its module names, and the classes and functions behind them.

`modules.yaml` says which names there are and who stands for each; `modules.py` makes them importable.
"""

from agentrl.verl.modules import provide

__all__ = ["provide"]
