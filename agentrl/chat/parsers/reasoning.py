"""Thinking in front of an answer, by whatever tags a model marks it with.

A call within thinking is not run. The model gets an error where nothing follows the thinking that could be its answer.
"""

from agentrl.chat.parsers.calls import broken
from agentrl.chat.thinking import BLOCKS, begins_with
from agentrl.trajectory.message import Call, Parsed

ENDED_BY: dict[str, str] = {"<|inner_prefix|>": "<|tools_prefix|>"}
"""Thinking that calls end, too: Apertus closes it only after their results."""


def split_thinking(text: str) -> tuple[Parsed, str]:
    """Take a leading think block off: a Parsed with reasoning and preamble, and the text that remains.

    A block that is never closed runs to the end of the turn. Tags further on are content: arguments may hold them.
    """
    opening = begins_with(text)
    if not opening:
        return Parsed(""), text
    start = text.index(opening) + len(opening)
    end, after = _end(text, start, opening)
    answer = text[after:].lstrip("\n")
    return Parsed("", reasoning=text[start:end].strip("\n"), preamble=text[: len(text) - len(answer)]), answer


def _end(text: str, start: int, opening: str) -> tuple[int, int]:
    """Where the thinking ends, and where the answer begins."""
    close = BLOCKS[opening]
    end = text.find(close, start)
    called = text.find(ENDED_BY[opening], start) if opening in ENDED_BY else -1
    if called >= 0 and not 0 <= end < called:
        return called, called
    return (end, end + len(close)) if end >= 0 else (len(text), len(text))


def calls_in_thinking(parsed: Parsed, answer: str, markers: tuple[str, ...], expected: str) -> list[Call]:
    """The error for a turn whose only call stands within its thinking; nothing for all other turns."""
    thought = parsed.reasoning
    if not thought or parsed.calls or answer.strip() or not any(marker in thought for marker in markers):
        return []
    close = BLOCKS[begins_with(parsed.preamble) or "<think>"]
    reason = f"it is inside your thinking, so it was not run: end the thinking with {close} before the call"
    return [broken(reason, thought, 0, expected=expected)]
