"""Other forms of messages, for templates that are strict about the order of roles.

Agents put system messages in the middle and several messages of a user's in a row; some templates refuse either.
"""

from collections.abc import Iterator, Sequence

from agentrl.trajectory.message import Message

USER_LIKE = ("system", "user")


def relaxed_forms(messages: Sequence[Message], *, middle: bool = False) -> Iterator[list[Message]]:
    """The messages as they are; then, where that differs, with system messages only at the beginning, joined there, and
    no two messages of a user's in a row. `middle`: other messages come before them."""
    given = list(messages)
    yield given
    milder = _joined(_as_user(given, leading=not middle))
    if milder != given:
        yield milder


def _as_user(messages: Sequence[Message], *, leading: bool) -> Iterator[Message]:
    for message in messages:
        leading = leading and message["role"] == "system"
        moved = message["role"] == "system" and not leading
        yield {**message, "role": "user"} if moved else message


def _joined(messages: Iterator[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is not None and before["role"] == message["role"] and message["role"] in USER_LIKE:
            joined[-1] = {**before, "content": _together(before.get("content"), message.get("content"))}
        else:
            joined.append(message)
    return joined


def _together(one: object, other: object) -> object:
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n\n{other}"
    return [*_parts(one), *_parts(other)]


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
