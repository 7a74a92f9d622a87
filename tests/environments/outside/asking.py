"""A kind whose environments ask the model themselves, and its program: standard library only, so it starts at once."""

import asyncio
import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


class Asking:
    """A question in two turns; the reward is the number in the last answer."""

    def __init__(self, id: str, kwargs: dict[str, Any], *, folder: str = ".", python: str = sys.executable) -> None:
        self.id, self.kwargs, self.folder, self.python = id, kwargs, folder, python

    def program(self, count: int, turns: int | None) -> Any:
        from agentrl.environments.worker import EnvironmentProgram

        return EnvironmentProgram(self.python, Path(__file__), {"count": count, **self.kwargs}, self.folder)


def ask(url: str, messages: list[dict[str, Any]]) -> str:
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": said})
    return said


def prompt(task: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"What is {task} ?"}]


def play(task: int, url: str) -> dict[str, Any]:
    messages = prompt(task)
    first = ask(url, messages)
    if first == "die":
        print("no memory is left", flush=True)
        os._exit(1)
    if first == "garbage":
        broken: dict[str, Any] = json.loads(ask(url, [*messages, {"role": "user", "content": "And now?"}]))
        return broken
    if first == "fail":
        return {"error": "TaskError: the scorer broke"}
    second = ask(url, [*messages, {"role": "user", "content": "You are wrong, try again."}])
    return {"reward": float(second), "metrics": {"first": float(first)}, "full": False}


async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    asked = json.loads(await reader.readline())
    answer = await asyncio.to_thread(play, asked["task"], asked["url"])
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()
    writer.close()


async def serve(path: str) -> None:
    await (await asyncio.start_unix_server(connected, path)).serve_forever()


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    if settings.get("broken"):
        sys.exit("no such thing")
    if len(sys.argv) > 2:
        time.sleep(settings.get("slow", 0))
        asyncio.run(serve(sys.argv[2]))
    known = min(settings["count"], settings.get("most", 100))
    tasks = [prompt(n) if n else None for n in range(known)]
    print(json.dumps({"refused": settings["refused"]} if "refused" in settings else {"tasks": tasks}))
