"""Thinking in front of an answer: <think>...</think>."""

from agentrl.chat.message import Parsed

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str) -> tuple[Parsed, str]:
    """Take a leading think block off: a Parsed with reasoning and preamble, and the text that remains.

    A block that is never closed runs to the end of the turn. Tags further on are content: arguments may hold them.
    """
    if not text.lstrip().startswith(OPEN):
        return Parsed(""), text
    inside, _, after = text.lstrip().removeprefix(OPEN).partition(CLOSE)
    answer = after.lstrip("\n")
    return Parsed("", reasoning=inside.strip("\n"), preamble=text[: len(text) - len(answer)]), answer
