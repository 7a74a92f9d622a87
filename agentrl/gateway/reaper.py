"""Removes the containers and networks of a run when its process is gone, after SIGKILL too.

    python reaper.py RUN

Standard input is a pipe from that process. Imports nothing of agentrl: it starts quickly and needs the `docker` package
only.
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


def main(run: str) -> None:
    """Wait for the end of the parent, then remove what has the run's label."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    while os.getppid() == parent and not select.select([0], [], [], 1)[0]:
        pass
    with suppress(DockerException):  # the engine may be gone, too
        client = docker.from_env()
        remove(client, run)
        time.sleep(2)  # the engine may have been making one at that moment
        remove(client, run)


def remove(client: Any, run: str) -> None:
    """Remove all containers and networks of a run."""
    label = {"label": f"{RUN}={run}"}
    for container in client.containers.list(all=True, filters=label, ignore_removed=True):
        with suppress(APIError):
            container.remove(force=True, v=True)
    for network in client.networks.list(filters=label):
        with suppress(APIError):
            network.remove()


if __name__ == "__main__":
    main(sys.argv[1])
