"""Messages to tokens and back: templates, the token ledger, the sanity check, tool-call formats."""

from agentrl.chat.chat import Append, Chat, Split
from agentrl.chat.check import Mismatch
from agentrl.chat.ledger import Ledger, LedgerError, Source
from agentrl.chat.message import Call, Message, Parsed, Reply
from agentrl.chat.parsers import PARSERS
from agentrl.chat.pieces import Piece

__all__ = [
    "PARSERS",
    "Append",
    "Call",
    "Chat",
    "Ledger",
    "LedgerError",
    "Message",
    "Mismatch",
    "Parsed",
    "Piece",
    "Reply",
    "Source",
    "Split",
]
