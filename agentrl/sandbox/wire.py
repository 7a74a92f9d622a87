"""How the parts of the sandbox talk: a JSON header and byte strings, over a stream socket.

A message: 4 bytes with the header's length, the header, the byte strings; the header's "sizes" has their lengths.
Bytes stay out of the JSON. The sender is a part of the sandbox, never the user's program.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from agentrl.sandbox.memory import take

Message = tuple[dict[str, Any], list[bytes]]
Bytes = bytes | memoryview


class Closed(Exception):
    """The other side is gone."""


def pack(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """The message as bytes."""
    text = json.dumps({"sizes": [len(blob) for blob in blobs], **header}).encode()
    return b"".join([len(text).to_bytes(4, "big"), text, *blobs])


def split(buffer: bytearray) -> Message | None:
    """Take the first message off `buffer`; None while it is incomplete."""
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
    """The next message, from a blocking file descriptor; not a byte more is read. Raises Closed."""
    length = int.from_bytes(_exactly(handle, 4), "big")
    header = json.loads(bytes(_exactly(handle, length)))
    return header, [_exactly(handle, size) for size in header["sizes"]]


def write(handle: int, header: dict[str, Any], blobs: Sequence[Bytes] = ()) -> None:
    """Send a message. Raises Closed."""
    head = pack({**header, "sizes": [len(blob) for blob in blobs]})
    try:
        for blob in (head, *blobs):
            rest = memoryview(blob)
            while rest:
                rest = rest[os.write(handle, rest) :]
    except OSError as error:
        raise Closed from error


def _exactly(handle: int, size: int) -> memoryview:
    whole = rest = take(size)
    while rest:
        try:
            count = os.readv(handle, [rest])
        except OSError as error:
            raise Closed from error
        if not count:
            raise Closed
        rest = rest[count:]
    return whole
