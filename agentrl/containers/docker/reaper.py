"""Removes the containers and networks of a run when its process is gone, after SIGKILL too.

    python reaper.py RUN

Standard input is a pipe from that process: its end means that the process has ended, a byte that nothing is left to do.
Imports nothing of agentrl: it starts quickly and needs the `docker` package only.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import docker
from docker.errors import APIError, DockerException

RUN = "agentrl.run"
"""Label of all containers and networks of a run."""
PATIENCE = 600
"""Seconds for an engine that is being started again."""


def main(run: str) -> None:
    """Wait for the end of the parent, then remove what has the run's label."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    while os.getppid() == parent:
        if select.select([0], [], [], 1)[0]:
            if os.read(0, 1):
                return
            break
    deadline = time.monotonic() + PATIENCE
    while not _removed(run) and time.monotonic() < deadline:
        time.sleep(2)


def _removed(run: str) -> bool:
    try:
        client = docker.from_env()
        remove(client, run)
        time.sleep(2)  # the engine may have been making one at that moment
        remove(client, run)
    except (DockerException, OSError):
        return False
    return True


def remove(client: Any, run: str) -> list[str]:
    """Remove all containers and networks of a run; their names."""
    label = {"label": f"{RUN}={run}"}
    removed = []
    for container in client.containers.list(all=True, filters=label, ignore_removed=True):
        with suppress(APIError):
            container.remove(force=True, v=True)
            removed.append(f"container {container.name}")
    for network in client.networks.list(filters=label):
        with suppress(APIError):
            network.remove()
            removed.append(f"network {network.name}")
    return removed


if __name__ == "__main__":
    main(sys.argv[1])
