"""An agent program as its YAML entry describes it."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.engine import require_docker
from agentrl.core.errors import UserError, did_you_mean
from agentrl.core.user_code import UserFunction
from agentrl.gateway.settings import SESSION_KEYS, SessionSettings, function, read_settings
from agentrl.tasks.harbor.fields import Fields
from agentrl.tools.mcp.spec import with_variables
from agentrl.trajectory.trajectory import Outcome

TIMEOUT, SESSION_TIMEOUT = 600.0, 24 * 3600.0
"""Seconds of a rollout; seconds without a request or reward, after which a session of `sessions:` is over."""
FAILURES = ("infra_error", "model_error")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
STARTED = ("command", "python", "image")
LIMITS = ("timeout", "max_concurrent", "max_starting")
KEYS = ("name", *STARTED, "sessions", "container", "env", *LIMITS, "exit_codes", "host", "port", *SESSION_KEYS)
CONTAINER_KEYS = ("network", "memory", "cpus", "processes", "folder")
CPUS, MEMORY_MB, MAX_PORT = 2.0, 4096, 65_535
OWN_NETWORK = "gateway"


@dataclass(frozen=True)
class AgentProgram:
    """The program that is started for each rollout, and the outcomes of its exit codes."""

    name: str
    command: tuple[str, ...] = ()
    """Words with placeholders; empty for a Python function, and for an image's default command."""
    function: UserFunction | None = None
    container: ContainerSpec | None = None
    """The container in which the command runs; None: none of its own."""
    folder: str = "/agentrl"
    """The folder in that container that is kept."""
    inside: bool = False
    """Whether it runs in the row's own container."""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = TIMEOUT
    """Seconds."""
    exit_codes: Mapping[int | str, Outcome] = field(default_factory=dict)
    """Exit code, or "timeout", to outcome; 0 is ok and all others are infra errors unless listed."""
    max_concurrent: int | None = None
    max_starting: int = 2 * (os.cpu_count() or 1)
    """Most programs between their start and their first request: importing its packages keeps a core busy."""
    session: SessionSettings = field(default_factory=SessionSettings)
    host: str | None = None
    """The address that its gateway listens at; None: 127.0.0.1, or this host's in the containers' network."""
    port: int = 0
    """The port of the first gateway of the run; 0: any."""

    def outcome(self, code: int | str) -> Outcome:
        """The outcome of an exit code, or of "timeout"."""
        return self.exit_codes.get(code, Outcome.OK if code == 0 else Outcome.INFRA_ERROR)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced; other braces stay."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def read_program(entry: Mapping[str, Any], file: Path) -> AgentProgram:
    """The program of an entry in `file`. Raises UserError."""
    where, port = f"{file}: {entry['name']}", entry.get("port") or 0
    fields = Fields(entry, where)
    given = fields.sub("env").values
    _check_keys(entry, where)
    if not isinstance(port, int) or not 0 <= port <= MAX_PORT:
        raise UserError(f"{where}: port={port!r}: write a number up to {MAX_PORT}")
    image, inside = "image" in entry, "container" in entry
    beside = None if image or inside else file.parent
    return AgentProgram(
        entry["name"],
        command=_command(entry["command"], where, beside) if "command" in entry else (),
        function=function(entry["python"], f"{where}: python", file.parent) if "python" in entry else None,
        container=_container(fields) if image else None,
        folder=_folder(entry, where),
        inside=inside,
        env={str(name): with_variables(str(value), f"{where}: env") for name, value in given.items()},
        timeout=fields.number("timeout", 0) or (SESSION_TIMEOUT if "sessions" in entry else TIMEOUT),
        exit_codes=_exit_codes(entry.get("exit_codes") or {}, where),
        max_concurrent=int(fields.number("max_concurrent", 0)) or None,
        max_starting=int(fields.number("max_starting", 0)) or AgentProgram.max_starting,
        session=read_settings(entry, where, file.parent),
        host=fields.text("host"),
        port=port,
    )


def _check_keys(entry: Mapping[str, Any], where: str) -> None:
    if "python" in entry and ("command" in entry or "image" in entry):
        raise UserError(f"{where}: write either command or python; image goes with command")
    if "container" in entry and (entry["container"] != "task" or "command" not in entry or "image" in entry):
        raise UserError(f"{where}: container: write `container: task`, and a command that runs in the row's container")
    if "sessions" in entry and (entry["name"] != "online" or not entry.keys().isdisjoint(STARTED)):
        raise UserError(f"{where}: sessions: name it online, without {', '.join(STARTED)}: clients bring the agent")
    known = (*KEYS, *CONTAINER_KEYS) if "image" in entry else KEYS
    for key in entry.keys() - set(known):
        if key in CONTAINER_KEYS:
            raise UserError(f"{where}: {key} is for containers: leave it out, or add image")
        guess = did_you_mean(str(key), known)
        raise UserError(f"{where}: unknown key {key!r}; {guess}use {', '.join(known[1:])}")


def _command(command: Any, where: str, beside: Path | None) -> tuple[str, ...]:
    """The words; one that names a file beside the YAML becomes its full path, since programs run elsewhere.

    `beside` is None for a command in a container, whose files are not here.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: command: {error}; write one line, or a list of words") from error
    if beside is None:
        return tuple(words)
    # Not resolved: the python of a virtual environment is a link to another one.
    words = [str((beside / word).absolute()) if word and (beside / word).is_file() else word for word in words]
    if not words or shutil.which(filled(words[0], {"python": sys.executable})) is None:
        raise UserError(f"{where}: command: {words[0] if words else 'it'} is not there; install it, or write its path")
    return tuple(words)


def _folder(entry: Mapping[str, Any], where: str) -> str:
    folder = str(entry.get("folder", AgentProgram.folder)).rstrip("/")
    if not folder.startswith("/"):
        raise UserError(f"{where}: folder={folder!r}: write the path of a folder in the container, other than /")
    return folder


def _container(fields: Fields) -> ContainerSpec:
    require_docker()
    return ContainerSpec(
        fields.text("image") or "",
        cpus=fields.number("cpus", 0) or CPUS,
        memory_mb=fields.size("memory") or MEMORY_MB,
        processes=int(fields.number("processes", 0)) or ContainerSpec.processes,
        entrypoint=False,  # it runs the program
        network=fields.text("network") or OWN_NETWORK,
    )


def _exit_codes(table: Any, where: str) -> dict[int | str, Outcome]:
    try:
        return {code if code == "timeout" else int(str(code)): Outcome(outcome) for code, outcome in table.items()}
    except (ValueError, AttributeError):
        fix = f"write numbers, or timeout, with ok, {' or '.join(FAILURES)}"
        raise UserError(f"{where}: exit_codes: {fix}") from None
