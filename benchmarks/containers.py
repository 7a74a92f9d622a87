"""Containers of rows: seconds to their first command, overhead of a command, memory, and nothing left.

    python benchmarks/containers.py                                   # 64 at once, 500 in all: minutes on 2 cores
    python benchmarks/containers.py --at-once 8 --all 40 --commands 20

Needs a Docker engine. Cold is a folder whose image is still to be built on a local base, warm one whose image is there.
A command is compared with `docker exec` of the same container, by turns. Then many containers run beside each other,
half of their lifetime in a command; memory is this process's, for each container that is alive. At the end a process
with containers is killed by SIGKILL, and the seconds are counted until its containers and networks are gone.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
from rich.console import Console
from rich.table import Table

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.provider import DockerProvider

SMALL = {"cpus": 0.25, "memory_mb": 64, "processes": 64, "start_timeout": 300.0}


def main() -> None:
    """Measure, and print one table."""
    args = _arguments()
    spec = ContainerSpec(args.image, network="gateway", **SMALL)
    if args.victim:
        asyncio.run(_victim(spec, args.at_once))
    table = Table("measured", "value")
    for name, value in asyncio.run(_measured(spec, args)).items():
        table.add_row(name, value)
    seconds, killed = _kill(args)
    table.add_row(f"SIGKILL with {killed} containers: seconds until nothing is left", f"{seconds:.1f}")
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="debian:bookworm-slim", help="with sh and docker exec's `true`")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--all", type=int, default=500)
    parser.add_argument("--commands", type=int, default=50)
    parser.add_argument("--victim", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


async def _measured(spec: ContainerSpec, args: argparse.Namespace) -> dict[str, str]:
    provider = DockerProvider()
    try:
        await provider.prepare(spec)
        cold, warm = await _first_commands(provider, spec)
        ours, bare = await _commands(provider, spec, args.commands)
        seconds, kilobytes = await _many(provider, spec, args)
    finally:
        await provider.close()
    return {
        "spec to first command, cold": f"{cold:.2f} s",
        "spec to first command, warm": f"{warm:.2f} s ({warm / bare:.1f} of `docker exec`)",
        "a command": f"{1000 * ours:.0f} ms ({ours / bare:.2f} of `docker exec`)",
        f"{args.all} containers, {args.at_once} at once": f"{seconds:.0f} s ({seconds / args.all:.2f} s each)",
        "controller's memory for each": f"{kilobytes:.0f} KiB",
        "left": str(_left(provider.run)),
    }


async def _first_commands(provider: DockerProvider, spec: ContainerSpec) -> tuple[float, float]:
    """Seconds from a spec to its first command, with a build and without."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Dockerfile"
        file.write_text(f"FROM {spec.image}\nRUN echo {time.time_ns()} >/built\n")
        built = replace(spec, image=None, build=Path(folder))
        cold = await _first_command(provider, built)
        warm = [await _first_command(provider, built) for _ in range(5)]
        image = (await provider.image(built)).name
    docker.from_env().images.remove(image)
    return cold, statistics.median(warm)


async def _first_command(provider: DockerProvider, spec: ContainerSpec) -> float:
    begin = time.monotonic()
    await provider.prepare(spec)
    container = provider.container(spec)
    try:
        await container.start()
        await container.exec("true", timeout=60)
        return time.monotonic() - begin
    finally:
        await container.stop()


async def _commands(provider: DockerProvider, spec: ContainerSpec, count: int) -> tuple[float, float]:
    """Median seconds of a command, and of `docker exec`, by turns."""
    container = provider.container(spec)
    ours, bare = [], []
    try:
        await container.start()
        for _ in range(count):
            ours.append((await container.exec("true", timeout=60)).seconds)
            begin = time.monotonic()
            process = await asyncio.create_subprocess_exec("docker", "exec", container.name, "sh", "-c", "true")
            await process.wait()
            bare.append(time.monotonic() - begin)
    finally:
        await container.stop()
    return statistics.median(ours), statistics.median(bare)


async def _many(provider: DockerProvider, spec: ContainerSpec, args: argparse.Namespace) -> tuple[float, float]:
    """Seconds for all, and KiB of this process for each that is alive, at most."""
    slots, alive, before = asyncio.Semaphore(args.at_once), 0, _resident()
    most = 0.0

    async def one() -> None:
        nonlocal alive, most
        async with slots:
            container = provider.container(spec)
            try:
                await container.start()
                alive += 1
                done = await container.exec("sleep 2; echo done", timeout=300)
                most = max(most, (_resident() - before) / alive if alive > args.at_once // 2 else 0.0)
                assert done.stdout == "done\n", done
            finally:
                await container.stop()
                alive -= 1

    begin = time.monotonic()
    await asyncio.gather(*(one() for _ in range(args.all)))
    return time.monotonic() - begin, most


def _resident() -> float:
    """KiB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


async def _victim(spec: ContainerSpec, count: int) -> None:
    """Hold containers until somebody kills us."""
    provider = DockerProvider()
    await provider.prepare(spec)
    containers = [provider.container(spec) for _ in range(count)]
    print(provider.run, flush=True)
    for container in containers:
        await container.start()
    await asyncio.gather(*(container.exec("sleep 1000", timeout=1000) for container in containers))


def _kill(args: argparse.Namespace) -> tuple[float, int]:
    words = [sys.executable, __file__, "--victim", "--image", args.image, "--at-once", str(args.at_once)]
    victim = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    run = victim.stdout.readline().strip()
    _wait(lambda: _left(run) > args.at_once // 2)
    killed = _left(run)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    begin = time.monotonic()
    _wait(lambda: _left(run) == 0)
    return time.monotonic() - begin, killed


def _left(run: str) -> int:
    """Containers and networks of a run."""
    client: Any = docker.from_env()
    label = {"label": f"agentrl.run={run}"}
    containers = client.containers.list(all=True, filters=label, ignore_removed=True)
    return len(containers) + len(client.networks.list(filters=label))


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.2)


if __name__ == "__main__":
    main()
