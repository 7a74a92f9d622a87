"""What the endpoints work with: the executor, the settings, counters; and what is known of one call."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.job import Busy, Job, Limits, Result, Unavailable
from agentrl_sandbox.languages import OTHERS, RECIPES
from agentrl_sandbox.server.metrics import Metrics
from agentrl_sandbox.server.retries import Retries
from agentrl_sandbox.server.sessions import Session, Sessions
from agentrl_sandbox.server.settings import MIB, Settings


class Executor(Protocol):
    """The part of a Pool that the server uses."""

    isolation: str

    @property
    def report(self) -> Sequence[Any]:
        """The tiers that were tried."""

    async def start(self) -> None:
        """Make it ready."""

    async def run(self, job: Job, *, client: str = "", queue_timeout: float | None = None) -> Result:
        """Run a job."""

    async def session(self, limits: Limits, *, client: str = "", queue_timeout: float | None = None) -> Session:
        """A Python with state."""

    def memory(self) -> str:
        """How the memory of a run is limited."""

    def stats(self) -> dict[str, float]:
        """Load."""

    async def close(self) -> None:
        """Leave no process."""


@dataclass
class Call:
    """One request: who asks, and what the log is to say about it."""

    client: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Service:
    """What all requests share."""

    pool: Executor
    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    pending_bytes: int = 0
    """Of all request bodies that wait or run."""
    sessions: Sessions = field(init=False)
    retries: Retries = field(init=False)
    languages: dict[str, str] | None = None
    """Name -> why it is not there, or "" where it is; None until someone asks."""

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.settings.session_idle)
        self.retries = Retries(self.settings.max_pending_mb * MIB)

    async def run(self, job: Job, call: Call, queue_timeout: float | None = None) -> Result:
        """Run a job; it waits in the queue for `queue_timeout` seconds, or for as long as the client does.

        Raises Busy, Unavailable, SandboxError.
        """
        call.fields["language"] = job.language
        try:
            result = await self.pool.run(job, client=call.client, queue_timeout=queue_timeout)
        except SandboxError as error:
            outcome = (
                "busy" if isinstance(error, Busy) else "unavailable" if isinstance(error, Unavailable) else "infra"
            )
            self.metrics.count("agentrl_sandbox_jobs_total", language=job.language, outcome=outcome)
            raise
        self.metrics.count("agentrl_sandbox_jobs_total", language=job.language, outcome="ran")
        self._observe(job, result, call)
        return result

    def _observe(self, job: Job, result: Result, call: Call) -> None:
        hits = sorted({run.limit_hit for run in result.runs if run.limit_hit})
        for hit in hits:
            self.metrics.count("agentrl_sandbox_limits_hit_total", limit=hit)
        call.fields |= {"runs": len(result.runs), "limits_hit": hits} if hits else {"runs": len(result.runs)}
        self.metrics.count("agentrl_sandbox_runs_total", by=len(result.runs), language=job.language)
        cpu = sum(run.cpu_time for run in result.runs) + (result.compiled.cpu_time if result.compiled else 0.0)
        self.metrics.count("agentrl_sandbox_cpu_seconds_total", by=cpu, language=job.language)

    async def find_languages(self) -> dict[str, str]:
        """Name -> why it is not there, or "" where it is."""
        if self.languages is None:
            python = getattr(self.pool, "python", None)
            self.languages = await asyncio.to_thread(find_languages, python)
        return self.languages


def find_languages(python: str | None = None) -> dict[str, str]:
    """Name -> why it is not there, or "" where it is; looks for programs, and blocks while it does."""
    found = {}
    for name, recipe in RECIPES.items():
        try:
            recipe.locate(python)
            found[name] = ""
        except Unavailable as error:
            found[name] = str(error)
    return found | {name: f"language not installed: {name}" for name in OTHERS}
