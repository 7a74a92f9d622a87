"""Resource servers: the routes and required fields that they describe, and the start of servers by this process."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from agentrl.core.errors import InfraError, UserError, reported_as
from agentrl.core.foreign import read_json, read_yaml
from agentrl.environments.answers import complaint, fetch, field, parsed
from agentrl.environments.worker import POLL_SECONDS, EnvironmentProgram, RestartedProgram

Json = dict[str, Any]
SERVE = Path(__file__).parents[1] / "nemo_gym_program" / "serve.py"
ANSWER_SECONDS = 30.0
"""Seconds for a description."""
HEAD = "/global_config_dict_yaml"
"""The route of a head server that gives the configuration of all servers."""
KINDS = ("resources_servers", "responses_api_agents", "responses_api_models")
BEGIN, VERIFY = "/seed_session", "/verify"
RESET, STEP = "/reset", "/step"
EXAMPLE = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class GymServer:
    """A resource server that runs."""

    url: str
    about: Json
    """Its OpenAPI document."""

    @classmethod
    def at(cls, url: str) -> "GymServer":
        """Raises UserError where no server answers, and for one that serves no rows."""
        server = cls(url, _described(url))
        if HEAD not in server.routes and not {VERIFY, STEP} & server.routes:
            raise UserError(f"{url} is no resource server of NeMo Gym: it has neither {VERIFY} nor {STEP}")
        if {BEGIN, STEP} <= server.routes:
            raise UserError(f"{url} needs another agent: only servers for simple_agent and gymnasium_agent run here")
        return server

    @cached_property
    def routes(self) -> set[str]:
        """Paths."""
        return set(self.about.get("paths", ()))

    @property
    def steps(self) -> bool:
        """Whether it is stepped, and does not verify a finished answer."""
        return VERIFY not in self.routes

    def lacks(self, row: Mapping[str, Any], tools: list[str]) -> Iterator[str]:
        """Why it cannot serve a row."""
        for route in (RESET, STEP) if self.steps else (BEGIN, VERIFY):
            missing = [name for name in self._required(route) if name not in row and name != "response"]
            if missing:
                yield f"it has no {missing[0]}, which {self.url}{route} asks for"
        for name in tools:
            if not self.executes([name]) and not self.steps:
                yield f"its tool {name} is unknown to {self.url}"

    def executes(self, tools: list[str]) -> bool:
        """Whether it has a route for one of these tools."""
        anything = any(route.startswith("/{") for route in self.routes)
        return anything or any(f"/{name}" in self.routes for name in tools)

    def refuses(self, row: Mapping[str, Any]) -> str | None:
        """Its own complaint about a row, of a request that has no response yet, and so does nothing."""
        path = STEP if self.steps else VERIFY
        if "response" not in self._required(path):
            return None
        status, text = asked(self.url, path, json.dumps(row).encode())
        with reported_as(self.url):
            errors = parsed(text, path).get("detail", []) if status == 422 else []
            return next((complaint(error) for error in errors if error["loc"][1:2] != ["response"]), None)

    def _required(self, route: str) -> list[str]:
        """Fields of a request that have no default."""
        schema: Json = self.about
        for name in ("paths", route, "post", "requestBody", "content", "application/json", "schema"):
            schema = schema.get(name, {})
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        named: Json = self.about.get("components", {}).get("schemas", {}).get(name, schema)
        return list(named.get("required", ()))


class GymServers:
    """The server of each row: the one at an address, or by the row's `agent_ref` one that a head server started."""

    def __init__(self, url: str) -> None:
        """Raises UserError."""
        first = GymServer.at(url)
        self.url, self.known = url, {url: first}
        self.config: Json = _configuration(url) if HEAD in first.routes else {}

    def of(self, row: Mapping[str, Any]) -> GymServer:
        """Raises UserError."""
        url = self._address(row) if self.config else self.url
        if url not in self.known:
            self.known[url] = GymServer.at(url)
        return self.known[url]

    def _address(self, row: Mapping[str, Any]) -> str:
        agent = (row.get("agent_ref") or {}).get("name")
        started = dict(self._all("resources_servers"))
        if agent is None:
            if len(started) == 1:
                return _url(next(iter(started.values())))
            listed = ", ".join(f"{_url(about)} ({name})" for name, about in started.items())
            raise UserError(f"it has no agent_ref, and {self.url} has several servers: name one of {listed or 'none'}")
        agents = dict(self._all("responses_api_agents"))
        if agent not in agents:
            raise UserError(f"its agent_ref names {agent}: {self.url} started {', '.join(agents) or 'no agent'}")
        return _url(started[agents[agent]["resources_server"]["name"]])

    def _all(self, kind: str) -> Iterator[tuple[str, Json]]:
        """Names and settings of the servers of a kind."""
        for name, about in self.config.items():
            if isinstance(about, dict) and isinstance(about.get(kind), dict):
                yield name, next(iter(about[kind].values()))


def _configuration(url: str) -> Json:
    with reported_as(f"{url}{HEAD}"):
        found: Json = dict(read_yaml(read_json(fetched(url, HEAD))))
    return found


def _described(url: str) -> Json:
    """The OpenAPI document of a server. Raises UserError."""
    try:
        document = parsed(fetched(url, "/openapi.json"), f"{url}/openapi.json")
        field(document, "paths", dict, url)
    except InfraError as error:
        raise UserError(f"{url} is no server of NeMo Gym: {error}") from error
    return document


def _url(about: Mapping[str, Any]) -> str:
    return f"http://{about['host']}:{about['port']}"


def fetched(url: str, path: str) -> bytes:
    """The answer to a GET. Raises UserError."""
    status, answer = asked(url, path)
    if status >= 400:
        raise UserError(f"{url} is no server of NeMo Gym: {path} answered {status}")
    return answer


def asked(url: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of the answer to a GET, or to a POST of JSON. Raises UserError."""
    try:
        return fetch(f"{url}{path}", ANSWER_SECONDS, body)
    except ConnectionError as error:
        raise UserError(f"no NeMo Gym server answers at {url} ({error}): start it, or correct its URL") from None


class StartedServer(RestartedProgram):
    """A server that this process starts, in an interpreter that has NeMo Gym; it ends with this process."""

    def __init__(self, program: EnvironmentProgram) -> None:
        super().__init__(program)
        self._starting = Lock()

    def url(self) -> str:
        """Its address, once it answers. Blocks. Raises InfraError where it does not start."""
        with self._starting:
            running = self._current()
            while not self._is_ready(running):
                time.sleep(POLL_SECONDS)
            return Path(running.address).read_text()


@cache
def started(python: str, settings: str, folder: str) -> StartedServer:
    """The server of these settings, as JSON, which all rows of this process share."""
    return StartedServer(EnvironmentProgram(python, SERVE, json.loads(settings), folder))
