"""One engine and one image for the session, the sandbox in it run in each of the ways that people run it."""

import json
import os
import shlex
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.docker.engine import REPO, Engine, Unavailable

TIER = os.environ.get("AGENTRL_DOCKER_TIER", "core")
IMAGE = f"agentrl-sandbox:test-{TIER}"
SEES_TESTS = ("--volume", f"{REPO / 'tests'}:/srv/tests:ro")
"""The scene of the attacks runs in the container; a run of the sandbox does not see /srv."""
OVERRIDE = f"""\
services:
  sandbox:
    image: {IMAGE}
    volumes: ["{REPO / "tests"}:/srv/tests:ro"]
    healthcheck: {{interval: 1s}}
  gateway: {{image: {IMAGE}}}
"""


@dataclass
class Served:
    """A container that serves."""

    engine: Engine
    name: str
    url: str

    def get(self, path: str) -> Any:
        """JSON from there."""
        with urllib.request.urlopen(self.url + path, timeout=600) as answer:
            return json.load(answer)

    def inside(self, *words: str) -> str:
        """Standard output of a command in the container, as the server's user."""
        return self.engine.docker("exec", self.name, *words)

    def logs(self) -> str:
        """What it wrote to stderr and stdout."""
        with self.engine.open("logs", self.name, stderr=subprocess.STDOUT) as process:
            return process.communicate()[0]


@pytest.fixture(scope="session")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Built from this checkout."""
    engine.build(TIER, IMAGE, tmp_path_factory.mktemp("secrets"))
    return IMAGE


@contextmanager
def run(engine: Engine, *flags: str, options: tuple[str, ...] = ("--public",)) -> Iterator[Served]:
    """`docker run`; removed afterwards."""
    name = f"agentrl-test-{uuid.uuid4().hex[:8]}"
    engine.docker("run", "--detach", "--name", name, *flags, IMAGE, *options, cwd=REPO)
    try:
        port = engine.docker("port", name, "8080/tcp").split("\n")[0].rpartition(":")[2]
        served = Served(engine, name, f"http://127.0.0.1:{port}")
        wait_until_it_serves(served)
        yield served
    finally:
        engine.docker("rm", "--force", "--volumes", name)


@contextmanager
def compose(engine: Engine, folder: Path) -> Iterator[Served]:
    """`docker compose up`, with the tests made visible to the container and nothing else changed."""
    project = f"agentrl-test-{uuid.uuid4().hex[:8]}"
    (folder / "override.yaml").write_text(OVERRIDE)
    files = ("-p", project, "-f", "compose.yaml", "-f", str(folder / "override.yaml"))
    engine.env |= {"PORT": "0", "TIER": TIER}
    try:
        engine.compose(*files, "up", "--detach", "--no-build")
        address = engine.compose(*files, "port", "gateway", "8080").strip()
        served = Served(engine, f"{project}-sandbox-1", f"http://{address}")
        wait_until_it_serves(served)
        yield served
    finally:
        engine.compose(*files, "down", "--timeout", "5", "--volumes")


def wait_until_it_serves(served: Served) -> None:
    """Until it answers; fails with its log."""
    deadline = time.monotonic() + 60
    while True:
        try:
            assert served.get("/v1/ping") == "pong"
            return
        except OSError:
            running = served.engine.inspect(served.name)["State"]["Running"]
            assert running, served.logs()
            assert time.monotonic() < deadline, served.logs()
            time.sleep(0.3)


def readme_command() -> list[str]:
    """The flags of the README's one-line way, but for the port and the image."""
    text = (REPO / "sandbox" / "README.md").read_text()
    (block,) = [part for part in text.split("```")[1::2] if "docker run" in part and "--read-only" in part]
    words = shlex.split(block.partition("docker run")[2].replace("\\\n", " "))
    ours = ("--rm", "-p", "127.0.0.1:8080:8080")
    return [word for word in words[: words.index("agentrl-sandbox")] if word not in ours]


ANY_PORT = ("--publish", "127.0.0.1::8080")


@pytest.fixture(scope="module")
def plain(engine: Engine, image: str) -> Iterator[Served]:
    """`docker run` with no flag that bears on security."""
    with run(engine, *ANY_PORT, *SEES_TESTS, "--health-interval", "1s") as served:
        yield served


@pytest.fixture(scope="module")
def composed(engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`docker compose up`."""
    try:
        engine.compose("version")
    except Unavailable as error:
        pytest.skip(f"no Docker Compose 2: {error}")
    with compose(engine, tmp_path_factory.mktemp("compose")) as served:
        yield served


@pytest.fixture(params=["composed", "plain"])
def served(request: pytest.FixtureRequest) -> Served:
    """Both."""
    found: Served = request.getfixturevalue(request.param)
    return found
