"""An agent program as its YAML entry describes it."""

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction
from agentrl.trajectory.trajectory import Outcome

TIMEOUT = 600.0
FAILURES = ("infra_error", "model_error")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
KEYS = ("name", "command", "python", "env", "timeout", "exit_codes", "max_concurrent", "sampling", "host")


@dataclass(frozen=True)
class Program:
    """What is started for each rollout, and what its end means."""

    name: str
    command: tuple[str, ...] = ()
    """Words with placeholders; empty for a Python function."""
    function: UserFunction | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = TIMEOUT
    """Seconds."""
    exit_codes: Mapping[int | str, Outcome] = field(default_factory=dict)
    """Exit code, or "timeout", to outcome; 0 is ok and all others are infra errors unless listed."""
    max_concurrent: int | None = None
    own_sampling: bool = False
    """Whether its temperature and top_p count, and not the run's."""
    host: str = "127.0.0.1"
    """The address that its gateway listens at."""

    def outcome(self, code: int | str) -> Outcome:
        """What an exit code, or "timeout", means."""
        return self.exit_codes.get(code, Outcome.OK if code == 0 else Outcome.INFRA_ERROR)

    def words(self, values: Mapping[str, str]) -> list[str]:
        """The command for one rollout."""
        return [filled(word, values) for word in self.command]


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced; other braces stay."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def read_program(entry: Mapping[str, Any], file: Path) -> Program:
    """The program of an entry in `file`. Raises UserError."""
    where = f"{file}: {entry['name']}"
    _check_keys(entry, where)
    sampling = entry.get("sampling", "run")
    if sampling not in ("run", "agent"):
        raise UserError(f"{where}: sampling={sampling!r}: write run (its settings hold) or agent")
    return Program(
        entry["name"],
        command=_command(entry["command"], where, file.parent) if "command" in entry else (),
        function=_function(entry["python"], where, file.parent) if "python" in entry else None,
        env=_env(entry.get("env") or {}, where),
        timeout=_number(entry, "timeout", where) or TIMEOUT,
        exit_codes=_exit_codes(entry.get("exit_codes") or {}, where),
        max_concurrent=int(_number(entry, "max_concurrent", where)) or None,
        own_sampling=sampling == "agent",
        host=str(entry.get("host", Program.host)),
    )


def _check_keys(entry: Mapping[str, Any], where: str) -> None:
    if "image" in entry:
        raise UserError(f"{where}: image is not supported yet: write `command: docker run ...`, with --network=host")
    if ("command" in entry) == ("python" in entry):
        raise UserError(f"{where}: write either command or python")
    for key in entry.keys() - set(KEYS):
        near = get_close_matches(str(key), KEYS, 1)
        guess = f"did you mean {near[0]}?" if near else f"use {', '.join(KEYS[1:])}"
        raise UserError(f"{where}: unknown key {key!r}; {guess}")


def _command(command: Any, where: str, beside: Path) -> tuple[str, ...]:
    """The words; one that names a file beside the YAML becomes its full path, since programs run elsewhere."""
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: command: {error}; write one line, or a list of words") from error
    # Not resolved: the python of a virtual environment is a link to another one.
    words = [str((beside / word).absolute()) if word and (beside / word).is_file() else word for word in words]
    if not words or shutil.which(words[0]) is None:
        raise UserError(f"{where}: command: {words[0] if words else 'it'} is not there; install it, or write its path")
    return tuple(words)


def _function(path: Any, where: str, beside: Path) -> UserFunction:
    module, _, name = str(path).replace(":", ".").rpartition(".")
    own = beside / f"{module.removesuffix('.py')}.py"
    found = load_attribute(str(own) if own.is_file() else module, name, what=f"{where}: python")
    if not callable(found):
        raise UserError(f"{where}: python: {path} is no function")
    return UserFunction(found, owner=f"agent {name}")


def _env(env: Any, where: str) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise UserError(f"{where}: env: write a mapping of names to values")
    return {str(name): str(value) for name, value in env.items()}


def _exit_codes(table: Any, where: str) -> dict[int | str, Outcome]:
    try:
        if all(code == "timeout" or isinstance(code, int) for code in table):
            return {code: Outcome(outcome) for code, outcome in table.items()}
    except (ValueError, AttributeError):
        pass
    raise UserError(f"{where}: exit_codes: write numbers, or timeout, with ok, {' or '.join(FAILURES)}")


def _number(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = entry.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise UserError(f"{where}: {key}={value!r}: write a number above 0")
    return float(value)
