"""A client of a sandbox server, with the interface of Pool.

Invariants: a request is repeated only if its job certainly did not run (no connection, or a 504) or if running it twice
changes nothing. A full server raises Busy, every other failure SandboxError: neither is a verdict on a program.
"""

import asyncio
import base64
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.http_client import HttpClient, Stale, Unreachable
from agentrl_sandbox.job import Busy, CommandResult, Job, Limits, Result, Unavailable

MARGIN = 30.0
"""Seconds that an answer may take beyond the time limits and the queue."""
LATE = 2.0
"""On a busy machine a program may take up to this many times its limit."""
CELL_QUEUE_TIMEOUT = 600.0
"""Seconds that a session's cell may wait for a slot."""


class NotConnected(SandboxError):
    """The server cannot be reached: nothing was sent."""


class Client:
    """Talks to agentrl's server or to SandboxFusion's. `url` may end in /run_code, as verl writes it."""

    def __init__(
        self, url: str, *, token: str | None = None, connections: int = 256, queue_timeout: float = 60.0
    ) -> None:
        """`connections`: requests at once. `queue_timeout`: seconds that a job may wait, if the call names none."""
        self.url = url.rstrip("/").removesuffix("/run_code")
        self.queue_timeout = queue_timeout
        self.isolation = "remote"
        self.report: Sequence[Any] = ()
        try:
            self._http = HttpClient(self.url)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._headers = f"authorization: Bearer {token}\r\n" if token else ""
        self._connections = asyncio.Semaphore(connections)
        self._batches = False

    async def start(self) -> None:
        """Find out which server answers. Raises UsageError for a wrong token, SandboxError if none answers."""
        status, about = await self._request("GET", "/health", timeout=MARGIN)
        if status == 200 and isinstance(about, dict) and about.get("server") == "agentrl":
            self._batches = True
            self.isolation = str(about.get("isolation"))
        elif (await self._request("GET", "/v1/ping", timeout=MARGIN))[0] != 200:
            raise SandboxError(f"{self.url}: no sandbox answers there")

    async def run(self, job: Job, *, client: str = "", queue_timeout: float | None = None) -> Result:
        """Run a job. Raises Busy, Unavailable, SandboxError, and ValueError for a job that the server refuses."""
        if self._batches:
            return await self._run(job, job.stdins, client, queue_timeout)
        parts = []
        for stdin in job.stdins:
            parts.append(await self._run(job, [stdin], client, queue_timeout))
            last = parts[-1].runs[-1] if parts[-1].runs else None
            failed = last is None or last.status != "Finished" or last.return_code != 0
            spent = sum(run.execution_time for part in parts for run in part.runs)
            if last is None or (failed and job.stop_on_failure) or (job.total is not None and spent >= job.total):
                break
        runs = [run for part in parts for run in part.runs]
        return Result(parts[-1].isolation, parts[0].compiled, runs, parts[-1].files)

    def stats(self) -> dict[str, float]:
        """Empty: the client does not know the server's load."""
        return {}

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def session(self, limits: Limits, *, client: str = "", queue_timeout: float | None = None) -> "RemoteSession":
        """Open a session. Raises Busy, SandboxError, and UsageError if the server is not agentrl's."""
        if not self._batches:
            raise UsageError(f"{self.url}: it keeps no state between calls; sessions need agentrl's own server")
        body = {"run_timeout": limits.wall, "memory_limit_MB": limits.memory_mb, "limits": extra_limits(limits)}
        opened = await self.ask("/sessions", body, queue_timeout, MARGIN, client)
        return RemoteSession(self, str(opened.get("id")), limits, client)

    async def ask(
        self,
        path: str,
        body: dict[str, Any],
        queue_timeout: float | None,
        allowed: float,
        client: str = "",
        *,
        once: bool = False,
    ) -> dict[str, Any]:
        """The reply to a request, which is repeated for `queue_timeout` seconds while the server is full or away.

        `allowed`: seconds for the work itself. Raises Busy, SandboxError, UsageError for a wrong token, ValueError for
        a body that the server refuses.
        """
        queue_timeout = self.queue_timeout if queue_timeout is None else queue_timeout
        deadline, pause = time.monotonic() + queue_timeout, 0.25
        while True:
            try:
                left = max(deadline - time.monotonic(), 0.1)
                content = body | {"queue_timeout": min(left, 600.0)}
                status, answer = await self._request(
                    "POST", path, content, timeout=allowed + left, client=client, once=once
                )
                failure: SandboxError = Busy(f"{self.url}: busy: {detail(answer)}")
            except NotConnected as error:
                status, failure = 0, error
            if status not in (0, 504):
                return self._checked(status, answer)
            if time.monotonic() + pause >= deadline:
                raise failure
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 4.0)

    async def _request(
        self, method: str, path: str, body: Any = None, *, timeout: float, client: str = "", once: bool = False
    ) -> tuple[int, Any]:
        """Status, and JSON or else text. `once`: the server must not receive it twice. Raises SandboxError."""
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = self._headers + (f"x-client-id: {quote(client)}\r\n" if client else "")
        place = f"{self._http.host}{path}"
        try:
            async with self._connections, asyncio.timeout(timeout):
                status, answer = await self._exchange(method, path, content, headers, once)
        except TimeoutError:
            raise SandboxError(f"{place}: no answer within {timeout:g} s") from None
        except Unreachable as error:
            raise NotConnected(f"{self._http.host}: cannot be reached: {error.strerror or error}") from error
        except (OSError, ValueError) as error:
            raise SandboxError(f"{place}: {str(error) or type(error).__name__}") from error
        try:
            return status, json.loads(answer)
        except ValueError:
            return status, answer.decode("utf-8", "replace")

    async def _exchange(self, method: str, path: str, body: bytes, headers: str, once: bool) -> tuple[int, bytes]:
        while True:
            try:
                return await self._http.request(method, path, body, headers=headers, fresh=once)
            except Stale:  # repeating is harmless: a run has no effect outside its sandbox
                continue

    def _checked(self, status: int, answer: Any) -> dict[str, Any]:
        if status == 401:
            raise UsageError(f"{self.url}: it expects another token")
        if status in (413, 422):
            raise ValueError(f"{self.url} refuses this: {str(answer)[:300]}")
        if status != 200 or not isinstance(answer, dict):
            raise SandboxError(f"{self.url}: answered {status}: {str(answer)[:300]}")
        return answer

    async def _run(self, job: Job, stdins: Sequence[bytes], client: str, queue_timeout: float | None) -> Result:
        body = request_body(job, stdins, batch=self._batches)
        running = min(job.run_limits.wall * len(stdins), job.total or float("inf"))
        allowed = LATE * (job.compile_limits.wall + running) + MARGIN
        answer = await self.ask("/run_code", body, queue_timeout, allowed, client)
        if answer.get("status") == "SandboxError" and not answer.get("run_result"):
            kind = Unavailable if answer.get("reason") == "unavailable" else SandboxError
            raise kind(str(answer.get("message"))[:500])
        return parse(read_result, answer)


class RemoteSession:
    """A session on a server, with the interface of agentrl_sandbox.session.Session."""

    def __init__(self, server: Client, key: str, limits: Limits, client: str) -> None:
        self.server, self.key, self.limits, self.client = server, key, limits, client
        self.over = ""

    async def run(self, code: str, *, wall: float | None = None) -> CommandResult:
        """Run a cell for at most `wall` seconds (None: the session's limit). Raises SandboxError."""
        if self.over:
            return CommandResult("Error", 0.0, None, b"", f"the session has ended: {self.over}".encode())
        wall = self.limits.wall if wall is None else wall
        body = {"id": self.key, "code": code, "run_timeout": wall}
        try:
            answer = await self.server.ask(
                "/sessions/run", body, CELL_QUEUE_TIMEOUT, LATE * wall + MARGIN, self.client, once=True
            )
        except SandboxError:
            self.over = "the server lost it"
            raise
        self.over = str(answer.get("over", ""))
        return parse(read_command, answer)

    async def close(self) -> None:
        """End the session. If the request is lost, the server ends it when it has been idle."""
        self.over = self.over or "it was closed"
        with suppress(SandboxError):
            await self.server.ask("/sessions/close", {"id": self.key}, 0.0, MARGIN)


def detail(answer: Any) -> str:
    """The reason that a server's answer gives for a failure."""
    return str(answer.get("detail") if isinstance(answer, dict) else answer)[:300]


Answer = TypeVar("Answer")


def parse(read: Callable[[dict[str, Any]], Answer], answer: dict[str, Any]) -> Answer:
    """The parsed answer. Raises SandboxError if it has the wrong form."""
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SandboxError(f"a sandbox answered in a wrong form: {error!r}") from error


def request_body(job: Job, stdins: Sequence[bytes], *, batch: bool) -> dict[str, Any]:
    """A RunCodeRequest. Raises ValueError for input that is not UTF-8, which JSON cannot carry."""
    body: dict[str, Any] = {
        "code": job.code,
        "language": job.language,
        "compile_timeout": job.compile_limits.wall,
        "run_timeout": job.run_limits.wall,
        "memory_limit_MB": job.run_limits.memory_mb,
        "stdin": stdins[0].decode(),
        "files": {path: base64.b64encode(content).decode() for path, content in job.files.items()},
        "fetch_files": list(job.fetch),
    }
    if batch:
        tests = [{"stdin": stdin.decode()} for stdin in stdins]
        body |= {"tests": tests, "stop_on_failure": job.stop_on_failure, "limits": extra_limits(job.run_limits)}
        body["total_timeout"] = job.total
    return body


def extra_limits(limits: Limits) -> dict[str, Any]:
    """Limits that SandboxFusion's requests have no field for."""
    names = ("cpu", "output_bytes", "processes", "disk_mb", "inodes", "open_files")
    return {name: getattr(limits, name) for name in names}


def read_result(answer: dict[str, Any]) -> Result:
    """The result in a RunCodeResponse. Raises KeyError, TypeError, ValueError or AttributeError for another form."""
    compiled, shown = answer.get("compile_result"), answer.get("run_result")
    runs = answer.get("tests", [shown] if shown else [])
    return Result(
        isolation=str(answer.get("isolation", "remote")),
        compiled=read_command(compiled) if compiled else None,
        runs=[read_command(run) for run in runs],
        files={path: base64.b64decode(content) for path, content in (answer.get("files") or {}).items()},
    )


def read_command(command: dict[str, Any]) -> CommandResult:
    """The result in a CommandRunResult."""
    return CommandResult(
        status=command["status"],
        execution_time=float(command.get("execution_time") or 0.0),
        return_code=command.get("return_code"),
        stdout=(command.get("stdout") or "").encode("utf-8", "surrogatepass"),
        stderr=(command.get("stderr") or "").encode("utf-8", "surrogatepass"),
        cpu_time=float(command.get("cpu_time") or 0.0),
        memory_peak_mb=float(command.get("memory_peak_MB") or 0.0),
        limit_hit=command.get("limit_hit"),
        truncated=bool(command.get("truncated", False)),
    )
