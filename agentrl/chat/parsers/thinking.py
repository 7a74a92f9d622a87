"""Thinking in front of an answer: <think>...</think>."""

from agentrl.chat.message import Parsed

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str) -> tuple[Parsed, str]:
    """Take a leading think block off: a Parsed with reasoning and preamble, and the text that remains.

    A block that is never closed runs to the end of the turn. A "</think>" without an opening tag closes a block
    that the generation prompt opened.
    """
    before, close, after = text.partition(CLOSE)
    head, opened, inside = before.partition(OPEN)
    if opened and head.strip():
        return Parsed(""), text  # the model speaks of the tag; it does not think
    if not opened and not close:
        return Parsed(""), text
    reasoning = inside if opened else head
    answer = after.lstrip("\n")
    preamble = text[: len(text) - len(answer)]
    return Parsed("", reasoning=reasoning.strip("\n"), preamble=preamble), answer
