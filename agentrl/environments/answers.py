"""The answers of environments, and those of other programs: read in a bounded size, and checked.

A kind of environment is a class made as `Kind(id, kwargs, **others)` whose objects serve one trajectory each:
`reset(seed)` and `step(action)` give an Observation, `close()` ends it. It lives in a separate process (see `server`),
so it may block, seed the global random numbers and crash. An answer of another form than promised is an InfraError,
never the model's error.
"""

import asyncio
import dataclasses
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from agentrl.core.errors import InfraError
from agentrl.core.foreign import read_object
from agentrl.core.json_schema import WrongSchema, compiled
from agentrl.core.json_text import whole
from agentrl.core.numbers import is_reward, reward_of

MAX_ANSWER_BYTES = 2**24
"""Bytes of an answer."""
MAX_TEXT_CHARACTERS = 2**21
"""Characters of an observation."""
SHOWN_CHARACTERS = 300
"""Characters of an answer in a message."""

Json = dict[str, Any]


def fetch(url: str, timeout: float, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of the answer to a GET, or to a POST of JSON; without a proxy on this machine.

    Raises ConnectionError with the reason where nothing answers.
    """
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost")
    request = Request(url, body, {"Content-Type": "application/json"})
    try:
        with build_opener(*[ProxyHandler({})] * local).open(request, timeout=timeout) as answer:
            return answer.status, answer.read(MAX_ANSWER_BYTES + 1)
    except HTTPError as error:
        return error.code, error.read(MAX_ANSWER_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise ConnectionError(error.reason if isinstance(error, URLError) else error) from None


def parsed(text: str | bytes, who: str) -> Json:
    """The JSON object that an answer is. Raises InfraError."""
    if len(text) > MAX_ANSWER_BYTES:
        raise InfraError(f"{who} answered more than {MAX_ANSWER_BYTES >> 20} MiB")
    if (value := read_object(text)) is None:
        shown = text[:SHOWN_CHARACTERS] if isinstance(text, str) else text[:SHOWN_CHARACTERS].decode(errors="replace")
        raise InfraError(f"{who} answered no JSON object: {' '.join(shown.split()) or 'nothing'}")
    return value


def field(answer: Mapping[str, Any], name: str, kind: type, who: str) -> Any:
    """A field of an answer; an empty one where it is null or missing. Raises InfraError for one of another type."""
    value = answer.get(name)
    if not isinstance(value, kind | None):
        raise InfraError(f"{who} gave the {name} {value!r:.300}")
    return kind() if value is None else value


def checked_schema(schema: Json, what: str) -> Json:
    """A schema that can be used. Raises InfraError for another."""
    try:
        compiled(schema)
    except WrongSchema as error:
        raise InfraError(f"{what} cannot be used: {error}") from error
    return schema


def complaint(error: Mapping[str, Any]) -> str:
    """An error of pydantic in a few words."""
    place = ".".join(str(part) for part in error.get("loc", ()) if part != "body")
    return ": ".join(filter(None, (place, str(error.get("msg", "")))))


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the values, as metrics."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float) and is_reward(value)}


async def read_line(reader: asyncio.StreamReader, who: str) -> Json | None:
    """The object of a line; None at the end. Raises InfraError."""
    try:
        line = await reader.readline()
    except ValueError:  # of asyncio, where a line is longer than the reader's limit
        raise InfraError(f"{who} answered more than {MAX_ANSWER_BYTES >> 20} MiB") from None
    except OSError:
        return None
    return parsed(line, who) if line else None


@dataclasses.dataclass(frozen=True)
class Observation:
    """The state of an environment after a reset or a step, as text."""

    text: str
    """New text only: the model has the earlier ones in its conversation."""
    side: int = 0
    """The player whose turn it is."""
    rewards: dict[int, float] = dataclasses.field(default_factory=dict)
    """Earned since the last observation, by side."""
    done: bool = False
    """Whether it is over, by its own rules or limit."""
    truncated: bool = False
    """Whether a limit ended it."""
    invalid: bool = False
    """Whether the action was no valid one: the model's error. The environment may go on."""
    sides: tuple[int, ...] = (0,)
    """The sides that the policy plays, after a reset."""
    tools: list[Json] = dataclasses.field(default_factory=list)
    """OpenAI's schemas of tools, after a reset: a call of one is an action, {"name": ..., "arguments": {...}}."""
    system: str | None = None
    """The system prompt, after a reset; None: the entry's."""
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further values, for a reward function of the entry's own; not sent to the loop."""

    @classmethod
    def of_json(cls, values: dict[str, Any], who: str) -> "Observation":
        """Read the form that `to_json` wrote. Raises InfraError."""
        rewards = {int(side): reward_of(value, who) for side, value in values["rewards"].items()}
        text = whole(str(values["text"]))
        return cls(**values | {"text": text, "rewards": rewards, "sides": tuple(values["sides"])})

    def to_json(self) -> dict[str, Any]:
        """All but `info`, as JSON has it. Raises InfraError for a text that no model can read."""
        if (size := len(self.text)) > MAX_TEXT_CHARACTERS:
            raise InfraError(f"an observation has {size:,} characters, and {MAX_TEXT_CHARACTERS:,} are the most")
        values = {name: value for name, value in vars(self).items() if name != "info"}
        rewards = {str(side): float(value) for side, value in self.rewards.items()}
        return values | {"text": whole(self.text), "rewards": rewards}
