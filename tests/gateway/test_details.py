"""What clients ask for besides a turn: stop strings, single calls, an answer again, results in any order."""

import asyncio
import gzip
import json
import socket
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentrl.core.errors import InfraError
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.hf.hf_engine import HFEngine
from agentrl.gateway import app
from agentrl.gateway.halting import MAX_HALTS, Halting
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import AgentSession
from agentrl.http import serving as serving_of_http
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Trajectory
from tests.gateway.serving import ADD, KEY, TOOL, serving
from tests.rollout.scripted import END, ScriptedEngine, calls, environment, make_chat, row, says
from tests.training.tiny import tiny

pytestmark = pytest.mark.integration

ASKED: list[Any] = [{"role": "user", "content": "What is 2 + 3 ?"}]
BEARER = {"authorization": f"Bearer {KEY}"}


class Writer(ScriptedEngine):
    """Goes on with one text, token by token, and halts where it is told to, as real engines do."""

    drawn = 0

    def __init__(self, chat: Any, text: str, prompt: int) -> None:
        super().__init__(chat, says())
        self.ids, self.prompt = chat.tokenizer.encode(text + END, add_special_tokens=False), prompt

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        done = len(token_ids) - self.prompt
        assert list(token_ids[self.prompt :]) == self.ids[:done]
        ids = self.ids[done : done + sampling.max_new_tokens]
        end = next((i + 1 for i, token in enumerate(ids) if token in sampling.stop_token_ids), None)
        self.drawn += len(ids[:end])
        return Generation(ids[:end], [-0.5] * len(ids[:end]), "stop" if end else "length", 3)


@pytest.mark.prevents("an engine draws on after a client's stop string")
@pytest.mark.parametrize("chat", [make_chat()], ids=["bytes"])
@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("Thought: look\nAction: ls\nObservation: " + "made up result. " * 400, ["\nObservation:"]),
        ("Thought: look\nObservation: 5. " + "x " * 400, ["Observation: "]),
        ("Thought: look\nObservation:5, Observation: 6 " + "x " * 400, ["Observation: ", "never"]),
        ("a line\nanother " * 400, ["\n"]),
        ("a b c d e " * 400, [" "]),
        ("x = 1; y = 2; " * 400, ["y"]),
        ("caf\u00e9 \u2192 \u20ac5 " * 400, ["\u2192"]),
        ("<answer> 5 </answer> and more " * 400, ["</answer>", "</final>"]),
        ("no such thing " * 20, ["Observation:", "\n"]),
    ],
)
async def test_no_token_is_drawn_after_a_stop_string(text: str, stops: list[str], chat: Any) -> None:
    env, _ = environment(says(), model_length=8192, chat=chat)
    prompt = len(chat.prompt(ASKED, []))
    engine = Writer(chat, text, prompt)
    session = AgentSession(Trajectory(row(), "k", 0), replace(env, engine=engine), Sampling(8000, seed=7))
    gateway = Gateway()
    async with gateway.serving(KEY, session) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        answer = await client.chat.completions.create(model="m", messages=ASKED, stop=stops)
    (ledger,) = session.trajectory.ledgers
    ledger.check()
    found = [text.find(stop) for stop in stops if stop in text]
    content = answer.choices[0].message.content
    assert content is not None
    assert content.strip() == (text[: min(found)] if found else text).strip()
    assert engine.drawn == ledger.model_tokens == answer.usage.completion_tokens  # type: ignore[union-attr]
    own = [token for token, model in zip(ledger.ids, ledger.mask, strict=True) if model]
    assert own == engine.ids[: len(own)]
    assert (
        not found
        or chat.decode(own[:-1]).find(text[min(found) :][:1], min(found)) < 0
        or stops[0] not in chat.decode(own[:-1])
    )


async def test_the_hf_engine_draws_none_either() -> None:
    chat = make_chat()
    engine = HFEngine(tiny(vocab_size=len(chat.tokenizer)), max_num_seqs=4, max_model_len=1024)
    await engine.start()
    env, _ = environment(says(), model_length=1024, chat=chat)

    async def play(**wishes: Any) -> tuple[Any, Ledger]:
        session = AgentSession(Trajectory(row(), "k", 0), replace(env, engine=engine), Sampling(300, temperature=0.0))
        engine.open("k")
        async with Gateway().serving(KEY, session) as url:
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
            answer = await client.chat.completions.create(model="m", messages=ASKED, **wishes)
        engine.release("k")
        return answer, session.trajectory.ledgers[0]

    try:
        _, whole = await play()
        text = chat.decode([token for token, model in zip(whole.ids, whole.mask, strict=True) if model])
        stop = text[len(text) // 2 :][:3]
        before = (await engine.health())["drawn_tokens"]
        answer, ledger = await play(stop=stop)
        assert (await engine.health())["drawn_tokens"] - before == ledger.model_tokens < whole.model_tokens
        ledger.check()
        assert answer.choices[0].finish_reason == "stop"
        assert max(ledger.logprobs[ledger.prompt_length :]) <= 0
    finally:
        await engine.close()


async def test_halts_are_few_for_usual_stop_strings() -> None:
    halting = Halting(make_chat())
    halts = await halting.at(("\nObservation:",))
    assert 0 < len(halts.ids) < 100
    assert not halts.always
    assert halts is await halting.at(("\nObservation:",))
    assert MAX_HALTS > 1000


@asynccontextmanager
async def asking(*turns: str):
    async with serving(says(*turns)) as served, httpx.AsyncClient(base_url=served.gateway.url, timeout=None) as http:
        yield served, http


async def test_a_wish_that_changes_nothing_is_counted() -> None:
    both = calls("add", '{"a": 1}') + calls("add", '{"a": 2}')
    async with serving(says(both, both, both, "5", "5")) as served:
        client, other = (
            openai.AsyncOpenAI(**served.openai),
            anthropic.AsyncAnthropic(base_url=served.url, api_key="none"),
        )
        ask: Any = {"model": "m", "messages": ASKED}
        await client.chat.completions.create(**ask, tools=[TOOL], parallel_tool_calls=False, frequency_penalty=0.5)
        custom: Any = {"name": "add", "input_schema": ADD["parameters"]}
        choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
        await other.messages.create(**ask, tools=[custom], tool_choice=choice, max_tokens=99, extra_body={"top_k": 5})
        tool: Any = {"type": "function", **ADD}
        await client.responses.create(model="m", input=ASKED, tools=[tool], parallel_tool_calls=False, top_logprobs=2)
        await client.chat.completions.create(**ask, logit_bias={"1": 2}, logprobs=True, presence_penalty=0)
        await client.chat.completions.create(**ask, tools=[TOOL], parallel_tool_calls=False, user="me", n=1)
        served.session.end("done")
    assert served.trajectory.extra["gateway"]["unmet"] == {
        "parallel_tool_calls": 3,
        "frequency_penalty": 1,
        "top_k": 1,
        "logit_bias": 1,
    }


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses", "previous"])
async def test_results_in_the_order_of_their_ends_land_under_their_calls(protocol: str) -> None:
    both = calls("add", '{"a": 11}') + "\n" + calls("add", '{"a": 22}')
    async with asking(both, "33") as (served, http):
        said: list[Any] = list(ASKED)
        if protocol == "chat":
            path, body = "chat/completions", {"messages": said, "tools": [TOOL]}
            first = (await http.post(f"/v1/{path}", json=body, headers=BEARER)).json()["choices"][0]["message"]
            results = [
                {"role": "tool", "tool_call_id": c["id"], "content": c["function"]["arguments"]}
                for c in first["tool_calls"]
            ]
            said += [first, *reversed(results)]
        elif protocol == "messages":
            path = "messages"
            body = {"messages": said, "tools": [{"name": "add", "input_schema": ADD["parameters"]}], "max_tokens": 99}
            first = (await http.post(f"/v1/{path}", json=body, headers=BEARER)).json()["content"]
            results = [
                {"type": "tool_result", "tool_use_id": c["id"], "content": json.dumps(c["input"])}
                for c in first
                if c["type"] == "tool_use"
            ]
            said += [{"role": "assistant", "content": first}, {"role": "user", "content": results[::-1]}]
        else:
            path, body = "responses", {"input": said, "tools": [{"type": "function", **ADD}]}
            answer = (await http.post(f"/v1/{path}", json=body, headers=BEARER)).json()
            first = [c for c in answer["output"] if c["type"] == "function_call"]
            results = [
                {"type": "function_call_output", "call_id": c["call_id"], "output": c["arguments"]} for c in first
            ]
            if protocol == "previous":
                body |= {"previous_response_id": answer["id"], "input": results[::-1]}
            else:
                said += [*answer["output"], *reversed(results)]
        assert (await http.post(f"/v1/{path}", json=body, headers=BEARER)).status_code == 200
        (ledger,) = served.trajectory.ledgers
        text = served.engine.chat.decode(list(ledger.ids))
        assert text.rindex('{"a": 11}') < text.rindex('{"a": 22}')
        assert [m["content"] for m in served.trajectory.messages if m["role"] == "tool"] == ['{"a": 11}', '{"a": 22}']


@pytest.mark.parametrize("headers", [{"x-stainless-retry-count": "1"}, {"idempotency-key": "abc"}])
@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
async def test_a_lost_answer_is_sent_again(path: str, headers: dict[str, str]) -> None:
    body = {"messages": ASKED, "input": ASKED, "max_tokens": 99, "model": "m"}
    async with asking("first", "second", "third") as (served, http):
        name = {"idempotency-key": "abc"} if "idempotency-key" in headers else {}
        first = await http.post(f"/v1/{path}", json=body, headers=BEARER | name)
        again = await http.post(f"/v1/{path}", json=body, headers=BEARER | headers)
        assert first.json() == again.json()
        assert (len(served.trajectory.ledgers), served.trajectory.turns, served.session.requests) == (1, 1, 1)
        other = await http.post(f"/v1/{path}", json=body, headers=BEARER | {"idempotency-key": "other"})
        assert "second" in other.text  # a client that wants two answers gets two
        assert len(served.trajectory.ledgers) == 2


async def test_a_client_that_retries_makes_one_ledger() -> None:
    """The answer is made and lost: the connection is cut by someone between."""
    async with serving(says("first", "second")) as served:
        host, port = served.gateway.url.removeprefix("http://").split(":")
        cut = True

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal cut
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            while data := await reader.read(1 << 16):
                far_writer.write(data)
                if cut and data.rstrip().endswith(b"}"):
                    cut = False
                    await far_reader.read(1 << 16)
                    break
                if data.rstrip().endswith(b"}"):
                    writer.write(await far_reader.read(1 << 16))
            far_writer.close()
            writer.close()

        proxy = await asyncio.start_server(between, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/v1"
        client = openai.AsyncOpenAI(base_url=url, api_key=KEY)
        answer = await client.chat.completions.create(model="m", messages=ASKED)
        await client.close()
        proxy.close()
        assert (answer.choices[0].message.content, len(served.trajectory.ledgers)) == ("first", 1)


THOUGHTS = ["<think>\nfirst\n</think>\n\n", "<think>\nsecond\n</think>\n\n"]


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
@pytest.mark.parametrize("call", ["", calls("add", '{"a": 1}')])
async def test_equal_answers_are_told_apart_by_their_thinking_and_calls(protocol: str, call: str) -> None:
    async with asking(*(thought + (call or "same") for thought in THOUGHTS), "5") as (served, http):
        said: list[Any] = list(ASKED)
        if protocol == "chat":
            path, body = "chat/completions", {"messages": said, "tools": [TOOL]}
        elif protocol == "messages":
            tools = [{"name": "add", "input_schema": ADD["parameters"]}]
            path, body = (
                "messages",
                {"messages": said, "tools": tools, "max_tokens": 99, "thinking": {"type": "adaptive"}},
            )
        else:
            path, body = "responses", {"input": said, "tools": [{"type": "function", **ADD}]}
        answers = [(await http.post(f"/v1/{path}", json=body, headers=BEARER)).json() for _ in range(2)]
        if protocol == "chat":
            message = answers[1]["choices"][0]["message"]
            result = [{"role": "tool", "tool_call_id": c["id"], "content": "r"} for c in message.get("tool_calls", ())]
            if call:
                message.pop("reasoning_content")
            said += [message, *(result or [{"role": "user", "content": "go"}])]
        elif protocol == "messages":
            blocks = answers[1]["content"]
            result = [{"type": "tool_result", "tool_use_id": b["id"], "content": "r"} for b in blocks if "input" in b]
            said += [{"role": "assistant", "content": blocks}, {"role": "user", "content": result or "go"}]
        else:
            items = answers[1]["output"]
            result = [
                {"type": "function_call_output", "call_id": i["call_id"], "output": "r"}
                for i in items
                if "call_id" in i
            ]
            said += [*items, *(result or [{"role": "user", "content": "go"}])]
        assert (await http.post(f"/v1/{path}", json=body, headers=BEARER)).status_code == 200
        first, second = served.trajectory.ledgers
        assert (len(first.turn_ids()), len(second.turn_ids())) == (1, 2)


BODY = json.dumps({"messages": ASKED}).encode()


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (gzip.compress(BODY[:20], mtime=0) + gzip.compress(BODY[20:], mtime=0), 200, '"5"'),
        (gzip.compress(BODY, mtime=0)[:-12], 400, "its end is missing"),
        (gzip.compress(BODY, mtime=0)[:-1], 400, "its end is missing"),
        (gzip.compress(BODY, mtime=0) + b"rest", 400, "the body is no gzip"),
        (gzip.compress(b"", mtime=0) * 2000, 400, "gzip of more than 1000 parts"),
        (b"", 400, "its end is missing"),
    ],
)
async def test_packed_bodies_in_parts(body: bytes, status: int, text: str) -> None:
    async with asking("5") as (_, http):
        answer = await http.post("/v1/chat/completions", content=body, headers={**BEARER, "content-encoding": "gzip"})
        assert (answer.status_code, text in answer.text) == (status, True), answer.text


@pytest.mark.parametrize("kind", ["openai", "urllib", "chunks", "slow reader"])
async def test_a_body_that_is_too_large_gets_its_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_of_http, "MAX_BODY_BYTES", 1 << 20)
    async with serving(says("5")) as served:
        large = "x" * (24 << 20)
        if kind == "openai":
            client = openai.AsyncOpenAI(**served.openai, max_retries=0)
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": large}])
            assert (caught.value.status_code, caught.value.code) == (413, "too_large")
            return
        port = int(served.gateway.url.rpartition(":")[2])
        assert b"larger than 1 MiB" in await asyncio.to_thread(sent_whole, port, large.encode(), kind)


def sent_whole(port: int, body: bytes, kind: str) -> bytes:
    """The answer to a client that reads only after it has sent all."""
    length = "Transfer-Encoding: chunked" if kind == "chunks" else f"Content-Length: {len(body)}"
    close = "" if kind == "slow reader" else "Connection: close\r\n"
    head = f"POST /s/{KEY}/v1/messages HTTP/1.1\r\nHost: x\r\n{close}{length}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if kind == "chunks" else body))
        answer = b""
        while b"}" not in answer and (part := connection.recv(1 << 16)):
            answer += part
        return answer if answer.startswith(b"HTTP/1.1 413") else b""


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/messages", {}, 404),
        ("DELETE", "/v1/messages/batches/1", {}, 404),
        ("GET", "/v1/models", {"anthropic-version": "2023-06-01", "x-api-key": "wrong"}, 401),
        ("POST", "/v1/messages", {"origin": "http://evil.example"}, None),
        ("POST", "/v1/messages", {"x-api-key": "wrong"}, 401),
        ("PUT", "/v1/chat/completions", {}, 404),
        ("GET", "/v1/responses", {}, 404),
        ("GET", "/%ff%fe/%00", {}, 404),
    ],
)
async def test_every_error_has_its_protocols_form(
    method: str, path: str, headers: dict[str, str], status: int | None
) -> None:
    async with asking() as (_, http):
        answer = await http.request(method, path, headers={**BEARER, **headers})
        error = answer.json()
        assert answer.status_code == (status or 403)
        if "messages" in path or "anthropic-version" in headers:
            assert error["type"] == "error"
            assert error["error"].keys() == {"type", "message"}
        else:
            assert error["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "fields",
    [
        '"max_tokens": 1' + "0" * 5000,
        '"max_tokens": 1' + "0" * 400,
        '"temperature": 1' + "0" * 400,
        '"temperature": 1e400',
        '"top_p": 1' + "0" * 400,
        '"seed": 1' + "0" * 400,
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 1' + "0" * 400 + "}}}]",
        '"n": 1' + "0" * 30,
        '"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": '
        '{"name": "f", "arguments": "{\\"n\\": 1' + "0" * 5000 + '}"}}]}, {"role": "user", "content": "x"}]',
        '"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": '
        '{"name": "f", "arguments": {"n": 1' + "0" * 400 + '}}}]}, {"role": "user", "content": "x"}]',
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
async def test_huge_integers_are_no_failure_of_ours(path: str, fields: str) -> None:
    async with asking("5") as (_, http):
        body = f'{{"max_tokens": 9, "messages": [{{"role": "user", "content": "x"}}], "input": "x", {fields}}}'
        answer = await http.post(f"/v1/{path}", content=body, headers=BEARER)
        assert answer.status_code in (200, 400), answer.text
        assert "agentrl failed" not in answer.text


async def test_bodies_that_cannot_fit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "parse", lambda text: pytest.fail("it was read"))
    async with asking("5") as (_, http):
        for rest in ('"x": [' + "[]," * 10**6 + "0]", '"x": [' + "0," * 10**6 + "0]"):
            body = f'{{"messages": [{{"role": "user", "content": "x"}}], {rest}}}'
            answer = await http.post("/v1/chat/completions", content=body, headers=BEARER)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_port_that_is_taken_names_no_option() -> None:
    """The port stands in an agent's YAML, in data.train_files, or after --port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InfraError, match=f"at 127.0.0.1: port {port}: Address already in use.*; choose another"):
            await Gateway("127.0.0.1", port).start()
