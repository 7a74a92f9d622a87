"""Messages between the processes of the sandbox: a JSON header and byte strings, over a stream socket.

A message: 4 bytes with the length of the header, the header, the byte strings; "sizes" in the header has their lengths.
The sender is a part of the sandbox, never the user's program.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_sandbox.memory import take

Message = tuple[dict[str, Any], list[bytes]]
Bytes = bytes | memoryview
_MOST_PARTS = os.sysconf("SC_IOV_MAX")


class Closed(Exception):
    """The other end is closed."""


def pack(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """The message as bytes."""
    text = json.dumps({"sizes": [len(blob) for blob in blobs], **header}).encode()
    return b"".join([len(text).to_bytes(4, "big"), text, *blobs])


def split(buffer: bytearray) -> Message | None:
    """Remove the first message from `buffer`; None while it is incomplete."""
    start = 4 + int.from_bytes(buffer[:4], "big")
    if len(buffer) < max(start, 4):
        return None
    header = json.loads(bytes(buffer[4:start]))
    end = start + sum(header["sizes"])
    if len(buffer) < end:
        return None
    blobs = []
    for size in header["sizes"]:
        blobs.append(bytes(buffer[start : start + size]))
        start += size
    del buffer[:end]
    return header, blobs


def read(handle: int) -> tuple[dict[str, Any], list[memoryview]]:
    """The next message of a blocking file descriptor; reads no byte beyond it. Raises Closed."""
    header = json.loads(_header_bytes(handle, int.from_bytes(_header_bytes(handle, 4), "big")))
    return header, [_data(handle, size) for size in header["sizes"]]


def write(handle: int, messages: Sequence[tuple[Mapping[str, Any], Sequence[Bytes]]]) -> None:
    """Send messages without copying their byte strings. Raises Closed."""
    parts: list[Bytes] = []
    for header, blobs in messages:
        parts += [pack({**header, "sizes": [len(blob) for blob in blobs]}), *filter(len, blobs)]
    try:
        while parts:
            done = os.writev(handle, parts[:_MOST_PARTS])
            while parts and done >= len(parts[0]):
                done -= len(parts.pop(0))
            if parts:
                parts[0] = memoryview(parts[0])[done:]
    except OSError as error:
        raise Closed from error


def _header_bytes(handle: int, size: int) -> bytes:
    """Bytes of the sandbox itself, which a later job of the same job supervisor may find."""
    found = b""
    while len(found) < size:
        found += _some(os.read, handle, size - len(found))
    return found


def _data(handle: int, size: int) -> memoryview:
    whole = take(size)
    done = 0
    while done < size:
        done += _some(os.readv, handle, [whole[done:]])
    return whole


def _some(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        found = read(*arguments)
    except OSError as error:
        raise Closed from error
    if not found:
        raise Closed
    return found
