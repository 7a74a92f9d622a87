"""Seconds of a command: the tool bash, `exec` of a provider, and `docker exec` by the command line.

python benchmarks/terminal.py --image debian:12
python benchmarks/terminal.py --provider embedded
"""

import argparse
import asyncio
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.containers import Container, ContainerSpec
from agentrl.core.points import CONTAINER_PROVIDERS
from agentrl.tools import load_tools

Call = Callable[[], Awaitable[Any]]


def calls(container: Container, session: Any, docker: bool) -> dict[str, Call]:
    """What is compared, by name."""
    edit = {"command": "view", "path": "/etc/passwd"}
    found: dict[str, Call] = {
        "bash: true": lambda: session.call("bash", {"command": "true"}),
        "view of a file": lambda: session.call("str_replace_based_edit_tool", edit),
        "exec of the provider": lambda: container.exec("true", timeout=60),
    }
    if docker:
        words = ["docker", "exec", container.name, "bash", "-c", "true"]
        found["docker exec"] = lambda: asyncio.to_thread(subprocess.run, words, check=True)
    return found


async def measured(found: dict[str, Call], times: int) -> dict[str, list[float]]:
    """Milliseconds of each call; they take turns, so that a busy machine slows all of them alike."""
    taken: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(times):
        for name, call in found.items():
            begin = time.perf_counter()
            await call()
            taken[name].append((time.perf_counter() - begin) * 1e3)
    return taken


async def compare(provider_name: str, image: str | None, times: int) -> dict[str, list[float]]:
    """The whole comparison in one container."""
    provider = CONTAINER_PROVIDERS.make(provider_name, "--provider", None)
    spec = ContainerSpec(image=image)
    try:
        await provider.prepare(spec)
        container = provider.container(spec)
        try:
            await container.start()
            tools = load_tools("tools/terminal.yaml", None, max_response=1024, unit="characters", side="middle")
            session = tools.open("benchmark", {}, SimpleNamespace(container=container))
            await session.call("bash", {"command": "true"})
            return await measured(calls(container, session, docker=provider_name == "docker"), times)
        finally:
            await container.stop()
    finally:
        await provider.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", default="docker")
    parser.add_argument("--image", help="an image with bash; for docker")
    parser.add_argument("--times", type=int, default=100)
    args = parser.parse_args()
    shown = Table("", "median ms", "least ms", title=args.provider)
    for name, taken in asyncio.run(compare(args.provider, args.image, args.times)).items():
        shown.add_row(name, f"{statistics.median(taken):.0f}", f"{min(taken):.0f}")
    Console(width=100).print(shown)


if __name__ == "__main__":
    main()
