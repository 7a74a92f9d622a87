"""The contract of server backends: the command line of an engine's server, and its HTTP calls."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import FinishReason, Sampling
from agentrl.engines.scores import ServerScores
from agentrl.engines.servers.settings import ADAPTER, ServerSettings
from agentrl.http.client import Http, RequestRefused, serves
from agentrl.trajectory.medium import Media

if TYPE_CHECKING:
    from agentrl.engines.servers.weights.bucket import Bucket

CONTROL_SECONDS = 300.0
"""Seconds for a call that draws no tokens."""
KEEP_ALIVE = 3600
"""Seconds that servers of the run keep idle connections; by themselves they close them after 5."""


@dataclass(frozen=True)
class ServerAnswer:
    """The tokens that one HTTP request drew."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    candidates: tuple[tuple[int, float], ...] = ()
    """Candidates for the first token; see `Generation`."""
    experts: NDArray[Any] | None = None
    """Experts of the tokens, as the server returned them: whole numbers [n, layers, k]."""


BROADCAST_ENVIRONMENT = {"NCCL_CUMEM_ENABLE": "0"}
"""Environment variables that all members of a broadcast must share, or the first one hangs. SGLang sets them so."""


@dataclass(frozen=True)
class BroadcastGroup:
    """A process group for a broadcast of weights; the trainer is rank 0, a replica's workers follow."""

    name: str
    address: str
    port: int
    world_size: int
    backend: str


def as_finish_reason(reason: Any) -> FinishReason:
    """The reason that a server gives for the end of an answer; all others mean that it was aborted."""
    return reason if reason in ("stop", "length") else "abort"


async def empty_cache(http: Http, path: str) -> None:
    """Drop cached prefixes. A server refuses while it still cleans up after the last request. Raises InfraError."""
    for _ in range(100):
        with suppress(RequestRefused):
            answer = await http.post(path, {}, timeout=CONTROL_SECONDS)
            if not isinstance(answer, dict) or answer.get("success", True):
                return
        await asyncio.sleep(0.05)
    raise InfraError(f"{http.url} stays busy: its cache cannot be emptied")


class ServerBackend(Protocol):
    """The calls of one engine. All raise ServerLost when the server is gone, RequestRefused after an error."""

    name: str
    settings: ServerSettings
    tensor_parallel: int
    """Worker processes of one server, each with one rank."""
    adapted: bool
    """Whether weights are sent as an adapter; the server keeps its base model, asleep as well."""
    hints: Mapping[str, str]
    """Text in the log of a failed server -> how to fix it."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.tensor_parallel = settings.rollout.tensor_model_parallel_size
        self.adapted = settings.adapter is not None

    def command(self, port: int) -> list[str]:
        """The command line of a server on `port`."""

    def environment(self) -> dict[str, str]:
        """Environment variables of the server, besides those of this process."""

    async def ready(self, http: Http) -> bool:
        """Whether it serves requests by now."""
        return await serves(http)

    @staticmethod
    def require_version(url: str, engine: str, version: str, oldest: tuple[int, ...]) -> None:
        """Raises UserError for a server of an older version; one without numbers counts as newer than all."""
        numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
        if numbers and numbers < oldest:
            raise UserError(f"{url} runs {engine} {version}: {'.'.join(map(str, oldest))} or later is needed")

    async def greet(self, http: Http) -> None:
        """Read the server's version and adapt to it. Raises UserError for an unsupported one."""

    async def generate(
        self, http: Http, rid: str, ids: Sequence[int], sampling: Sampling, timeout: float | None, media: Media = ()
    ) -> ServerAnswer:
        """Draw tokens after `ids`, which contain those of `media`. Raises UserError when the engine takes no media."""

    async def score(
        self, http: Http, ids: Sequence[int], media: Media, first: int, k: int, timeout: float | None, adapter: str = ""
    ) -> ServerScores:
        """The log-probs of the tokens of `ids` from number `first` >= 1 on, and the `k` likeliest in place of each;
        texts come where k is 0 and the server has a tokenizer."""

    async def abort(self, http: Http, rids: Sequence[str]) -> None:
        """End the given requests; they answer with the tokens drawn so far."""

    async def load(self, http: Http) -> dict[str, float]:
        """At least the server's numbers of `running` and `waiting` requests."""

    async def sleep(self, http: Http) -> None:
        """Drop the policy's weights, and the cache."""

    async def wake(self, http: Http, what: str) -> None:
        """Allocate memory for `weights` or `kv_cache` again; its contents are lost."""

    async def begin_update(self, http: Http) -> None:
        """Announce new weights. No request runs. Raises UserError for a server that takes none of their kind."""

    async def end_update(self, http: Http, version: int) -> None:
        """Finish after all weights: drop every cache of the old ones, and set `version`."""

    async def load_files(self, http: Http, folder: Path) -> None:
        """Read safetensors files with names as in a checkpoint."""

    def adapter(self, name: str | None) -> str:
        """The adapter of a request, by `Sampling.adapter`; "": none."""
        first = [*self.settings.policy.policies, ADAPTER][0] if self.adapted else ""
        return first if name is None else name

    async def load_adapter(self, http: Http, folder: Path, name: str = ADAPTER) -> None:
        """Load an adapter in peft's format; it replaces one of its name."""

    async def unload_adapter(self, http: Http, name: str) -> None:
        """Forget an adapter."""

    async def load_ipc(self, http: Http, bucket: "Bucket") -> None:
        """Copy from our GPU memory."""

    async def join(self, http: Http, group: BroadcastGroup, rank: int) -> None:
        """Join a process group with ranks from `rank` on; returns when all members have joined."""

    async def receive(self, http: Http, group: BroadcastGroup, bucket: "Bucket") -> Any:
        """Take part in the broadcast of a bucket's bytes."""
