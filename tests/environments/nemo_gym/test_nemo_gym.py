"""NeMo Gym's resource servers, with a small one in place of a real one: see test_real_servers.py."""

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.environments.answers import MAX_ANSWER_BYTES
from agentrl.environments.nemo_gym import server as servers
from agentrl.environments.rows import environment_rows
from agentrl.rollout.loops.registry import loop_class
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory, TurnReward
from tests.environments.nemo_gym.small import Head, Json, Small, served
from tests.rollout.scripted import calls, environment, says

pytestmark = pytest.mark.integration

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = [{"type": "function", "name": name, "parameters": NUMBER, "strict": True} for name in ("add", "late", "broken")]
TOOLS.append({"type": "function", "name": "value", "description": "The count.", "parameters": {"type": "object"}})
ASKED = [
    {"role": "developer", "content": "Count."},
    {"role": "user", "content": [{"type": "input_text", "text": "12"}]},
]
LINE = {"responses_create_params": {"input": ASKED, "tools": TOOLS}, "start": 3, "wanted": 312}
Serve = Callable[[Small], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    started = []

    def start(small: Small) -> str:
        url, server = served(small)
        started.append(server)
        return url

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def rows_of(folder: Path, url: str, *lines: Json, written: str = "", held_out: bool = False) -> list[Row]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "environments.yaml").write_text(f'counter: {{nemo_gym: "{url}", data: rows.jsonl, {written}}}')
    data = Data(environment_config_path=str(folder / "environments.yaml"))
    return list(environment_rows("counter/val" if held_out else "counter", data=data))


async def play(row: Row, *turns: str, **limits: Any) -> Trajectory:
    bounds = {"response_length": 4000, "prompt_length": 4000, "model_length": 8000} | limits
    env, _ = environment(says(*turns), **bounds)
    trajectory = Trajectory(row, "t", 0)
    await loop_class(row.agent_name or "")(env).run(trajectory, Sampling(max_new_tokens=400))
    for ledger in trajectory.ledgers:
        ledger.check()
    return trajectory


def add(n: int) -> str:
    return calls("add", f'{{"n": {n}}}')


async def test_a_session_its_tools_and_its_verdict(tmp_path: Path, serve: Serve) -> None:
    small = Small()
    (row,) = rows_of(tmp_path, serve(small), LINE)
    assert row.prompt == [{"role": "system", "content": "Count."}, {"role": "user", "content": "12"}]
    right, wrong = await asyncio.gather(
        play(row, add(1) + add(2) + calls("value", "{}"), "It is 312."), play(row, add(2), "It is 32.")
    )
    assert (right.reward, right.reward_extra) == (1, {"count": 312, "exact": 1, "return": 1, "success": 1})
    assert (wrong.reward, wrong.reward_extra["success"]) == (0, 0)
    assert [message["content"] for message in right.messages[3:]] == ['{"ok": true}'] * 2 + [
        '{"count": 312}',
        "It is 312.",
    ]
    sent = next(body for body in small.verified if body["response"]["output"][-1]["content"][0]["text"] == "It is 312.")
    assert sent.items() > LINE.items()
    items = sent["response"]["output"]
    assert [item["type"] for item in items] == ["function_call"] * 3 + ["function_call_output"] * 3 + ["message"]
    assert [json.loads(item["arguments"]) for item in items[:3]] == [{"n": 1}, {"n": 2}, {}]
    assert [item["call_id"] for item in items[:3]] == [item["call_id"] for item in items[3:6]]
    assert sent["response"]["usage"]["output_tokens"] == right.ledgers[0].model_tokens
    assert {span.kind for span in right.spans} >= {"generate", "tool", "verify"}


async def test_wrong_calls_are_the_models_errors(tmp_path: Path, serve: Serve) -> None:
    small = Small()
    (row,) = rows_of(tmp_path, serve(small), LINE)
    done = await play(row, calls("add", "{}"), calls("verify", "{}"), calls("add", "{"), add(1), "There.")
    assert [call.outcome for call in done.tool_calls] == [Outcome.MODEL_ERROR] * 3 + [Outcome.OK]
    assert "Field required" in done.messages[3]["content"]
    assert done.messages[5]["content"].startswith("Error: there is no tool 'verify'. The tools are: add,")
    assert small.asked == ["/verify", "/seed_session", "/add", "/add", "/verify"]
    output = small.verified[0]["response"]["output"]
    assert len({item["call_id"] for item in output if item["type"] == "function_call"}) == 3


async def test_limits_of_turns_and_tokens_still_get_a_verdict(tmp_path: Path, serve: Serve) -> None:
    small = Small()
    (row,) = rows_of(tmp_path, serve(small), LINE, written="max_steps: 2")
    done = await play(row, add(1), add(2))
    assert (done.finish, done.reward, done.turns) == ("max_turns", 1, 2)
    cut = await play(row, "I think...")
    assert (cut.finish, cut.reward) == ("length", 0)
    assert small.verified[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_server_that_fails_is_late_or_dies(tmp_path: Path, serve: Serve) -> None:
    small = Small()
    url = serve(small)
    (row,) = rows_of(tmp_path, url, LINE, written="timeout: 0.5")
    with pytest.raises(InfraError, match=f'^{url}/broken answered 500: "it broke"$'):
        await play(row, calls("broken", '{"n": 1}'))
    with pytest.raises(InfraError, match=rf"^{url}/late: no answer within 0\.5 s$"):
        await play(row, calls("late", '{"n": 1}'))
    gone = url.rpartition(":")[0] + ":9"
    row.extra_info["url"] = gone
    with pytest.raises(InfraError, match=f"^{gone}/seed_session: Cannot connect"):
        await play(row, "There.")


async def test_a_server_of_ours_that_died_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SERVE", Path(__file__).with_name("starting.py"))
    (row,) = rows_of(tmp_path, "counter", LINE, written=f"python: {sys.executable}")
    server = servers.started(sys.executable, json.dumps({"id": "counter", "kwargs": {}}), str(tmp_path))
    assert (await play(row, add(1) + add(2), "312")).reward == 1
    first = server.url()
    assert server._running is not None
    os.kill(server._running.process.pid, signal.SIGKILL)
    server._running.process.wait()
    results = await asyncio.gather(*(play(row, add(1) + add(2), "312") for _ in range(4)))
    assert [trajectory.reward for trajectory in results] == [1] * 4
    assert server.url() != first
    running = server._running
    server.close()
    assert running.process.poll() is not None


class Comparing(Small):
    """Compares calls and carries out none."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = {path: about for path, about in self.paths.items() if path in ("/seed_session", "/verify")}
        self.about["paths"] = self.paths

    def post(self, path: str, body: Json, session: str) -> tuple[int, Any]:
        if path != "/verify" or "response" not in body:
            return super().post(path, body, session)
        self.asked.append(path)
        calls_ = [item for item in body["response"]["output"] if item["type"] == "function_call"]
        return 200, {"reward": float([json.loads(call["arguments"]) for call in calls_] == [{"n": 3}])}


async def test_calls_that_are_compared_and_not_carried_out_are_the_answer(tmp_path: Path, serve: Serve) -> None:
    small = Comparing()
    (row,) = rows_of(tmp_path, serve(small), LINE)
    right = await play(row, add(3), "There.")
    assert (right.reward, right.turns, right.finish, right.tool_calls) == (1, 1, "stop", [])
    wrong, none = await play(row, add(4)), await play(row, "Three.")
    assert (wrong.reward, none.reward, none.turns) == (0, 0, 1)
    assert small.asked == ["/verify", *["/seed_session", "/verify"] * 3]


BROKEN: list[tuple[str, Any, str]] = [
    ("/verify", {"reward": "high"}, "gave the reward 'high'"),
    ("/verify", {"reward": math.nan}, "gave the reward nan"),
    ("/verify", {"reward": 10**400}, "gave the reward 1000"),
    ("/verify", [1], r"/verify answered no JSON object: \[1\]"),
    ("/verify", {"reward": 1, "more": "x" * MAX_ANSWER_BYTES}, "/verify answered more than 16 MiB"),
    ("/seed_session", "hello", "/seed_session answered no JSON object"),
]


@pytest.mark.parametrize(("path", "answer", "message"), BROKEN, ids=range(len(BROKEN)))
async def test_a_broken_answer_is_an_infrastructure_error(
    tmp_path: Path, serve: Serve, path: str, answer: Any, message: str
) -> None:
    small = Small()
    (row,) = rows_of(tmp_path, serve(small), LINE)
    whole = small.post
    small.post = lambda p, *rest: (200, answer) if p == path else whole(p, *rest)  # type: ignore[method-assign]
    with pytest.raises(InfraError, match=message):
        await play(row, "There.")


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({"observation": 5, "reward": 0}, "gave the observation 5"),
        ({"observation": "x", "reward": None}, "gave the reward None"),
        ({"observation": "x", "reward": 0, "info": [1]}, r"gave the info \[1\]"),
        ({"observation": "x", "reward": 0, "info": {"tool_outputs": 7}}, "gave the tool_outputs 7"),
    ],
)
async def test_a_broken_step_is_an_infrastructure_error(tmp_path: Path, serve: Serve, seen: Json, message: str) -> None:
    small, peek = Small(steps=True), {**TOOLS[3], "name": "peek"}
    (row,) = rows_of(tmp_path, serve(small), {"responses_create_params": {"input": [], "tools": [peek]}})
    small.step = lambda *_: seen  # type: ignore[method-assign]
    with pytest.raises(InfraError, match=message):
        await play(row, calls("peek", "{}"), "7")


async def test_metrics_are_the_finite_numbers_of_a_verdict(tmp_path: Path, serve: Serve) -> None:
    small = Small()
    (row,) = rows_of(tmp_path, serve(small), LINE)
    small.post = lambda *_: (200, {"reward": 1, "a": 2, "b": math.inf, "c": 10**400, "d": "x"})  # type: ignore
    assert (await play(row, "There.")).reward_extra == {"a": 2, "return": 1, "success": 1}


async def test_a_row_that_is_refused_during_the_run_costs_its_trajectory_alone(tmp_path: Path, serve: Serve) -> None:
    small = Small()
    (row,) = rows_of(tmp_path, serve(small), LINE)
    small.post = lambda *_: (422, {"detail": [{"loc": ["body", "n"], "msg": "too small"}]})  # type: ignore
    with pytest.raises(InfraError, match="/seed_session refuses the row: n: too small"):
        await play(row, "There.")


async def test_a_server_of_steps(tmp_path: Path, serve: Serve) -> None:
    small, peek = Small(steps=True), {**TOOLS[3], "name": "peek"}
    line = {"responses_create_params": {"input": [], "tools": [peek]}}
    (row,) = rows_of(tmp_path, serve(small), line)
    right = await play(row, calls("peek", "{}"), "7")
    assert [message["role"] for message in right.messages] == ["user", "assistant", "tool", "assistant"]
    assert (right.messages[0]["content"], right.messages[2]["content"]) == ("Guess.", "it is 7")
    assert (right.reward, right.turn_rewards) == (1, [TurnReward(0, -0.25, "environment")])
    assert (right.finish, right.reward_extra) == ("terminated", {"return": 0.75, "success": 0})
    wrong = await play(row, "1", "2", "3")
    assert (wrong.finish, wrong.reward, wrong.messages[-2]["content"]) == ("max_turns", 0, "No. 1 left.")
    (row,) = rows_of(tmp_path, row.extra_info["url"], line, written="max_steps: 1")
    assert (await play(row, "1")).finish == "max_turns"


def test_a_head_server_has_the_addresses(tmp_path: Path, serve: Serve) -> None:
    counter, steps = serve(Small()), serve(Small(steps=True))
    head = serve(Head(counter=counter, steps=steps))
    lines = [{**LINE, "agent_ref": {"name": f"{name}_agent"}} for name in ("counter", "steps")]
    assert [row.extra_info["url"] for row in rows_of(tmp_path, head, *lines)] == [counter, steps]
    with pytest.raises(UserError, match=rf"rows.jsonl:1: it has no agent_ref, .* name one of {counter} \(counter\), "):
        rows_of(tmp_path, head, LINE)
    with pytest.raises(UserError, match=f"its agent_ref names x: {head} started counter_agent, steps_agent$"):
        rows_of(tmp_path, head, {**LINE, "agent_ref": {"name": "x"}})
    (row,) = rows_of(tmp_path, serve(Head(counter=counter)), LINE)
    assert row.extra_info["url"] == counter


SEARCH = {"type": "web_search"}
WRONG: list[tuple[Json, str]] = [
    ({"wanted": 1}, "it has no responses_create_params: write lines of NeMo Gym"),
    ({"responses_create_params": {}}, "responses_create_params has no input: write the prompts into the file first"),
    ({"responses_create_params": {"input": []}, "wanted": 1}, "its input is empty: write the prompt"),
    (
        {"responses_create_params": {"input": [{"role": "x"}]}},
        r"responses_create_params: input\[0\].role: 'x' is unknown",
    ),
    ({"responses_create_params": {"input": "12"}}, "it has no wanted, which URL/verify asks for"),
    (
        {"responses_create_params": {"input": "12", "tools": [{**TOOLS[0], "name": "sub"}]}, "wanted": 1},
        "its tool sub is unknown to URL",
    ),
    (
        {"responses_create_params": {"input": "12", "tools": [SEARCH, {"type": "function", "name": "x"}]}, "wanted": 1},
        "responses_create_params: tool web_search is none that runs here",
    ),
]


def test_a_wrong_entry_is_one_line(tmp_path: Path, serve: Serve) -> None:
    url, other = serve(Small()), Small()
    for line, says_ in WRONG:
        with pytest.raises(UserError, match=f"^environment counter: .*rows.jsonl:2: {says_.replace('URL', url)}"):
            rows_of(tmp_path, url, LINE, line)
    with pytest.raises(UserError, match="rows.jsonl:1: .* refuses it: wanted: Input should be a number$"):
        rows_of(tmp_path, url, {**LINE, "wanted": "many"})
    other.about = {"paths": {"/schema": {}}}
    broken = Small()
    broken.about = [1]
    with pytest.raises(UserError, match=r"is no server of NeMo Gym: .*/openapi.json answered no JSON object: \[1\]"):
        rows_of(tmp_path, serve(broken), LINE)
    for address, says_ in (
        (
            "http://127.0.0.1:9",
            r"no NeMo Gym server answers at http://127.0.0.1:9 \(.*\): start it, or correct its URL",
        ),
        ("127.0.0.1:8000", "is no server: write its name, or the address of a running one, http://"),
        ("counter", "nemo-gym is not installed here: write `python: .venv-nemo-gym/bin/python`"),
        (serve(other), "is no resource server of NeMo Gym: it has neither /verify nor /step"),
    ):
        with pytest.raises(UserError, match=says_):
            rows_of(tmp_path, address, LINE)
    with pytest.raises(UserError, match="environment counter: it has no val_data: write `val_data: rows.jsonl`"):
        rows_of(tmp_path, url, LINE, held_out=True)
    with pytest.raises(UserError, match="unknown key 'rows'"):
        rows_of(tmp_path, url, LINE, written="rows: 3")
    assert len(rows_of(tmp_path, url, LINE, LINE, written="val_data: rows.jsonl", held_out=True)) == 2
