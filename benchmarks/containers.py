"""Containers of rows: seconds to their first prompt, overhead of a command, memory, and nothing left.

    python benchmarks/containers.py                                   # 64 at once, 500 in all: minutes on 2 cores
    python benchmarks/containers.py --at-once 8 --all 40 --commands 20

Needs a Docker engine. Cold is a folder whose image is still to be built on a local base, warm one whose image is there.
A command is compared with `docker exec` of the same container, by turns. A process holds more and more trajectories
with a container and a command each: its private memory over their number, as a slope. Then a process runs many
containers beside each other, each with a volume and a command, and is killed by SIGKILL in the middle: the seconds are
counted until its containers, volumes, networks and processes are gone. A second process runs the other half.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import docker
from rich.console import Console

from agentrl.config.schema.rollout import Containers
from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.provider import DockerProvider
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

SMALL: dict[str, Any] = {"cpus": 0.25, "memory_mb": 64, "processes": 64, "start_timeout": 300.0}
PRIVATE = "Private_Clean:", "Private_Dirty:"


def main() -> None:
    """Measure, and print each figure as soon as it is there."""
    args = _arguments()
    if args.stream or args.hold:
        asyncio.run(_stream(args) if args.stream else _hold(args))
        return
    asyncio.run(_measured(args))
    _memory(args)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(f"FROM {args.image}\nVOLUME /data\n")
        _halves(args, folder)


def _say(what: str, value: str) -> None:
    Console(soft_wrap=True).print(f"{what:<64}{value}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="debian:bookworm-slim", help="with sh and docker exec's `true`")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--all", type=int, default=500)
    parser.add_argument("--commands", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30, help="that each of many containers works")
    parser.add_argument("--stream", help=argparse.SUPPRESS)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


async def _measured(args: argparse.Namespace) -> None:
    runner, provider = TaskRunner(), DockerProvider()
    spec = ContainerSpec(args.image, network="gateway", **SMALL)
    try:
        await provider.prepare(spec)
        await _first_prompt(runner, image=args.image)  # connects
        cold, warm = await _first_prompts(runner, args.image)
        ours, bare = await _commands(provider, spec, args.commands)
    finally:
        await runner.close()
        await provider.close()
    _say("row to first prompt, cold", f"{cold:.2f} s")
    _say("row to first prompt, warm", f"{warm:.2f} s ({warm / bare:.1f} of `docker exec`)")
    _say("a command", f"{1000 * ours:.0f} ms ({ours / bare:.2f} of `docker exec`)")


async def _first_prompts(runner: TaskRunner, image: str) -> tuple[float, float]:
    """Seconds from a row to its first prompt, with a build and without."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(f"FROM {image}\nRUN echo {time.time_ns()} >/built\n")
        cold = await _first_prompt(runner, build=folder)
        warm = [await _first_prompt(runner, build=folder) for _ in range(5)]
        built = await runner.provider.images.have(ContainerSpec(build=Path(folder)))  # type: ignore[attr-defined]
    docker.from_env().images.remove(built.name)
    return cold, statistics.median(warm)


async def _first_prompt(runner: TaskRunner, **container: Any) -> float:
    """Seconds until a row's agent begins, which renders its prompt."""
    trajectory, begin, began = _trajectory(**container), time.monotonic(), 0.0

    async def agent(_: float | None) -> None:
        nonlocal began
        began = time.monotonic()

    await runner.run(trajectory, agent)
    await runner.release(trajectory)
    assert trajectory.error is None, trajectory.error
    return began - begin


def _trajectory(**container: Any) -> Trajectory:
    row = Row("row:0", [], extra_info={"container": {"network": "gateway", **SMALL, **container}})
    return Trajectory(row, "1/row:0/0", 0)


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


def _memory(args: argparse.Namespace) -> None:
    """Private memory by the number of live containers, and its slope."""
    words = [sys.executable, __file__, "--hold", "--at-once", str(args.at_once), "--image", args.image]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    held: dict[str, float] = json.loads(done.stdout)
    for alive, mebibytes in held.items():
        _say(f"controller's private memory with {alive} live containers", f"{mebibytes:.1f} MiB")
    counts, sizes = [int(alive) for alive in held][1:], [*held.values()][1:]
    _say("for each", f"{1024 * statistics.linear_regression(counts, sizes).slope:.0f} KiB")


async def _hold(args: argparse.Namespace) -> None:
    """Write MiB by the number of trajectories that hold a container, with a command in each."""
    runner, release, held = TaskRunner(), asyncio.Event(), {}
    tasks: list[asyncio.Task[None]] = []
    try:
        for count in (1, *(args.at_once // part for part in (8, 4, 2, 1))):
            alive = [asyncio.Event() for _ in range(count - len(tasks))]
            tasks += [asyncio.create_task(_held(runner, args.image, each, release)) for each in alive]
            await asyncio.gather(*(each.wait() for each in alive))
            gc.collect()
            held[count] = _private()
    finally:
        release.set()
        await asyncio.gather(*tasks)
        await runner.close()
    _write(sys.stdout, **{str(count): size for count, size in held.items()})


async def _held(runner: TaskRunner, image: str, alive: asyncio.Event, release: asyncio.Event) -> None:
    """A trajectory whose command runs until `release`."""
    trajectory = _trajectory(image=image)

    async def agent(_: float | None) -> None:
        command = asyncio.create_task(trajectory.container.exec("sleep 3600", timeout=3600))
        await trajectory.container.exec("true", timeout=300)
        alive.set()
        await release.wait()
        command.cancel()
        await asyncio.wait([command])

    await runner.run(trajectory, agent)
    alive.set()
    await runner.release(trajectory)
    assert trajectory.error is None, trajectory.error


def _private() -> float:
    """MiB that this process shares with no other one."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(PRIVATE)) / 1024


def _halves(args: argparse.Namespace, folder: str) -> None:
    """One half of the containers before a SIGKILL, the other one after it."""
    volumes = len(docker.from_env().volumes.list())
    victim = _process(args, folder, args.all)
    run, half, done = _line(victim)["run"], args.all // 2, 0
    begin = time.monotonic()
    while done < half:
        done = _line(victim)["done"]
    seconds, killed = time.monotonic() - begin, _left(run)
    os.kill(victim.pid, signal.SIGKILL)
    begin = time.monotonic()
    _wait(lambda: not _left(run) and not _processes(run))
    gone, victims_run = time.monotonic() - begin, run
    _say(f"{half} containers, {args.at_once} at once", f"{seconds:.0f} s ({seconds / half:.2f} s each)")
    left = len(docker.from_env().volumes.list()) - volumes
    _say(f"SIGKILL with {killed} containers and networks: all are gone after", f"{gone:.1f} s; volumes left: {left}")

    rest = _process(args, folder, args.all - half)
    run = _line(rest)["run"]
    last: dict[str, Any] = {}
    while last.get("done", 0) < args.all - half:
        last = _line(rest)
    rest.wait()
    _say(f"{args.all - half} more", f"{last['seconds']:.0f} s ({last['seconds'] / last['done']:.2f} s each)")
    _say("of which start, command, stop", ", ".join(f"{part:.2f} s" for part in last["parts"]))
    _say("controller's processor for each", f"{last['cpu']:.0f} ms")
    left = len(docker.from_env().volumes.list()) - volumes
    ours = _left(run) + _left(victims_run), _processes(run) + _processes(victims_run)
    _say("left: containers and networks, processes, volumes", f"{ours[0]}, {ours[1]}, {left}")


def _process(args: argparse.Namespace, folder: str, count: int) -> "subprocess.Popen[str]":
    words = [sys.executable, __file__, "--stream", folder, "--at-once", str(args.at_once), "--all", str(count)]
    words += ["--seconds", str(args.seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def _line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    read: dict[str, Any] = json.loads(process.stdout.readline())
    return read


async def _stream(args: argparse.Namespace) -> None:
    """Run containers beside each other, and write a line at the end of each."""
    spec = ContainerSpec(build=Path(args.stream), network="gateway", **SMALL)
    provider = DockerProvider()
    try:
        await provider.prepare(spec)
        _write(sys.stdout, run=provider.engine.run)
        await _many(provider, spec, args)
    finally:
        await provider.close()


async def _many(provider: DockerProvider, spec: ContainerSpec, args: argparse.Namespace) -> None:
    slots, starting = asyncio.Semaphore(args.at_once), asyncio.Semaphore(Containers().max_starting)
    done, parts, begin, cpu = 0, [0.0, 0.0, 0.0], time.monotonic(), time.process_time()

    async def one() -> None:
        nonlocal done
        async with slots:
            container = provider.container(spec)
            try:
                async with starting:
                    moments = [time.monotonic()]
                    await container.start()
                moments.append(time.monotonic())
                answer = await container.exec(f"sleep {args.seconds}; echo done", timeout=300)
                moments.append(time.monotonic())
                assert answer.stdout == "done\n", answer
            finally:
                await container.stop()
            done += 1
            for number, (start, end) in enumerate(zip(moments, [*moments[1:], time.monotonic()], strict=True)):
                parts[number] += end - start
            figures = {"seconds": time.monotonic() - begin, "parts": [part / done for part in parts]}
            _write(sys.stdout, done=done, **figures, cpu=1000 * (time.process_time() - cpu) / done)

    await asyncio.gather(*(one() for _ in range(args.all)))


def _write(stream: TextIO, **values: Any) -> None:
    stream.write(json.dumps(values) + "\n")
    stream.flush()


def _left(run: str) -> int:
    """Containers and networks of a run."""
    client: Any = docker.from_env()
    label = {"label": f"agentrl.run={run}"}
    containers = client.containers.list(all=True, filters=label, ignore_removed=True)
    return len(containers) + len(client.networks.list(filters=label))


def _processes(run: str) -> int:
    """Processes of this machine with a run's name among their words."""
    found = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    return sum(run.encode() in words for words in found)


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.2)


if __name__ == "__main__":
    main()
