"""The task format of rows that describe their container themselves, in `extra_info.container`.

Besides the fields of ContainerSpec it has `set_up` and `verify`, commands that run before and after the agent, each
with its `..._timeout`, and `agent_timeout`. The reward is the number on the last line of `verify`'s output, otherwise
1 where it exits with 0, and 0 where it does not. Without `verify` the run's reward function scores the row.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from agentrl.containers import Container, ContainerSpec, Done
from agentrl.core.errors import InfraError, UserError, did_you_mean, last_line
from agentrl.core.numbers import is_reward
from agentrl.core.paths import expanded
from agentrl.core.points import task_format
from agentrl.data.plain import plain
from agentrl.tasks.format import SET_UP_TIMEOUT, TaskArguments, TookTooLong, Verdict
from agentrl.tasks.harbor.fields import Fields

WHERE = "extra_info.container"
VERIFY_TIMEOUT = 600.0
SPARE_SECONDS = 30.0
"""Seconds between a command's own limit and that of its phase."""
TAIL = 8000
"""Characters of the verifier's output that are kept."""


def _text(given: Fields, key: str) -> str:
    text = given.text(key)
    if text is None or not text.strip():
        raise given.wrong(key, text, "text")
    return text


def _number(given: Fields, key: str) -> float:
    if isinstance(value := given.get(key), str) or not given.number(key, 0):
        raise given.wrong(key, value, "a number above 0")
    return float(value)


def _flag(given: Fields, key: str) -> bool:
    if not isinstance(value := given.get(key), bool):
        raise given.wrong(key, value, "true or false")
    return value


READERS: dict[Any, Callable[[Fields, str], Any]] = {
    str: _text,
    Path: lambda given, key: expanded(_text(given, key)).absolute(),
    float: _number,
    int: lambda given, key: int(_number(given, key)),
    bool: _flag,
    tuple: Fields.names,
    Mapping: lambda given, key: {name: str(value) for name, value in given.sub(key).values.items()},
}
"""Readers of fields by the type that ContainerSpec gives them."""


def _reader(annotation: Any) -> Callable[[Fields, str], Any]:
    """The reader of a type such as `str`, `float | None` or `tuple[str, ...]`."""
    first = get_args(annotation)[0] if isinstance(annotation, UnionType) else annotation
    return READERS[get_origin(first) or first]


SPEC_FIELDS = {field.name: _reader(field.type) for field in fields(ContainerSpec) if field.name != "services"}
FIELDS = {
    **SPEC_FIELDS,
    **dict.fromkeys(("set_up", "verify"), _text),
    **dict.fromkeys(("set_up_timeout", "verify_timeout", "agent_timeout"), _number),
}
"""All fields of `extra_info.container`."""


@task_format("container")
class PlainContainer:
    """A container, and the commands before and after the agent."""

    def __init__(self, arguments: TaskArguments) -> None:
        written = Fields({key: value for key, value in plain(arguments).items() if key != "format"}, WHERE)
        for key in written.values.keys() - FIELDS.keys():
            hint = did_you_mean(key, FIELDS).strip() or f"use {', '.join(FIELDS)}"
            raise UserError(f"{WHERE}: unknown field {key!r}; {hint}")
        given = {key: FIELDS[key](written, key) for key in written.values}
        self.spec = ContainerSpec(**{key: value for key, value in given.items() if key in SPEC_FIELDS})
        self.agent_timeout: float | None = given.get("agent_timeout")
        self._set_up: str | None = given.get("set_up")
        self._verify: str | None = given.get("verify")
        self._set_up_limit: float = given.get("set_up_timeout", SET_UP_TIMEOUT)
        self._verify_limit: float = given.get("verify_timeout", VERIFY_TIMEOUT)
        self.set_up_timeout = self._set_up_limit + SPARE_SECONDS
        self.verify_timeout = self._verify_limit + SPARE_SECONDS

    async def set_up(self, container: Container) -> None:
        """Run `set_up`. Raises InfraError where it fails."""
        if self._set_up is None:
            return
        done = await container.exec(self._set_up, timeout=self._set_up_limit)
        if done.code is None:
            raise TookTooLong("set_up", self._set_up_limit)
        if done.code != 0:
            raise InfraError(f"set_up ended with code {done.code}: {last_line(done.output)}")

    async def verify(self, container: Container, logs: Path) -> Verdict | None:
        """Run `verify`. Raises InfraError where it takes too long."""
        if self._verify is None:
            return None
        done = await container.exec(self._verify, timeout=self._verify_limit)
        (logs / "verify.log").write_text(done.output, encoding="utf-8")
        if done.code is None:
            raise TookTooLong("verify", self._verify_limit)
        return Verdict(_reward(done), output=done.output[-TAIL:])


def _reward(done: Done) -> float:
    with suppress(ValueError):
        number = float(last_line(done.stdout))
        if is_reward(number):
            return number
    return float(done.code == 0)
