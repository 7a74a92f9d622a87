"""What clients do wrong: each gets a clear error in its protocol's form, and nothing is left."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentrl.gateway import app, session
from tests.gateway.serving import KEY, serving
from tests.rollout.scripted import says


async def test_too_many_requests_at_once_are_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_WAITING", 0)
    async with serving(says("x")) as served, httpx.AsyncClient(base_url=served.url, timeout=None) as http:
        said = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
        for path, kind in (("chat/completions", "invalid_request_error"), ("messages", "rate_limit_error")):
            answer = await http.post(f"/v1/{path}", json=said)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json()["error"]["type"] == kind
    assert not served.trajectory.ledgers


async def test_errors_have_the_protocols_form() -> None:
    async with serving(says("x", "x"), model_length=64) as served:
        client = openai.AsyncOpenAI(**served.openai, max_retries=0)
        other = anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0)
        long = [{"role": "user", "content": "word " * 200}]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 64 tokens") as caught:
            await client.chat.completions.create(model="m", messages=long, stream=True)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 64 maximum"):
            await other.messages.create(model="m", messages=long, max_tokens=5)
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\].role: 'wizard' is unknown"):
            await client.chat.completions.create(model="m", messages=[{"role": "wizard", "content": "x"}])
        with pytest.raises(openai.BadRequestError, match="this rollout has no answer '1'"):
            await client.responses.create(model="m", input="x", previous_response_id="resp_1")
        picture = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
        with pytest.raises(openai.BadRequestError, match=r"content\[0\]: send the image itself, as data:image/png"):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": picture}])
        stray = openai.AsyncOpenAI(base_url=f"{served.gateway.url}/v1", api_key="wrong")
        with pytest.raises(openai.AuthenticationError, match="its key is of no rollout that runs: use the base URL"):
            await stray.models.list()
        by_key = openai.AsyncOpenAI(base_url=f"{served.gateway.url}/v1", api_key=KEY)
        assert [model.id async for model in await by_key.models.list()] == ["policy"]
    assert not served.trajectory.ledgers


@pytest.fixture
def usual_recursion() -> Iterator[None]:
    """Python's own limit of recursion, which libraries and other tests raise."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


async def test_arguments_nested_too_deep_are_refused(usual_recursion: None) -> None:
    """Deeper than Python's limit wherever the stack is when they are read, and not too deep for orjson (1,024)."""
    async with serving(says("x")) as served, httpx.AsyncClient(base_url=served.url, timeout=None) as http:
        call = b'{"type": "tool_use", "id": "1", "name": "add", "input": %b1%b}' % (b'{"a": ' * 1010, b"}" * 1010)
        said = b'{"role": "assistant", "content": [%b]}, {"role": "user", "content": "x"}' % call
        answer = await http.post("/v1/messages", content=b'{"max_tokens": 5, "messages": [%b]}' % said)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body is nested too deep")


async def test_ten_megabytes_are_refused_before_they_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(says("x")) as served, httpx.AsyncClient(base_url=served.url, timeout=None) as http:
        monkeypatch.setattr(served.session.chat, "prompt", None)
        said = {"model": "m", "messages": [{"role": "user", "content": "word " * 2_000_000}], "max_tokens": 5}
        for path, message in (
            ("chat/completions", "resulted in 2500000 tokens"),
            ("messages", "2500000 tokens > 4096"),
        ):
            answer = await http.post(f"/v1/{path}", json=said)
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "says_"),
    [
        (b"{", "the body is no JSON"),
        (b"[1]", "the body is no JSON object"),
        (b"[" * 100_000, "the body is no JSON"),
        (b'{"messages": 3}', "messages: expected a list, got 3"),
        (b'{"messages": []}', "messages: give at least one"),
        (b'{"messages": [{"role": "user", "content": [{"type": "audio"}]}]}', "content[0].type: 'audio' is not served"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', "n: only 1 is served"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "max_tokens: give 1 or more"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "the last one is the assistant's"),
    ],
)
async def test_a_bad_body_is_one_clear_line(body: bytes, says_: str) -> None:
    async with serving(says("x")) as served, httpx.AsyncClient(base_url=served.url, timeout=None) as http:
        answer = await http.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400
        assert says_ in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_leaves_nothing(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "QUIET_SECONDS", 0.01)
    async with serving(says("The answer is 4 .", "The answer is 5 .")) as served:
        begun, go, play = asyncio.Event(), asyncio.Event(), served.engine.generate
        ended: list[str] = []

        async def slow(*args: Any, **kwargs: Any) -> Any:
            begun.set()
            try:
                await go.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return await play(*args, **kwargs)

        served.engine.generate = slow  # type: ignore[method-assign]
        said = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3 ?"}]}
        async with httpx.AsyncClient(base_url=served.url, timeout=None) as http:
            if stream:
                async with http.stream("POST", "/v1/chat/completions", json={**said, "stream": True}) as answer:
                    assert (await anext(answer.aiter_lines())) == ": the model thinks"
            else:
                task = asyncio.create_task(http.post("/v1/chat/completions", json=said))
                await begun.wait()
                task.cancel()
        while not ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not served.trajectory.ledgers
        go.set()
        client = openai.AsyncOpenAI(**served.openai)
        again = await client.chat.completions.create(**said)
        assert again.choices[0].message.content == "The answer is 4 ."
    assert len(served.trajectory.ledgers) == 1


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_unknown_fields_change_nothing(path: str) -> None:
    async with (
        serving(says("It is 5.", "Other .")) as served,
        httpx.AsyncClient(base_url=served.url, timeout=None) as http,
    ):
        odd = {"wizard": {"level": 3}}
        said: dict[str, Any] = {
            "model": "m",
            "max_tokens": 99,
            "messages": [{"role": "user", "content": "x", **odd}],
            **odd,
        }
        answer = await http.post(f"/v1/{path}", json=said)
        assert (answer.status_code, "It is 5." in answer.text) == (200, True)
    (ledger,) = served.trajectory.ledgers
    assert "wizard" not in served.session.chat.decode(ledger.ids)


async def test_two_clients_with_one_key_share_a_rollout() -> None:
    async with serving(says("One .", "Two .", "Three .", "Four .")) as served:
        clients = [openai.AsyncOpenAI(**served.openai) for _ in range(2)]
        histories: list[list[Any]] = [[{"role": "user", "content": name}] for name in ("first", "second")]

        async def turn(client: openai.AsyncOpenAI, said: list[Any]) -> None:
            made = await client.chat.completions.create(model="m", messages=said)
            said += [made.choices[0].message, {"role": "user", "content": "Go on."}]

        for _ in range(2):
            await asyncio.gather(*map(turn, clients, histories))
    texts = [served.session.chat.decode(ledger.ids) for ledger in served.trajectory.ledgers]
    assert sorted(text.count("Go on.") for text in texts) == [1, 1]
    assert [sum(word in text for text in texts) for word in ("One .", "Two .", "Three .", "Four .")] == [1, 1, 1, 1]
