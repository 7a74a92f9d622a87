"""Environments of OpenEnv servers, by their protocol: a session is a web socket."""

import json
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from agentrl.core.errors import InfraError, UserError
from agentrl.core.numbers import reward_of
from agentrl.core.points import environment_kind
from agentrl.environments import answers
from agentrl.environments.action_text import ActionReader, reader_of, text_of, tool_reader, tool_result, tools_of
from agentrl.environments.answers import Observation
from agentrl.environments.own import SteppedKind, require

SCHEMA_SECONDS = 10.0
"""Seconds for the server's description of actions."""
FREE_SESSION_SECONDS = 45.0
"""Seconds to wait for a free session."""
TOOLS = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of the actions of an environment whose actions are calls of tools."""


@environment_kind("openenv")
@dataclass(kw_only=True)
class OpenEnvEnvironment(SteppedKind):
    """One session of a server.

    `id`: the server's URL. `kwargs`: further arguments of its reset. `observation`: a text with the names of the
    observation's fields, such as {prompt}, or the path of a function of them; None: all. `action`: the path of a
    function from the model's text to the fields of an action, which raises ValueError for an invalid one; None: by the
    server's schema. `hint`: end the first observation with the form of an action. Raises UserError.
    """

    def __post_init__(self) -> None:
        if urlsplit(self.id).scheme not in ("http", "https"):
            raise UserError(f"openenv: {self.id} is no address: write that of a running server, http://127.0.0.1:8000")
        require("websockets", f"openenv: {self.id}")
        self.url = self.id.rstrip("/")
        super().__post_init__()
        self.reader: ActionReader | None = None
        self.calls_tools = False
        self.session: Any = None
        self.stack = ExitStack()

    def reset(self, seed: int) -> Observation:
        """Open a session and begin. Raises InfraError."""
        schema = self._schema()
        answer = self._opened({"type": "reset", "data": {**self.kwargs, "seed": seed}})
        self.calls_tools = schema.get("title") in TOOLS and self.action is None
        if self.calls_tools:
            listed = self._ask({"type": "step", "data": {"type": "list_tools"}})
            self.reader = tool_reader(tools_of(answers.field(listed, "observation", dict, self.url), self.url))
        else:
            self.reader = reader_of(schema)
        seen = self._seen(answer)
        hint = self.reader.hint if self.hint and self.action is None else ""
        text = "\n".join(filter(None, (seen.text, hint))) or "Begin."
        return replace(seen, text=text, invalid=False)

    def step(self, action: str) -> Observation:
        """Take an action. Raises InfraError."""
        assert self.reader is not None
        try:
            value = self.action(action) if self.action else self.reader.read(action)
            answer = self._ask({"type": "step", "data": value})
        except ValueError as error:
            return Observation(f"Invalid action: {error}", invalid=True)
        return self._seen(answer)

    def close(self) -> None:
        """End the session."""
        with self.stack:
            if self.session is not None:
                self.session.send(json.dumps({"type": "close"}))

    def _schema(self) -> dict[str, Any]:
        """The schema of an action. Raises InfraError."""
        try:
            status, written = answers.fetch(f"{self.url}/schema", SCHEMA_SECONDS)
            if status >= 400:
                raise ConnectionError(f"it answers {status}")
        except ConnectionError as error:
            raise InfraError(
                f"no OpenEnv server answers at {self.url} ({error}): start it, or correct its URL"
            ) from error
        schema = answers.field(answers.parsed(written, f"{self.url}/schema"), "action", dict, f"{self.url}/schema")
        return answers.checked_schema(schema, f"{self.url}: the schema of its actions")

    def _opened(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to the first request; waits while the server has no free session."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        until = time.monotonic() + FREE_SESSION_SECONDS
        while True:
            try:
                url = f"ws{self.url.removeprefix('http')}/ws"
                connection = connect(url, max_size=answers.MAX_ANSWER_BYTES, ping_interval=None, proxy=None)
                self.session = self.stack.enter_context(connection)
                return self._ask(request)
            except Full as error:
                if time.monotonic() > until:
                    raise InfraError(
                        f"{self.url} has no free session ({error}): start it with a larger max_concurrent_envs, and "
                        "with SUPPORTS_CONCURRENT_SESSIONS in its environment"
                    ) from error
                self.stack.close()
                time.sleep(0.2)
            except (OSError, WebSocketException) as error:
                raise InfraError(f"no OpenEnv server answers at {self.url} ({error})") from error

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The data of an answer. Raises InfraError, Full, and Invalid for an action that the server refuses."""
        from websockets.exceptions import WebSocketException

        try:
            with suppress(WebSocketException):  # a full server says so and ends the session before it is asked
                self.session.send(json.dumps(request))
            received = self.session.recv()
        except (OSError, WebSocketException) as error:
            raise InfraError(f"{self.url} ended the session: {error}") from error
        answer = answers.parsed(received, self.url)
        data: dict[str, Any] = answers.field(answer, "data", dict, self.url)
        if answer.get("type") == "error":
            raise self._error(data, acted=request["type"] == "step")
        return data

    def _error(self, data: dict[str, Any], *, acted: bool) -> Exception:
        code, message = data.get("code"), str(data.get("message"))[: answers.SHOWN_CHARACTERS]
        if code == "CAPACITY_REACHED":
            return Full(message)
        if code == "VALIDATION_ERROR" and acted:
            errors = (each for each in answers.field(data, "errors", list, self.url) if isinstance(each, dict))
            return Invalid("; ".join(map(answers.complaint, errors)) or message)
        return InfraError(f"{self.url}: {code}: {message}")

    def _seen(self, answer: dict[str, Any]) -> Observation:
        if "observation" not in answer:
            raise InfraError(f"{self.url} gave no observation")
        fields = answers.field(answer, "observation", dict, self.url)
        fields = {name: value for name, value in fields.items() if value not in (None, {}, [])}
        info, invalid = fields.pop("metadata", {}), False
        if self.calls_tools:
            fields, invalid = tool_result(fields)
        rewards = {0: reward_of(answer.get("reward") or 0.0, self.url)}
        done = answers.field(answer, "done", bool, self.url)
        return Observation(self._text(fields), rewards=rewards, done=done, invalid=invalid, info=info)

    def _text(self, fields: dict[str, Any]) -> str:
        if callable(self.observation):
            return str(self.observation(fields))
        if self.observation is not None:
            return str(self.observation).format_map(defaultdict(str, fields))  # fields that are not there are empty
        return text_of(next(iter(fields.values())) if len(fields) == 1 else fields)


class Full(Exception):
    """The server has no free session."""


class Invalid(ValueError):
    """The server refuses an action."""
