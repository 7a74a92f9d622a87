"""`agentrl view`: a local web page that shows what runs did: curves, conversations, timelines.

Reads the files that `tracking` writes and nothing else: no network, no tokenizer, no torch.
"""

from agentrl.view.api import Api
from agentrl.view.runs import Run, find_runs
from agentrl.view.server import ViewServer

__all__ = ["Api", "Run", "ViewServer", "find_runs"]
