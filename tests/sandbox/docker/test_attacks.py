"""Every attack of the suite, sent over HTTP to the server in its container, with the scene inside that container."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentrl.errors import InfraError
from agentrl.sandbox.client import Client
from agentrl.sandbox.job import Job, Unavailable
from tests.sandbox.attacks.attack import Attack
from tests.sandbox.attacks.runner import ATTACKS, faults
from tests.sandbox.docker.conftest import Served, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]
AT_ONCE = 3


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
            process.communicate(timeout=30)


async def launch(client: Client, attack: Attack, scene: Any, gate: asyncio.Semaphore) -> str:
    """What shows that it was not contained; empty if nothing."""
    async with gate:
        try:
            return "; ".join(faults(attack, await client.run(attack.job(scene.values)), scene))
        except Unavailable:
            return ""  # which languages there are is another test
        except ValueError as error:
            # The border refused it before anything ran.
            return "" if attack.family.startswith(("17", "18", "20")) else f"refused: {error}"
        except InfraError as error:
            return f"the sandbox broke: {error}"


async def storm(served: Served, scene: Any) -> dict[str, str]:
    """Attack -> what is wrong, of all that were not contained."""
    client = Client(served.url, patience=300)
    await client.start()
    gate = asyncio.Semaphore(AT_ONCE)
    chosen = [attack for attack in ATTACKS if not attack.slow]
    try:
        words = await asyncio.gather(*(launch(client, attack, scene, gate) for attack in chosen))
        alive = await client.run(Job("python", "print(6 * 7)"))
        assert alive.runs[0].stdout == b"42\n"
    finally:
        await client.close()
    print(f"{served.get('/health')['isolation']}: {sum(not word for word in words)} of {len(chosen)} contained")
    return {f"{attack.family}: {attack.name}": word for attack, word in zip(chosen, words, strict=True) if word}


def test_attacks_are_contained(served: Served) -> None:
    with scene_in(served) as scene:
        assert asyncio.run(storm(served, scene)) == {}
        assert wait_for(lambda: scene.look()["processes"] <= scene.idle + 1, 10), "processes are left"
        assert served.get("/health")["load"]["restarts"] == 0
        assert scene.damage() == []
