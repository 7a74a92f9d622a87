"""SandboxFusion's replies as plain dicts, with further fields that its clients ignore.

The status rule: a command that could not be started makes it SandboxError; a time limit, or a return code other than
0, makes it Failed.
"""

import base64
import os
from collections.abc import Mapping
from typing import Any

from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.job import CommandResult, Result, Unavailable

Reply = dict[str, Any]


def text(output: bytes) -> str:
    """Output as text for JSON."""
    return output.decode("utf-8", "replace")


def command_reply(command: CommandResult) -> Reply:
    """A CommandRunResult."""
    return {
        "status": command.status,
        "execution_time": command.execution_time,
        "return_code": command.return_code,
        "stdout": text(command.stdout),
        "stderr": text(command.stderr),
        "cpu_time": command.cpu_time,
        "memory_peak_MB": command.memory_peak_mb,
        "limit_hit": command.limit_hit,
        "truncated": command.truncated,
    }


def status_of(commands: list[CommandResult]) -> tuple[str, str]:
    """Status of the whole, and its message."""
    for command in commands:
        if command.status == "Error":
            return "SandboxError", text(command.stderr) or "the command could not be started"
    return ("Success" if all(map(succeeded, commands)) else "Failed"), ""


def succeeded(command: CommandResult) -> bool:
    """Whether it ended by itself with return code 0."""
    return command.status == "Finished" and command.return_code == 0


def result_reply(result: Result, *, batch: bool = False) -> Reply:
    """A RunCodeResponse; with `batch` it lists every run, and `run_result` is the first that failed or the last."""
    commands = [command for command in (result.compiled, *result.runs) if command is not None]
    status, message = status_of(commands)
    shown = next((run for run in result.runs if not succeeded(run)), result.runs[-1] if result.runs else None)
    reply: Reply = {
        "status": status,
        "message": message,
        "compile_result": None if result.compiled is None else command_reply(result.compiled),
        "run_result": None if shown is None else command_reply(shown),
        "executor_pod_name": pod_name(),
        "files": encoded(result.files),
        "isolation": result.isolation,
    }
    if batch:
        reply["tests"] = [command_reply(run) for run in result.runs]
    return reply


def failure_reply(error: SandboxError, isolation: str) -> Reply:
    """A RunCodeResponse for a failure of the sandbox."""
    return {
        "status": "SandboxError",
        "message": str(error),
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": pod_name(),
        "files": {},
        "isolation": isolation,
        "reason": "unavailable" if isinstance(error, Unavailable) else "infra",
    }


def pod_name() -> str | None:
    """The pod, in a cluster that sets MY_POD_NAME."""
    return os.environ.get("MY_POD_NAME")


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """{path: content in base64}."""
    return {path: base64.b64encode(content).decode() for path, content in files.items()}
