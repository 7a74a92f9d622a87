"""Ray's object store as the store of a run's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.core.isolated import Failed
from agentrl.runtime.ray.failures import plain_error
from agentrl.trajectory.store import Stored


@dataclass(frozen=True)
class RayStore:
    """A value lives and dies with the process that put it there."""

    def put(self, value: Any) -> Any:
        """Store a value; returns the reference."""
        return ray.put(value)

    def get(self, references: Sequence[Any]) -> list[Any]:
        """The values of references. Raises WorkerDied where the machine that had one is down."""
        try:
            return ray.get(list(references))
        except RayError as error:
            raise plain_error(error, "a machine with tokens") from error


def send_references() -> None:
    """Have Ray send a stored trajectory by its reference; other copies of it have its body."""
    ray.util.register_serializer(
        Stored, serializer=lambda stored: stored.parts, deserializer=lambda parts: Stored(*parts)
    )


class RayFunction:
    """A function of a module in a Ray process on this machine: it gets stored trajectories by reference. Stands for an
    `IsolatedFunction`."""

    def __init__(self, module: str, name: str, *, timeout: float, at_once: int) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        kind: Any = ray.remote(_called).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        self._start, self.timeout = lambda given: kind.remote(module, name, given), timeout

    def __call__(self, **given: Any) -> Any:
        """Call the function. Raises Failed when it does."""
        try:
            return ray.get(self._start(given), timeout=self.timeout)
        except RayTaskError as error:
            raise Failed(str(error.cause)) from error

    def close(self) -> None:
        """Nothing to end."""


def _called(module: str, name: str, given: dict[str, Any]) -> Any:
    return getattr(import_module(module), name)(**given)
