"""State of the server that all endpoints share, and of one call."""

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
        """Open a session."""

    def memory(self) -> str:
        """How the memory of a run is limited, as a sentence."""

    def stats(self) -> dict[str, float]:
        """Load."""

    async def close(self) -> None:
        """End all processes."""


@dataclass
class Call:
    """One request: its client, and fields for the log."""

    client: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Service:
    """State that all requests share."""

    pool: Executor
    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    pending_bytes: int = 0
    """Bytes of all request bodies that wait or run."""
    sessions: Sessions = field(init=False)
    retries: Retries = field(init=False)
    languages: dict[str, str] | None = None
    """{language: why it is missing, or ""}; None until the first request for it."""

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.settings.session_idle)
        self.retries = Retries(self.settings.max_pending_mb * MIB)

    async def run(self, job: Job, call: Call, queue_timeout: float | None = None) -> Result:
        """Run a job, which waits in the queue for at most `queue_timeout` seconds (None: as long as the client).

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
        """{language: why it is missing, or ""}."""
        if self.languages is None:
            python = getattr(self.pool, "python", None)
            self.languages = await asyncio.to_thread(find_languages, python)
        return self.languages


def find_languages(python: str | None = None) -> dict[str, str]:
    """{language: why it is missing, or ""}. Blocks while it searches for programs."""
    found = {}
    for name, recipe in RECIPES.items():
        try:
            recipe.locate(python)
            found[name] = ""
        except Unavailable as error:
            found[name] = str(error)
    return found | {name: f"language not installed: {name}" for name in OTHERS}
