"""Ray's object store as the store of a run's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from agentrl.trajectory.store import Stored


@dataclass(frozen=True)
class RayStore:
    """A value lives and dies with the process that put it there."""

    def put(self, value: Any) -> Any:
        """Store a value; returns the reference."""
        return ray.put(value)

    def get(self, references: Sequence[Any]) -> list[Any]:
        """The values of references."""
        return ray.get(list(references))


def send_references() -> None:
    """Have Ray send a stored trajectory by its reference; other copies of it have its body."""
    ray.util.register_serializer(
        Stored, serializer=lambda stored: stored.parts, deserializer=lambda parts: Stored(*parts)
    )
