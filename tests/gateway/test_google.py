"""Google's protocol: the real google-genai client, plain and streamed, with functions."""

import asyncio
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from agentrl.gateway import app
from agentrl.gateway.protocols import google
from agentrl.http.refusals import Refused
from tests.gateway.serving import Served, serving
from tests.rollout.scripted import calls, says

CALL = "Let me see.\n" + calls("add", '{"a": 2, "b": 3}') + "\n" + calls("add", '{"b": 1.0, "a": 4}')
PROPERTIES = {"a": {"type": "INTEGER", "nullable": True}, "type": {"type": "STRING"}}
THOUGHT = "<think>\nTwo and three.\n</think>\n\nIt is 5."


def client_of(served: Served) -> Any:
    return genai.Client(api_key="none", http_options={"base_url": served.url}).aio


async def post(url: str, body: dict[str, Any]) -> Any:
    async with httpx.AsyncClient(timeout=None) as http:
        answer = await http.post(url, json=body)
    return answer.json()


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_a_chat_that_calls_functions_by_itself_is_one_ledger() -> None:
    async with serving(says(CALL, "It is 5 and 5 .", THOUGHT)) as served:
        config = types.GenerateContentConfig(
            system_instruction="Add.", tools=[add], thinking_config={"include_thoughts": True}
        )
        chat = client_of(served).chats.create(model="gemini-2.5-flash", config=config)
        answer = await chat.send_message("What is 2 + 3 ?")
        assert (answer.text, answer.candidates[0].finish_reason) == ("It is 5 and 5 .", "STOP")
        streamed = [chunk async for chunk in await chat.send_message_stream("Sure ?")]
        assert [part.thought for chunk in streamed for part in chunk.candidates[0].content.parts] == [True, None]
        usage = streamed[-1].usage_metadata
        assert usage.cached_content_token_count > answer.usage_metadata.prompt_token_count
    (ledger,) = served.trajectory.ledgers
    env = served.session.env
    shown = env.chat.template.render(served.trajectory.messages, served.trajectory.schemas)
    assert env.chat.decode(ledger.ids) == shown.removesuffix("\n")


async def test_a_request_by_hand_is_read_in_either_spelling() -> None:
    async with serving(says(calls("add", '{"a": 2}'), "Fine .")) as served:
        declared = {"name": "add", "description": "Adds.", "parameters": {"type": "OBJECT", "properties": PROPERTIES}}
        asked: dict[str, Any] = {
            "system_instruction": {"parts": [{"text": "Add."}]},
            "contents": [{"parts": [{"text": "What is 2 + 3 ?"}]}],
            "tools": [{"function_declarations": [declared]}, {"googleSearch": {}}],
            "generation_config": {"stop_sequences": ["never"], "topK": 5, "max_output_tokens": 99},
            "safetySettings": [{}],
        }
        url = f"{served.url}/v1beta/models/org/name"
        first = (await post(f"{url}:generateContent", asked))["candidates"][0]["content"]
        result = {"functionResponse": {"name": "add", "response": {"output": {"sum": 5}}}}
        del first["parts"][0]["functionCall"]["id"]  # which some clients drop
        asked["contents"] += [first, {"role": "user", "parts": [result]}]
        count = await post(f"{url}:countTokens", {"generateContentRequest": asked})
        last = await post(f"{url}:generateContent", asked)
        assert count["totalTokens"] == last["usageMetadata"]["promptTokenCount"]
        served.session.end("done")
    assert served.trajectory.extra["gateway"]["unmet"] == {"tool google_search": 2, "top_k": 2}
    assert [m["content"] for m in served.trajectory.messages] == ["Add.", "What is 2 + 3 ?", "", '{"sum": 5}', "Fine ."]
    (schema,) = served.trajectory.schemas
    assert schema["function"]["parameters"]["properties"] == {
        "a": {"type": ["integer", "null"]},
        "type": {"type": "string"},
    }
    assert len(served.trajectory.ledgers) == 1


class Sum(BaseModel):
    total: int


async def test_log_probs_formats_and_allowed_functions() -> None:
    wrong = calls("add", '{"a": 2, "b": 3}')
    async with serving(says("5", '{"total": 5}', wrong, "All right .")) as served:
        ask = client_of(served).models.generate_content
        answer = await ask(model="m", contents="What is 2 + 3 ?", config={"response_logprobs": True})
        (candidate,) = answer.candidates
        assert [token.log_probability for token in candidate.logprobs_result.chosen_candidates] == [-0.25, -0.25]
        config: dict[str, Any] = {"response_mime_type": "application/json", "response_schema": Sum}
        assert (await ask(model="m", contents="What is 2 + 3 ?", config=config)).parsed == Sum(total=5)
        calling = {"mode": "VALIDATED", "allowed_function_names": ["sub"]}
        tools = [types.Tool(function_declarations=[{"name": name} for name in ("add", "sub")])]
        given = {"tools": tools, "tool_config": {"function_calling_config": calling}}
        assert (await ask(model="m", contents="What is 2 + 3 ?", config=given)).text == "All right ."
    (said,) = [message for message in served.trajectory.messages if message["role"] == "tool"]
    assert said["content"] == "Not allowed now. Allowed tools: sub."


async def test_errors_and_waiting_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "QUIET_SECONDS", 0.01)

    def late(key: str, turn: int) -> str:
        raise RuntimeError("no engine")

    async with serving(late) as served:
        generate = served.engine.generate

        async def slowly(*args: Any, **given: Any) -> Any:
            await asyncio.sleep(0.1)
            return await generate(*args, **given)

        served.engine.generate = slowly  # type: ignore[method-assign]
        models = client_of(served).models
        with pytest.raises(errors.ServerError, match="RuntimeError: no engine"):
            [chunk async for chunk in await models.generate_content_stream(model="m", contents="What ?")]
        for given, status, message in (
            ({"contents": "x " * 9999}, "INVALID_ARGUMENT", "exceeds the maximum number of tokens allowed"),
            ({"contents": "x", "config": {"candidate_count": 2}}, "INVALID_ARGUMENT", "candidateCount above 1"),
            ({"contents": "x", "config": {"tools": [{"google_search": {}}]}}, "INVALID_ARGUMENT", "google_search runs"),
            (
                {"contents": types.Part.from_uri(file_uri="gs://x", mime_type="image/png")},
                "INVALID_ARGUMENT",
                "file_data",
            ),
        ):
            with pytest.raises(errors.ClientError, match=message) as refused:
                await models.generate_content(model="m", **given)
            assert refused.value.status == status
        assert [model.name async for model in await models.list()] == ["models/policy"]
        lost = await post(f"{served.url}/v1beta/models/m:embedContent", {"contents": [{}]})
        assert lost["error"]["status"] == "NOT_FOUND"


def test_images_are_read_in_either_alphabet_and_kept_with_results() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "-_8="}}
    result = {"functionResponse": {"name": "see", "response": {"error": "dark"}, "parts": [image]}}
    request = google.read({"contents": [{"role": "function", "parts": [result, image, {"text": "Look."}]}]})
    shown = {"type": "image", "image": "data:image/png;base64,+/8="}
    answer, rest = request.conversation.since(0)
    assert (answer["name"], answer["content"]) == ("see", [{"type": "text", "text": '{"error": "dark"}'}, shown])
    assert rest == {"role": "user", "content": [shown, {"type": "text", "text": "Look."}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"contents": [{"parts": 1}]}, r"contents\[0\].parts: expected a list, got 1"),
        ({"contents": [{"role": ["user"], "parts": []}]}, r"contents\[0\].role: "),
        ({"contents": [{"parts": [{"fileData": {}}]}]}, r"contents\[0\].parts\[0\].file_data: not served; use text"),
        ({"contents": [{"parts": [{"text": 5}]}]}, "text: expected a string, got 5"),
        ({"contents": []}, "contents: give at least one"),
        ({"contents": [{}], "generationConfig": [1]}, "generation_config: expected an object"),
        ({"contents": [{}], "generationConfig": {"responseMimeType": "text/x.enum"}}, "'text/x.enum' is not served"),
        ({"contents": [{}], "tools": [{"functionDeclarations": [{}]}]}, r"declarations\[0\].name is missing"),
        ({"contents": [{}], "cachedContent": "x"}, "cachedContent are not served"),
    ],
)
def test_mistakes_are_named_in_a_line(body: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        google.read(body).conversation.since(0)
