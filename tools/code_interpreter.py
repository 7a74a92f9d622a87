"""Runs the model's code in the sandbox: a new program for each call, or a session with state.

Shows: every tool has `self.sandbox`. The model reads an error of its program; a failure of the sandbox raises
InfraError, which masks the sample.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.sandbox import LanguageUnavailable, Session
from agentrl.tools import BaseTool, ModelError
from agentrl_sandbox.job import CommandResult, Job, Limits

NOTHING = "(no output)"


class CodeInterpreter(BaseTool):
    """Runs each call's code as a new program and answers with its output.

    config: `default_language` (python), `default_timeout` (seconds, 30), `memory_limit_mb` (1024), `num_workers` (calls
    at once, 10), `rate_limit` (the same for all rollout workers together, 10), `enable_global_rate_limit` (true: the
    smaller of the two applies), `sandbox_fusion_url` (a server; default: the run's own sandbox).
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        workers = int(config.get("num_workers", 10))
        if config.get("enable_global_rate_limit", True):
            workers = min(workers, int(config.get("rate_limit", 10)))
        # No time limit on the call: the sandbox limits the program, and a wait in its queue is not a failure.
        super().__init__({"timeout": None, "max_concurrency": workers, **config}, tool_schema)
        self.language = str(config.get("default_language", "python"))
        self.timeout = float(config.get("default_timeout", 30))
        self.memory_mb = int(config.get("memory_limit_mb", 1024))

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """Standard output and standard error, and the reason if the program was stopped."""
        limits = self.limits(parameters)
        language = str(parameters.get("language") or self.language)
        job = Job(language, _code(parameters), compile_limits=limits, run_limits=limits)
        try:
            result = await self.sandbox.run(job, client=instance_id)
        except LanguageUnavailable as error:
            if language == self.language:
                raise
            raise ModelError(f"Error: {error}") from error
        last = result.runs[-1] if result.runs else result.compiled
        if last is None or last.status == "Error":
            raise InfraError(f"the sandbox could not run {language}: {last and last.stderr!r}")
        return self.describe(last, limits)

    def limits(self, parameters: dict[str, Any]) -> Limits:
        """The limits of the program; the model may ask for less time if the schema has `timeout`."""
        asked = parameters.get("timeout")
        if not isinstance(asked, int | float) or asked <= 0:
            asked = self.timeout
        return Limits(wall=min(asked, self.timeout), memory_mb=self.memory_mb)

    def describe(self, run: CommandResult, limits: Limits) -> str:
        """The text for the model."""
        printed = (run.stdout + run.stderr).decode(errors="replace")
        end = _end(run, limits)
        if end is None:
            return printed or NOTHING
        return f"{printed.rstrip()}\n{end}".lstrip()


class SandboxFusionTool(CodeInterpreter):
    """CodeInterpreter with the answers of verl's tool of this name, and its methods for derived classes."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.default_language, self.default_timeout = self.language, self.timeout
        self.execution_pool = SimpleNamespace(execute=SimpleNamespace(remote=_called))

    async def execute_code(self, instance_id: str, code: str, timeout: float = 30, language: str = "python") -> Any:
        """The output of a program; derived classes rewrite the model's code first."""
        parameters = {"code": code, "timeout": timeout, "language": language}
        return await CodeInterpreter.execute(self, instance_id, parameters)

    def describe(self, run: CommandResult, limits: Limits) -> str:
        """verl's answer: the output, or these three words if the program was stopped."""
        if run.status != "Finished":
            return "no stdout here"
        return (run.stdout + run.stderr).decode(errors="replace")


@dataclass
class Notebook:
    """The session of one trajectory; the lock orders the calls of one turn."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: Session | None = None


class PythonSession(CodeInterpreter):
    """Runs each call's code in one session; the value of a last expression is shown. Release ends the session.

    config: as CodeInterpreter's; a server must be agentrl's own.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.notebooks: dict[str, Notebook] = {}

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """The output of the cell. A cell over its time limit ends the session; the next call starts a new one."""
        notebook = self.notebooks.setdefault(instance_id, Notebook())
        limits = self.limits(parameters)
        async with notebook.lock:
            if notebook.session is None or notebook.session.over:
                notebook.session = await self.sandbox.session(self.limits({}), client=instance_id)
            run = await notebook.session.run(_code(parameters), wall=limits.wall)
            ended = "\nThe session ended; variables are gone." if notebook.session.over else ""
        printed = self.describe(run, limits)
        return printed.rstrip("\n") + ended if ended else printed

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End the session."""
        notebook = self.notebooks.pop(instance_id, None)
        if notebook is not None and notebook.session is not None:
            await notebook.session.close()


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replaces a Ray actor's method: the sandbox has its own pool."""
    return function(*args, **kwargs)


def _code(parameters: dict[str, Any]) -> str:
    """The code; in JSON a model can write half a surrogate pair, which is not a character."""
    return str(parameters["code"]).encode(errors="replace").decode()


def _end(run: CommandResult, limits: Limits) -> str | None:
    """The reason why a program was stopped; None if it ended by itself."""
    if run.status == "TimeLimitExceeded" or run.limit_hit in ("time", "cpu"):
        return f"Error: stopped after {limits.wall:g} seconds."
    if run.limit_hit == "memory":
        return f"Error: stopped, it took more than {limits.memory_mb} MiB of memory."
    if run.limit_hit is not None or run.truncated:
        return f"Error: stopped, too much {run.limit_hit or 'output'}."
    if run.return_code is not None and run.return_code < 0:
        return f"Error: ended by {signal.Signals(-run.return_code).name}."
    return None
