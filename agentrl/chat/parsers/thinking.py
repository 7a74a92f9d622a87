"""Thinking in front of an answer, by whatever tags a model marks it with.

A call within thinking is not run. The model is told so where nothing follows the thinking that could be its answer.
"""

from agentrl.chat.message import Call, Parsed
from agentrl.chat.parsers.calls import broken

OPEN, CLOSE = "<think>", "</think>"
MARKS: dict[str, str] = {
    OPEN: CLOSE,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "<think:opensource>": "</think:opensource>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",
    "<|think|>": "<|end|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
}
"""The tag that opens thinking -> the tag that closes it."""
ENDED_BY: dict[str, str] = {"<|inner_prefix|>": "<|tools_prefix|>"}
"""Thinking that calls end, too: Apertus closes it only after their results."""
LONGEST = max(map(len, MARKS))


def opened_by(text: str) -> str | None:
    """The tag with which `text`, a generation prompt, opens thinking at its very end; None where it does not."""
    end = text[-256:].rstrip()
    return next((tag for tag in MARKS if end.endswith(tag)), None)


def begins_with(text: str) -> str | None:
    """The tag with which `text`, a turn, opens thinking at its very beginning; None where it does not."""
    start = len(text) - len(text.lstrip())
    beginning = text[start : start + LONGEST]
    return next((tag for tag in MARKS if beginning.startswith(tag)), None)


def split_thinking(text: str) -> tuple[Parsed, str]:
    """Take a leading think block off: a Parsed with reasoning and preamble, and the text that remains.

    A block that is never closed runs to the end of the turn. Tags further on are content: arguments may hold them.
    """
    opening = begins_with(text)
    if opening is None:
        return Parsed(""), text
    start = text.index(opening) + len(opening)
    end, after = _end(text, start, opening)
    answer = text[after:].lstrip("\n")
    return Parsed("", reasoning=text[start:end].strip("\n"), preamble=text[: len(text) - len(answer)]), answer


def _end(text: str, start: int, opening: str) -> tuple[int, int]:
    """Where the thinking ends, and where the answer begins."""
    close = MARKS[opening]
    end = text.find(close, start)
    called = text.find(ENDED_BY[opening], start) if opening in ENDED_BY else -1
    if called >= 0 and not 0 <= end < called:
        return called, called
    return (end, end + len(close)) if end >= 0 else (len(text), len(text))


def call_in_thinking(parsed: Parsed, answer: str, markers: tuple[str, ...], expected: str) -> Call | None:
    """The error for a turn whose only call stands within its thinking; None for all other turns."""
    thought = parsed.reasoning
    if not thought or parsed.calls or answer.strip() or not any(marker in thought for marker in markers):
        return None
    close = MARKS[begins_with(parsed.preamble) or OPEN]
    reason = f"it is inside your thinking, so it was not run: end the thinking with {close} before the call"
    return broken(reason, thought, 0, expected=expected)
