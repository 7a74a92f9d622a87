"""What the engine says, in one line with a way out."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from urllib3.exceptions import ProtocolError

from agentrl.containers.docker import engine
from agentrl.containers.docker.engine import explained
from agentrl.containers.docker.images import _check
from agentrl.core.errors import InfraError, UserError

docker = pytest.importorskip("docker")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("no such\nhost", "no such host"),
        ("Head http://a:5000: no basic auth credentials", "credentials; run `docker login` for its registry"),
        ("write /x: No space left on device", "its disk is full; see `docker system df`"),
    ],
)
def test_an_error_has_the_engines_own_words(words: str, line: str) -> None:
    error = docker.errors.APIError("500 Server Error for http+docker://localhost/v1.41", explanation=words)
    assert line in explained(error)
    assert "http+docker" not in explained(error)


def gone(*_: object) -> None:
    aborted = ProtocolError("Connection aborted.", ConnectionRefusedError(111, "Connection refused"))
    raise requests.exceptions.ConnectionError(aborted)


async def test_an_engine_that_is_started_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PAUSE", 0)
    answers = [gone, gone, lambda: True]
    made = engine.Engine()
    made.client = SimpleNamespace(ping=lambda: answers.pop(0)())
    with pytest.raises(InfraError, match=r"^Docker: no answer: Connection refused$"):
        await made.call(gone)
    await made.ready()
    assert not answers
    await made.ready()  # it does not ask an engine that answers


async def test_an_engine_that_does_not_come_back_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RESTART", 0)
    made = engine.Engine()
    made.client = SimpleNamespace(ping=gone)
    for wait in (made.call(gone), made.ready(), made.ready()):
        with pytest.raises(InfraError, match=r"^Docker: no answer: Connection refused$"):
            await wait


def test_a_build_that_fills_the_disk_is_no_mistake_of_the_dockerfile() -> None:
    lines = ["Step 2/3 : RUN make", "cc: No space left on device", "returned a non-zero code: 1"]
    with pytest.raises(InfraError, match="its image is not built: its disk is full"):
        _check(1, Path("task"), deque(lines))
    with pytest.raises(UserError, match="Dockerfile fails: returned"):
        _check(1, Path("task"), deque(lines[::2]))
