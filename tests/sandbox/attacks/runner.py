"""Runs attacks through a Pool, in a process of its own so that it can be another user's; prints JSON, a line each.

python -m tests.sandbox.attacks.runner --tier namespace [--docker] [--slow] [--only WORDS]
"""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.isolation import children
from agentrl_sandbox.job import CommandResult, Job, Result, Unavailable
from agentrl_sandbox.pool import Pool
from tests.sandbox.attacks import (
    docker,
    fake_failures,
    foreign_access,
    hostile_inputs,
    leftovers,
    network_and_traces,
    privileges,
    resource_exhaustion,
)
from tests.sandbox.attacks.attack import Attack
from tests.sandbox.attacks.scene import Scene, linger, lingering

ATTACKS = [
    attack
    for part in (
        foreign_access,
        network_and_traces,
        privileges,
        resource_exhaustion,
        leftovers,
        hostile_inputs,
        fake_failures,
    )
    for attack in part.ATTACKS
]
AT_ONCE = 3


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def commands(result: Result) -> list[CommandResult]:
    """The compilation, if there was one, and the runs."""
    return [command for command in (result.compiled, *result.runs) if command is not None]


def faults(attack: Attack, result: Result, scene: Scene) -> list[str]:
    """Everything that shows that it was not contained."""
    found = [
        line
        for command in commands(result)
        for line in (command.stdout + command.stderr).decode(errors="replace").splitlines()
        if "ESCAPED" in line
    ][:3]
    told = b"".join([*(command.stdout + command.stderr for command in commands(result)), *result.files.values()])
    if scene.secret.encode() in told:
        found.append("it got the secret")
    found += [
        f"a command could not be started: {command.stderr!r}"
        for command in commands(result)
        if command.status == "Error" and attack.family[:2] != "18"
    ]
    return found + [fault for check in attack.checks if (fault := check(result))] + scene.damage()


async def launch(pool: Pool, attack: Attack, scene: Scene, gate: asyncio.Semaphore) -> bool:
    """One attack; True when it was contained."""
    async with gate:
        start = time.monotonic()
        wrong: list[str] = []
        own = {"SUPERVISOR": str(supervisor(pool)), "LINGER": linger(), "TIER": pool.isolation}
        try:
            result = await pool.run(attack.job(scene.values | own))
            unable = [command.stderr for command in commands(result) if command.status == "Error"]
            if unable and attack.language not in ("python", "bash"):
                raise Unavailable(unable[0].decode(errors="replace"))
            wrong = faults(attack, result, scene) + [f"process {left} is left" for left in lingering(own["LINGER"])]
        except Unavailable as error:
            say(family=attack.family, name=attack.name, contained=None, why=str(error))
            return True
        except SandboxError as error:
            wrong = [f"the sandbox broke: {error}"]
        say(
            family=attack.family,
            name=attack.name,
            contained=not wrong,
            why="; ".join(wrong),
            seconds=time.monotonic() - start,
        )
        return not wrong


def supervisor(pool: Pool) -> int:
    assert pool.supervisor is not None
    return pool.supervisor.process.pid


async def earlier(pool: Pool, secret: str) -> None:
    """Jobs full of secrets, before the attacks: in code, input, files and output."""
    told = f"EARLIER-{secret}"
    job = Job("python", f"x = {told!r}\nprint(x, input())", [told.encode()] * 2, {"data.txt": told.encode() * 1000})
    await asyncio.gather(*(pool.run(job) for _ in range(4 * AT_ONCE)))


async def afterwards(pool: Pool, scene: Scene) -> list[str]:
    """What is left when all is over: processes, a pool that no longer works."""
    await asyncio.sleep(0.5)
    zygotes = children(supervisor(pool))
    job_supervisors = [pid for zygote in zygotes for pid in children(zygote)]
    left = [pid for job_supervisor in job_supervisors for pid in children(job_supervisor)]
    # A job supervisor per slot may wait for another job; any other child of a zygote was left by one that ended.
    wrong = []
    if left or len(job_supervisors) > AT_ONCE:
        wrong.append(f"{len(left)} processes are left, {len(job_supervisors)} job supervisors")
    result = await pool.run(Job("python", "print(6 * 7)"))
    if result.runs[0].stdout != b"42\n":
        wrong.append(f"the pool no longer works: {result.runs[0]}")
    if pool.stats().get("restarts"):
        wrong.append("the supervisor was killed")
    return wrong + scene.damage()


async def main(options: argparse.Namespace) -> int:
    if options.docker:
        docker.enter()
        assert docker.refuses_namespaces()
    scene = Scene()
    pool = Pool(isolation=options.tier, slots=AT_ONCE)
    try:
        await pool.start()
    except UsageError:
        say(tier=options.tier, started=False, why=pool.report[-1].why, fix=pool.report[-1].fix)
        return 0
    say(
        tier=pool.isolation,
        started=True,
        uid=os.getuid(),
        refused=[probe.tier for probe in pool.report if not probe.ok],
    )
    await earlier(pool, scene.secret)
    chosen = [a for a in ATTACKS if (options.slow or not a.slow) and options.only in f"{a.family}: {a.name}"]
    gate = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(launch(pool, attack, scene, gate) for attack in chosen))
    wrong = await afterwards(pool, scene)
    say(family="all", name="afterwards", contained=not wrong, why="; ".join(wrong))
    await pool.close()
    scene.close()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tier", default="auto")
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--only", default="")
    sys.exit(asyncio.run(main(parser.parse_args())))
