"""A server as people start it: a process of its own, on a free port."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import wait_for

CLI = [sys.executable, "-m", "agentrl_sandbox"]


@dataclass
class Server:
    """A started server."""

    process: subprocess.Popen
    url: str
    log: Path
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """From the command to the line that says where it serves."""

    def post(self, path: str, body: object, timeout: float = 60) -> tuple[int, object]:
        """Status and JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **self.headers}
        return self.send(urllib.request.Request(self.url + path, content, headers), timeout)

    def get(self, path: str) -> tuple[int, object]:
        """Status and JSON, or text where it is none."""
        return self.send(urllib.request.Request(self.url + path, headers=self.headers), 60)

    def send(self, request: urllib.request.Request, timeout: float) -> tuple[int, object]:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()

    def python(self, code: str, **fields: object) -> dict:
        """What /run_code says of a Python program."""
        status, reply = self.post("/run_code", {"language": "python", "code": code, **fields})
        assert status == 200, reply
        return reply

    def wait_for(self, **load: int) -> None:
        """Until its load has these figures."""
        assert wait_for(lambda: load.items() <= self.get("/health")[1]["load"].items(), 20), load

    def children(self) -> list[int]:
        """Every process below it."""
        return descendants(self.process.pid)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


def descendants(pid: int) -> list[int]:
    """Process ids below `pid`."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = entry.read_text().rpartition(")")[2].split()
            parents.setdefault(int(words[1]), []).append(int(entry.parent.name))
    found, open_ = [], [pid]
    while open_:
        below = parents.get(open_.pop(), [])
        found += below
        open_ += below
    return found


def alive(pids: list[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    running = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z":
                running.append(pid)
    return running


@contextlib.contextmanager
def started(folder: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server with these options; stopped at the end."""
    log = folder / "server.log"
    begin = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*CLI, "serve", "--port", "0", *words], stderr=sink, env={**os.environ, **(env or {})}
        )
    try:
        while not (found := re.search(r"sandbox: (http://\S+),", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() - begin < 100, log.read_text()
            time.sleep(0.02)
        yield Server(process, found[1], log, seconds=time.monotonic() - begin)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    """One server for all tests that do it no harm."""
    with started(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def start(tmp_path):
    """Starts servers of a test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda *words, **env: stack.enter_context(started(tmp_path, *words, env=env))
