"""SandboxFusion's request bodies, with bounds that keep one request from filling the server.

Invariant: a valid body can be turned into a `Job` without further checks. Fields marked "extra" are extensions, which
no client needs.
"""

import base64
import binascii
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.languages import NAMES

MAX_SECONDS = 600.0
MAX_FILES = 1000
MAX_TESTS = 1000
MAX_CELLS = 1000
OUTPUT_BYTES = 32 << 20
"""Bytes of a run's stdout, and of its stderr, at most."""
REPLY_BYTES = 64 << 20
"""Bytes of the output of all runs of a request."""

if TYPE_CHECKING:
    Language = str
else:
    Language = Literal[NAMES]


def inside(path: str) -> str:
    """The path, if it stays in the work folder. Raises ValueError."""
    names = PurePosixPath(path).parts
    if not names or path.startswith("/") or ".." in names or "\0" in path:
        raise ValueError(f"{path[:80]!r} leaves the work folder; give a relative path without '..'")
    if len(names) > 32 or max(len(name.encode()) for name in names) > 255:
        raise ValueError(f"{path[:80]!r}... is too long; names have up to 255 bytes, paths up to 32 names")
    return path


def decoded(content: str | None) -> bytes | None:
    """A file's bytes. Raises ValueError for text that is not base64."""
    try:
        return None if content is None else base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64; encode a file's bytes with base64") from None


def shared(limits: Limits, runs: int) -> Limits:
    """The limits of each of `runs` runs, whose output shares one reply."""
    return replace(limits, output_bytes=min(limits.output_bytes, REPLY_BYTES // (2 * runs)))


Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Path = Annotated[str, AfterValidator(inside)]
Files = Annotated[dict[Path, Annotated[str | None, AfterValidator(decoded)]], Field(max_length=MAX_FILES)]
Paths = Annotated[list[str], Field(max_length=MAX_FILES)]


class Body(BaseModel):
    """A request's body; unknown fields are ignored, as in SandboxFusion."""

    model_config = ConfigDict(hide_input_in_errors=True, protected_namespaces=())

    def answer_within(self, patience: float) -> float | None:
        """Seconds until a 504; None: the client waits for the answer."""
        return None


class TestInput(Body):
    """Extra: one of several runs of a program."""

    __test__ = False
    stdin: str | None = None


class ExtraLimits(Body):
    """Extra: limits that SandboxFusion's requests cannot name; see agentrl_sandbox.job.Limits."""

    cpu: Seconds | None = None
    output_bytes: Annotated[int, Field(ge=0, le=OUTPUT_BYTES)] = Limits.output_bytes
    processes: Annotated[int, Field(ge=1, le=1024)] = Limits.processes
    disk_mb: Annotated[int, Field(ge=1, le=1024)] = Limits.disk_mb
    inodes: Annotated[int, Field(ge=1, le=1 << 20)] = Limits.inodes
    open_files: Annotated[int, Field(ge=16, le=4096)] = Limits.open_files

    def limits(self, wall: float, memory_mb: int) -> Limits:
        """All limits of a command."""
        return Limits(
            wall=wall,
            cpu=self.cpu,
            memory_mb=memory_mb,
            output_bytes=self.output_bytes,
            processes=self.processes,
            disk_mb=self.disk_mb,
            inodes=self.inodes,
            open_files=self.open_files,
        )


NO_LIMITS = ExtraLimits()


class RunBody(Body):
    """The common fields of /run_code and /run_jupyter."""

    memory_limit_MB: int = -1
    """MiB; 0 and less: as much as the server allows."""
    files: Files = Field(default_factory=dict)
    fetch_files: Paths = Field(default_factory=list)
    limits: ExtraLimits | None = None
    """Extra."""
    queue_timeout: Seconds | None = None
    """Extra: seconds in the queue until a 504."""

    def all_limits(self, wall: float, most_memory_mb: int) -> Limits:
        """The limits of a command with a time limit of `wall` seconds."""
        memory_mb = min(self.memory_limit_MB, most_memory_mb) if self.memory_limit_MB > 0 else most_memory_mb
        return (self.limits or NO_LIMITS).limits(wall, memory_mb)

    def contents(self) -> dict[str, bytes]:
        """{path: bytes} of the files that have a content."""
        decoded_files: dict[str, Any] = self.files
        return {path: content for path, content in decoded_files.items() if content is not None}


class RunCode(RunBody):
    """POST /run_code."""

    code: str
    language: Language
    compile_timeout: Seconds = 10
    run_timeout: Seconds = 10
    stdin: str | None = None
    tests: list[TestInput] | None = Field(None, min_length=1, max_length=MAX_TESTS)
    """Extra: several runs after one compilation, in place of `stdin`."""
    stop_on_failure: bool = False
    """Extra: skip the tests after the first failing one."""
    total_timeout: Seconds | None = None
    """Extra: seconds for all tests together; the test that reaches it is cut short, the others are skipped."""

    def answer_within(self, patience: float) -> float | None:
        """The time limits and `patience`; None for a request with a queue_timeout."""
        if self.queue_timeout is not None:
            return None
        runs = self.total_timeout or self.run_timeout * len(self.tests or [None])
        return self.compile_timeout + runs + patience

    def job(self, most_memory_mb: int) -> Job:
        """The job of the request."""
        stdins = [self.stdin] if self.tests is None else [test.stdin for test in self.tests]
        return Job(
            language=self.language,
            code=self.code,
            stdins=[(stdin or "").encode() for stdin in stdins],
            files=self.contents(),
            fetch=self.fetch_files,
            compile_limits=self.all_limits(self.compile_timeout, most_memory_mb),
            run_limits=shared(self.all_limits(self.run_timeout, most_memory_mb), len(stdins)),
            stop_on_failure=self.stop_on_failure,
            total=self.total_timeout,
        )


class RunJupyter(RunBody):
    """POST /run_jupyter."""

    cells: list[str] = Field(max_length=MAX_CELLS)
    cell_timeout: float = Field(0, ge=0, le=MAX_SECONDS, allow_inf_nan=False)
    """Seconds for each cell; 0: no limit but the next one."""
    total_timeout: Seconds = 45
    kernel: Literal["python3"] = "python3"

    def answer_within(self, patience: float) -> float | None:
        """Seconds until the answer; None where `queue_timeout` decides."""
        return None if self.queue_timeout is not None else self.total_timeout + patience


class OpenSession(RunBody):
    """POST /sessions, an extra call, without files."""

    run_timeout: Seconds = 10
    """Seconds for each cell that names none."""


class SessionId(Body):
    """POST /sessions/close."""

    id: str


class RunCell(SessionId):
    """POST /sessions/run."""

    code: str
    run_timeout: Seconds | None = None


class TestConfig(Body):
    """How /submit tests; `provided_data` holds the rows, because this server stores none."""

    __test__ = False
    dataset_type: str | None = None
    language: Language | None = None
    locale: str | None = None
    is_fewshot: bool | None = None
    compile_timeout: Seconds | None = None
    run_timeout: Seconds | None = None
    custom_extract_logic: str | None = None
    provided_data: list[dict[str, Any]] | dict[str, Any] | None = None
    extra: dict[str, Any] = Field(default_factory=dict)


class Dataset(Body):
    """POST /list_ids, and the common fields of the other dataset calls."""

    dataset: str
    config: TestConfig = Field(default_factory=TestConfig)


class GetPrompts(Dataset):
    """POST /get_prompts."""

    offset: int = Field(0, ge=0)
    limit: int = Field(1_000_000, ge=0)


class GetPromptById(Dataset):
    """POST /get_prompt_by_id."""

    id: int | str


class Submit(GetPromptById):
    """POST /submit."""

    completion: str


class GetMetrics(Dataset):
    """POST /get_metrics."""

    results: list[dict[str, Any]] = Field(default_factory=list)


class GetMetricsFunction(Dataset):
    """POST /get_metrics_function."""


class Cell(BaseModel):
    """The outcome of a notebook cell, from the driver."""

    stdout: str
    stderr: str
    display: list[dict[str, Any]]
    error: list[dict[str, Any]]
