"""Builds an image, and writes what the engine says about it to stdout.

    python builder.py TAG LABEL <context.tar

A process of its own, so that a build that hangs can be ended: the engine gives up a build whose client is gone. Exit
code 1 means that the build failed, 2 that the engine did. Imports nothing of agentrl.
"""

import os
import sys
import threading
import time
from typing import Any

import docker
from docker.errors import DockerException


def main(tag: str, label: str) -> int:
    """Build the context on stdin."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        client = docker.from_env(timeout=24 * 3600)
        options = {"tag": tag, "labels": {label: tag}, "rm": True, "forcerm": True}
        context = {"fileobj": sys.stdin.buffer, "custom_context": True}
        for item in client.api.build(**context, **options, decode=True):
            if not _show(item):
                return 1
        client.images.get(tag)
    except (DockerException, OSError) as error:
        print(error)  # noqa: T201
        return 2
    return 0


def _show(item: dict[str, Any]) -> bool:
    """Write a part of the output; False for an error."""
    text = item.get("error") or item.get("stream") or item.get("status") or ""
    print(text, end="" if text.endswith("\n") else "\n", flush=True)  # noqa: T201
    return "error" not in item


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
