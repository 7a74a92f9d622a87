"""Finds an engine: Docker's, or podman's through its Docker-compatible socket."""

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.user_errors import one_line

SECONDS = 120
"""For an answer of the engine."""
CONNECTIONS = 64
"""That are kept open."""


def connect() -> tuple[Any, dict[str, str]]:
    """A client, and the environment in which other processes find the same engine. Raises UserError."""
    require_docker()
    import docker

    trouble = ""
    for env in environments():
        try:
            client = docker.from_env(environment=env, timeout=SECONDS, max_pool_size=CONNECTIONS)
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
