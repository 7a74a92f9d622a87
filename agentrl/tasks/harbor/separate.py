"""Verifies a task in a container of its own: nothing of the agent's reaches it but the files that the task names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shlex import quote

from agentrl.containers import Container
from agentrl.core.errors import InfraError, UserError
from agentrl.tasks.harbor.task import LOGS, Collect, Separate

STEP = 120.0
PUBLISHED = f"{LOGS}/artifacts"
"""A folder whose files always go along."""


@asynccontextmanager
async def verifier_container(agents: Container, separate: Separate, kept: Path) -> AsyncIterator[Container]:
    """A started container with the files that the task names, copied by way of the folder `kept`. Raises InfraError."""
    if not hasattr(agents, "sibling"):
        raise UserError(f"{type(agents).__name__} makes no second container, and the task's verifier needs one")
    for hook in separate.collect:
        await _collect(agents, hook)
    copied = [(source, await _fetched(agents, source, kept)) for source in (PUBLISHED, *separate.artifacts)]
    container: Container = agents.sibling(separate.spec)
    try:
        await container.start()
        folders = " ".join(f"{LOGS}/{name}" for name in ("verifier", "artifacts"))
        await container.exec(f"mkdir -p {folders} && chmod 777 {folders}", timeout=STEP, user="0:0", cwd="/")
        for source, place in copied:
            if place is not None:
                await container.upload(place, source)
        yield container
    finally:
        await container.stop()


async def _collect(container: Container, hook: Collect) -> None:
    """Run a command of the task before its files are copied; a failure is for the tests to find."""
    await container.exec(hook.command, timeout=hook.timeout, user=hook.user)


async def _fetched(container: Container, source: str, kept: Path) -> Path | None:
    """Where a file or a folder of the container was copied to; None if it is not there."""
    path = quote(source)
    kind = await container.exec(f"if [ -d {path} ]; then echo folder; else ls -d {path}; fi", timeout=STEP, user="0:0")
    if kind.code != 0:
        return None
    place = kept / source.strip("/")
    (place if kind.stdout.strip() == "folder" else place.parent).mkdir(parents=True, exist_ok=True)
    await container.download(source, place)
    if not place.exists():
        raise InfraError(f"{source} cannot be copied out of {container.name}")
    return place
