"""Finds and removes the containers and networks of runs whose process is gone, after SIGKILL too.

    python reaper.py RUN

Standard input is a pipe from that process: its end means that the process has ended, a byte that nothing is left to do.
The process that is started ends at once and leaves the work to its child: a Ray worker kills its own child processes
when it ends. Imports nothing of agentrl: it starts quickly and needs the `docker` package only.
"""

import os
import platform
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

RUN = "agentrl.run"
"""Label of all containers and networks of a run."""
PROJECT = "agentrl.project"
"""Label of a container with services, and of all that belongs to it."""
OWNER = "agentrl.owner"
"""Label with the process that made a container: host, id, start."""
ENGINE_SECONDS = 600
"""Seconds for an engine that is being started again."""
REMOVED = {"container": {"force": True, "v": True}, "volume": {"force": True}}
"""How each kind is removed."""
QUIET_ROUNDS, PAUSE = 3, 2.0
"""Rounds that find nothing, and seconds between them: the engine may have been making a container for the process."""


def main(run: str) -> None:
    """Wait for the end of the parent, then remove what has the run's label."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    watched = _watched(os.getppid())
    if os.fork():
        os._exit(0)
    if 0 in select.select(watched, [], [])[0] and os.read(0, 1):
        return
    deadline, quiet = time.monotonic() + ENGINE_SECONDS, 0
    while quiet < QUIET_ROUNDS and time.monotonic() < deadline:
        quiet = quiet + 1 if _clear(run) else 0
        time.sleep(PAUSE)


def _watched(parent: int) -> list[int]:
    """The pipe, and on Linux the process itself: a child that it forked may have the other end of the pipe."""
    watched = [0]
    with suppress(AttributeError, OSError):
        watched.append(os.pidfd_open(parent))
    return watched


def _clear(run: str) -> bool:
    """Remove what is there; whether there was nothing."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env()
        return not remove(client, run) and not left(client, run)
    except (DockerException, OSError):
        return False


def left(client: Any, run: str) -> list[Any]:
    """The containers, networks and volumes of a run."""
    return _labelled(client, f"{RUN}={run}")


def remove(client: Any, run: str, label: str = RUN) -> list[str]:
    """Remove all containers, networks and volumes of a run, or with that value of another label; what was removed.

    Containers leave the network first: the engine may count those that are killed as connected for ever, and then it
    does not remove their network.
    """
    from docker.errors import APIError

    removed, found = [], _labelled(client, f"{label}={run}")
    for one in found:
        kind = type(one).__name__.lower()
        for network in found if kind == "container" else ():
            with suppress(APIError, AttributeError):
                network.disconnect(one, force=True)
        with suppress(APIError):
            one.remove(**REMOVED.get(kind, {}))
            removed.append(f"{kind} {one.name}")
    return removed


def _labelled(client: Any, label: str) -> list[Any]:
    """Containers, then their networks and volumes."""
    filters = {"label": label}
    found = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return [*found, *client.networks.list(filters=filters), *client.volumes.list(filters=filters)]


def owner(pid: int) -> str:
    """A process that no other one is taken for: host, id, start; without its start if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            started = file.read().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{platform.node()} {pid} {started}"


def remove_orphans(client: Any) -> list[str]:
    """Remove what ended processes of this host have left; the names."""
    return [name for run in _ended_runs(client) for name in remove(client, run)]


def orphans(client: Any) -> list[str]:
    """Containers and networks that ended processes of this host have left; the names."""
    found = [found for run in _ended_runs(client) for found in left(client, run)]
    return [f"{type(one).__name__.lower()} {one.name}" for one in found]


def _ended_runs(client: Any) -> list[str]:
    found = _labelled(client, OWNER)
    return sorted({labels[RUN] for labels in map(_labels, found) if _ended(labels[OWNER])})


def _ended(label: str) -> bool:
    host, pid, _ = label.split(" ")
    return host == platform.node() and owner(int(pid)) != label


def _labels(found: Any) -> dict[str, str]:
    labels: dict[str, str] = found.attrs.get("Labels") or found.labels
    return labels


if __name__ == "__main__":
    main(sys.argv[1])
