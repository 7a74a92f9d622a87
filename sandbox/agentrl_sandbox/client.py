"""A sandbox server elsewhere, used like a Pool: rewards and tools need not care which they hold.

Invariant: what is asked twice is what surely did not run: no connection, or a 504. Whatever else goes wrong is an
SandboxError, and a full server is Busy: neither is a verdict.
"""

import asyncio
import base64
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.http import JsonClient, Unreachable
from agentrl_sandbox.job import Busy, CommandResult, Job, Limits, Result, Unavailable

MARGIN = 30.0
"""Seconds that an answer may take beyond the time limits and the queue."""
LATE = 2.0
"""A busy machine gives a program up to so many times its limit."""
QUEUE = 600.0
"""Seconds that a session's cell may wait for its turn."""


class Client:
    """Speaks to agentrl's server or to SandboxFusion's; `url` may end in /run_code, as verl writes it."""

    def __init__(self, url: str, *, token: str | None = None, connections: int = 256, patience: float = 60.0) -> None:
        self.url = url.rstrip("/").removesuffix("/run_code")
        self.patience = patience
        self.isolation = "remote"
        self.report: Sequence[Any] = ()
        self._prefix = "/" + self.url.partition("://")[2].partition("/")[2]
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = JsonClient(self.url, connections=connections, headers=headers)
        self._batches = False

    async def start(self) -> None:
        """See who answers. Raises UsageError for a wrong token, SandboxError where no one does."""
        status, about = await self._http.request("GET", self._path("/health"), timeout=MARGIN)
        if status == 200 and isinstance(about, dict) and about.get("server") == "agentrl":
            self._batches = True
            self.isolation = str(about.get("isolation"))
        elif (await self._http.request("GET", self._path("/v1/ping"), timeout=MARGIN))[0] != 200:
            raise SandboxError(f"{self.url}: no sandbox answers there")

    async def run(self, job: Job, *, client: str = "", patience: float | None = None) -> Result:
        """Run a job. Raises Busy, Unavailable, SandboxError, and ValueError for what the server refuses to take."""
        if self._batches:
            return await self._run(job, job.stdins, client, patience)
        parts = []
        for stdin in job.stdins:
            parts.append(await self._run(job, [stdin], client, patience))
            last = parts[-1].runs[-1] if parts[-1].runs else None
            failed = last is None or last.status != "Finished" or last.return_code != 0
            spent = sum(run.execution_time for part in parts for run in part.runs)
            if last is None or (failed and job.stop_on_failure) or (job.total is not None and spent >= job.total):
                break
        runs = [run for part in parts for run in part.runs]
        return Result(parts[-1].isolation, parts[0].compiled, runs, parts[-1].files)

    def stats(self) -> dict[str, float]:
        """Nothing is known here of the server's load."""
        return {}

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def _path(self, path: str) -> str:
        return self._prefix.rstrip("/") + path

    async def session(self, limits: Limits, *, client: str = "", patience: float | None = None) -> "RemoteSession":
        """A Python with state. Raises UsageError where the server is not ours, Busy, SandboxError."""
        if not self._batches:
            raise UsageError(f"{self.url}: it keeps no state between calls; sessions need agentrl's own server")
        body = {"run_timeout": limits.wall, "memory_limit_MB": limits.memory_mb, "limits": extra_limits(limits)}
        opened = await self.ask("/sessions", body, self.patience if patience is None else patience, MARGIN, client)
        return RemoteSession(self, str(opened.get("id")), limits, client)

    async def ask(
        self, path: str, body: dict[str, Any], patience: float, allowed: float, client: str = "", *, once: bool = False
    ) -> dict[str, Any]:
        """A reply, asked for again while the server is full or not there, for `patience` seconds.

        Raises Busy, SandboxError, UsageError for a wrong token, ValueError for what the server does not take.
        """
        deadline, pause = time.monotonic() + patience, 0.25
        while True:
            try:
                left = max(deadline - time.monotonic(), 0.1)
                status, answer = await self._http.request(
                    "POST",
                    self._path(path),
                    body | {"queue_timeout": min(left, 600.0)},
                    timeout=allowed + left,
                    client=client,
                    once=once,
                )
                trouble: SandboxError = Busy(f"{self.url}: busy: {detail(answer)}")
            except Unreachable as error:
                status, trouble = 0, error
            if status not in (0, 504):
                return self._taken(status, answer)
            if time.monotonic() + pause >= deadline:
                raise trouble
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 4.0)

    def _taken(self, status: int, answer: Any) -> dict[str, Any]:
        if status == 401:
            raise UsageError(f"{self.url}: it wants another token than the one it got")
        if status in (413, 422):
            raise ValueError(f"{self.url} does not take this: {str(answer)[:300]}")
        if status != 200 or not isinstance(answer, dict):
            raise SandboxError(f"{self.url}: answered {status}: {str(answer)[:300]}")
        return answer

    async def _run(self, job: Job, stdins: Sequence[bytes], client: str, patience: float | None) -> Result:
        body = request_body(job, stdins, batch=self._batches)
        running = min(job.run_limits.wall * len(stdins), job.total or float("inf"))
        allowed = LATE * (job.compile_limits.wall + running) + MARGIN
        answer = await self.ask("/run_code", body, self.patience if patience is None else patience, allowed, client)
        if answer.get("status") == "SandboxError" and not answer.get("run_result"):
            kind = Unavailable if answer.get("reason") == "unavailable" else SandboxError
            raise kind(str(answer.get("message"))[:500])
        return sensible(read_result, answer)


class RemoteSession:
    """A Python with state on a server; see agentrl_sandbox.session.Session."""

    def __init__(self, server: Client, key: str, limits: Limits, client: str) -> None:
        self.server, self.key, self.limits, self.client = server, key, limits, client
        self.over = ""

    async def run(self, code: str, *, wall: float | None = None) -> CommandResult:
        """Run a cell, `wall` seconds at most (None: the session's limit). Raises SandboxError."""
        if self.over:
            return CommandResult("Error", 0.0, None, b"", f"the session has ended: {self.over}".encode())
        wall = self.limits.wall if wall is None else wall
        body = {"id": self.key, "code": code, "run_timeout": wall}
        try:
            answer = await self.server.ask("/sessions/run", body, QUEUE, LATE * wall + MARGIN, self.client, once=True)
        except SandboxError:
            self.over = "the server lost it"
            raise
        self.over = str(answer.get("over", ""))
        return sensible(read_command, answer)

    async def close(self) -> None:
        """End it; what the server does not hear, it finds out by itself."""
        self.over = self.over or "it was closed"
        with suppress(SandboxError):
            await self.server.ask("/sessions/close", {"id": self.key}, 0.0, MARGIN)


def detail(answer: Any) -> str:
    """Why an answer is none, in the server's words."""
    return str(answer.get("detail") if isinstance(answer, dict) else answer)[:300]


Told = TypeVar("Told")


def sensible(read: Callable[[dict[str, Any]], Told], answer: dict[str, Any]) -> Told:
    """What an answer says. Raises SandboxError where it makes no sense."""
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SandboxError(f"a sandbox's answer that makes no sense: {error!r}") from error


def request_body(job: Job, stdins: Sequence[bytes], *, batch: bool) -> dict[str, Any]:
    """A RunCodeRequest. Raises ValueError for input that is no UTF-8: JSON cannot carry it."""
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
        body |= {"total_timeout": job.total} if job.total is not None else {}
        body["total_timeout"] = job.total
    return body


def extra_limits(limits: Limits) -> dict[str, Any]:
    """Limits that SandboxFusion's requests have no field for."""
    names = ("cpu", "output_bytes", "processes", "disk_mb", "inodes", "open_files")
    return {name: getattr(limits, name) for name in names}


def read_result(answer: dict[str, Any]) -> Result:
    """A RunCodeResponse as a result. Raises KeyError and the like for what is none."""
    compiled, shown = answer.get("compile_result"), answer.get("run_result")
    runs = answer.get("tests", [shown] if shown else [])
    return Result(
        isolation=str(answer.get("isolation", "remote")),
        compiled=read_command(compiled) if compiled else None,
        runs=[read_command(run) for run in runs],
        files={path: base64.b64decode(content) for path, content in (answer.get("files") or {}).items()},
    )


def read_command(command: dict[str, Any]) -> CommandResult:
    """A CommandRunResult."""
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
