"""Messages to tokens and back: templates, the sanity check, tool-call formats."""

from agentrl.chat.chat import Append, Chat, Split
from agentrl.chat.parsers import PARSERS
from agentrl.chat.segments import Segment

__all__ = [
    "PARSERS",
    "Append",
    "Chat",
    "Segment",
    "Split",
]
