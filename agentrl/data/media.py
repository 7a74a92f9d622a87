"""Images and videos of a row, put where its prompt says `<image>` or `<video>`.

Invariant: each finds its place and each place its own, in order, or the row is refused; a row without such a column
keeps its text as it is.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.core.errors import UserError
from agentrl.data.plain import plain

MediaKeys = Mapping[str, str]
"""image, video -> the column that holds them."""

Message = dict[str, Any]
PLACE = re.compile("(<image>|<video>)")


def with_media(messages: list[Message], record: Mapping[str, Any], media_keys: MediaKeys, uid: str) -> list[Message]:
    """The prompt with a content part for each of the record's images and videos. Raises UserError naming `uid`."""
    made = record.get("multi_modal_data") or {}  # what a dataset class of verl's has opened itself
    held = {kind: _listed(record.get(column)) or _listed(made.get(kind)) for kind, column in media_keys.items()}
    if not any(held.values()):
        return messages
    waiting = {kind: iter(media) for kind, media in held.items()}
    try:
        filled = [{**message, "content": _parts(message["content"], waiting)} for message in messages]
    except StopIteration:
        raise UserError(f"{uid}: its prompt has more places than {_columns(held, media_keys)} has pictures") from None
    if any(next(rest, None) is not None for rest in waiting.values()):
        raise UserError(
            f"{uid}: {_columns(held, media_keys)} holds more than its prompt shows; write <image> or <video> for each"
        )
    return filled


def _parts(content: Any, waiting: Mapping[str, Iterator[Any]]) -> Any:
    """Text cut at its placeholders; parts that name no picture yet get theirs."""
    if isinstance(content, str):
        if not PLACE.search(content):
            return content
        pieces = filter(None, PLACE.split(content))
        content = [{"type": p.strip("<>")} if PLACE.fullmatch(p) else {"type": "text", "text": p} for p in pieces]
    return [_filled(part, waiting) for part in content]


def _filled(part: Any, waiting: Mapping[str, Iterator[Any]]) -> Any:
    kind = str(part.get("type")) if isinstance(part, Mapping) else ""
    return {**part, kind: next(waiting[kind])} if kind in waiting and part.keys() == {"type"} else part


def _listed(value: Any) -> list[Any]:
    """A column's pictures; one may stand without a list."""
    if value is None:
        return []
    found = plain(value)
    return found if isinstance(found, list) else [found]


def _columns(held: Mapping[str, list[Any]], media_keys: MediaKeys) -> str:
    return " and ".join(f"its {media_keys[kind]!r}" for kind, media in held.items() if media)
