"""What differs between engines: how a server is started, and what its HTTP calls are called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl.engines.engine import FinishReason, Sampling
from agentrl.engines.servers.http import Http
from agentrl.engines.servers.weights.bucket import Bucket
from agentrl.trajectory.medium import Medium


@dataclass(frozen=True)
class Answer:
    """What one HTTP request drew."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    candidates: tuple[tuple[int, float], ...] = ()
    """What could have come first; see `Generation`."""


@dataclass(frozen=True)
class BroadcastGroup:
    """A process group for a broadcast of weights; the trainer is rank 0, a replica's workers follow."""

    name: str
    address: str
    port: int
    world_size: int
    backend: str


class ServerBackend(Protocol):
    """The calls of one engine. All raise ServerLost when the server is gone, RequestRefused when it said no."""

    name: str
    tensor_parallel: int
    """Processes, and so ranks, of one server."""
    adapted: bool
    """Whether the policy comes as an adapter beside a base model that the server keeps, asleep as well."""
    hints: Mapping[str, str]
    """Text in a failed server's log -> what to do about it."""

    def command(self, port: int) -> list[str]:
        """The command line of a server on `port`."""

    def environment(self) -> dict[str, str]:
        """Variables it needs besides ours."""

    async def ready(self, http: Http) -> bool:
        """Whether it serves requests by now."""

    async def greet(self, http: Http) -> None:
        """Learn which version it is, and adapt. Raises UserError for one that we do not speak."""

    async def generate(
        self,
        http: Http,
        rid: str,
        ids: list[int],
        sampling: Sampling,
        timeout: float | None,
        media: Sequence[Medium] = (),
    ) -> Answer:
        """Draw tokens after `ids`, in which those of `media` stand. Raises UserError where the engine takes none."""

    async def abort(self, http: Http, rids: Sequence[str]) -> None:
        """End the given requests; they answer with what they have."""

    async def load(self, http: Http) -> dict[str, float]:
        """At least `running` and `waiting`, as the server counts."""

    async def sleep(self, http: Http) -> None:
        """Drop the policy's weights, and the cache."""

    async def wake(self, http: Http, what: str) -> None:
        """Take memory for `weights` or `kv_cache` back; its contents are lost."""

    async def begin_update(self, http: Http) -> None:
        """Announce new weights. No request runs. Raises UserError for a server that takes none of their kind."""

    async def end_update(self, http: Http, version: int) -> None:
        """All arrived: forget every cache made by the old ones, and bear `version`."""

    async def load_files(self, http: Http, folder: Path) -> None:
        """Read safetensors files with names as in a checkpoint."""

    async def load_adapter(self, http: Http, folder: Path) -> None:
        """Read an adapter in peft's format in place of the one before, and answer requests with it."""

    async def load_ipc(self, http: Http, bucket: Bucket) -> None:
        """Copy from our GPU memory."""

    async def join(self, http: Http, group: BroadcastGroup, rank: int) -> None:
        """Enter a process group as `rank` and those after it; returns when all members are there."""

    async def leave(self, http: Http, group: BroadcastGroup) -> None:
        """Leave it."""

    async def receive(self, http: Http, group: BroadcastGroup, bucket: Bucket) -> Any:
        """Take part in the broadcast of a bucket's bytes."""
