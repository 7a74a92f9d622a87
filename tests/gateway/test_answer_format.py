"""A response format: the prompt states it; a wrong answer is asked for again, in the same ledger, by own tokens."""

from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.gateway.serving import ADD, TOOL, serving
from tests.rollout.scripted import calls, says


class Sum(BaseModel):
    sum: int


QUESTION: list[Any] = [{"role": "user", "content": "What is 2 + 3 ?"}]
WISHES: dict[str, Any] = {"model": "m", "messages": QUESTION}
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}


async def test_an_answer_that_does_not_fit_is_asked_for_again() -> None:
    async with serving(says("It is 5 .", '{"sum": "5"}', '```json\n{"sum": 5}\n```', '{"sum": 6}')) as served:
        client = openai.AsyncOpenAI(**served.openai)
        first = await client.chat.completions.parse(**WISHES, response_format=Sum)
        assert first.choices[0].message.parsed == Sum(sum=5)
        said = [*QUESTION, {"role": "assistant", "content": '{"sum": 5}'}, {"role": "user", "content": "Sure ?"}]
        second = await client.chat.completions.parse(model="m", messages=said, response_format=Sum)
        assert second.choices[0].message.parsed == Sum(sum=6)
        served.session.end("done")
    (ledger,) = served.trajectory.ledgers
    assert (served.trajectory.turns, served.trajectory.extra["gateway"]) == (4, {"requests": 2, "ledgers": 1})
    told = [str(message["content"]) for message in served.trajectory.messages if message["role"] == "user"]
    assert [text.partition(":")[0].partition("{")[0] for text in told] == [
        "What is 2 + 3 ?",
        "Write nothing but JSON that fits this schema",
        "The answer does not fit",
        "The answer does not fit",
        "Sure ?",
    ]
    assert "it is no JSON" in told[2]
    assert "$.sum: '5' is not of type 'integer'." in told[3]
    shown = served.session.chat.template.render(served.trajectory.messages, [])
    assert served.session.chat.decode(ledger.ids) == shown.removesuffix("\n")


async def test_calls_and_the_last_attempt_are_passed_on() -> None:
    call = calls("add", '{"a": 2, "b": 3}')
    async with serving(says(call, "5", "five", "It is 5 .", '{"a": 1}')) as served:
        client = openai.AsyncOpenAI(**served.openai)
        items: list[Any] = [{"role": "user", "content": "What is 2 + 3 ?"}]
        form: Any = {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}}
        tools: Any = [{"type": "function", **ADD}]
        asked = await client.responses.create(model="m", input=items, text=form, tools=tools)
        assert [item.type for item in asked.output] == ["function_call"]
        last = await client.responses.create(model="m", input=items, text=form, tools=tools, stream=True)
        assert [event async for event in last][-1].response.output_text == "It is 5 ."
        free = await client.chat.completions.create(**WISHES, tools=[TOOL], response_format={"type": "json_object"})
        assert free.choices[0].message.content == '{"a": 1}'
        served.session.end("done")
    assert served.trajectory.extra["gateway"]["unmet"] == {"response_format": 1}


async def test_the_turn_limit_ends_the_attempts() -> None:
    async with serving(says("five", "5"), assistant_turns=2) as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="none")
        extra = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
        answer = await client.messages.create(model="m", max_tokens=9, messages=QUESTION, extra_body=extra)
        assert answer.content[0].text == "5"
    assert served.trajectory.turns == 2


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"type": "grammar"}, "response_format.type: 'grammar' is not served; use text, json_object or json_schema"),
        ({"type": "json_schema"}, "response_format: json_schema needs the field schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": {"type": 5}}},
            "response_format: the schema cannot be used: type is 5",
        ),
    ],
)
async def test_a_wrong_format_is_refused(wish: Any, message: str) -> None:
    async with serving(says("x")) as served:
        client = openai.AsyncOpenAI(**served.openai, max_retries=0)
        with pytest.raises(openai.BadRequestError, match=message):
            await client.chat.completions.create(**WISHES, response_format=wish)
    assert not served.trajectory.ledgers
