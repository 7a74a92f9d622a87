"""Messages to tokens and back: templates, the sanity check, tool-call formats."""

from agentrl.chat.chat import Chat
from agentrl.chat.parsers import PARSERS
from agentrl.chat.segments import Segment, Split

__all__ = ["PARSERS", "Chat", "Segment", "Split"]
