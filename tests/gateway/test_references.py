"""Clients that send ids in the place of what the gateway knows: items of an answer, and threads."""

import asyncio
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.gateway.serving import ADD, serving
from tests.rollout.scripted import calls, says

CALL = "Let me see.\n" + calls("add", '{"a": 2, "b": 3}')
THOUGHT = "<think>\nTwo and three.\n</think>\n\nIt is 5."
TOOLS = [{"type": "function", **ADD}]


async def test_items_of_an_answer_may_be_named() -> None:
    async with serving(says(CALL, THOUGHT, "Yes .")) as served:
        client = openai.AsyncOpenAI(**served.openai)

        async def ask(said: list[Any]) -> list[Any]:
            return (await client.responses.create(model="m", input=said, tools=TOOLS)).output

        said: list[Any] = [{"role": "user", "content": "What is 2 + 3 ?"}]
        for result in ("5", None):
            output = await ask(said)
            said += [{"type": "item_reference", "id": item.id} for item in output]
            if result:
                said.append({"type": "function_call_output", "call_id": output[-1].call_id, "output": result})
        (answer,) = await ask([*said, {"role": "user", "content": "Sure ?"}])
        assert answer.content[0].text == "Yes ."
        with pytest.raises(openai.BadRequestError, match="this rollout has no item 'other'; send the item itself"):
            await ask([{"type": "item_reference", "id": "msg_other"}, {"role": "user", "content": "Sure ?"}])
    (ledger,) = served.trajectory.ledgers
    assert "It is 5." in served.session.chat.decode(ledger.ids)


@anthropic.beta_tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_runner_sends_its_new_messages_alone(stream: bool) -> None:
    async with serving(says(CALL, "It is 5.")) as served:
        client = anthropic.Anthropic(base_url=served.url, api_key="none")
        given: dict[str, Any] = {"model": "m", "max_tokens": 99, "system": "Add.", "tools": [add], "stream": stream}
        said = [{"role": "user", "content": "What is 2 + 3 ?"}]
        last = await asyncio.to_thread(lambda: client.beta.messages.tool_runner(messages=said, **given).until_done())
        assert last.content[0].text == "It is 5."
    (ledger,) = served.trajectory.ledgers
    text = served.session.chat.decode(ledger.ids)
    assert text.count("Add.") == 1
    assert served.trajectory.turns == 2


async def test_a_thread_goes_on_after_any_of_its_answers() -> None:
    async with (
        serving(says("One .", "Two .", "Other .")) as served,
        httpx.AsyncClient(base_url=served.url, timeout=None) as http,
    ):
        given = {"model": "m", "max_tokens": 99}

        async def ask(text: str, **thread: str) -> Any:
            said = {**given, "messages": [{"role": "user", "content": text}], "thread": thread}
            return (await http.post("/v1/messages", json=said)).json()

        first = await ask("Count.", type="create")
        for text, answer in (("Go on.", "Two ."), ("Go back.", "Other .")):
            made = await ask(text, type="continue", previous_message_id=first["id"])
            assert made["content"][0]["text"] == answer
        lost = await ask("Go on.", type="continue", previous_message_id="msg_other")
        assert (lost["error"]["type"], lost["error"]["details"]["error_code"]) == (
            "not_found_error",
            "thread_not_found",
        )
        assert (await ask("Go on.", type="continue"))["error"]["message"] == "thread.previous_message_id is missing"
    one, other = (served.session.chat.decode(ledger.ids) for ledger in served.trajectory.ledgers)
    assert ("Two ." in one, "Other ." in other, "One ." in other) == (True, True, True)
