"""What files written for verl expect of it: its module names, and the classes and functions behind them.

`modules.yaml` says which names there are and who stands for each; `modules.py` makes them importable.
"""

from agentrl.verl import modules
from agentrl.verl.copies import package_of
from agentrl.verl.in_process import actors_in_process
from agentrl.verl.modules import provide

__all__ = ["actors_in_process", "modules", "package_of", "provide"]
