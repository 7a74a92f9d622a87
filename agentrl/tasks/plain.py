"""The task format of rows that describe their container themselves, in `extra_info.container`.

Besides the fields of ContainerSpec it has `set_up` and `verify`, commands that run before and after the agent, each
with its `..._timeout`, and `agent_timeout`. The reward is the number on the last line of `verify`'s output, otherwise
1 where it exits with 0, and 0 where it does not. Without `verify` the run's reward function scores the row.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from math import inf
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

WHERE = "extra_info.container"
VERIFY_TIMEOUT = 600.0
SPARE_SECONDS = 30.0
"""Seconds between a command's own limit and that of its phase."""
TAIL = 8000
"""Characters of the verifier's output that are kept."""


@dataclass(frozen=True)
class FieldKind:
    """Values that a field takes."""

    wanted: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


TEXT = FieldKind("text", lambda value: isinstance(value, str) and bool(value.strip()), str)
NUMBER = FieldKind("a number above 0", _is_number, float)
KINDS: dict[Any, FieldKind] = {
    str: TEXT,
    Path: FieldKind("the path of a folder", TEXT.fits, lambda value: expanded(value).absolute()),
    float: NUMBER,
    int: FieldKind("a number above 0", _is_number, int),
    bool: FieldKind("true or false", lambda value: isinstance(value, bool), bool),
    tuple: FieldKind("a list of text", lambda value: isinstance(value, list), lambda value: tuple(map(str, value))),
    Mapping: FieldKind(
        "a mapping of names to text",
        lambda value: isinstance(value, Mapping),
        lambda value: {str(key): str(each) for key, each in value.items()},
    ),
}
"""Kinds of fields by the type that ContainerSpec gives them."""


def _kind(annotation: Any) -> FieldKind:
    """The kind of a type such as `str`, `float | None` or `tuple[str, ...]`."""
    first = get_args(annotation)[0] if isinstance(annotation, UnionType) else annotation
    return KINDS[get_origin(first) or first]


SPEC_FIELDS = {field.name: _kind(field.type) for field in fields(ContainerSpec) if field.name != "services"}
FIELDS: dict[str, FieldKind] = {
    **SPEC_FIELDS,
    "set_up": TEXT,
    "verify": TEXT,
    "set_up_timeout": NUMBER,
    "verify_timeout": NUMBER,
    "agent_timeout": NUMBER,
}
"""All fields of `extra_info.container`."""


@task_format("container")
class PlainContainer:
    """A container, and the commands before and after the agent."""

    def __init__(self, arguments: TaskArguments) -> None:
        given = {key: _read(key, value) for key, value in plain(arguments).items() if key != "format"}
        self.spec = ContainerSpec(**{key: value for key, value in given.items() if key in SPEC_FIELDS})
        self.agent_timeout: float | None = given.get("agent_timeout")
        self._set_up: str | None = given.get("set_up")
        self._verify: str | None = given.get("verify")
        self._set_up_limit: float = given.get("set_up_timeout", SET_UP_TIMEOUT)
        self._verify_limit: float = given.get("verify_timeout", VERIFY_TIMEOUT)
        self.set_up_timeout, self.verify_timeout = (
            self._set_up_limit + SPARE_SECONDS,
            self._verify_limit + SPARE_SECONDS,
        )

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


def _read(key: str, value: Any) -> Any:
    """The value of a field. Raises UserError for one that is unknown or of another kind."""
    kind = FIELDS.get(key)
    if kind is None:
        hint = did_you_mean(key, FIELDS).strip() or f"use {', '.join(FIELDS)}"
        raise UserError(f"{WHERE}: unknown field {key!r}; {hint}")
    if not kind.fits(value):
        raise UserError(f"{WHERE}: {key}={value!r}: write {kind.wanted}")
    return kind.read(value)


def _reward(done: Done) -> float:
    with suppress(ValueError):
        number = float(last_line(done.stdout))
        if is_reward(number):
            return number
    return float(done.code == 0)
