"""What clients do with HTTP: base URLs, keys, packed bodies, methods, tools in odd places."""

import gzip
import json
import zlib
from typing import Any

import httpx
import openai
import pytest

from agentrl.http import serving as serving_of_http
from tests.gateway.serving import ADD, KEY, serving
from tests.rollout.scripted import calls, says

SAID = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3 ?"}], "max_tokens": 99}
BODY = json.dumps(SAID).encode()
BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/s/{KEY}/v1/chat/completions", {}),
        (f"/s/{KEY}/v1//chat/completions/", {}),
        (f"/s/{KEY}/messages", {"x-api-key": "none"}),
        (f"/s/{KEY}/v1/v1/messages", {}),
        ("/v1/messages", {"x-api-key": KEY}),
        ("/v1/chat/completions", {"authorization": f"bearer {KEY}"}),
        ("/chat/completions", BEARER),
        ("/v1/chat/completions", {"api-key": KEY}),
    ],
)
async def test_base_urls_and_keys_of_any_form(path: str, headers: dict[str, str]) -> None:
    async with serving(says("5")) as served, httpx.AsyncClient(base_url=served.gateway.url, timeout=None) as http:
        answer = await http.post(path, content=BODY, headers=headers)
        assert (answer.status_code, '"5"' in answer.text) == (200, True)


async def test_other_addresses_are_refused_in_the_protocols_form() -> None:
    async with serving(says("5")) as served, httpx.AsyncClient(base_url=served.gateway.url, timeout=None) as http:
        assert (await http.head("/")).status_code == 200
        for method, path in (("DELETE", "/v1/responses/resp_1"), ("OPTIONS", "/v1/embeddings"), ("GET", "/v1/batches")):
            answer = await http.request(method, path, headers=BEARER)
            message = answer.json()["error"]["message"]
            assert (answer.status_code, message.partition(";")[0]) == (404, f"{method} {path} is not served")


@pytest.mark.parametrize(
    ("coding", "body", "status", "text"),
    [
        ("gzip", gzip.compress(BODY, mtime=0), 200, '"5"'),
        ("deflate", zlib.compress(BODY), 200, '"5"'),
        ("gzip", BODY, 400, "the body is no gzip"),
        ("gzip", gzip.compress(b" " * 3000, mtime=0), 413, "the body is larger"),
        ("zstd", BODY, 400, "content-encoding: 'zstd' is not served; use gzip, or none"),
    ],
)
async def test_packed_bodies(coding: str, body: bytes, status: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_of_http, "MAX_BODY_BYTES", 2000)
    async with serving(says("5")) as served, httpx.AsyncClient(base_url=served.gateway.url, timeout=None) as http:
        headers = {**BEARER, "content-encoding": coding}
        answer = await http.post("/v1/chat/completions", content=body, headers=headers)
        assert (answer.status_code, text in answer.text) == (status, True)


@pytest.mark.parametrize(
    ("path", "wrong", "says_"),
    [
        (
            "chat/completions",
            {"tools": [{"function": {"name": "x", "parameters": 1}}]},
            "parameters: expected an object",
        ),
        ("chat/completions", {"functions": [ADD]}, "functions: not served; send them as tools"),
        ("chat/completions", {"stream": True, "stream_options": 1}, "stream_options: expected an object"),
        ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "send the tool with its input_schema"),
        ("messages", {"thinking": "yes"}, "thinking: expected an object"),
        ("messages", {"system": [{"type": "image"}]}, "system[0].type: 'image' is not served here; use text"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}] * 5000}, "resulted in 5000 tokens"),
    ],
)
async def test_fields_are_refused_before_the_model_is_asked(path: str, wrong: dict[str, Any], says_: str) -> None:
    async with serving(says("x")) as served, httpx.AsyncClient(base_url=served.gateway.url, timeout=None) as http:
        answer = await http.post(f"/v1/{path}", json={**SAID, **wrong}, headers=BEARER)
        assert (answer.status_code, says_ in answer.json()["error"]["message"]) == (400, True), answer.text
        assert not served.trajectory.ledgers


async def test_tools_of_the_provider_are_left_out() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "add", "input_schema": ADD["parameters"]}]
    async with serving(says("5")) as served, httpx.AsyncClient(base_url=served.gateway.url, timeout=None) as http:
        assert (await http.post("/v1/messages", json={**SAID, "tools": tools}, headers=BEARER)).status_code == 200
        served.session.end("done")
    assert [tool["function"]["name"] for tool in served.trajectory.schemas] == ["add"]
    assert served.trajectory.extra["gateway"]["unmet"] == {"tool web_search_20250305": 1}


async def test_tools_of_a_namespace_are_called_in_it() -> None:
    space = {"type": "namespace", "name": "sums", "tools": [{"type": "function", **ADD}]}
    async with serving(says(calls("sums__add", '{"a": 2}'), "5")) as served:
        client = openai.AsyncOpenAI(**served.openai)
        said: list[Any] = [{"role": "user", "content": "What is 2 + 3 ?"}]
        (call,) = (await client.responses.create(model="m", input=said, tools=[space])).output
        assert (call.name, call.namespace) == ("add", "sums")
        said += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "5"}]
        assert (await client.responses.create(model="m", input=said, tools=[space])).output_text == "5"
    assert len(served.trajectory.ledgers) == 1
