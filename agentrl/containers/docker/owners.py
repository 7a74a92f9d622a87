"""The process that made a container, and what processes that have ended left."""

import platform
from typing import Any

from agentrl.containers.docker import reaper

OWNER = "agentrl.owner"
"""Label with the process that made a container: host, id, start."""


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
    return [name for run in _ended_runs(client) for name in reaper.remove(client, run)]


def orphans(client: Any) -> list[str]:
    """Containers and networks that ended processes of this host have left; the names."""
    found = [found for run in _ended_runs(client) for found in reaper.left(client, run)]
    return [f"{type(one).__name__.lower()} {one.name}" for one in found]


def _ended_runs(client: Any) -> list[str]:
    found = [*client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)]
    found += client.networks.list(filters={"label": OWNER})
    return sorted({labels[reaper.RUN] for labels in map(_labels, found) if _ended(labels[OWNER])})


def _ended(label: str) -> bool:
    host, pid, _ = label.split(" ")
    return host == platform.node() and owner(int(pid)) != label


def _labels(found: Any) -> dict[str, str]:
    labels: dict[str, str] = found.attrs.get("Labels") or found.labels
    return labels
