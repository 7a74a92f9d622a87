"""The description of a row's container, and the protocols of containers and providers.

Invariants, for every provider:
- a container belongs to one try of one trajectory, and is removed at its end, after failures too;
- `InfraError` means that the container or its host failed, never that a command did;
- no method blocks the event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Network = str
"""none: no way out; full: as Docker's bridge; gateway: this machine's gateway alone; allow: `allowed` alone."""


@dataclass(frozen=True)
class Services:
    """Services of a Compose file. One of them is the container itself; the others run with it, in its networks."""

    file: Path
    folder: Path
    """A task's folder: the file mounts and builds nothing outside of it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of the file's variables; others are unset."""
    main: str = "main"
    """The service that is the container."""
    nowhere: str = "/agentrl-nowhere"
    """Begins paths that the file asks of another harness: mounts of them are left out."""


@dataclass(frozen=True)
class ContainerSpec:
    """A container as its row or task describes it. Equal specs may share an image, never a container."""

    image: str | None = None
    """Name of an image; None: built from `build`, or a provider's own where it needs no image."""
    build: Path | None = None
    """Folder with a Dockerfile; its image is cached by content."""
    workdir: str | None = None
    """Working folder of commands; None: the image's."""
    user: str | None = None
    """User of commands that name none: a name, a number, or two numbers (user:group); None: the image's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of all commands."""
    cpus: float | None = 1.0
    """None: no limit; so too below."""
    memory_mb: int | None = 2048
    storage_mb: int | None = None
    """Most MiB written to its disk."""
    processes: int | None = 512
    """Most processes at once; None: so many that it cannot use up the machine's."""
    entrypoint: bool = True
    """Whether its image's entrypoint runs from the start on, concurrently with the commands: it may start services."""
    command: tuple[str, ...] = ()
    """Runs from the start on, concurrently with other commands; the entrypoint's arguments where there is one."""
    network: Network = "none"
    allowed: tuple[str, ...] = ()
    """Hosts that `allow` lets through."""
    services: Services | None = None
    """Services that run with it; a provider without `composes = True` has none."""
    build_timeout: float = 600.0
    """Seconds for the image."""
    start_timeout: float = 60.0
    """Seconds from the image to a container that runs commands."""


@dataclass(frozen=True)
class Done:
    """How a command in a container ended."""

    code: int | None
    """Its exit code; None: it took longer than its timeout and was killed with all its children."""
    stdout: str
    stderr: str
    """Text of both, each with head and tail of what was too long; bytes that are no UTF-8 are replaced."""
    seconds: float

    @property
    def output(self) -> str:
        """Both, stdout first."""
        return self.stdout + self.stderr


class Container(Protocol):
    """A container of a row's own.

    It may have `sibling(spec)`: a further container of the same provider, still to be started, for tasks with two. For
    MCP servers of a task it may have `async address(host)`, where this machine reaches a host of the container's
    networks (None: no such host), and `attached(command)`, the words of a command on this machine that runs `command`
    in the container, connected with its standard input and output.
    """

    @property
    def name(self) -> str:
        """The name or id by which others reach it, for example `docker exec NAME`."""

    async def start(self) -> None:
        """Make it and have it run commands. Raises InfraError."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
    ) -> Done:
        """Run a command, text as `bash -c` (`sh -c` without bash), for at most `timeout` seconds. Raises InfraError.

        `user`: None is the spec's, empty the image's."""

    async def upload(self, source: Path, to: str) -> None:
        """Copy a file, or the content of a folder, to the path `to`, whose parents are made. Raises InfraError."""

    async def download(self, path: str, to: Path) -> None:
        """Copy a file, or the content of a folder, to `to` on this host. Raises InfraError; nothing leaves `to`."""

    async def host(self) -> str:
        """The address at which the started container reaches this machine. Raises InfraError where it reaches none."""

    async def stop(self) -> None:
        """Remove it with all its processes, its disk and its network. Safe to call twice, and after a start that failed
        or was cancelled. Never raises."""


class ContainerProvider(Protocol):
    """Makes containers. One object serves a run.

    It may have `async ready()`, which raises UserError where it can make none at all.
    """

    async def prepare(self, spec: ContainerSpec) -> None:
        """Have the image: pulled or built, at most once. Raises UserError with the last lines of a failed build."""

    def container(self, spec: ContainerSpec) -> Container:
        """A container that is still to be started."""

    async def close(self) -> None:
        """Remove all that the run made and does not share with the next one. Never raises."""
