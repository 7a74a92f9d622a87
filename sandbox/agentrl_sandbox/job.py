"""A job for the sandbox, and its result.

Invariants: a `Result` exists only if the sandbox itself worked, so everything in it is the program's doing; a failure
of the sandbox is a `SandboxError` and never a verdict. Output stays bytes until text is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentrl_sandbox.errors import SandboxError

Status = Literal["Finished", "Error", "TimeLimitExceeded"]
LimitHit = Literal["time", "cpu", "memory", "output", "processes", "disk"]


SESSIONS = 1024
"""Sessions open at once in a pool: as many as a trainer has concurrent trajectories."""


class Busy(SandboxError):
    """The queue is full, or no slot was free in time. Nothing ran; a later retry may succeed."""


class Unavailable(SandboxError):
    """The language is unknown, or its toolchain is not installed."""


@dataclass(frozen=True)
class Limits:
    """The resources that one command may use."""

    wall: float = 10.0
    """Seconds from the start of the process."""
    cpu: float | None = None
    """Seconds of CPU time, all processes together; None: as `wall`."""
    memory_mb: int = 1024
    """MiB of memory of all kinds, all processes together, tmpfs included."""
    output_bytes: int = 1 << 20
    """Bytes of stdout, and of stderr. A program that writes more is killed; `truncated` is set."""
    processes: int = 128
    """Processes and threads alive at once."""
    disk_mb: int = 64
    """MiB that its files may take."""
    inodes: int = 8192
    """Files that it may create."""
    open_files: int = 256
    """File descriptors a process."""


@dataclass(frozen=True)
class Job:
    """One program, run once, or once for each of several inputs after a single compilation."""

    language: str
    """A name of agentrl_sandbox.languages."""
    code: str
    stdins: Sequence[bytes] = (b"",)
    """One run each, in order, each in a fresh copy of the work folder."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Relative path in the work folder -> content. A path that leaves the folder is a ValueError."""
    fetch: Sequence[str] = ()
    """Relative paths read back after the last run; missing files, and those that are not plain, are skipped."""
    compile_limits: Limits = Limits()
    run_limits: Limits = Limits()
    stop_on_failure: bool = False
    """Skip the runs after the first one with a status other than Finished or a return code other than 0."""
    total: float | None = None
    """Wall seconds for all runs together: the run that reaches it is cut short, the others are skipped."""


@dataclass(frozen=True)
class CommandResult:
    """The end of one command: a compilation or a run."""

    status: Status
    """Error: the command could not be started."""
    execution_time: float
    """Wall seconds from the start of the process."""
    return_code: int | None
    """None after a time limit; -N when signal N ended it."""
    stdout: bytes
    stderr: bytes
    cpu_time: float = 0.0
    """Seconds, all processes together."""
    memory_peak_mb: float = 0.0
    """MiB."""
    limit_hit: LimitHit | None = None
    truncated: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of a job."""

    isolation: str
    """The tier: namespace, bwrap, landlock or none."""
    compiled: CommandResult | None = None
    """None for languages without a compiler."""
    runs: Sequence[CommandResult] = ()
    """One per stdin; empty if the compilation failed."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files of `Job.fetch`."""
