"""docs/online.md on a laptop: a person at a terminal asks agents/assistant.py, and gives thumbs."""

import asyncio
import os
import pty
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import section
from tests.gateway.test_online import online, taken
from tests.sandbox.docker.test_gateway import free_port

pytestmark = pytest.mark.integration
ASSISTANT = Path(__file__).parents[2] / "agents/assistant.py"
QUESTIONS = ("Hello", "Hi", "Good morning", "How are you", "What do you do")


class Person:
    """Types into a terminal, and reads what stands there."""

    def __init__(self, terminal: int) -> None:
        self.terminal, self.seen = terminal, ""

    def reads(self, mark: str) -> str:
        """The text up to a mark."""
        while mark not in self.seen:
            self.seen += os.read(self.terminal, 4096).decode()
        text, _, self.seen = self.seen.partition(mark)
        return text

    def types(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def asks(self, question: str, liked: str) -> bool:
        """Ask once; whether the answer has the word that this person likes."""
        self.reads("you: ")
        self.types(f"{question}\n")
        good = liked in self.reads("good? + or -: ").partition("it:  ")[2]
        self.types("+\n" if good else "-\n")
        return good


@contextmanager
def at_a_terminal(*words: str) -> Iterator[tuple[Person, "subprocess.Popen[bytes]"]]:
    mine, its = pty.openpty()
    with subprocess.Popen([sys.executable, str(ASSISTANT), *words], stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        try:
            yield Person(mine), process
        finally:
            process.kill()
            os.close(mine)


async def test_thumbs_are_the_rewards_of_sessions(tmp_path: Path) -> None:
    async with online(tmp_path, *["Hi friend !"] * 3) as gateway:
        with at_a_terminal(gateway.url) as (person, process):
            for liked in ("friend", "day"):
                await asyncio.to_thread(person.asks, "Hello", liked)
            await asyncio.to_thread(person.reads, "you: ")
            person.types("\x04")
            assert await asyncio.to_thread(process.wait) == 0
        rewards = [(await taken(gateway, f"1/sessions:{i}")).reward for i in range(2)]
    assert rewards == [1.0, 0.0]


@pytest.mark.slow
def test_the_page_teaches_a_model_what_a_person_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    found, port = list(section("online.md#on-a-laptop")), free_port()
    (script,) = [block for block in found if block.file]
    Path("moods.sh").write_text(script.text)
    commands = [command for block in found for command in block.commands if not command.startswith(("pip", "python"))]
    *first, train = [command.replace("8000", str(port)) for command in commands]
    for command in first:
        subprocess.run(command, shell=True, check=True)
    draw = random.Random(0)
    with subprocess.Popen([*shlex.split(train), "trainer.device=cpu"]) as training:
        with at_a_terminal(f"http://127.0.0.1:{port}") as (person, _):
            liked = [person.asks(draw.choice(QUESTIONS), "friend") for _ in range(96)]
            person.reads("you: ")  # the last thumb has arrived
        assert training.wait() == 0
    assert sum(liked[:24]) < 16 < 22 < sum(liked[-24:])
