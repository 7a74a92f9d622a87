"""Every attack of the suite, sent over HTTP to the server in its container, with the scene inside that container."""

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentrl_sandbox.client import Client
from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.job import Job, Unavailable
from tests.sandbox.attacks.attack import Attack
from tests.sandbox.attacks.runner import ATTACKS, faults
from tests.sandbox.docker.conftest import Served
from tests.waiting import wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]
AT_ONCE = 3
FILLING = 64


class RemoteScene:
    """The scene in the container, as the suite's own code asks for it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        told = json.loads(self._read())
        self.secret: str = told["secret"]
        self.values: dict[str, str] = told["values"]
        self.idle = self.look()["processes"]

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def look(self) -> dict[str, Any]:
        """Damage and number of processes, now."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def damage(self) -> list[str]:
        """What happened to the baits."""
        found: list[str] = self.look()["damage"]
        return found


@contextmanager
def scene_in(served: Served) -> Iterator[RemoteScene]:
    """Set for the time of the attacks."""
    words = ["exec", "--interactive", "--env", "PYTHONPATH=/srv", served.name]
    words += ["/opt/agentrl/bin/python", "-m", "tests.sandbox.docker.inside"]
    with served.engine.open(*words) as process:
        try:
            yield RemoteScene(process)
        finally:
            process.communicate(timeout=600)


async def launch(client: Client, attack: Attack, scene: Any, gate: asyncio.Semaphore) -> str:
    """How it went: contained, refused, no such language, or what is wrong."""
    async with gate:
        try:
            return "; ".join(faults(attack, await client.run(attack.job(scene.values)), scene)) or "contained"
        except Unavailable:
            return "no such language"
        except ValueError as error:
            # Too large, or no text, for a request.
            return "refused" if attack.family.startswith(("17", "18", "19", "20")) else f"refused: {error}"
        except SandboxError as error:
            return f"the sandbox broke: {error}"


async def storm(served: Served, scene: Any) -> list[str]:
    """All that were not contained, and why; a table of all by family is printed."""
    client = Client(served.url, queue_timeout=300)
    await client.start()
    gate = asyncio.Semaphore(AT_ONCE)
    chosen = [attack for attack in ATTACKS if not attack.slow]
    try:
        ends = await asyncio.gather(*(launch(client, attack, scene, gate) for attack in chosen))
        alive = await client.run(Job("python", "print(6 * 7)"))
        assert alive.runs[0].stdout == b"42\n"
    finally:
        await client.close()
    told = list(zip(chosen, ends, strict=True))
    print(f"\n{served.get('/health')['isolation']}: {sum(end in FINE for end in ends)} of {len(ends)} contained")
    for family in dict.fromkeys(attack.family for attack in chosen):
        mine = Counter(end if end in FINE else "NOT CONTAINED" for attack, end in told if attack.family == family)
        print(f"  {family:<24} {', '.join(f'{count} {end}' for end, count in mine.items())}")
    return [f"{attack.family}: {attack.name}: {end}" for attack, end in told if end not in FINE]


FINE = ("contained", "refused", "no such language")


async def fill(served: Served) -> None:
    """A run in every slot at once: a slot keeps its job supervisor for further jobs, and no other may be added."""
    client = Client(served.url, queue_timeout=300)
    await client.start()
    try:
        await asyncio.gather(*(client.run(Job("python", "import time; time.sleep(0.5)")) for _ in range(FILLING)))
    finally:
        await client.close()


def test_attacks_are_contained(served: Served) -> None:
    asyncio.run(fill(served))
    with scene_in(served) as scene:
        wrong = asyncio.run(storm(served, scene))
        assert not wrong, "\n".join(wrong)
        assert wait_for(lambda: scene.look()["processes"] <= scene.idle + 1, 10), "processes are left"
        assert served.get("/health")["load"]["restarts"] == 0
        assert scene.damage() == []
