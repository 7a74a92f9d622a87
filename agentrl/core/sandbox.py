"""The sandbox that a run's rewards and tools share: agentrl_sandbox, with agentrl's errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentrl.core.errors import InfraError, UserError
from agentrl_sandbox import sandbox as package
from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.job import CommandResult, Job, Limits, Result, Unavailable

if TYPE_CHECKING:
    from agentrl_sandbox.client import RemoteSession
    from agentrl_sandbox.pool import Session as PoolSession


class LanguageUnavailable(InfraError):
    """The sandbox does not know the language, or its toolchain is not installed."""


@contextmanager
def agentrl_errors() -> Iterator[None]:
    """Raise the errors of agentrl_sandbox as agentrl's: SandboxError as InfraError, UsageError as UserError."""
    try:
        yield
    except Unavailable as error:
        raise LanguageUnavailable(str(error)) from error
    except SandboxError as error:
        raise InfraError(str(error)) from error
    except UsageError as error:
        raise UserError(str(error)) from error


class Session:
    """A Python interpreter that keeps its state between calls."""

    def __init__(self, session: "PoolSession | RemoteSession") -> None:
        self._session = session

    @property
    def over(self) -> str:
        """Why the session has ended; empty while it runs."""
        return self._session.over

    async def run(self, code: str, *, wall: float | None = None) -> CommandResult:
        """Run code for at most `wall` seconds (None: the session's limit). Raises InfraError."""
        with agentrl_errors():
            return await self._session.run(code, wall=wall)

    async def close(self) -> None:
        """End the session and its processes."""
        await self._session.close()


class Sandbox(package.Sandbox):
    """The sandbox that a run's rewards and tools share. Belongs to one event loop."""

    async def run(self, job: Job, *, client: str = "") -> Result:
        """Run a job. Raises LanguageUnavailable, InfraError, and UserError where no isolation works on this host."""
        with agentrl_errors():
            return await super().run(job, client=client)

    async def session(self, limits: Limits, *, client: str = "") -> Session:  # type: ignore[override]
        """Open a session. Raises InfraError, and UserError where the server is SandboxFusion's, which has none."""
        with agentrl_errors():
            return Session(await super().session(limits, client=client))
