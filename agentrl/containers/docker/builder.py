"""Builds an image, and writes what the engine says about it to stdout.

    python builder.py TAG LABEL <context.tar

A separate process, so that a build that hangs can be ended: the engine gives up a build whose client is gone.
BuildKit builds it where Docker's command line has it, else the engine's older builder. Exit code 1 means that the build
failed, 2 that the engine did. Imports nothing of agentrl.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import docker
from docker.errors import DockerException

DAY = 24 * 3600
BUILDKIT = ["docker", "buildx"]


def main(tag: str, label: str) -> int:
    """Build the context on stdin."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        client = docker.from_env(timeout=DAY)
        built = _by_buildkit(tag, label) if _has_buildkit(client) else _by_engine(client, tag, label)
        client.ping()
    except (DockerException, OSError) as error:
        print(error)  # noqa: T201
        return 2
    return 0 if built else 1


def _has_buildkit(client: Any) -> bool:
    podman = any("Podman" in part["Name"] for part in client.version().get("Components") or ())
    if podman or not shutil.which("docker"):
        return False
    return subprocess.run([*BUILDKIT, "version"], capture_output=True).returncode == 0


def _by_buildkit(tag: str, label: str) -> bool:
    """By the builder inside the engine, which knows its images."""
    words = f"build --builder default --progress plain --load --label {label}={tag} --tag {tag}".split()
    return subprocess.run([*BUILDKIT, *words, "-"], stderr=subprocess.STDOUT).returncode == 0


def _by_engine(client: Any, tag: str, label: str) -> bool:
    context = {"fileobj": sys.stdin.buffer, "custom_context": True}
    options = {"tag": tag, "labels": {label: tag}, "rm": True, "forcerm": True}
    items = [_show(item) for item in client.api.build(**context, **options, decode=True)]
    return all(items)


def _show(item: dict[str, Any]) -> bool:
    """Write a part of the output; False for an error."""
    text = item.get("error") or item.get("stream") or item.get("status") or ""
    print(text, end="" if text.endswith("\n") else "\n", flush=True)  # noqa: T201
    return "error" not in item


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
