"""The Docker engine of a run: connected once, called in threads, and cleared of what ended runs have left.

Invariants:
- each container and network has the labels of its run, and none outlives the process of that run: the run removes its
  own, a second process the rest, after SIGKILL too; the next run removes what both left;
- the calls of the `docker` package run in threads: none blocks the event loop;
- while the engine is being started again, no further container is: what ran in it fails, what comes next waits.
"""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from agentrl.containers.docker import reaper
from agentrl.core.errors import InfraError, UserError, one_line

T = TypeVar("T")

ANSWER_SECONDS = 120
"""Seconds for an answer of the engine."""
CONNECTIONS = 64
"""Connections that are kept open."""
NO_LOGIN = ("no basic auth credentials", "authentication required", "unauthorized")
"""Words of a registry that wants to know who asks."""
MOST_THREADS = 1024
"""Each command that runs has one that reads its output."""
RESTART, PAUSE = 45.0, 0.5
"""Seconds for an engine that is being started again, and between two looks at it."""


class Engine:
    """A connection to Docker, made when it is first needed. Belongs to one event loop."""

    def __init__(self) -> None:
        self.run = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.labels = {reaper.RUN: self.run, reaper.OWNER: reaper.owner(os.getpid())}
        self.client: Any = None
        self.env: Mapping[str, str] = {}
        """Environment of processes that use the same engine."""
        self._lock = asyncio.Lock()
        self._lost: float | None = None
        """When it stopped answering."""
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="docker")
        self._reaper: subprocess.Popen[bytes] | None = None

    async def ready(self) -> None:
        """Connect, or wait for an engine that is gone for a moment. Raises UserError where none answers, InfraError
        where it does not come back."""
        async with self._lock:
            if self.client is None:
                self.client = await self.call(self._connect)
            elif self._lost is not None:
                await self._returned(self._lost + RESTART)

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a blocking function in a thread. Raises InfraError where Docker fails."""
        from docker.errors import DockerException
        from requests.exceptions import ConnectionError as NoAnswer
        from urllib3.exceptions import HTTPError

        def checked() -> T:
            try:
                return function(*args, **kwargs)
            except (DockerException, HTTPError, OSError) as error:
                if isinstance(error, NoAnswer):
                    self._lost = self._lost or time.monotonic()
                raise InfraError(f"Docker: {explained(error)}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, checked)

    async def close(self) -> None:
        """Remove all that the run has made. Never raises."""
        if self.client is None:
            return
        with suppress(InfraError):
            await self.call(reaper.remove, self.client, self.run)
            left = await self.call(reaper.left, self.client, self.run)
            if self._reaper is not None and not left:  # else the reaper tries again
                await self.call(self._reaper.communicate, b".")

    async def _returned(self, deadline: float) -> None:
        while self._lost is not None:
            try:
                await self.call(self.client.ping)
                self._lost = None
            except InfraError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PAUSE)

    def _connect(self) -> Any:
        client, self.env = connect()
        reaper.remove_orphans(client)
        self._start_reaper()
        return client

    def _start_reaper(self) -> None:
        words = [sys.executable, "-P", reaper.__file__, self.run]
        quiet = subprocess.DEVNULL  # or who reads our output waits for it, too
        self._reaper = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=self.env, start_new_session=True
        )
        self._reaper.wait()  # its child goes on


def explained(error: BaseException) -> str:
    """An error of the engine in one line: its own words, without the address that it was asked at."""
    words = getattr(error, "explanation", None) or _reason(error)
    return described(" ".join(str(words).split()))


def _reason(error: BaseException) -> BaseException | str:
    """The system's words, where it gave no answer."""
    inner = error
    while inner.args and isinstance(inner.args[-1], BaseException):
        inner = inner.args[-1]
    return error if inner is error else f"no answer: {getattr(inner, 'strerror', None) or inner}"


def described(error: str) -> str:
    """The words of an engine, with a way out where there is one."""
    if "no space left on device" in error.lower():
        return "its disk is full; see `docker system df`, and run `agentrl tasks clean --images`"
    if any(mark in error for mark in NO_LOGIN):
        return f"{error}; run `docker login` for its registry"
    return error


def connect() -> tuple[Any, dict[str, str]]:
    """A client, and the environment in which other processes find the same engine. Raises UserError."""
    require_docker()
    import docker

    trouble = ""
    for env in environments():
        try:
            client = docker.from_env(environment=env, timeout=ANSWER_SECONDS, max_pool_size=CONNECTIONS)
            client.ping()
            return client, dict(env)
        except (docker.errors.DockerException, OSError) as error:
            trouble = trouble or one_line(error)
    raise UserError(f"no Docker engine answers: {trouble}; start one, or podman.socket, or set DOCKER_HOST")


def require_docker() -> None:
    """Raises UserError where the `docker` package is not installed."""
    if find_spec("docker") is None:
        raise UserError("containers need the docker package: run `pip install 'agentrl[docker]'`")


def environments() -> Iterator[Mapping[str, str]]:
    """To look for an engine with: the user's own, then one for each podman of this host."""
    yield os.environ
    if "DOCKER_HOST" not in os.environ:
        for folder in (os.environ.get("XDG_RUNTIME_DIR"), "/run"):
            socket = Path(folder or "/none") / "podman" / "podman.sock"
            if socket.exists():
                yield {**os.environ, "DOCKER_HOST": f"unix://{socket}"}
