"""Images in a registry of the user's: pushed once, pulled by every machine of a cluster.

Invariant: the tag of an image follows from its folder's content or from its name alone, so all machines know it.
"""

import hashlib
from typing import Any

from agentrl.containers.docker.engine import described
from agentrl.core.errors import UserError

BUILT = "agentrl-built:"
"""Begins the names of images that are built from folders; the hash of the folder's content follows."""


def reference(registry: str, name: str) -> tuple[str, str]:
    """Repository and tag of an image in a registry; `name` is the image's on every machine."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    tag = name.removeprefix(BUILT) if name.startswith(BUILT) else digest
    return f"{registry.rpartition('://')[2].rstrip('/')}/agentrl", tag


def pull(client: Any, registry: str, name: str) -> Any:
    """Pull an image, and give it its name here, too. Raises DockerException."""
    found = client.images.pull(*reference(registry, name))
    if "@" not in name:  # a digest is no tag
        found.tag(name)
    return found


def push(client: Any, registry: str, name: str, image: str) -> str:
    """Push `image` of this machine as that of `name`; gives its name in the registry. Raises UserError."""
    repository, tag = reference(registry, name)
    client.images.get(image).tag(repository, tag)
    for part in client.images.push(repository, tag, stream=True, decode=True):
        if "error" in part:
            raise UserError(f"{registry} does not take its image: {described(part['error'])}")
    return f"{repository}:{tag}"
