"""The agents of `gateway_turns.py`.

    python benchmarks/gateway_agents.py PORT SESSIONS TURNS WORDS PROTOCOL STREAM

They are a process of their own: so only the gateway's CPU counts.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

SYSTEM = "You are a careful programmer. Look before you change anything. " * 20
QUESTION = "Find out why the tests of this package fail, and repair it."
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Shows a part of a file.",
        "parameters": {"type": "object", "properties": {"turn": {"type": "integer"}}, "required": ["turn"]},
    },
}
HISTORY = "the history"
"""In the place of its items."""
PROTOCOLS = ("chat", "responses", "messages")
PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}


def result(words: int) -> str:
    return "part %d of the file:\n" + "    value = compute(left, right)  # checked\n" * (words // 10)


async def agents(port: int, sessions: int, turns: int, words: int, protocol: str, stream: bool) -> None:
    await asyncio.gather(*(agent(port, f"k{i}", turns, words, protocol, stream) for i in range(sessions)))


async def agent(port: int, key: str, turns: int, words: int, protocol: str, stream: bool) -> None:
    """One conversation over one connection, kept alive.

    It writes each item once: to write 60 KB again at each turn would slow the gateway down where both share a core's
    caches.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    before, _, after = json.dumps(asked([HISTORY], protocol, stream)).partition(json.dumps(HISTORY))
    said = [{"role": "user", "content": QUESTION}]
    for turn in range(turns):
        before += (", " if turn else "") + json.dumps(said)[1:-1]
        body = (before + after).encode()
        head = (
            f"POST /s/{key}/v1/{PATHS[protocol]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
            f"Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await whole(reader)
        said = followed(answer, protocol, stream, result(words) % turn)
    writer.close()


async def whole(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert b" 200 " in head, head
    if b"content-length" in head:
        return await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r")[0]))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


def asked(said: list[Any], protocol: str, stream: bool) -> dict[str, Any]:
    function = LOOK["function"]
    assert isinstance(function, dict)
    if protocol == "chat":
        system = {"role": "system", "content": SYSTEM}
        return {"messages": [system, *said], "model": "m", "tools": [LOOK], "stream": stream}
    if protocol == "responses":
        tools = [{"type": "function", **function}]
        return {"input": said, "model": "m", "instructions": SYSTEM, "tools": tools, "stream": stream, "store": False}
    tools = [{"name": "look", "description": function["description"], "input_schema": function["parameters"]}]
    return {"messages": said, "model": "m", "system": SYSTEM, "tools": tools, "max_tokens": 9999, "stream": stream}


def followed(answer: bytes, protocol: str, stream: bool, shown: str) -> list[dict[str, Any]]:
    """What an agent adds to its history."""
    if protocol == "chat":
        message = _streamed_chat(answer) if stream else json.loads(answer)["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        return [message, *({"role": "tool", "tool_call_id": call["id"], "content": shown} for call in calls)]
    if protocol == "responses":
        output = _last(answer, b"response.completed")["response"]["output"] if stream else json.loads(answer)["output"]
        ids = [item["call_id"] for item in output if item["type"] == "function_call"]
        return [*output, *({"type": "function_call_output", "call_id": id, "output": shown} for id in ids)]
    blocks = _streamed_blocks(answer) if stream else json.loads(answer)["content"]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": shown} for id in ids]
    return [{"role": "assistant", "content": blocks}, *([{"role": "user", "content": results}] if results else [])]


def _events(answer: bytes) -> Iterator[dict[str, Any]]:
    for line in answer.splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _last(answer: bytes, kind: bytes) -> dict[str, Any]:
    return next(event for event in _events(answer) if event["type"].encode() == kind)


def _streamed_chat(answer: bytes) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for delta in (event["choices"][0]["delta"] for event in _events(answer) if event["choices"]):
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                start = {"id": call["id"], "type": "function", "function": {**call["function"]}}
                message.setdefault("tool_calls", []).append(start)
            else:
                message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
    return message


def _streamed_blocks(answer: bytes) -> list[dict[str, Any]]:
    blocks, written = list[dict[str, Any]](), defaultdict[int, str](str)
    for event in _events(answer):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            written[event["index"]] += event["delta"].get("text") or event["delta"].get("partial_json") or ""
    return [_filled(block, written[i]) for i, block in enumerate(blocks)]


def _filled(block: dict[str, Any], written: str) -> dict[str, Any]:
    return block | ({"text": written} if block["type"] == "text" else {"input": json.loads(written or "{}")})


def keep_to_core(position: int) -> None:
    """Keep this process to one core: after a move its caches are cold."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[position]})


if __name__ == "__main__":
    keep_to_core(-1)
    port, sessions, turns, words, protocol, stream = sys.argv[1:]
    asyncio.run(agents(int(port), int(sessions), int(turns), int(words), protocol, stream == "1"))
