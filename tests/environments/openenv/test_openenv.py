"""OpenEnv's protocol, with a small server in place of a real one: see test_real_server.py."""

import json
import socket
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from agentrl.config.schema import Data
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.environments.action_text import reader_of, tools_of
from agentrl.environments.answers import MAX_ANSWER_BYTES, MAX_TEXT_CHARACTERS, Observation
from agentrl.environments.kinds import openenv
from agentrl.environments.kinds.openenv import OpenEnvEnvironment
from agentrl.environments.loop import EnvironmentAgent
from agentrl.environments.rows import environment_rows
from agentrl.rollout.attempt import attempt
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.environments.test_loop import made
from tests.rollout.scripted import says

pytestmark = pytest.mark.integration

NUMBER = {"title": "Guess", "properties": {"number": {"type": "integer"}, "metadata": {}}, "required": ["number"]}
TOOLS = [{"name": "add", "description": "Adds.", "input_schema": {"properties": {"a": {"type": "integer"}}}}]


class Broken(Exception):
    pass


class Small:
    """Answers as an OpenEnv server does; `sessions` at most."""

    def __init__(self, schema: dict[str, Any] = NUMBER, sessions: int = 2) -> None:
        self.schema, self.sessions, self.open = schema, sessions, 0
        self.asked: list[dict[str, Any]] = []
        self.description = ""
        self.broken: str | bytes | None = None
        """The answer to each step."""
        self.ended = Event()
        """Set when a session has ended: `asked` then holds all that its client sent."""

    def schema_or_socket(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        body = (self.description or json.dumps({"action": self.schema})).encode()
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
            try:
                connection.send(json.dumps(self.answer(request)))
            except Broken:
                connection.send(self.broken or "")
        self.open -= 1
        self.ended.set()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        data = request["data"]
        if request["type"] == "step" and self.broken is not None:
            raise Broken
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
        running = serve(small.session, "127.0.0.1", 0, max_size=None, process_request=small.schema_or_socket)
        started.append(running)
        Thread(target=running.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{running.socket.getsockname()[1]}"

    yield start
    for running in started:
        running.shutdown()


def test_a_session(server: Any) -> None:
    small = Small()
    environment = OpenEnvEnvironment(server(small), {"level": 3})
    first = environment.reset(5)
    assert first.text == "seed 5\nAnswer with a whole number: number."
    assert small.asked[0] == {"type": "reset", "data": {"level": 3, "seed": 5}}
    assert environment.step("none").text == "Invalid action: Answer with a whole number: number."
    wrong = environment.step("-1")
    assert (wrong.text, wrong.invalid) == ("Invalid action: number: too small", True)
    with pytest.raises(InfraError, match="EXECUTION_ERROR: it broke"):
        environment.step("10")
    last = environment.step("I say 4.")
    assert (last.text, last.rewards, last.done, last.invalid) == ("right", {0: 1.0}, True, False)
    environment.close()
    assert small.ended.wait(60)
    assert small.asked[-1] == {"type": "close"}


LONG = json.dumps({"type": "observation", "data": {"observation": {"text": "a" * (MAX_TEXT_CHARACTERS + 1)}}})
GARBAGE: list[tuple[str | bytes, str]] = [
    ("<html>502 Bad Gateway</html>", "answered no JSON object: <html>502 Bad Gateway</html>"),
    ("", "answered no JSON object: nothing"),
    (b"\xff\xfe\x00garb", "answered no JSON object: "),
    ("[]", r"answered no JSON object: \[\]"),
    ("[" * 200_000, "answered no JSON object: "),
    ('{"type": "observation"}', "gave no observation"),
    ('{"type": "observation", "data": [1]}', r"gave the data \[1\]"),
    ('{"type": "observation", "data": {"reward": 1.0, "done": true}}', "gave no observation"),
    ('{"type": "observation", "data": {"observation": "x"}}', "gave the observation 'x'"),
    ('{"type": "observation", "data": {"observation": {}, "reward": "high"}}', "gave the reward 'high'"),
    ('{"type": "observation", "data": {"observation": {}, "reward": NaN}}', "gave the reward nan"),
    ('{"type": "observation", "data": {"observation": {}, "reward": 1' + "0" * 400 + "}}", "gave the reward 1000"),
    ('{"type": "observation", "data": {"observation": {}, "done": "no"}}', "gave the done 'no'"),
    ('{"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": 3}}', "gave the errors 3"),
    ("a" * (MAX_ANSWER_BYTES + 1), "ended the session: .*(too big|exceeds)"),
    (LONG, "an observation has 2,097,153 characters, and 2,097,152 are the most"),
]


@pytest.mark.parametrize("schema", [NUMBER, {"title": "Action", "properties": {}}], ids=["fields", "tools"])
@pytest.mark.parametrize(("broken", "message"), GARBAGE, ids=range(len(GARBAGE)))
def test_a_broken_answer_is_never_the_models_mistake(
    server: Any, broken: Any, message: str, schema: dict[str, Any]
) -> None:
    small = Small(schema)
    environment = OpenEnvEnvironment(server(small), {})
    environment.reset(5)
    small.broken = broken
    with pytest.raises(InfraError, match=message):
        environment.step('{"tool_name": "add"}' if schema is not NUMBER else "4").to_json()


async def test_a_broken_answer_masks_a_trajectory_of_the_run(server: Any, tmp_path: Path) -> None:
    small = Small()
    (tmp_path / "e.yaml").write_text(f'guess: {{openenv: "{server(small)}", rows: 1}}')
    (row,) = environment_rows("guess", data=Data(environment_config_path=str(tmp_path / "e.yaml")))
    small.broken = "<html>502 Bad Gateway</html>"
    trajectory = Trajectory(row, "t", 0)
    await attempt(lambda: EnvironmentAgent(made(says("4", "5"))), trajectory, Sampling(max_new_tokens=400), timeout=60)
    assert (trajectory.outcome, trajectory.turns, trajectory.tool_calls) == (Outcome.INFRA_ERROR, 1, [])
    assert "answered no JSON object: <html>502" in str(trajectory.error)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("<html>", "/schema answered no JSON object: <html>"),
        ("[1]", r"/schema answered no JSON object: \[1\]"),
        ('{"action": 5}', "/schema gave the action 5"),
        ('{"action": {"properties": 5}}', "the schema of its actions cannot be used: properties is 5"),
        ('{"action": {"$ref": "http://127.0.0.1:9/x"}}', "cannot be used: .* nothing is fetched"),
    ],
)
def test_a_broken_description_is_told(server: Any, schema: str, message: str) -> None:
    small = Small()
    small.description = schema
    with pytest.raises(InfraError, match=message):
        OpenEnvEnvironment(server(small), {}).reset(0)


def test_half_a_surrogate_pair_is_replaced(server: Any) -> None:
    small = Small()
    environment = OpenEnvEnvironment(server(small), {})
    environment.reset(5)
    small.broken = '{"type": "observation", "data": {"observation": {"text": "a\\ud800b"}, "reward": 1, "done": true}}'
    seen = Observation.of_json(json.loads(json.dumps(environment.step("4").to_json())), "it")
    assert (seen.text, seen.rewards, seen.done) == ("a\ufffdb", {0: 1.0}, True)


def test_actions_that_are_calls_of_tools(server: Any) -> None:
    environment = OpenEnvEnvironment(server(Small({"title": "Action", "properties": {}})), {})
    (tool,) = environment.reset(1).tools
    assert tool["function"]["parameters"]["properties"] == {"a": {"type": "integer"}}
    called = environment.step('I add: {"tool_name": "add", "arguments": {"a": 3}}')
    assert (called.text, called.rewards) == ("7", {0: 0.5})
    assert environment.step("I add.").text == "Invalid action: Call a tool."


def test_functions_of_the_entry(server: Any) -> None:
    environment = OpenEnvEnvironment(
        server(Small()), {}, observation="<{text}{none}>", action=f"{__name__}:doubled", hint=False
    )
    assert environment.reset(2).text == "<seed 2>"
    assert environment.step("3").done


def doubled(text: str) -> dict[str, Any]:
    return {"number": 2 * int(text)}


def test_a_full_server_is_waited_for_and_a_missing_one_is_told(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "FREE_SESSION_SECONDS", 0.1)
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


MOVE = {"enum": ["north", "south", "east", "west"], "type": "string"}
WORDS = "Answer with one of north, south, east, west."


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ({"$defs": {"Move": MOVE}, "properties": {"move": {"$ref": "#/$defs/Move"}}}, WORDS),
        ({"$defs": {"Move": MOVE}, "properties": {"move": {"allOf": [{"$ref": "#/$defs/Move"}]}}}, WORDS),
        ({"properties": {"move": {"anyOf": [MOVE, {"type": "null"}]}}}, WORDS),
        ({"properties": {"move": {"oneOf": [{"const": word} for word in MOVE["enum"]]}}}, WORDS),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"move": MOVE}, "required": ["move"]}}}, WORDS),
        ({"properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}, "Answer with a whole number: x."),
        ({"properties": {"x": {"const": "up"}, "metadata": {}}}, "Answer with one of up."),
        (
            {
                "$defs": {"Move": MOVE},
                "properties": {"move": {"$ref": "#/$defs/Move"}, "n": {"type": ["integer", "null"]}},
                "required": ["move", "n"],
            },
            'Answer with JSON: {"move": north or south or east or west, "n": integer or null}',
        ),
    ],
)
def test_the_model_is_told_the_words_of_an_action(schema: dict[str, Any], hint: str) -> None:
    assert reader_of(schema).hint == hint


def test_tools_have_names_and_schemas() -> None:
    schema = {"properties": {"n": {"type": "integer"}}}
    written = [
        {"name": "go", "input_schema": schema},
        {"type": "function", "function": {"name": "go", "parameters": schema}},
    ]
    whole = {"name": "go", "description": "", "parameters": {"type": "object", **schema}}
    assert (
        tools_of([*written, SimpleNamespace(openai_schema=written[1])], "it")
        == [{"type": "function", "function": whole}] * 3
    )
    with pytest.raises(InfraError, match="it lists a tool without a name: 5"):
        tools_of([5], "it")
    with pytest.raises(InfraError, match="it: its tool go cannot be used"):
        tools_of([{"name": "go", "parameters": {"properties": 5}}], "it")


def test_texts_that_are_no_action() -> None:
    with pytest.raises(ValueError, match="one of left, right"):
        reader_of({"properties": {"move": {"enum": ["left", "right"]}}}).read("left or right")
    with pytest.raises(ValueError, match='Answer with JSON: {"x": number, "y": number}'):
        reader_of({"properties": {"x": {"type": "number"}, "y": {"type": "number"}}}).read("1 2")
