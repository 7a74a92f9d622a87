"""Removes what runs have left: after a crash of the host, say, which no process of a run survives."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentrl.containers.docker.engine import connect, explained
from agentrl.containers.docker.images import LABEL
from agentrl.containers.docker.reaper import orphans, remove_orphans
from agentrl.core.errors import InfraError


@dataclass(frozen=True)
class Cleaned:
    """Names of what was removed, and of containers and networks that the engine did not remove."""

    removed: list[str]
    left: list[str]


def clean(*, images: bool) -> Cleaned:
    """Remove containers and networks of ended runs, and built images that no container uses.

    Raises UserError without an engine, InfraError.
    """
    client, _ = connect()
    from docker.errors import DockerException

    try:
        removed = remove_orphans(client) + (_remove_images(client) if images else [])
        return Cleaned(removed, orphans(client))
    except (DockerException, OSError) as error:
        raise InfraError(f"Docker: {explained(error)}") from error


def _remove_images(client: Any) -> list[str]:
    from docker.errors import APIError

    removed = []
    for image in client.images.list(filters={"label": LABEL}):
        with suppress(APIError):  # in use
            client.images.remove(image.id, force=len(image.tags) > 1)
            removed.append(f"image {(image.tags or [image.short_id])[0]}")
    return removed
