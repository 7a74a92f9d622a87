"""Images of containers, prepared ahead of need.

Invariants: an image is prepared once for all rows that share it, concurrently with the run; a failure masks the
trajectories that wait for it, and is tried again when one of its rows is expected again; the wait for a free slot is
not part of an image's time limit.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from agentrl.containers import ContainerSpec
from agentrl.core.errors import InfraError, UserError
from agentrl.core.tasks import cancelled
from agentrl.tasks.format import TookTooLong

log = logging.getLogger(__name__)

AT_ONCE = max(2, (os.cpu_count() or 1) // 2)
"""Images that are prepared at the same time: a build keeps cores, disk and network busy."""
SPARE_SECONDS = 10.0
"""Seconds for a provider to end at its own limit: its error says more."""


class PreparedImages:
    """The images of a run. Belongs to one event loop."""

    def __init__(self, prepare: Callable[[ContainerSpec], Awaitable[None]]) -> None:
        """`prepare`: as of `ContainerProvider`."""
        self._prepare = prepare
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def expect(self, spec: ContainerSpec) -> None:
        """Begin to prepare an image that is neither there nor on its way."""
        task = self._tasks.get(_key(spec))
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            self._begin(spec)

    async def ready(self, spec: ContainerSpec) -> None:
        """Wait for an image. Raises InfraError where it cannot be had, also for those who come later."""
        await asyncio.shield(self._tasks.get(_key(spec)) or self._begin(spec))

    async def close(self) -> None:
        """Stop all preparation."""
        await cancelled(self._tasks.values())
        self._tasks.clear()

    def _begin(self, spec: ContainerSpec) -> asyncio.Task[None]:
        task = self._tasks[_key(spec)] = asyncio.create_task(self._get(spec))
        task.add_done_callback(_log_failure)
        return task

    async def _get(self, spec: ContainerSpec) -> None:
        async with self._slots:
            limit = asyncio.timeout(spec.build_timeout + SPARE_SECONDS)
            try:
                async with limit:
                    await self._prepare(spec)
            except UserError as error:  # one broken image of many must not end the run
                raise InfraError(str(error)) from error
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TookTooLong(f"image {spec.image or spec.build}", spec.build_timeout) from None


def _key(spec: ContainerSpec) -> tuple[str, str]:
    return str(spec.image), f"{spec.build} {spec.services}"


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log a failure, also of an image that no trajectory waits for."""
    if not task.cancelled() and (error := task.exception()):
        lines = "".join(f"\n  | {line}" for line in getattr(error.__cause__, "details", ()))
        log.warning("%s (its trajectories are masked)%s", error, lines)
