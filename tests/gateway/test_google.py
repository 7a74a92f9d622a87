"""Google's protocol: the real google-genai client, plain and streamed, with functions."""

from typing import Any

from google import genai
from google.genai import types

from tests.gateway.serving import Served, serving
from tests.rollout.scripted import calls, says

CALL = "Let me see.\n" + calls("add", '{"a": 2, "b": 3}') + "\n" + calls("add", '{"b": 1.0, "a": 4}')
THOUGHT = "<think>\nTwo and three.\n</think>\n\nIt is 5."


def client_of(served: Served) -> Any:
    return genai.Client(api_key="none", http_options={"base_url": served.url}).aio


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
