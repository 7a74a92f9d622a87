"""The real openai and anthropic clients, plain and streamed, with tools."""

import json
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.serving import ADD, TOOL, serving
from tests.rollout.scripted import calls, says

CALL = "Let me see.\n" + calls("add", '{"a": 2, "b": 3}') + "\n" + calls("add", '{"b": 1.0, "a": 4}')
THOUGHT = "<think>\nTwo and three.\n</think>\n\nIt is 5."


async def test_chat_completions_with_tools_stay_in_one_ledger() -> None:
    async with serving(says(CALL, "The answer is 5 .")) as served:
        client = openai.AsyncOpenAI(**served.openai)
        messages = [{"role": "developer", "content": "Add."}, {"role": "user", "content": "What is 2 + 3 ?"}]
        first = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
        assert first.choices[0].finish_reason == "tool_calls"
        asked = first.choices[0].message
        assert (asked.content, [json.loads(c.function.arguments)["a"] for c in asked.tool_calls]) == (
            "Let me see.",
            [2, 4],
        )
        assert asked.tool_calls[0].id != asked.tool_calls[1].id
        messages.append(asked.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": c.id, "content": "5"} for c in asked.tool_calls]
        last = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL], logprobs=True)
        assert last.choices[0].message.content == "The answer is 5 ."
        assert [t.logprob for t in last.choices[0].logprobs.content] == [-0.25] * last.usage.completion_tokens
        assert last.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens
    (ledger,) = served.trajectory.ledgers
    prompts = served.engine.prompts["k"]
    assert prompts[1][: len(prompts[0])] == prompts[0]
    assert ledger.ids[: len(prompts[1])] == prompts[1]
    # What the policy saw is the template's own rendering of the conversation, to the letter.
    env = served.session.env
    shown = env.chat.template.render(served.trajectory.messages, served.trajectory.schemas)
    assert env.chat.decode(ledger.ids) == shown.removesuffix("\n")
    assert (served.trajectory.turns, served.trajectory.templated) == (2, True)
    assert [(call.turn, call.name, call.outcome) for call in served.trajectory.tool_calls] == [(0, "add", "ok")] * 2


async def test_a_malformed_call_reaches_the_program_as_text_and_is_counted() -> None:
    async with serving(says(calls("add", '{"a": 2'))) as served:
        said = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3 ?"}], "tools": [TOOL]}
        answer = await openai.AsyncOpenAI(**served.openai).chat.completions.create(**said)
    assert not answer.choices[0].message.tool_calls
    assert "<tool_call>" in answer.choices[0].message.content
    assert [call.outcome for call in served.trajectory.tool_calls] == ["model_error"]


async def test_a_streamed_chat_is_the_same() -> None:
    async with serving(says(CALL, THOUGHT)) as served:
        client = openai.AsyncOpenAI(**served.openai)
        said = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3 ?"}], "tools": [TOOL]}
        async with client.chat.completions.stream(**said, stream_options={"include_usage": True}) as stream:
            final = await stream.get_final_completion()
        assert [c.function.name for c in final.choices[0].message.tool_calls] == ["add", "add"]
        assert final.usage.completion_tokens == sum(served.trajectory.ledgers[0].mask)
        final = await client.chat.completions.create(**said, stream=True)
        chunks = [chunk.choices[0].delta async for chunk in final]
        assert "".join(chunk.content or "" for chunk in chunks) == "It is 5."
        assert "".join(getattr(chunk, "reasoning_content", "") for chunk in chunks) == "Two and three."


async def test_responses_plain_and_streamed() -> None:
    async with serving(says(CALL, "The answer is 5 .")) as served:
        client = openai.AsyncOpenAI(**served.openai)
        said = [{"role": "user", "content": [{"type": "input_text", "text": "What is 2 + 3 ?"}]}]
        tools = [{"type": "function", "strict": False, **ADD}, {"type": "web_search"}]
        first = await client.responses.create(model="m", input=said, tools=tools, store=False, instructions="Add.")
        assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
        said += [item.model_dump() for item in first.output]
        said += [{"type": "function_call_output", "call_id": item.call_id, "output": "5"} for item in first.output[1:]]
        events = await client.responses.create(model="m", input=said, tools=tools, instructions="Add.", stream=True)
        seen = [event async for event in events]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].type == "response.completed"
        assert seen[-1].response.output_text == "The answer is 5 ."
        assert (
            "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "The answer is 5 ."
        )
        served.session.end("done")
    assert len(served.trajectory.ledgers) == 1
    assert served.trajectory.extra["gateway"]["unmet"] == {"tool web_search": 2}


async def test_reasoning_is_an_item_of_its_own() -> None:
    async with serving(says(THOUGHT, "Yes .")) as served:
        client = openai.AsyncOpenAI(**served.openai)
        async with client.responses.stream(model="m", input="What is 2 + 3 ?") as stream:
            kinds = [event.type async for event in stream]
            made = await stream.get_final_response()
        assert [item.type for item in made.output] == ["reasoning", "message"]
        assert (made.output[0].content[0].text, made.output_text) == ("Two and three.", "It is 5.")
        assert kinds.count("response.reasoning_text.delta") == kinds.count("response.reasoning_text.done") == 1
        said = [{"role": "user", "content": "What is 2 + 3 ?"}, *made.output, {"role": "user", "content": "Sure ?"}]
        await client.responses.create(model="m", input=said, store=False, include=["reasoning.encrypted_content"])
    assert len(served.trajectory.ledgers) == 1


PATCH = {"type": "custom", "name": "patch", "description": "Applies a patch."}


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_follow_an_answer_by_its_id(stream: bool) -> None:
    written = calls("patch", '{"input": "*** a\\n+ b"}')
    async with serving(says(written, "Done .", "Otherwise .")) as served:
        client = openai.AsyncOpenAI(**served.openai)

        async def ask(**given: Any) -> Any:
            made = await client.responses.create(model="m", tools=[PATCH], stream=stream, **given)
            if not stream:
                return made
            events = [event async for event in made]
            deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
            assert "".join(deltas) == "".join(
                item.input for item in events[-1].response.output if item.type == "custom_tool_call"
            )
            return events[-1].response

        first = await ask(input="Patch it.", instructions="Be brief.")
        (asked,) = first.output
        assert (asked.type, asked.name, asked.input) == ("custom_tool_call", "patch", "*** a\n+ b")
        result = [{"type": "custom_tool_call_output", "call_id": asked.call_id, "output": "applied"}]
        second = await ask(input=result, previous_response_id=first.id, instructions="Be brief.")
        assert (second.output_text, second.previous_response_id) == ("Done .", first.id)
        assert len(served.trajectory.ledgers) == 1
        other = await ask(input=result, previous_response_id=first.id, instructions="Be long.")
        assert other.output_text == "Otherwise ."
    one, two = (served.session.chat.decode(ledger.ids) for ledger in served.trajectory.ledgers)
    assert "Be brief." in one
    assert "Be long." in two
    assert "applied" in two
    assert "Be brief." not in two


async def test_a_required_call_is_begun_for_the_model() -> None:
    script = says('"a": 2, "b": 3}}</tool_call>', 'add", "arguments": {"b": 1}}</tool_call>', "Done .")
    async with serving(script) as served:
        client = openai.AsyncOpenAI(**served.openai)
        other = anthropic.AsyncAnthropic(base_url=served.url, api_key="none")
        said: list[Any] = [{"role": "user", "content": "What is 2 + 3 ?"}]
        named = {"type": "function", "function": {"name": "add"}}
        first = await client.chat.completions.create(model="m", messages=said, tools=[TOOL], tool_choice=named)
        (call,) = first.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 3})
        tools = [{"name": "add", "input_schema": ADD["parameters"]}]
        given: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": said, "tools": tools}
        block = (await other.messages.create(**given, tool_choice={"type": "any"})).content[0]
        assert (block.type, block.name, block.input) == ("tool_use", "add", {"b": 1})
        said += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
        await client.chat.completions.create(model="m", messages=said, tools=[TOOL])
        named = {"type": "function", "function": {"name": "sub"}}
        with pytest.raises(openai.BadRequestError, match="tool_choice: no tool is named 'sub'"):
            await client.chat.completions.create(model="m", messages=said, tools=[TOOL], tool_choice=named)
    ledgers, env_chat = served.trajectory.ledgers, served.session.chat
    assert env_chat.decode(ledgers[0].turn_ids()[0]) == '"a": 2, "b": 3}}</tool_call><|im_end|>'
    shown = env_chat.template.render(served.trajectory.messages, served.trajectory.schemas)
    assert env_chat.decode(ledgers[0].ids) == shown.removesuffix("\n")


async def test_anthropic_messages_plain_streamed_and_counted() -> None:
    async with serving(says(CALL, THOUGHT, "The answer is 5 .")) as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="none")
        tools = [{"name": "add", "description": ADD["description"], "input_schema": ADD["parameters"]}]
        said = [{"role": "user", "content": "What is 2 + 3 ?"}]
        marked = {"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}}
        given = {"model": "m", "tools": tools, "max_tokens": 200}
        first = await client.messages.create(**given, messages=said, system=[marked])
        assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
        assert first.stop_reason == "tool_use"
        said.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "5"} for block in first.content[1:]]
        said.append({"role": "user", "content": [*results, {**marked, "text": "Go on."}]})
        counted = await client.messages.count_tokens(model="m", tools=tools, messages=said, system="Add.")
        thinking = {"type": "enabled", "budget_tokens": 1024}
        async with client.messages.stream(**given, messages=said, system="Add.", thinking=thinking) as stream:
            second = await stream.get_final_message()
        assert [block.type for block in second.content] == ["thinking", "text"]
        usage = second.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
        # The next turn without the thinking, and a system message in the middle.
        said.append({"role": "assistant", "content": "It is 5."})
        said.append({"role": "system", "content": "Be brief."})
        said.append({"role": "user", "content": "Sure?"})
        last = await client.messages.create(**given, messages=said, system="Add.")
        assert (last.stop_reason, last.content[0].text) == ("end_turn", "The answer is 5 .")
    assert len(served.trajectory.ledgers) == 1


async def test_stop_strings_and_most_tokens_end_an_answer() -> None:
    async with serving(says("One two three four", "One two three four")) as served:
        client = openai.AsyncOpenAI(**served.openai)
        said = {"model": "m", "messages": [{"role": "user", "content": "Count."}]}
        stopped = await client.chat.completions.create(**said, stop=["three"])
        assert (stopped.choices[0].message.content.strip(), stopped.choices[0].finish_reason) == ("One two", "stop")
        cut = await client.chat.completions.create(**said, max_completion_tokens=2)
        assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 2)
    texts = [served.session.chat.decode(ledger.ids) for ledger in served.trajectory.ledgers]
    assert texts[0].endswith("One two three")


async def test_token_ids_and_log_probs_reach_a_client_that_asks() -> None:
    async with serving(says("One...", " two...", "", "One two", "One two", "One")) as served:
        generate = served.engine.generate

        async def with_candidates(ids: Any, sampling: Any, **given: Any) -> Any:
            made = await generate(ids, sampling, **given)
            return replace(made, candidates=((7, -0.5), (9, -1.0))[: sampling.candidates])

        served.engine.generate = with_candidates  # type: ignore[method-assign]
        client = openai.AsyncOpenAI(**served.openai)
        other = anthropic.AsyncAnthropic(base_url=served.url, api_key="none")
        said: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}]}
        ids: dict[str, Any] = {"extra_body": {"return_token_ids": True}}
        first = await client.chat.completions.create(**said, logprobs=True, top_logprobs=2, **ids)
        (choice,) = first.choices
        assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * first.usage.completion_tokens
        assert {sampling.max_new_tokens for sampling in served.engine.asked} == {1}
        found = [(first.prompt_token_ids, choice.token_ids)]
        chunks = [chunk async for chunk in await client.chat.completions.create(**said, **ids, stream=True)]
        found.append((chunks[0].prompt_token_ids, chunks[0].choices[0].token_ids))
        for made in (
            await client.responses.create(model="m", input="Count.", **ids),
            await other.messages.create(**said, max_tokens=99, **ids),
        ):
            found.append((made.prompt_token_ids, made.token_ids))
    written = [(ledger.ids, ledger.turn_ids()) for ledger in served.trajectory.ledgers]
    assert [prompt + ids for prompt, ids in found] == [ids for ids, _ in written]
    assert [ids for _, ids in found] == [list(*turns.values()) for _, turns in written]


async def test_a_choice_of_allowed_tools_is_kept() -> None:
    add, sub = calls("add", "{}"), calls("sub", "{}")
    async with serving(says(sub, add, sub, sub, sub, '"a": 2, "b": 3}}</tool_call>')) as served:
        client = openai.AsyncOpenAI(**served.openai)
        names = [{"type": "function", "function": {"name": "add"}}]
        tools = [TOOL, {"type": "function", "function": {"name": "sub"}}]
        ask: dict[str, Any] = {
            "model": "m",
            "messages": [{"role": "user", "content": "What is 2 + 3 ?"}],
            "tools": tools,
        }
        choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
        first = await client.chat.completions.create(**ask, tool_choice=choice)
        assert [call.function.name for call in first.choices[0].message.tool_calls] == ["add"]
        flat: Any = [{"type": "function", **tool["function"]} for tool in tools]
        only: Any = {"type": "allowed_tools", "mode": "auto", "tools": flat[:1]}
        never = await client.responses.create(model="m", input="What ?", tools=flat, tool_choice=only)
        assert never.output[0].name == "sub"
        choice["allowed_tools"]["mode"] = "required"
        last = await client.chat.completions.create(**ask, tool_choice=choice)
        assert json.loads(last.choices[0].message.tool_calls[0].function.arguments) == {"a": 2, "b": 3}
        served.session.end("done")
    assert served.trajectory.extra["gateway"]["unmet"] == {"tool_choice": 1}
