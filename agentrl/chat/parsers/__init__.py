"""Tool-call formats: how a model writes calls, those of one grammar in a file.

A parser is a function `(text, tools=None) -> Parsed`. It never raises and swallows no text: a call it cannot
read comes back as a `Call` with an `error` that tells the model where it went wrong and what was expected.
It takes time in proportion to the text at most, and what it passes on is plain JSON that UTF-8 can say.
Each stands under `@tool_parser("its name")`; a new file here is all that a new format needs.
"""

from collections.abc import Callable

from agentrl.chat.parsers.own import own_parser
from agentrl.core.points import PARSERS
from agentrl.trajectory.message import Parsed

KEY = "rollout.multi_turn.format"

Parser = Callable[..., Parsed]


def parser_for(format: str) -> Parser:
    """The parser by that name or path. Raises UserError for one that is not there or cannot parse."""
    entry = PARSERS.entry(format, KEY)
    return entry.value if entry.built_in else own_parser(format, entry, KEY)


def format_stops(format: str) -> tuple[str, ...]:
    """Tokens at which a format's models stop besides end-of-sequence and end-of-turn, where the vocabulary has them."""
    entry = PARSERS.entry(format, KEY)
    return tuple(entry.marks.get("stops", getattr(entry.value, "stops", ())))
