"""OpenEnv's protocol, with a small server in place of a real one: see test_real_server.py."""

import json
import socket
from collections.abc import Iterator
from http import HTTPStatus
from threading import Event, Thread
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from agentrl.core.errors import InfraError, UserError
from agentrl.environments.kinds import openenv
from agentrl.environments.kinds.openenv import OpenEnvEnvironment
from agentrl.environments.schema_text import reader_of

NUMBER = {"title": "Guess", "properties": {"number": {"type": "integer"}, "metadata": {}}, "required": ["number"]}
TOOLS = [{"name": "add", "description": "Adds.", "input_schema": {"properties": {"a": {"type": "integer"}}}}]


class Small:
    """Answers as an OpenEnv server does; `sessions` at most."""

    def __init__(self, schema: dict[str, Any] = NUMBER, sessions: int = 2) -> None:
        self.schema, self.sessions, self.open = schema, sessions, 0
        self.asked: list[dict[str, Any]] = []
        self.ended = Event()
        """Set when a session has ended: `asked` then holds all that its client sent."""

    def schema_or_socket(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        body = json.dumps({"action": self.schema}).encode()
        return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(body))}), body)

    def session(self, connection: ServerConnection) -> None:
        if self.open == self.sessions:
            connection.send(json.dumps(error("CAPACITY_REACHED", "2 of 2 sessions are active")))
            return
        self.open += 1
        for line in connection:
            request = json.loads(line)
            self.asked.append(request)
            if request["type"] == "close":
                break
            connection.send(json.dumps(self.answer(request)))
        self.open -= 1
        self.ended.set()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        data = request["data"]
        if request["type"] == "reset":
            return seen({"text": f"seed {data['seed']}", "empty": None, "metadata": {"x": 1}})
        if data.get("type") == "list_tools":
            return seen({"tools": TOOLS})
        if data.get("type") == "call_tool":
            return seen({"tool_name": "add", "result": {"content": [{"text": "7"}], "is_error": False}}, 0.5)
        if data["number"] < 0:
            return error("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["number"], "msg": "too small"}])
        if data["number"] > 9:
            return error("EXECUTION_ERROR", "it broke")
        return seen({"text": "right"}, 1, done=True)


def seen(observation: dict[str, Any], reward: float | None = None, *, done: bool = False) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, **more}}


@pytest.fixture
def server() -> Iterator[Any]:
    started: list[Server] = []

    def start(small: Small) -> str:
        made = serve(small.session, "127.0.0.1", 0, process_request=small.schema_or_socket)
        started.append(made)
        Thread(target=made.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{made.socket.getsockname()[1]}"

    yield start
    for made in started:
        made.shutdown()


def test_a_session(server: Any) -> None:
    small = Small()
    environment = OpenEnvEnvironment(server(small), {"level": 3})
    first = environment.reset(5)
    assert first.text == "seed 5\nAnswer with a whole number: number."
    assert small.asked[0] == {"type": "reset", "data": {"level": 3, "seed": 5}}
    assert environment.step("none").text == "Invalid action: Answer with a whole number: number."
    wrong = environment.step("-1")
    assert (wrong.text, wrong.invalid) == ("Invalid action: number too small", True)
    with pytest.raises(InfraError, match="EXECUTION_ERROR: it broke"):
        environment.step("10")
    last = environment.step("I say 4.")
    assert (last.text, last.rewards, last.done, last.invalid) == ("right", {0: 1.0}, True, False)
    environment.close()
    assert small.ended.wait(60)
    assert small.asked[-1] == {"type": "close"}


def test_actions_that_are_calls_of_tools(server: Any) -> None:
    environment = OpenEnvEnvironment(server(Small({"title": "Action", "properties": {}})), {})
    assert environment.reset(1).text.endswith("The tools:\n- add(a: integer): Adds.")
    called = environment.step('I add: {"tool_name": "add", "arguments": {"a": 3}}')
    assert (called.text, called.rewards) == ("7", {0: 0.5})
    assert environment.step('{"tool_name": "sub"}').text == "Invalid action: there is no tool 'sub': add"


def test_functions_of_the_entry(server: Any) -> None:
    environment = OpenEnvEnvironment(
        server(Small()), {}, observation="<{text}{none}>", action=f"{__name__}:doubled", hint=False
    )
    assert environment.reset(2).text == "<seed 2>"
    assert environment.step("3").done


def doubled(text: str) -> dict[str, Any]:
    return {"number": 2 * int(text)}


def test_a_full_server_is_waited_for_and_a_missing_one_is_told(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "FREE", 0.1)
    with pytest.raises(InfraError, match=r"has no free session \(2 of 2 sessions are active\): start it with a larger"):
        OpenEnvEnvironment(server(Small(sessions=0)), {}).reset(0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(InfraError, match=f"no OpenEnv server answers at http://127.0.0.1:{port} .*: start it"):
        OpenEnvEnvironment(f"http://127.0.0.1:{port}", {}).reset(0)
    with pytest.raises(UserError, match="echo is no address: write that of a running server"):
        OpenEnvEnvironment("echo", {})


@pytest.mark.parametrize(
    ("fields", "text", "action"),
    [
        ({"text": {"type": "string"}}, " hello ", {"text": "hello"}),
        ({"move": {"enum": ["left", "right"]}}, "Go LEFT!", {"move": "left"}),
        ({"x": {"type": "number"}}, "about -1.5", {"x": -1.5}),
        ({"x": {"type": "number"}, "y": {"type": "number"}}, 'say {"x": 1, "y": 2}', {"x": 1, "y": 2}),
        ({"cells": {"type": "array"}}, '{"cells": [1]}', {"cells": [1]}),
    ],
)
def test_actions_by_the_schema(fields: dict[str, Any], text: str, action: dict[str, Any]) -> None:
    reader = reader_of({"properties": fields, "required": list(fields)})
    assert reader.read(text) == action


def test_texts_that_are_no_action() -> None:
    with pytest.raises(ValueError, match="one of left, right"):
        reader_of({"properties": {"move": {"enum": ["left", "right"]}}}).read("left or right")
    with pytest.raises(ValueError, match='Answer with JSON: {"x": number, "y": number}'):
        reader_of({"properties": {"x": {"type": "number"}, "y": {"type": "number"}}}).read("1 2")
